package opencomms

import (
	"math"
	"strconv"
)

// A record is an object of the file that is a struct here. Its table of fields says
// how each is read and written; what the table does not name stays as it is.
//
// Nothing notes what was changed. A record keeps its text, and when it is written
// each field is compared with what stands there: the same bytes, or other bytes that
// read as the same value, stay.

// kept is what a record had in the file.
type kept struct {
	text string // its text; "" of a new one
	// fill is set when the text lacks what reading filled in: it is written although
	// nobody changed the record.
	fill bool
}

// rule says what becomes of a field that is absent or not what it should be.
type rule uint8

const (
	lazy     rule = iota // absent is the zero value, and stays absent until it is another
	filled               // has a default, which is written
	must                 // makes the file invalid
	mustV2               // the same, but not in a file of version 1
	optional             // a value that writes nothing is absent
)

// field is a field of the record T.
type field[T any] struct {
	name string
	rule rule
	want string // what must be there, for the error
	// read takes the value, and reports whether it is what the field holds; if not,
	// the field gets its default.
	read func(s *scanner, r *T) bool
	// write appends the value. old is its text in the file, for what keeps unknown
	// members of its own.
	write func(dst []byte, r *T, old string, depth int) []byte
}

// lookup finds a field, most likely the one at guess: files have them in order.
func lookup[T any](fields []field[T], name string, guess int) int {
	if guess < len(fields) && fields[guess].name == name {
		return guess
	}
	for i := range fields {
		if fields[i].name == name {
			return i
		}
	}
	return -1
}

// readRecord reads a record whose fields have their defaults. The second result has
// a bit for each field that is absent or not what it should be; the third counts
// members that the table does not name.
func readRecord[T any](s *scanner, fields []field[T], r *T) (text string, bad uint32, unknown int) {
	s.kind()
	start := s.at
	bad = 1<<len(fields) - 1
	i := -1
	for ok := s.enter('{', '}'); ok; ok = s.more('}') {
		key := s.key()
		at := lookup(fields, key, i+1)
		if at < 0 {
			unknown++
			s.value()
			continue
		}
		i = at
		if fields[i].read(s, r) {
			bad &^= 1 << i
		} else {
			bad |= 1 << i
		}
	}
	if s.err != nil {
		return "", bad, unknown
	}
	return s.text[start:s.at], bad, unknown
}

// missing returns the first field without which a record is invalid.
func missing[T any](s *scanner, fields []field[T], bad uint32) *InvalidError {
	for i := range fields {
		f := &fields[i]
		if bad&(1<<i) != 0 && (f.rule == must || f.rule == mustV2 && s.version != 1) {
			return &InvalidError{Path: f.name, Reason: "no " + f.want}
		}
	}
	return nil
}

// toFill reports whether something bad has a default that is to be written.
func toFill[T any](fields []field[T], bad uint32) bool {
	for i := range fields {
		if bad&(1<<i) != 0 && fields[i].rule == filled {
			return true
		}
	}
	return false
}

// appendRecord writes a record over its old text; without one as a new record.
// Where nothing changed the old text stays, byte for byte. Where something did, the
// record is laid out anew, and the texts of its other members stay.
func appendRecord[T any](dst []byte, fields []field[T], r *T, old string, depth int) []byte {
	start := len(dst)
	dst = appendNew(dst, fields, r, depth)
	if !isObject(old) || string(dst[start:]) == old {
		return dst
	}
	return patchRecord(dst[:start], fields, r, old, depth)
}

// appendNew writes a new record.
func appendNew[T any](dst []byte, fields []field[T], r *T, depth int) []byte {
	dst = append(dst, '{')
	first := true
	for i := range fields {
		before := len(dst)
		dst = appendKey(dst, first, depth+1, fields[i].name)
		value := len(dst)
		if dst = fields[i].write(dst, r, "", depth+1); len(dst) == value {
			dst = dst[:before]
			continue
		}
		first = false
	}
	return appendClose(dst, first, depth, '}')
}

