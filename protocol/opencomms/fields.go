package opencomms

import (
	"bytes"
	"encoding/json"
)

// These make the fields of the tables. get returns where a record has the value.

func textOf[T any](name string, r rule, get func(*T) *string) field[T] {
	return field[T]{
		name: name, rule: r, want: "string",
		read: func(s *scanner, rec *T) (ok bool) {
			*get(rec), ok = readText(s)
			return ok
		},
		write: func(dst []byte, rec *T, _ string, _ int) []byte { return appendString(dst, *get(rec)) },
	}
}

// nullTextOf is a text whose zero value is null.
func nullTextOf[T any](name string, r rule, get func(*T) *string) field[T] {
	f := textOf(name, r, get)
	write := f.write
	f.read = func(s *scanner, rec *T) bool {
		*get(rec), _ = readText(s)
		return true // only an absent one is filled
	}
	f.write = func(dst []byte, rec *T, old string, depth int) []byte {
		if *get(rec) == "" {
			return append(dst, "null"...)
		}
		return write(dst, rec, old, depth)
	}
	return f
}

// numberOf is an integer; value is what it is when there is none.
func numberOf[T any, N int | int64](name string, r rule, value N, get func(*T) *N) field[T] {
	return field[T]{
		name: name, rule: r, want: "number",
		read: func(s *scanner, rec *T) bool {
			n, finite, ok := readNumber(s)
			if ok = ok && (finite || r != filled); !ok {
				*get(rec) = value
				return false
			}
			*get(rec) = N(n)
			return true
		},
		write: func(dst []byte, rec *T, _ string, _ int) []byte { return appendNumber(dst, int64(*get(rec))) },
	}
}

// nullNumberOf is an integer whose zero value is null.
func nullNumberOf[T any, N int | int64](name string, r rule, get func(*T) *N) field[T] {
	f := numberOf(name, r, 0, get)
	read, write := f.read, f.write
	f.read = func(s *scanner, rec *T) bool {
		null := s.kind() == 'n'
		return read(s, rec) || null
	}
	f.write = func(dst []byte, rec *T, old string, depth int) []byte {
		if *get(rec) == 0 {
			return append(dst, "null"...)
		}
		return write(dst, rec, old, depth)
	}
	return f
}

// boundOf is a nullNumber of a budget. There zero is no bound, so that a bound which
// leaves nothing, as no program writes it, becomes the smallest that is one.
func boundOf[T any, N int | int64](name string, get func(*T) *N) field[T] {
	f := nullNumberOf(name, filled, get)
	read := f.read
	f.read = func(s *scanner, rec *T) bool {
		null := s.kind() == 'n'
		ok := read(s, rec)
		if ok && !null {
			*get(rec) = max(*get(rec), 1)
		}
		return ok
	}
	return f
}

func flagOf[T any](name string, r rule, get func(*T) *bool) field[T] {
	return field[T]{
		name: name, rule: r, want: "boolean",
		read: func(s *scanner, rec *T) bool {
			*get(rec), _ = readTruth(s)
			return true // only an absent one is filled
		},
		write: func(dst []byte, rec *T, _ string, _ int) []byte {
			if *get(rec) {
				return append(dst, "true"...)
			}
			return append(dst, "false"...)
		},
	}
}

func numbersOf[T any](name string, r rule, get func(*T) *Ordered[int64]) field[T] {
	return field[T]{
		name: name, rule: r, want: "object",
		read: func(s *scanner, rec *T) (ok bool) {
			*get(rec), ok = readNumbers(s)
			return ok
		},
		write: func(dst []byte, rec *T, _ string, depth int) []byte { return appendNumbers(dst, get(rec), depth) },
	}
}

// nestedOf is an object that is a struct of its own.
func nestedOf[T, N any](name string, r rule, fields []field[N], get func(*T) *N) field[T] {
	return field[T]{
		name: name, rule: r, want: "object",
		read: func(s *scanner, rec *T) bool {
			var v N
			defer func() { *get(rec) = v }()
			if s.kind() != '{' {
				s.value()
				return false
			}
			_, bad, _ := readRecord(s, fields, &v)
			return !toFill(fields, bad)
		},
		write: func(dst []byte, rec *T, old string, depth int) []byte {
			return appendRecord(dst, fields, get(rec), old, depth)
		},
	}
}

// pointerOf is a nested object that may be absent; anything else than an object is no
// such object.
func pointerOf[T, N any](name string, r rule, fields []field[N], get func(*T) **N) field[T] {
	return field[T]{
		name: name, rule: r, want: "object",
		read: func(s *scanner, rec *T) bool {
			*get(rec) = nil
			if s.kind() != '{' {
				s.value()
				return false
			}
			v := new(N)
			readRecord(s, fields, v)
			*get(rec) = v
			return true
		},
		write: func(dst []byte, rec *T, old string, depth int) []byte {
			v := *get(rec)
			if v == nil {
				return dst
			}
			return appendRecord(dst, fields, v, old, depth)
		},
	}
}

// rawOf is a value that is passed on.
func rawOf[T any](name string, get func(*T) *json.RawMessage) field[T] {
	return field[T]{
		name: name, rule: optional,
		read: func(s *scanner, rec *T) bool {
			*get(rec) = json.RawMessage(s.value())
			return true
		},
		write: func(dst []byte, rec *T, old string, depth int) []byte {
			v := *get(rec)
			if len(v) == 0 || string(v) == old {
				return append(dst, v...)
			}
			var b bytes.Buffer
			if err := json.Indent(&b, bytes.TrimSpace(v), blanks[:2*depth], "  "); err != nil {
				return dst // validate has refused it
			}
			return append(dst, b.Bytes()...)
		},
	}
}
