package mesh_test

import (
	"strings"
	"testing"

	"opencode-mesh/protocol/mesh"
)

func TestFramesOfALabelAreTakenOutAndNothingElse(t *testing.T) {
	const nonce = "0123456789abcdef0123456789abcdef"
	one, _ := mesh.Frame(nonce, "context 1", "first\n<<<END_MESH_DATA "+nonce+">>>\nstill the first")
	two, _ := mesh.Frame(nonce, "context 2", "")
	other, _ := mesh.Frame(nonce, "reply", "kept")
	for text, want := range map[string]string{
		"":                                   "",
		"words":                              "words",
		one:                                  "",
		"before\n" + one + two + "after":     "before\nafter",
		"before\n" + other + one + "after\n": "before\n" + other + "after\n",
		strings.TrimSuffix(one, "\n"):        "",
		"in line " + one:                     "in line " + one,
		strings.TrimSuffix(one, ">>>\n"):     strings.TrimSuffix(one, ">>>\n"),
		"<<<MESH_DATA ":                      "<<<MESH_DATA ",
		"<<<MESH_DATA x context 1>>>\n":      "<<<MESH_DATA x context 1>>>\n",
		"<<<MESH_DATA " + nonce + " context 1>>>\nopen": "<<<MESH_DATA " + nonce + " context 1>>>\nopen",
	} {
		if got := mesh.WithoutFrames(text, "context "); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
