package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// What is wrong with a text that cannot be read. The listener answers each with words of
// its own.
var (
	// ErrJSON says that the text is not JSON.
	ErrJSON = errors.New("not JSON")
	// ErrShape says that it is JSON, but not of the form that is wanted.
	ErrShape = errors.New("not of the right form")
)

func shape(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrShape, fmt.Sprintf(format, args...))
}

// object is a JSON object whose values were not looked at yet. Names are taken exactly as
// they are, where a struct of encoding/json would take any case; of a name that is there
// twice the last one counts.
type object map[string]json.RawMessage

func readObject(data []byte) (object, error) {
	if !json.Valid(data) {
		return nil, ErrJSON
	}
	var o object
	if json.Unmarshal(data, &o) != nil || o == nil {
		return nil, shape("it is no object")
	}
	return o, nil
}

// encode writes v on one line as JSON.stringify does: nothing of HTML is escaped, which
// would make a text of 8,192 "<" larger than what is taken.
func encode(v any) []byte { return encodeIndented(v, "") }

func encodeIndented(v any, indent string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		panic(err) // the forms here hold nothing that JSON has no form for
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// text is the value of name if it is a string.
func (o object) text(name string) (s string, ok bool) {
	raw := o[name]
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// some is the value of name if it is a string with something in it.
func (o object) some(name string) (string, bool) {
	s, ok := o.text(name)
	return s, ok && s != ""
}

// finite is the value of name if it is a number that is not too large for one.
func (o object) finite(name string) (float64, bool) {
	raw := o[name]
	if len(raw) == 0 || raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	return f, err == nil
}

// is says whether the value of name is this number, and not a text that looks like it.
func (o object) is(name string, n float64) bool {
	f, ok := o.finite(name)
	return ok && f == n
}

// object is the value of name if it is an object, and one without anything else.
func (o object) object(name string) object {
	var in object
	if json.Unmarshal(o[name], &in) != nil {
		return nil
	}
	return in
}

// truthy says whether JavaScript takes the value of name for true: everything but null,
// false, 0 and "".
func (o object) truthy(name string) bool {
	raw := o[name]
	if len(raw) == 0 {
		return false
	}
	switch raw[0] {
	case 'n', 'f':
		return false
	case '"':
		return len(raw) > 2
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		f, _ := strconv.ParseFloat(string(raw), 64)
		return f != 0
	}
	return true
}

// word is the value of name as a text, whatever it is: nothing for null and what is not
// there, and what is no text as it is written.
func (o object) word(name string) string {
	if s, ok := o.text(name); ok {
		return s
	}
	raw := string(o[name])
	if raw == "null" {
		return ""
	}
	return strings.ToValidUTF8(raw, "\uFFFD")
}

// number is the value of name as JavaScript reckons with it: null is 0, what is not there
// is NaN, and a text counts for the number that it is. What is too large is as large as can
// be.
func (o object) number(name string) float64 {
	return number(o[name])
}

func number(raw json.RawMessage) float64 {
	if len(raw) == 0 {
		return math.NaN()
	}
	switch raw[0] {
	case 'n', 'f':
		return 0
	case 't':
		return 1
	case '"':
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return math.NaN()
		}
		return numberOf(s)
	case '[':
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil || len(list) > 1 {
			return math.NaN()
		}
		if len(list) == 0 {
			return 0
		}
		if list[0][0] == 't' || list[0][0] == 'f' {
			return math.NaN() // the text of it is no number
		}
		return number(list[0])
	case '{':
		return math.NaN()
	}
	return bounded(strconv.ParseFloat(string(raw), 64))
}

// blanks are what JavaScript takes away around a number.
const blanks = "\t\n\v\f\r \u00A0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF"

// numberOf is the number that a text is, NaN if it is none.
func numberOf(s string) float64 {
	s = strings.Trim(s, blanks)
	if s == "" {
		return 0
	}
	if len(s) > 2 && s[0] == '0' {
		switch s[1] {
		case 'x', 'X', 'o', 'O', 'b', 'B':
			if strings.Contains(s, "_") {
				return math.NaN()
			}
			n, err := strconv.ParseUint(s, 0, 64)
			if err != nil {
				return math.NaN()
			}
			return float64(n)
		}
	}
	switch s {
	case "Infinity", "+Infinity":
		return math.MaxFloat64
	case "-Infinity":
		return -math.MaxFloat64
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && c != '.' && c != '-' && c != '+' && c != 'e' && c != 'E' {
			return math.NaN() // words and forms that Go knows and JavaScript does not
		}
	}
	return bounded(strconv.ParseFloat(s, 64))
}

// bounded keeps a number within what JSON can write.
func bounded(f float64, err error) float64 {
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return math.NaN()
	}
	return max(-math.MaxFloat64, min(f, math.MaxFloat64))
}
