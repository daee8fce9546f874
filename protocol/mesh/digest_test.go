package mesh_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/mesh"
)

const sampleDigest = "[opencode-mesh-digest v1]\n" +
	"task: alpha-m5x2k9-7f3q\n" +
	"gen: 3\n" +
	"facts:\n" +
	"- build with `make release`; artefacts land in out/\n" +
	"- never touch db/legacy (constraint from the owner)\n" +
	"pending: port the importer tests\n" +
	"refs: out/plan.md, logs/run-17.txt\n" +
	"[/opencode-mesh-digest]\n"

func wantDigest() mesh.Digest {
	return mesh.Digest{
		Task: "alpha-m5x2k9-7f3q", Gen: 3,
		Facts:   []string{"build with `make release`; artefacts land in out/", "never touch db/legacy (constraint from the owner)"},
		Pending: "port the importer tests", Refs: "out/plan.md, logs/run-17.txt",
	}
}

// digestText makes a digest from the lines after gen.
func digestText(lines string) string {
	return "[opencode-mesh-digest v1]\ntask: a-1\ngen: 1\n" + lines + "\n[/opencode-mesh-digest]"
}

func TestParseDigestReads(t *testing.T) {
	with := func(change func(*mesh.Digest)) mesh.Digest {
		d := mesh.Digest{Task: "a-1", Gen: 1, Facts: []string{"one"}}
		change(&d)
		return d
	}
	plain := with(func(*mesh.Digest) {})
	cases := []struct {
		name, text string
		want       mesh.Digest
	}{
		{"the sample", sampleDigest, wantDigest()},
		{"mixed families, CRLF and a byte order mark", "\uFEFF" + strings.ReplaceAll("[aoi-mesh-digest v1.5]\ntask: a-1\ngen: 1\nfacts:\n- one\npending: none\nrefs: NONE\n[/opencode-mesh-digest]\n", "\n", "\r\n"), plain},
		{"facts without dashes and with blank lines", digestText("facts:\n\n  one\n-two\n* three\n- - four\npending: none\nrefs: none"),
			with(func(d *mesh.Digest) { d.Facts = []string{"one", "-two", "* three", "- four"} })},
		{"a fact on the key's line", digestText("facts: one\n- two\npending: none\nrefs: none"), with(func(d *mesh.Digest) { d.Facts = []string{"one", "two"} })},
		{"facts that look like keys and tags behind their dash", digestText("facts:\n- task: x\n- [/opencode-mesh-digest]\nsubtask: y\npending: none\nrefs: none"),
			with(func(d *mesh.Digest) { d.Facts = []string{"task: x", "[/opencode-mesh-digest]", "subtask: y"} })},
		{"no facts", digestText("facts:\npending: none\nrefs: none"), with(func(d *mesh.Digest) { d.Facts = nil })},
		{"facts none", digestText("facts: none\npending: none\nrefs: none"), with(func(d *mesh.Digest) { d.Facts = nil })},
		{"pending and refs of several lines", digestText("facts:\n- one\npending:\n- a\n- b\n\nrefs: x\n y"),
			with(func(d *mesh.Digest) { d.Pending, d.Refs = "- a\n- b", "x\n y" })},
		{"unknown keys before the facts", digestText("model: big\nfacts:\n- one\npending: none\nrefs: none"),
			with(func(d *mesh.Digest) { d.Extra = []mesh.Field{{Key: "model", Value: "big"}} })},
		{"the first of a repeated key", digestText("gen: 7\nfacts:\n- one\npending: none\nrefs: none\nfacts:\n- other"), plain},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := mesh.ParseDigest(c.text)
			if err != nil {
				t.Fatalf("ParseDigest: %v", err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("digest (-want +got):\n%s", d)
			}
		})
	}
}