// patchRecord writes a record that differs from its old text.
func patchRecord[T any](dst []byte, fields []field[T], r *T, old string, depth int) []byte {
	start := len(dst)
	dst = append(dst, '{')
	first, changed := true, false
	var seen uint32
	members := splitMembers(old)
	at := -1
	for key, text := range members.All() {
		before := len(dst)
		dst = appendKey(dst, first, depth+1, key)
		i := lookup(fields, key, at+1)
		if i < 0 {
			dst = append(dst, text...)
			first = false
			continue
		}
		at = i
		seen |= 1 << i
		f := &fields[i]
		value := len(dst)
		dst = f.write(dst, r, text, depth+1)
		switch {
		case string(dst[value:]) == text:
		case sameValue(f, text, dst[value:], depth+1):
			dst = append(dst[:value], text...)
		case len(dst) == value: // it is gone
			dst = dst[:before]
			changed = true
			continue
		default:
			changed = true
		}
		first = false
	}
	for i := range fields {
		if seen&(1<<i) != 0 {
			continue
		}
		f := &fields[i]
		before := len(dst)
		dst = appendKey(dst, first, depth+1, f.name)
		value := len(dst)
		dst = f.write(dst, r, "", depth+1)
		if len(dst) == value || f.rule == lazy && isZero(f, dst[value:], depth+1) {
			dst = dst[:before]
			continue
		}
		first, changed = false, true
	}
	if !changed {
		return append(dst[:start], old...)
	}
	return appendClose(dst, first, depth, '}')
}

// sameValue reports whether the text of a field, although of other bytes than what
// would be written, says the same.
func sameValue[T any](f *field[T], text string, written []byte, depth int) bool {
	var r T
	ok := f.read(&scanner{text: text}, &r)
	if !ok && f.rule == filled {
		return false
	}
	return string(f.write(nil, &r, "", depth)) == string(written)
}

// isZero reports whether the zero value is written so.
func isZero[T any](f *field[T], written []byte, depth int) bool {
	var r T
	return string(f.write(nil, &r, "", depth)) == string(written)
}

// bit returns the bit of the field of a name in what readRecord returns.
func bit[T any](fields []field[T], name string) uint32 { return 1 << lookup(fields, name, 0) }

func isObject(text string) bool { return text != "" && text[0] == '{' }

// splitMembers takes the text of an object apart into the texts of its values.
func splitMembers(text string) Ordered[string] {
	var members Ordered[string]
	s := &scanner{text: text}
	for ok := s.enter('{', '}'); ok; ok = s.more('}') {
		key := s.key()
		members.Set(key, s.value())
	}
	return members
}

// readText reads a string; anything else is "".
func readText(s *scanner) (string, bool) {
	if s.kind() == '"' {
		return s.str(), true
	}
	s.value()
	return "", false
}

// readNumber reads a number as the integer towards zero, anything else as 0. It is
// bounded so that a sum of two does not overflow.
func readNumber(s *scanner) (n int64, finite, ok bool) {
	if c := s.kind(); c != '-' && !isDigit(c) {
		s.value()
		return 0, false, false
	}
	text := s.number()
	if n, ok := smallNumber(text); ok {
		return n, true, true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false, false
	}
	switch {
	case f >= maxNumber:
		n = maxNumber
	case f <= -maxNumber:
		n = -maxNumber
	default:
		n = int64(f)
	}
	return n, !math.IsInf(f, 0), true
}

// smallNumber reads up to 15 digits, which is what files are full of.
func smallNumber(text string) (int64, bool) {
	if len(text) > 15 {
		return 0, false
	}
	var n int64
	for i := 0; i < len(text); i++ {
		if !isDigit(text[i]) {
			return 0, false
		}
		n = 10*n + int64(text[i]-'0')
	}
	return n, true
}

// readTruth reads any value as JavaScript's conditions do.
func readTruth(s *scanner) (truth, isBool bool) {
	switch s.kind() {
	case 't':
		s.value()
		return true, true
	case 'f':
		s.value()
		return false, true
	case 'n':
		s.value()
		return false, false
	case '"':
		return s.str() != "", false
	case '{', '[':
		s.value()
		return true, false
	}
	f, err := strconv.ParseFloat(s.value(), 64)
	return f != 0 || err != nil, false
}

// readStrings reads a list of strings; clean is false if it holds anything else,
// which is left out.
func readStrings(s *scanner, into []string) (list []string, isList, clean bool) {
	if s.kind() != '[' {
		s.value()
		return into, false, false
	}
	clean = true
	for ok := s.enter('[', ']'); ok; ok = s.more(']') {
		if v, ok := readText(s); ok {
			into = append(into, v)
		} else {
			clean = false
		}
	}
	return into, true, clean
}

// readNumbers reads an object of numbers; what is none is left out.
func readNumbers(s *scanner) (m Ordered[int64], ok bool) {
	if s.kind() != '{' {
		s.value()
		return m, false
	}
	for ok := s.enter('{', '}'); ok; ok = s.more('}') {
		key := s.key()
		if n, _, ok := readNumber(s); ok {
			m.Set(key, n)
		} else {
			m.Delete(key)
		}
	}
	return m, true
}
