package opencomms

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Lengths, blanks and names are those of JavaScript, by which the other programs
// judge the same file. A string of a file may hold what UTF-8 cannot: one half of a
// surrogate pair. It stands here as the three bytes that UTF-8 would have for it
// (ED A0 80 to ED BF BF), so that it is told from others and written back.

// Errors of names; each says which rule is broken.
var (
	ErrNameEmpty = errors.New("a channel needs a name")
	ErrNameLong  = errors.New("the name of a channel has at most 64 characters")
	ErrNameForm  = errors.New("the name of a channel is made of a-z, 0-9, - and _ and begins with a letter or digit")
	ErrRoleForm  = errors.New("a role begins with a letter and is made of at most 32 letters, digits, blanks, - and _")
)

// Length counts UTF-16 units, as the limits of texts do.
func Length(s string) int {
	n := 0
	for i := 0; i < len(s); {
		size, units := step(s, i)
		i += size
		n += units
	}
	return n
}

// Cut returns the longest beginning of s of at most limit UTF-16 units. It does not
// cut a character in two.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for i := 0; i < len(s); {
		size, units := step(s, i)
		if limit -= units; limit < 0 {
			return s[:i]
		}
		i += size
	}
	return s
}

// step returns the bytes and UTF-16 units of the character at s[i].
func step(s string, i int) (size, units int) {
	if s[i] < utf8.RuneSelf {
		return 1, 1
	}
	if _, ok := surrogateAt(s, i); ok {
		return 3, 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	if r >= 0x10000 {
		return size, 2
	}
	return size, 1
}

// surrogateAt returns the lone half of a surrogate pair that stands at s[i].
func surrogateAt(s string, i int) (rune, bool) {
	if i+2 < len(s) && s[i] == 0xED && s[i+1] >= 0xA0 && s[i+1] <= 0xBF && s[i+2] >= 0x80 && s[i+2] <= 0xBF {
		return 0xD000 | rune(s[i+1]&0x3F)<<6 | rune(s[i+2]&0x3F), true
	}
	return 0, false
}

// Valid returns s as UTF-8: half a surrogate pair, and each byte that is not UTF-8,
// becomes U+FFFD.
func Valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if _, ok := surrogateAt(s, i); ok {
			b.WriteRune(utf8.RuneError)
			i += 3
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		b.WriteRune(r)
		i += size
	}
	return b.String()
}

// Trim takes JavaScript's blanks from both ends. U+FEFF is one, U+0085 is not:
// strings.TrimSpace has both the other way.
func Trim(s string) string { return strings.TrimFunc(s, isBlank) }

func isBlank(r rune) bool {
	switch r {
	case '\t', '\n', '\v', '\f', '\r', ' ', 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF:
		return true
	}
	return r >= 0x2000 && r <= 0x200A
}

// NormalName returns the name of a channel as the file has it: trimmed and in lower
// case. It fails with ErrNameEmpty, ErrNameLong or ErrNameForm.
func NormalName(s string) (string, error) {
	// Of this one letter JavaScript makes two, Go one that would pass.
	s = strings.ToLower(strings.ReplaceAll(Trim(s), "İ", "i\u0307"))
	switch {
	case s == "":
		return "", ErrNameEmpty
	case Length(s) > MaxChannelName:
		return "", ErrNameLong
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || i > 0 && (c == '-' || c == '_')) {
			return "", ErrNameForm
		}
	}
	return s, nil
}

// NormalRole returns a role as the file has it: trimmed, with one blank wherever
// there are several, spelt as it was. Roles are compared without case. It fails with
// ErrRoleForm.
func NormalRole(s string) (string, error) {
	s = strings.Join(strings.FieldsFunc(s, isBlank), " ")
	if !validRole(s) {
		return "", ErrRoleForm
	}
	return s, nil
}

// validRole is the rule by which a file with a member of any other role is invalid.
func validRole(s string) bool {
	if s == "" || len(s) > MaxRole {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(isLetter(c) || i > 0 && (isDigit(c) || c == ' ' || c == '_' || c == '-')) {
			return false
		}
	}
	return true
}

// ValidMember reports whether an operator may choose id as a member's id.
func ValidMember(id string) bool { return validID(id, MaxMemberID) }

// validID reports whether s is letters, digits, - and _ only, of at most limit, and
// begins with a letter or digit.
func validID(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(isLetter(c) || isDigit(c) || i > 0 && (c == '_' || c == '-')) {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
