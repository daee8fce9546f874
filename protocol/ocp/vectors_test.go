package ocp_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/ocp"
)

// verdict is what a reference decoder made of a line.
type verdict struct {
	Accept    bool   `json:"accept"`
	Reencoded string `json:"reencoded"`
	Error     string `json:"error"`
}

func readJSON[T any](t *testing.T, file string) T {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(file, err)
	}
	return v
}

func readLines(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimRight(string(data), "\n"), "\n")
}

func TestEveryLineIsTakenOrRefusedAsByTheReferenceDecoders(t *testing.T) {
	vectors := readJSON[[]struct {
		In           string
		OCP          verdict `json:"ocp_0_1_0"`
		Contextgraph verdict `json:"contextgraph_0_1_2"`
	}](t, "decode-vectors.json")
	if len(vectors) < 40 {
		t.Fatalf("only %d vectors", len(vectors))
	}
	for _, v := range vectors {
		for _, reference := range []struct {
			version string
			family  ocp.Family
			verdict verdict
		}{
			{ocp.VersionOCP, ocp.FamilyOCP, v.OCP},
			{ocp.VersionContextgraphDraft, ocp.FamilyContextgraph, v.Contextgraph},
		} {
			got, err := ocp.DecodeFor(reference.version, []byte(v.In))
			if (err == nil) != reference.verdict.Accept {
				t.Errorf("%s as %s: %v, the reference says %+v", v.In, reference.version, err, reference.verdict)
				continue
			}
			if err != nil {
				continue
			}
			// What any of them takes is taken while the version is not known.
			if _, err := ocp.Decode([]byte(v.In)); err != nil {
				t.Errorf("%s: %v", v.In, err)
			}
			// It means the same as what the reference writes of it, which for numbers
			// beyond float32 no reader takes, theirs included.
			want, err := ocp.DecodeFor(reference.version, []byte(reference.verdict.Reencoded))
			if strings.Contains(v.In, "1e40") {
				if err == nil {
					t.Error("a null among numbers was taken")
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", reference.verdict.Reencoded, err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s as %s: %s", v.In, reference.version, d)
			}
		}
	}
}

func TestVersionsGoTogetherAsInTheReferenceHosts(t *testing.T) {
	for _, v := range readJSON[[]struct {
		A, B       string
		Compatible bool
	}](t, "version-vectors.json") {
		if got := ocp.Compatible(v.A, v.B); got != v.Compatible {
			t.Errorf("%q and %q: %v", v.A, v.B, got)
		}
		if got := ocp.Compatible(v.B, v.A); got != v.Compatible {
			t.Errorf("%q and %q: %v", v.B, v.A, got)
		}
	}
}

// The transcripts of both families are read, written again and read as the same.
func TestTranscriptsOfTheReferencesSurviveARoundTrip(t *testing.T) {
	for _, c := range []struct {
		file    string
		version string
		family  ocp.Family
	}{
		{"ocp/full-stdio-session.ndjson", ocp.VersionOCP, ocp.FamilyOCP},
		{"contextgraph/full-stdio-session.ndjson", ocp.VersionContextgraphDraft, ocp.FamilyContextgraph},
		{"contextgraph/reference-vectors.ndjson", ocp.VersionContextgraphDraft, ocp.FamilyContextgraph},
		{"contextgraph/frozen-reference-vectors.ndjson", ocp.VersionContextgraph, ocp.FamilyContextgraph},
	} {
		for _, line := range readLines(t, c.file) {
			e, err := ocp.DecodeFor(c.version, []byte(line))
			if err != nil {
				t.Errorf("%s: %s: %v", c.file, line, err)
				continue
			}
			out, err := ocp.Encode(e, c.family)
			if err != nil {
				t.Errorf("%s: %s: %v", c.file, line, err)
				continue
			}
			if bytes.ContainsRune(out, '\n') {
				t.Errorf("more than a line: %s", out)
			}
			back, err := ocp.DecodeFor(c.version, out)
			if err != nil {
				t.Errorf("%s: %v", out, err)
			}
			if d := cmp.Diff(e, back); d != "" {
				t.Errorf("%s: %s", line, d)
			}
			if any, err := ocp.Decode([]byte(line)); err != nil || any.Type() != e.Type() {
				t.Errorf("%s: %+v, %v", line, any, err)
			}
		}
	}
}
