// Package shown makes text that others wrote fit to be kept and shown to people:
// without control and other invisible characters (semantics 17), and no longer than
// it may be. It does not defuse markers of the mesh: what goes to an agent needs
// mesh.Frame.
package shown

import (
	"strings"

	"opencode-mesh/protocol/mesh"
)

// slack is how many times longer than its bound a text may be before it is
// cleaned, which takes characters away: what lies beyond is not looked at.
const slack = 4

// Line makes a text of one line, at most n bytes long.
func Line(s string, n int) string { return Cut(mesh.CleanLine(Cut(s, slack*n)), n) }

// Text makes a text that keeps its lines and their indentation, at most n bytes
// long.
func Text(s string, n int) string {
	lines := strings.Split(Cut(s, n), "\n")
	for i, l := range lines {
		words := strings.TrimLeft(l, " \t")
		lines[i] = l[:len(l)-len(words)] + mesh.CleanLine(words)
	}
	return Cut(strings.TrimSpace(strings.Join(lines, "\n")), n)
}

// Lines keeps the first most entries of a list, each made a line of at most n
// bytes; what is empty then is left out.
func Lines(list []string, most, n int) []string {
	var out []string
	for _, s := range list {
		if s = Line(s, n); s != "" && len(out) < most {
			out = append(out, s)
		}
	}
	return out
}

// IsLine reports whether s is such a line already, and not empty: what names
// something is refused rather than changed.
func IsLine(s string, n int) bool { return s != "" && Line(s, n) == s }

// Cut cuts s to at most n bytes on a character boundary.
func Cut(s string, n int) string {
	for n > 0 && n < len(s) && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:min(n, len(s))]
}
