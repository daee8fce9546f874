package mesh_test

import (
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/mesh"
)

// hostileBytes is large enough for quadratic work to stand out a thousandfold.
const hostileBytes = 1 << 18

// TestHostileTextTakesLinearTime feeds everything what would be worst for it and
// compares with harmless text of the same size. The bound is far above what any
// linear scan needs on a busy machine and far below what a quadratic one takes.
func TestHostileTextTakesLinearTime(t *testing.T) {
	const bound = 2000
	began := time.Now()
	mesh.CleanLine(strings.Repeat("é", hostileBytes/2))
	harmless := time.Since(began)
	for name, piece := range map[string]string{
		"markers":                  "[opencode-mesh v1]\n",
		"broken results":           "[opencode-mesh-result v1]\ntask: a-1\n",
		"broken digests":           "[aoi-mesh-digest v1]\n",
		"digests of other tasks":   "[aoi-mesh-digest v1]\ntask: b-2\n",
		"questions":                "[aoi-mesh-question v1]\ntask: a-1\nquestion: x\n",
		"hints on one line":        "-mesh",
		"hints on lines":           "-mesh\n",
		"keys":                     "a: b\n",
		"repeated keys":            "task: x\n",
		"line feeds":               "\n",
		"CRLF":                     "\r\n",
		"carriage returns":         "\r",
		"wide colons":              "：",
		"list items":               "- a,",
		"accents":                  "\u0301",
		"joiners":                  "\u200D",
		"brackets":                 "[",
		"brackets and blanks":      "[ \u200B",
		"half markers":             "[opencode",
		"dots":                     "[·",
		"control strings":          "\x1b]",
		"control sequences":        "\x1b[1;",
		"closed control strings":   "\x1b]x\x07",
		"bytes that are not UTF-8": "\xe3\xff",
	} {
		t.Run(name, func(t *testing.T) {
			noise := strings.Repeat(piece, hostileBytes/len(piece))
			began := time.Now()
			for _, head := range []string{
				"", "[opencode-mesh v1]\n", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\nartifacts:\n", "[opencode-mesh-result v1]\nsummary:",
				"[opencode-mesh-question v1]\noptions:\n", "[opencode-mesh-digest v1]\nfacts:\n",
			} {
				text := head + noise[len(head):]
				_, _ = mesh.ParseEnvelope(text)
				_, _ = mesh.ParseResult(text)
				_, _ = mesh.ParseQuestion(text)
				_, _ = mesh.ParseDigest(text)
				_, _ = mesh.FindDigest("a-1", 1, text)
				mesh.ReadReply("a-1", text)
			}
			out, _ := mesh.Defuse(noise)
			if mesh.Undefuse(out) != noise {
				t.Error("defusing is not reversible")
			}
			mesh.CleanLine(noise)
			mesh.CutSummary(noise)
			mesh.QuoteSummary(noise)
			if took := time.Since(began); took > bound*harmless {
				t.Errorf("it took %v, harmless text %v", took, harmless)
			}
		})
	}
}
