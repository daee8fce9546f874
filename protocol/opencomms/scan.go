package opencomms

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// scanner reads JSON in one pass, as strictly as JSON.parse. encoding/json would do
// only half of it: it takes no lone surrogates, and keeps neither the order nor the
// text of what it reads. After an error, which err keeps, there is nothing more to
// read: loops end by themselves, and the error is looked at once.
type scanner struct {
	text  string
	at    int
	depth int
	err   *InvalidError

	buf []byte // room for strings with escapes

	// version is the schema version that is expected.
	version int
	// fault is what a list inside a record breaks, for the record's reader: by the
	// rules, not by the syntax.
	fault *InvalidError
}

func newScanner(data []byte, version int) *scanner {
	return &scanner{text: utf8Text(data), version: version}
}

func (s *scanner) fail(reason string) {
	if s.err == nil {
		s.err = &InvalidError{Reason: fmt.Sprintf("not JSON: %s at byte %d", reason, s.at)}
	}
	s.at = len(s.text)
}

// kind passes blanks and returns the byte with which what follows begins; 0 at the
// end.
func (s *scanner) kind() byte {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; c {
		case ' ', '\n', '\t', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// enter reads the opening bracket of an object or list and reports whether anything
// is in it. Then key (of an object) and the value are to be read, and more to be
// asked.
func (s *scanner) enter(open, closing byte) bool {
	if s.kind() != open {
		s.fail("no " + string(rune(open)))
		return false
	}
	s.at++
	if s.depth++; s.depth > MaxDepth {
		s.fail("more than " + strconv.Itoa(MaxDepth) + " levels")
		return false
	}
	if s.kind() == closing {
		s.at++
		s.depth--
		return false
	}
	return true
}

// more reads what stands behind a value and reports whether another follows.
func (s *scanner) more(closing byte) bool {
	switch s.kind() {
	case ',':
		s.at++
		return true
	case closing:
		s.at++
		s.depth--
	default:
		s.fail("no comma or " + string(rune(closing)))
	}
	return false
}

// key reads the key of a member and the colon.
func (s *scanner) key() string {
	key := s.str()
	if s.kind() != ':' {
		s.fail("no colon")
		return key
	}
	s.at++
	return key
}

// end makes sure that nothing follows.
func (s *scanner) end() {
	if s.kind() != 0 {
		s.fail("more text")
	}
}

// value passes a value and returns its text.
func (s *scanner) value() string {
	c := s.kind()
	start := s.at
	switch {
	case c == '{':
		for ok := s.enter('{', '}'); ok; ok = s.more('}') {
			s.key()
			s.value()
		}
	case c == '[':
		for ok := s.enter('[', ']'); ok; ok = s.more(']') {
			s.value()
		}
	case c == '"':
		s.str()
	case c == '-' || isDigit(c):
		return s.number()
	case c == 't':
		s.word("true")
	case c == 'f':
		s.word("false")
	case c == 'n':
		s.word("null")
	default:
		s.fail("no value")
	}
	if s.err != nil {
		return ""
	}
	return s.text[start:s.at]
}

func (s *scanner) word(w string) {
	if end := s.at + len(w); end <= len(s.text) && s.text[s.at:end] == w {
		s.at = end
		return
	}
	s.fail("no value")
}

// number passes a number and returns its text.
func (s *scanner) number() string {
	start, i := s.at, s.at
	digits := func() bool {
		from := i
		for i < len(s.text) && isDigit(s.text[i]) {
			i++
		}
		return i > from
	}
	is := func(c byte) bool { return i < len(s.text) && s.text[i] == c }
	if is('-') {
		i++
	}
	ok := true
	if is('0') {
		i++
	} else {
		ok = digits()
	}
	if ok && is('.') {
		i++
		ok = digits()
	}
	if ok && (is('e') || is('E')) {
		if i++; is('+') || is('-') {
			i++
		}
		ok = digits()
	}
	if !ok {
		s.fail("a broken number")
		return ""
	}
	s.at = i
	return s.text[start:i]
}

// plain are the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// str reads a string. One without escapes shares the file's memory.
func (s *scanner) str() string {
	if s.kind() != '"' {
		s.fail("no string")
		return ""
	}
	text := s.text
	start := s.at + 1
	i := start
	for i < len(text) && plain[text[i]] {
		i++
	}
	if i < len(text) && text[i] == '"' {
		s.at = i + 1
		return text[start:i]
	}
	s.buf = append(s.buf[:0], text[start:i]...)
	for i < len(text) {
		switch text[i] {
		case '"':
			s.at = i + 1
			return string(s.buf)
		case '\\':
			size := 0
			if s.buf, size = appendEscaped(s.buf, text[i:]); size == 0 {
				s.at = i
				s.fail("a broken escape")
				return ""
			}
			i += size
		default:
			s.at = i
			s.fail("a control character in a string")
			return ""
		}
		from := i
		for i < len(text) && plain[text[i]] {
			i++
		}
		s.buf = append(s.buf, text[from:i]...)
	}
	s.fail("a string without an end")
	return ""
}

// appendEscaped appends what the escape with which text begins stands for, and
// returns its length; 0 if it is none.
func appendEscaped(dst []byte, text string) ([]byte, int) {
	if len(text) < 2 {
		return dst, 0
	}
	switch c := text[1]; c {
	case '"', '\\', '/':
		return append(dst, c), 2
	case 'b':
		return append(dst, '\b'), 2
	case 'f':
		return append(dst, '\f'), 2
	case 'n':
		return append(dst, '\n'), 2
	case 'r':
		return append(dst, '\r'), 2
	case 't':
		return append(dst, '\t'), 2
	}
	r, ok := escapedUnit(text)
	if !ok {
		return dst, 0
	}
	if r >= 0xD800 && r <= 0xDBFF {
		if low, ok := escapedUnit(text[6:]); ok && low >= 0xDC00 && low <= 0xDFFF {
			return utf8.AppendRune(dst, 0x10000+(r-0xD800)<<10+(low-0xDC00)), 12
		}
	}
	if r >= 0xD800 && r <= 0xDFFF {
		return append(dst, 0xED, 0x80|byte(r>>6&0x3F), 0x80|byte(r&0x3F)), 6
	}
	return utf8.AppendRune(dst, r), 6
}

// escapedUnit reads \uXXXX.
func escapedUnit(text string) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(text[2:6]) {
		switch {
		case isDigit(c):
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// utf8Text is data as a program that decodes UTF-8 sees it: each longest beginning
// of a character that does not go on becomes one U+FFFD.
func utf8Text(data []byte) string {
	if utf8.Valid(data) {
		return string(data)
	}
	out := make([]byte, 0, len(data)+64)
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			size = brokenRune(data[i:])
		}
		out = utf8.AppendRune(out, r)
		i += size
	}
	return string(out)
}

// brokenRune is the length of the broken character with which b begins.
func brokenRune(b []byte) int {
	low, high, follow := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		follow = 1
	case c == 0xE0:
		low, follow = 0xA0, 2
	case c == 0xED:
		high, follow = 0x9F, 2
	case c >= 0xE1 && c <= 0xEF:
		follow = 2
	case c == 0xF0:
		low, follow = 0x90, 3
	case c >= 0xF1 && c <= 0xF3:
		follow = 3
	case c == 0xF4:
		high, follow = 0x8F, 3
	}
	n := 1
	for n <= follow && n < len(b) && b[n] >= low && b[n] <= high {
		low, high = 0x80, 0xBF
		n++
	}
	return n
}
