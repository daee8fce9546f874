package mesh

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// escapeDot is the visible character that takes a marker its meaning: it stands
// right behind the marker's opening bracket, as in "[·opencode-mesh v1]".
const escapeDot = "·"

// guarded names what opens a block or frame, of all families, as the letters
// that remain when blanks, dashes and underscores are left out. A marker is an
// opening bracket, perhaps a slash, and one of these; what follows does not
// matter, so that later kinds and versions are covered too.
var guarded = []struct {
	bracket byte // '[' or '<', with all brackets that look alike
	letters string
	// word asks for a blank or an end behind the letters, for names that also begin
	// ordinary words.
	word bool
}{
	{bracket: '[', letters: "opencodemesh"},
	{bracket: '[', letters: "aoimesh"},
	// OpenComms: its header line and the delimiters of peer content.
	{bracket: '[', letters: "opencomms"},
	{bracket: '<', letters: "untrustedpeermessage"},
	{bracket: '<', letters: "enduntrustedpeermessage"},
	// opencode-plugin-peers: its message header and its notices.
	{bracket: '[', letters: "peermessagefrom"},
	{bracket: '[', letters: "notificationfromopencodepluginpeers"},
	// Context frames as hosts of the context protocols fence them.
	{bracket: '<', letters: "frame", word: true},
	// Our own frames, see Frame.
	{bracket: '<', letters: "meshdata"},
	{bracket: '<', letters: "endmeshdata"},
}

// Defuse takes every mesh marker and every framing delimiter in untrusted text
// its meaning by a visible dot behind the opening bracket, and returns how many
// it had to defuse (a count above zero is a forged marker worth reporting).
// Case, blanks, dashes, full-width and look-alike letters, combining marks and
// invisible characters do not hide a marker. What already carries dots gets one more and is
// not counted, so that Undefuse always gives the text back.
func Defuse(text string) (out string, n int) {
	var b strings.Builder
	last := 0
	for i := 0; i < len(text); {
		bracket, size := bracketAt(text, i)
		i += size
		if bracket == 0 {
			continue
		}
		dotted, ok := markerAt(text[i:], bracket)
		if !ok {
			continue
		}
		if !dotted {
			n++
		}
		b.WriteString(text[last:i])
		b.WriteString(escapeDot)
		last = i
	}
	if last == 0 {
		return text, 0
	}
	b.WriteString(text[last:])
	return b.String(), n
}

// Undefuse takes back one Defuse: Undefuse(Defuse(x)) == x for every x.
func Undefuse(text string) string {
	var b strings.Builder
	last := 0
	for i := 0; i < len(text); {
		bracket, size := bracketAt(text, i)
		i += size
		if bracket == 0 || !strings.HasPrefix(text[i:], escapeDot) {
			continue
		}
		if _, ok := markerAt(text[i:], bracket); ok {
			b.WriteString(text[last:i])
			i += len(escapeDot)
			last = i
		}
	}
	if last == 0 {
		return text
	}
	b.WriteString(text[last:])
	return b.String()
}

// bracketAt returns which bracket the character at text[i] is or looks like, 0
// for any other, and the character's size. Bytes that cannot begin a bracket are
// passed in runs.
func bracketAt(text string, i int) (bracket byte, size int) {
	c := text[i]
	switch {
	case c == '[' || c == '<':
		return c, 1
	case c != 0xC2 && c < 0xE2 || c > 0xEF:
		n := 1
		for i+n < len(text) {
			if c = text[i+n]; c == '[' || c == '<' || c == 0xC2 || c >= 0xE2 && c <= 0xEF {
				break
			}
			n++
		}
		return 0, n
	}
	r, size := utf8.DecodeRuneInString(text[i:])
	switch r {
	case '［', '【', '〔', '〖', '〘', '〚', '⟦', '⟬', '❲', '⁅', '﹝':
		return '[', size
	case '＜', '‹', '«', '〈', '《', '⟨', '⟪', '❮', '﹤':
		return '<', size
	}
	return 0, size
}

