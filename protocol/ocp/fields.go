package ocp

import "strconv"

// field is a member of a record on the wire, for reading and writing alike.
type field[T any] struct {
	name string
	// in are the families that have the member; others pass over it and do not write
	// it.
	in Family
	// needed are the families whose decoders refuse a record without it.
	needed Family
	read   func(*reader, *T) error
	// write appends the value. It is false for a value that is left out.
	write func(*writer, *T) bool
	// fault says why a value may not be written, "" if it may; nil is no rule.
	fault func(*T, Family) string
}

const both = FamilyOCP | FamilyContextgraph

// unless adds a rule for what is written.
func (f field[T]) unless(fault func(*T, Family) string) field[T] {
	f.fault = fault
	return f
}

// These make the fields of the tables. get returns where a record has the value.

// text is a text that must be there and is never written empty.
func text[T any, S ~string](name string, in Family, get func(*T) *S) field[T] {
	return field[T]{
		name: name, in: in, needed: in,
		read: func(r *reader, rec *T) error { return readText(r, get(rec)) },
		write: func(w *writer, rec *T) bool {
			w.text(string(*get(rec)))
			return true
		},
	}.unless(func(rec *T, _ Family) string {
		if *get(rec) == "" {
			return "is empty"
		}
		return ""
	})
}

// optionalText is a text whose absence and null are "", which is not written.
func optionalText[T any, S ~string](name string, in Family, get func(*T) *S) field[T] {
	return field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) error {
			if r.null() {
				return r.token()
			}
			return readText(r, get(rec))
		},
		write: func(w *writer, rec *T) bool {
			if *get(rec) == "" {
				return false
			}
			w.text(string(*get(rec)))
			return true
		},
	}
}

// texts is a list of texts. omit leaves an empty one out.
func texts[T any, S ~string](name string, in Family, omit bool, get func(*T) *[]S) field[T] {
	return field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) (err error) {
			*get(rec), err = readList(r, readText[S])
			return err
		},
		write: func(w *writer, rec *T) bool {
			list := *get(rec)
			if omit && len(list) == 0 {
				return false
			}
			writeList(w, list, func(w *writer, v *S) { w.text(string(*v)) })
			return true
		},
	}
}

// numbers is an optional list of numbers, null and empty being absent.
func numbers[T any](name string, in Family, get func(*T) *[]float32) field[T] {
	return field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) (err error) {
			if r.null() {
				return r.token()
			}
			*get(rec), err = readList(r, readFloat)
			return err
		},
		write: func(w *writer, rec *T) bool {
			list := *get(rec)
			if len(list) == 0 {
				return false
			}
			writeList(w, list, func(w *writer, v *float32) { w.float(*v) })
			return true
		},
	}
}

func flag[T any](name string, in Family, get func(*T) *bool) field[T] {
	return field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) error { return readBool(r, get(rec)) },
		write: func(w *writer, rec *T) bool {
			w.buf = strconv.AppendBool(w.buf, *get(rec))
			return true
		},
	}
}

// needFlag is a flag that must be there.
func needFlag[T any](name string, in Family, get func(*T) *bool) field[T] {
	f := flag(name, in, get)
	f.needed = in
	return f
}

func uint32Of[T any](name string, in Family, get func(*T) *uint32) field[T] {
	return field[T]{
		name: name, in: in, needed: in,
		read: func(r *reader, rec *T) error { return readUint32(r, get(rec)) },
		write: func(w *writer, rec *T) bool {
			w.buf = strconv.AppendUint(w.buf, uint64(*get(rec)), 10)
			return true
		},
	}
}

// optionalUint32 is a number whose absence and null are nil.
func optionalUint32[T any](name string, in Family, get func(*T) **uint32) field[T] {
	return field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) error {
			if r.null() {
				return r.token()
			}
			*get(rec) = new(uint32)
			return readUint32(r, *get(rec))
		},
		write: func(w *writer, rec *T) bool {
			if *get(rec) == nil {
				return false
			}
			w.buf = strconv.AppendUint(w.buf, uint64(**get(rec)), 10)
			return true
		},
	}
}

// record is a record within another.
func record[T, N any](name string, in Family, needed bool, fields []field[N], get func(*T) *N) field[T] {
	f := field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) error { return readRecord(r, fields, get(rec)) },
		write: func(w *writer, rec *T) bool {
			writeRecord(w, fields, get(rec))
			return true
		},
	}
	if needed {
		f.needed = in
	}
	return f
}

// optionalRecord is a record whose absence and null are nil.
func optionalRecord[T, N any](name string, in Family, fields []field[N], get func(*T) **N) field[T] {
	return field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) error {
			if r.null() {
				return r.token()
			}
			*get(rec) = new(N)
			return readRecord(r, fields, *get(rec))
		},
		write: func(w *writer, rec *T) bool {
			if *get(rec) == nil {
				return false
			}
			writeRecord(w, fields, *get(rec))
			return true
		},
	}
}

// records is a list of records, written also when it is empty.
func records[T, N any](name string, in Family, needed bool, fields []field[N], get func(*T) *[]N) field[T] {
	f := field[T]{
		name: name, in: in,
		read: func(r *reader, rec *T) (err error) {
			*get(rec), err = readList(r, func(r *reader, v *N) error { return readRecord(r, fields, v) })
			return err
		},
		write: func(w *writer, rec *T) bool {
			writeList(w, *get(rec), func(w *writer, v *N) { writeRecord(w, fields, v) })
			return true
		},
	}
	if needed {
		f.needed = in
	}
	return f
}
