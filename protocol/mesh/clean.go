package mesh

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// CleanLine makes foreign text safe to show on one line of a terminal or page:
// names, summaries, options, paths. ANSI sequences, control, bidi and other
// invisible characters go; line breaks and tabs become one blank each; bytes that
// are not UTF-8 become U+FFFD. It does not defuse markers, and taking characters
// away may complete one: clean first, then Defuse.
func CleanLine(s string) string {
	if isPlain(s) {
		return strings.TrimSpace(s)
	}
	return strings.TrimSpace(clean(s, func(r rune) rune {
		switch {
		case r == '\n', r == '\r', r == '\t', r == '\v', r == '\f', r == '\u0085', r == '\u2028', r == '\u2029':
			return ' '
		case invisible(r):
			return -1
		}
		return r
	}))
}

// CleanText makes foreign text of many lines safe to show in a terminal: ANSI sequences and
// control characters go, but for line feeds and tabs; other ends of lines become line feeds.
// All that is no control character stays, emoji and scripts that need invisible ones
// included. It defuses nothing, as CleanLine: clean first.
func CleanText(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
		return s
	}
	return clean(s, func(r rune) rune {
		switch {
		case r == '\r', r == '\v', r == '\f', r == '\u0085':
			return '\n'
		case unicode.IsControl(r) && r != '\n' && r != '\t':
			return -1
		}
		return r
	})
}

// clean takes ANSI sequences out, and the carriage return of a line's end; the other
// characters become what keep makes of them, nothing if that is negative.
func clean(s string, keep func(rune) rune) string {
	var b strings.Builder
	b.Grow(len(s))
	// unclosed is set once no end of a control string lies ahead, so that hostile
	// input is not searched again and again.
	unclosed := false
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case isEscape(r):
			i = skipEscape(s, i, r, size, &unclosed)
			continue
		case r == '\r' && strings.HasPrefix(s[i+size:], "\n"):
			// The line feed stands for both.
		default:
			if r = keep(r); r >= 0 {
				b.WriteRune(r)
			}
		}
		i += size
	}
	return b.String()
}

// isPlain reports whether s is printable ASCII only.
func isPlain(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// hasControl reports whether s holds control characters.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, unicode.IsControl)
}

// invisible reports whether r takes no visible place: control and format
// characters (zero-width, bidi, soft hyphen, tags) and the letters and marks that
// have no shape.
func invisible(r rune) bool {
	if r < 0x7F {
		return r < ' '
	}
	switch {
	case r == 0x034F, r == 0x115F, r == 0x1160, r == 0x17B4, r == 0x17B5, r >= 0x180B && r <= 0x180F, r == 0x2800, r == 0x3164, r == 0xFFA0:
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf)
}

// Control characters that begin a sequence, and those that end a string.
const (
	esc = 0x1B
	bel = 0x07
	dcs = 0x90
	sos = 0x98
	csi = 0x9B
	st  = 0x9C
	osc = 0x9D
	pm  = 0x9E
	apc = 0x9F
)

func isEscape(r rune) bool {
	switch r {
	case esc, dcs, sos, csi, osc, pm, apc:
		return true
	}
	return false
}

// skipEscape returns where the sequence that r begins at s[i] ends. Of one that
// never ends only its beginning goes, so that nothing can hide behind it.
func skipEscape(s string, i int, r rune, size int, unclosed *bool) int {
	i += size
	if r == esc {
		switch j := skipRange(s, i, 0x20, 0x2F); {
		case i == len(s):
			return i
		case j > i: // for example the choice of a character set
			return skipFinal(s, j, 0x30)
		}
		switch s[i] {
		case '[':
			r = csi
		case ']', 'P', 'X', '^', '_':
			r = osc
		default:
			return skipFinal(s, i, 0x30)
		}
		i++
	}
	if r == csi {
		i = skipRange(s, i, 0x30, 0x3F)
		i = skipRange(s, i, 0x20, 0x2F)
		return skipFinal(s, i, 0x40)
	}
	if *unclosed {
		return i
	}
	for j, c := range s[i:] {
		switch {
		case c == bel, c == st:
			return i + j + utf8.RuneLen(c)
		case c == esc && strings.HasPrefix(s[i+j:], "\x1b\\"):
			return i + j + 2
		}
	}
	*unclosed = true
	return i
}

// skipRange skips bytes from lo to hi.
func skipRange(s string, i int, lo, hi byte) int {
	for i < len(s) && s[i] >= lo && s[i] <= hi {
		i++
	}
	return i
}

// skipFinal skips one byte from lo to '~', if it stands there.
func skipFinal(s string, i int, lo byte) int {
	if i < len(s) && s[i] >= lo && s[i] <= '~' {
		i++
	}
	return i
}
