package opencomms

import (
	"strconv"
	"unicode/utf8"
)

// Texts are written as JSON.stringify(x, null, 2) writes them.

const (
	hexDigits = "0123456789abcdef"
	blanks    = "                                "
	// maxNumber is the largest integer that the other programs read exactly.
	maxNumber = 1<<53 - 1
)

// appendLine begins a line at a depth.
func appendLine(dst []byte, depth int) []byte {
	dst = append(dst, '\n')
	return append(dst, blanks[:2*depth]...)
}

// appendKey begins a member on a line of its own.
func appendKey(dst []byte, first bool, depth int, key string) []byte {
	if !first {
		dst = append(dst, ',')
	}
	dst = appendLine(dst, depth)
	dst = appendString(dst, key)
	return append(dst, ':', ' ')
}

// appendClose ends an object or list that began at depth; an empty one on its line.
func appendClose(dst []byte, empty bool, depth int, closing byte) []byte {
	if !empty {
		dst = appendLine(dst, depth)
	}
	return append(dst, closing)
}

// appendString escapes ", \, control characters and lone surrogates, and nothing
// else. What is no text at all becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		if plain[s[i]] && s[i] < utf8.RuneSelf {
			i++
			continue
		}
		if s[i] < utf8.RuneSelf {
			dst = append(dst, s[from:i]...)
			dst = appendEscape(dst, rune(s[i]))
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r != utf8.RuneError || size != 1 {
			i += size
			continue
		}
		dst = append(dst, s[from:i]...)
		if half, ok := surrogateAt(s, i); ok {
			dst = appendEscape(dst, half)
			i += 3
		} else {
			dst = utf8.AppendRune(dst, r)
			i++
		}
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

func appendNumber(dst []byte, n int64) []byte {
	return strconv.AppendInt(dst, clampNumber(n), 10)
}

func clampNumber(n int64) int64 { return max(-maxNumber, min(maxNumber, n)) }

// appendStrings writes a list of strings.
func appendStrings(dst []byte, list []string, depth int) []byte {
	dst = append(dst, '[')
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLine(dst, depth+1)
		dst = appendString(dst, v)
	}
	return appendClose(dst, len(list) == 0, depth, ']')
}

// appendNumbers writes an object of numbers.
func appendNumbers(dst []byte, m *Ordered[int64], depth int) []byte {
	dst = append(dst, '{')
	first := true
	for key, n := range m.All() {
		dst = appendKey(dst, first, depth+1, key)
		dst = appendNumber(dst, n)
		first = false
	}
	return appendClose(dst, first, depth, '}')
}
