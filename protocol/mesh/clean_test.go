package mesh_test

import (
	"testing"

	"opencode-mesh/protocol/mesh"
)

func TestATextOfManyLinesKeepsAllButWhatSteersATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\nc":                          "a\tb\nc",
		"a\r\nb\rc":                        "a\nb\nc",
		"\x1b[31mred\x1b[0m \x00\x07\x7f!": "red !",
		"\x1b]0;title\x07x\u009b2Jy":       "xy",
		"  indented\n\n":                   "  indented\n\n",
		"👩\u200d💻 می\u200cخواهم\x00":       "👩\u200d💻 می\u200cخواهم",
	} {
		if got := mesh.CleanText(in); got != want {
			t.Errorf("%q: %q, not %q", in, got, want)
		}
	}
}