// markerAt reports whether what follows an opening bracket makes it a marker, and
// whether escape dots already stand there. Nothing that it passes over is a
// bracket: markers do not overlap, all texts take linear time, and the dot that
// Defuse adds changes no other marker.
func markerAt(s string, bracket byte) (dotted, ok bool) {
	i := 0
	slash := false
	for i < len(s) {
		c, size := fold(s, i)
		switch {
		case c == foldDot && !slash:
			dotted = true
		case c == '/' && !slash:
			slash = true
		case c == foldSkip:
		default:
			for _, g := range guarded {
				if g.bracket == bracket && c == g.letters[0] && spells(s[i:], g.letters, g.word) {
					return dotted, true
				}
			}
			return dotted, false
		}
		i += size
	}
	return dotted, false
}

// spells reports whether s begins with the letters, whatever is put between them.
func spells(s, letters string, word bool) bool {
	matched := 0
	for i := 0; i < len(s); {
		c, size := fold(s, i)
		switch {
		case c == foldSkip:
		case c != letters[matched]:
			return false
		default:
			matched++
		}
		i += size
		if matched == len(letters) {
			return !word || endsWord(s[i:])
		}
	}
	return false
}

// endsWord reports whether s goes on with a blank, an invisible character, a
// bracket or nothing.
func endsWord(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return s == "" || r == '>' || r == '＞' || r == '/' || unicode.IsSpace(r) || invisible(r)
}

// What fold returns beside lower-case letters and '/'.
const (
	foldOther = 0   // breaks a marker
	foldSkip  = ' ' // is passed over
	foldDot   = '.' // the escape dot
)

// fold reduces the character at s[i] to what it could stand for in a marker.
func fold(s string, i int) (c byte, size int) {
	if c = s[i]; c < utf8.RuneSelf {
		switch {
		case c == '\n':
			return foldOther, 1
		case c >= 'a' && c <= 'z' || c == '/':
			return c, 1
		case c >= 'A' && c <= 'Z':
			return lower(c), 1
		case c <= ' ' || c == '-' || c == '_' || c == 0x7F:
			return foldSkip, 1
		}
		return foldOther, 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	switch {
	case r == utf8.RuneError && size == 1:
		return foldOther, size
	case r == '·':
		return foldDot, size
	case r >= '！' && r <= '～': // full-width ASCII
		c, _ = fold(string(r-'！'+'!'), 0)
		return c, size
	case r >= 0x1D400 && r <= 0x1D6A3: // mathematical alphabets: 26 capitals, 26 small letters, again and again
		return 'a' + byte((r-0x1D400)%26), size
	case r >= 0x24B6 && r <= 0x24E9: // circled
		return 'a' + byte((r-0x24B6)%26), size
	case r >= 0x249C && r <= 0x24B5: // parenthesised
		return 'a' + byte(r-0x249C), size
	case r == '∕' || r == '⁄':
		return '/', size
	case invisible(r) || unicode.In(r, unicode.Zs, unicode.Zl, unicode.Zp, unicode.Pd, unicode.Pc, unicode.Mn, unicode.Me) || r == '−':
		return foldSkip, size
	}
	return lookAlike[r], size
}

// lookAlike maps letters of other scripts to the ASCII letter that they pass for,
// as far as the guarded names need it.
var lookAlike = func() map[rune]byte {
	m := make(map[rune]byte)
	for letter, alike := range map[byte]string{
		'a': "аАαΑ",
		'c': "сСϲⅽℂ",
		'd': "ԁⅾ",
		'e': "еЕεΕℯℰ",
		'f': "ſℱ",
		'g': "ɡℊ",
		'h': "һНΗℎℋℌℍ",
		'i': "іІıΙιⅰℐℑ",
		'l': "ⅼ",
		'm': "мМΜⅿℳ",
		'n': "пΝℕ",
		'o': "оОοΟℴ",
		'p': "рРρΡℙ",
		'r': "гℛℜℝ",
		's': "ѕЅꜱ",
		't': "тТτΤ",
		'u': "υՍս",
	} {
		for _, r := range alike {
			m[r] = letter
		}
	}
	return m
}()