func TestParseDigestRepairsNothing(t *testing.T) {
	const rest = "facts:\n- one\npending: none\nrefs: none"
	many := strings.Repeat("- x\n", mesh.MaxFacts+1)
	cases := []struct {
		name, text string
		code       mesh.Code
		line       int
	}{
		{"no block", "none", mesh.CodeNoMarker, 1},
		{"v2", strings.Replace(sampleDigest, "v1", "v2", 1), mesh.CodeUnsupportedVersion, 1},
		{"a missing closing tag", strings.TrimSuffix(sampleDigest, "[/opencode-mesh-digest]\n"), mesh.CodeUnterminated, 9},
		{"another closing tag", strings.Replace(sampleDigest, "[/opencode-mesh-digest]", "[/opencode-mesh-result]", 1), mesh.CodeMalformed, 9},
		{"text after", sampleDigest + "Done.", mesh.CodeMalformed, 10},
		{"a stray line", digestText("hello\n" + rest), mesh.CodeMalformed, 4},
		{"no task", "[opencode-mesh-digest v1]\ngen: 1\n" + rest + "\n[/opencode-mesh-digest]", mesh.CodeMissingKey, 7},
		{"a bad task id", "[opencode-mesh-digest v1]\ntask: a b\ngen: 1\n" + rest + "\n[/opencode-mesh-digest]", mesh.CodeBadValue, 2},
		{"no gen", "[opencode-mesh-digest v1]\ntask: a-1\n" + rest + "\n[/opencode-mesh-digest]", mesh.CodeMissingKey, 7},
		{"a gen in words", strings.Replace(sampleDigest, "gen: 3", "gen: three", 1), mesh.CodeBadValue, 3},
		{"a negative gen", strings.Replace(sampleDigest, "gen: 3", "gen: -3", 1), mesh.CodeBadValue, 3},
		{"a gen with a sign", strings.Replace(sampleDigest, "gen: 3", "gen: +3", 1), mesh.CodeBadValue, 3},
		{"a huge gen", strings.Replace(sampleDigest, "gen: 3", "gen: 4000000000", 1), mesh.CodeBadValue, 3},
		{"no facts key", digestText("pending: none\nrefs: none"), mesh.CodeMissingKey, 6},
		{"an empty fact", digestText("facts:\n- one\n-\npending: none\nrefs: none"), mesh.CodeMalformed, 4},
		{"no pending", digestText("facts:\n- one\nrefs: none"), mesh.CodeMissingKey, 7},
		{"an empty pending", digestText("facts:\n- one\npending:\nrefs: none"), mesh.CodeMissingKey, 6},
		{"no refs", digestText("facts:\n- one\npending: none"), mesh.CodeMissingKey, 7},
		{"too many facts", digestText("facts:\n" + many + "pending: none\nrefs: none"), mesh.CodeTooLarge, 4},
		{"an endless unknown key", digestText("x: " + strings.Repeat("x", mesh.MaxFieldBytes) + "\n" + rest), mesh.CodeTooLarge, 4},
		{"a text over 1 MiB", sampleDigest + strings.Repeat(" ", mesh.MaxTextBytes), mesh.CodeTooLarge, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := mesh.ParseDigest(c.text)
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}

func TestFindDigestReadsReplies(t *testing.T) {
	mine := strings.Replace(digestText("facts:\n- one\npending: none\nrefs: none"), "gen: 1", "gen: 2", 1)
	want := mesh.Digest{Task: "a-1", Gen: 2, Facts: []string{"one"}}
	for name, text := range map[string]string{
		"the block alone":                     mine,
		"a code fence and prose":              "Here it is:\n```\n" + mine + "\n```\nBye.",
		"the earlier generation before it":    digestText("facts:\n- old\npending: none\nrefs: none") + "\nmerged:\n" + mine,
		"a digest of another task after it":   mine + "\n" + sampleDigest,
		"a broken one before it":              "[opencode-mesh-digest v1]\ntask: a-1\n" + mine,
		"other blocks around it":              sampleResult + mine + "\n" + sampleQuestion,
		"a broken digest of another task too": mine + "\n[opencode-mesh-digest v1]\ntask: other-1\n",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mesh.FindDigest("a-1", 2, text)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("digest (-want +got):\n%s", d)
			}
		})
	}
}

func TestFindDigestNeverFallsBackToAnEarlierOne(t *testing.T) {
	good := digestText("facts:\n- one\npending: none\nrefs: none") + "\n"
	cases := []struct {
		name, text string
		code       mesh.Code
		line       int
	}{
		{"nothing", "no digest today", mesh.CodeNoMarker, 1},
		{"a result only", sampleResult, mesh.CodeNoMarker, 1},
		{"another task's digest only", "Here:\n" + sampleDigest, mesh.CodeWrongTask, 3},
		{"another generation last", good + strings.Replace(good, "gen: 1", "gen: 2", 1), mesh.CodeWrongGeneration, 11},
		{"an unterminated one last", good + "[opencode-mesh-digest v1]\ntask: a-1\ngen: 1\nfacts:\npending: none\nrefs: none\n", mesh.CodeUnterminated, 15},
		{"one without a task last", good + "[opencode-mesh-digest v1]\ngen: 1\n[/opencode-mesh-digest]\n", mesh.CodeMissingKey, 11},
		{"a version above last", good + strings.Replace(good, "v1", "v2", 1), mesh.CodeUnsupportedVersion, 9},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := mesh.FindDigest("a-1", 1, c.text)
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}

func TestFormatDigestWritesTheSample(t *testing.T) {
	got, err := wantDigest().Format()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sampleDigest, got); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
}

func TestFormatDigestRefusesWhatWouldNotParseBack(t *testing.T) {
	cases := []struct {
		name   string
		change func(*mesh.Digest)
		code   mesh.Code
		line   int
	}{
		{"a bad task id", func(d *mesh.Digest) { d.Task = "[x]" }, mesh.CodeBadValue, 0},
		{"a negative gen", func(d *mesh.Digest) { d.Gen = -1 }, mesh.CodeBadValue, 0},
		{"a huge gen", func(d *mesh.Digest) { d.Gen = 1_000_000_000 }, mesh.CodeBadValue, 0},
		{"an empty fact", func(d *mesh.Digest) { d.Facts = []string{"a", ""} }, mesh.CodeBadValue, 0},
		{"a fact of two lines", func(d *mesh.Digest) { d.Facts = []string{"a\nb"} }, mesh.CodeBadValue, 0},
		{"a fact with outer blanks", func(d *mesh.Digest) { d.Facts = []string{" a"} }, mesh.CodeBadValue, 0},
		{"too many facts", func(d *mesh.Digest) { d.Facts = make([]string, mesh.MaxFacts+1) }, mesh.CodeTooLarge, 0},
		{"pending none in words", func(d *mesh.Digest) { d.Pending = "none" }, mesh.CodeBadValue, 0},
		{"a pending line that reads as a key", func(d *mesh.Digest) { d.Pending = "a\nrefs: b" }, mesh.CodeBadValue, 2},
		{"a refs line that reads as a tag", func(d *mesh.Digest) { d.Refs = "a\n[/opencode-mesh-digest]" }, mesh.CodeBadValue, 2},
		{"a known key as an unknown one", func(d *mesh.Digest) { d.Extra = []mesh.Field{{Key: "Gen"}} }, mesh.CodeBadValue, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := wantDigest()
			c.change(&d)
			_, err := d.Format()
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}
