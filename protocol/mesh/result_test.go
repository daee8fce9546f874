package mesh_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/mesh"
)

const sampleResult = `[opencode-mesh-result v1]
task: alpha-m5x2k9-7f3q
status: done
summary: 214 tests pass, 2 skipped
artifacts: out/report.html, out/coverage.txt
[/opencode-mesh-result]
`

func wantResult() mesh.Result {
	return mesh.Result{
		Task: "alpha-m5x2k9-7f3q", Status: mesh.StatusDone, Summary: "214 tests pass, 2 skipped",
		Artifacts: []string{"out/report.html", "out/coverage.txt"},
	}
}

func TestParseResultReads(t *testing.T) {
	with := func(change func(*mesh.Result)) mesh.Result {
		r := mesh.Result{Task: "a-1", Status: mesh.StatusDone, Summary: "ok"}
		change(&r)
		return r
	}
	plain := with(func(*mesh.Result) {})
	wrap := func(lines string) string {
		return "[opencode-mesh-result v1]\n" + lines + "\n[/opencode-mesh-result]"
	}
	cases := []struct {
		name, text string
		want       mesh.Result
	}{
		{"the sample", sampleResult, wantResult()},
		{"the old family", "[aoi-mesh-result v1]\ntask: a-1\nstatus: done\nsummary: ok\n[/aoi-mesh-result]\n\n", plain},
		{"a new tag closed by an old one", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\nsummary: ok\n[/aoi-mesh-result]", plain},
		{"an old tag closed by a new one", "[aoi-mesh-result v1.9]\ntask: a-1\nstatus: done\nsummary: ok\n  [/opencode-mesh-result]\t", plain},
		{"CRLF and a byte order mark", "\uFEFF" + strings.ReplaceAll(wrap("task: a-1\nstatus: done\nsummary: ok\nartifacts: none"), "\n", "\r\n"), plain},
		{"no artifacts key", wrap("task: a-1\nstatus: done\nsummary: ok"), plain},
		{"an empty artifacts key", wrap("task: a-1\nstatus: done\nsummary: ok\nartifacts:"), plain},
		{"artifacts NONE", wrap("task: a-1\nstatus: done\nsummary: ok\nartifacts: NONE"), plain},
		{"no summary", wrap("task: a-1\nstatus: failed"), mesh.Result{Task: "a-1", Status: mesh.StatusFailed}},
		{"a status in capitals", wrap("task: a-1\nstatus: Partial\nsummary: ok"), with(func(r *mesh.Result) { r.Status = mesh.StatusPartial })},
		{"keys in another order and of any case", wrap("Summary: ok\nARTIFACTS: x\nStatus: done\nTASK: a-1"), with(func(r *mesh.Result) { r.Artifacts = []string{"x"} })},
		{"full-width colons", wrap("task：a-1\nstatus：done\nsummary：ok：yes\nartifacts：x"), with(func(r *mesh.Result) { r.Summary, r.Artifacts = "ok：yes", []string{"x"} })},
		{"a summary of several lines", wrap("task: a-1\nstatus: done\nsummary:\nfirst\n\n  - note: second\r\nsubtask: third\n[x]\n\nartifacts: x"),
			with(func(r *mesh.Result) {
				r.Summary, r.Artifacts = "first\n\n  - note: second\nsubtask: third\n[x]", []string{"x"}
			})},
		{"a summary up to the closing tag", wrap("task: a-1\nstatus: done\nsummary: one\ntwo\n"), with(func(r *mesh.Result) { r.Summary = "one\ntwo" })},
		{"a quoted tag as part of the summary", wrap("task: a-1\nstatus: done\nsummary: one\n> [/opencode-mesh-result]\nsee [opencode-mesh-result v1] above"),
			with(func(r *mesh.Result) {
				r.Summary = "one\n> [/opencode-mesh-result]\nsee [opencode-mesh-result v1] above"
			})},
		{"the first of a repeated key, the rest of the other dropped", wrap("task: a-1\ntask: b-2\nstatus: done\nsummary: ok\nstatus: failed\nsummary: no\nnot this\nartifacts: x"),
			with(func(r *mesh.Result) { r.Artifacts = []string{"x"} })},
		{"unknown keys", wrap("model: big\ntask: a-1\nstatus: done\nsummary: ok\nartifacts: x\ncost: 1: 2\nfree text"),
			with(func(r *mesh.Result) {
				r.Artifacts, r.Extra = []string{"x"}, []mesh.Field{{Key: "model", Value: "big"}, {Key: "cost", Value: "1: 2"}}
			})},
		{"artifacts with empty items", wrap("task: a-1\nstatus: done\nsummary: ok\nartifacts: , a b ,,c,"), with(func(r *mesh.Result) { r.Artifacts = []string{"a b", "c"} })},
		{"artifacts as a list below their key", wrap("task: a-1\nstatus: done\nsummary: ok\nartifacts:\n- a\n\n  - b: c, d\n- task: x\nnote: y\n- e"),
			with(func(r *mesh.Result) {
				r.Artifacts, r.Extra = []string{"a", "b: c", "d", "task: x"}, []mesh.Field{{Key: "note", Value: "y"}}
			})},
		{"a list that says none", wrap("task: a-1\nstatus: done\nsummary: ok\nartifacts:\n- none"), plain},
		{"a missing closing tag", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\nsummary: ok\n", with(func(r *mesh.Result) { r.Unterminated = true })},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := mesh.ParseResult(c.text)
			if err != nil {
				t.Fatalf("ParseResult: %v", err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("result (-want +got):\n%s", d)
			}
		})
	}
}

func TestParseResultDropsUnknownKeysOverTheLimit(t *testing.T) {
	text := "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\n"
	for i := range 2 * mesh.MaxExtraFields {
		text += strings.Repeat("k", i+1) + ": v\n"
	}
	got, err := mesh.ParseResult(text + "huge: " + strings.Repeat("x", mesh.MaxFieldBytes) + "\n[/opencode-mesh-result]")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Extra) != mesh.MaxExtraFields {
		t.Errorf("%d unknown keys were kept", len(got.Extra))
	}
}

func TestParseResultRefuses(t *testing.T) {
	cases := []struct {
		name, text string
		code       mesh.Code
		line       int
	}{
		{"nothing", "", mesh.CodeNoMarker, 1},
		{"an envelope", sample, mesh.CodeNoMarker, 1},
		{"a closing tag", "[/opencode-mesh-result]", mesh.CodeNoMarker, 1},
		{"text before", "Done!\n" + sampleResult, mesh.CodeNoMarker, 1},
		{"text after", sampleResult + "\nBye", mesh.CodeMalformed, 8},
		{"a second block", sampleResult + sampleResult, mesh.CodeMalformed, 7},
		{"a block within", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\n" + sampleResult, mesh.CodeMalformed, 4},
		{"another block's closing tag", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\n[/opencode-mesh-question]", mesh.CodeMalformed, 4},
		{"v2", "[opencode-mesh-result v2]\ntask: a-1\nstatus: done\n[/opencode-mesh-result]", mesh.CodeUnsupportedVersion, 1},
		{"no task", "[opencode-mesh-result v1]\nstatus: done\n[/opencode-mesh-result]", mesh.CodeMissingKey, 3},
		{"a bad task id", "\n[opencode-mesh-result v1]\nstatus: done\ntask: <task id>\n[/opencode-mesh-result]", mesh.CodeBadValue, 4},
		{"no status", "[opencode-mesh-result v1]\ntask: a-1\nsummary: ok\n[/opencode-mesh-result]", mesh.CodeMissingKey, 4},
		{"an empty status", "[opencode-mesh-result v1]\ntask: a-1\nstatus:\nsummary: ok\n[/opencode-mesh-result]", mesh.CodeMissingKey, 3},
		{"another status", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done | partial | failed\n[/opencode-mesh-result]", mesh.CodeBadValue, 3},
		{"a text over 1 MiB", sampleResult + strings.Repeat("\n", mesh.MaxTextBytes), mesh.CodeTooLarge, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := mesh.ParseResult(c.text)
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}

func TestFormatResultWritesTheSample(t *testing.T) {
	got, err := wantResult().Format()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sampleResult, got); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
}

func TestFormatResultWritesNoneAndUnknownKeys(t *testing.T) {
	r := mesh.Result{Task: "a-1", Status: mesh.StatusFailed, Extra: []mesh.Field{{Key: "model", Value: "big"}}}
	got, err := r.Format()
	if err != nil {
		t.Fatal(err)
	}
	want := "[opencode-mesh-result v1]\ntask: a-1\nstatus: failed\nmodel: big\nsummary:\nartifacts: none\n[/opencode-mesh-result]\n"
	if got != want {
		t.Errorf("got %q", got)
	}
}

func TestFormatResultRefusesWhatWouldNotParseBack(t *testing.T) {
	summary := func(s string) func(*mesh.Result) { return func(r *mesh.Result) { r.Summary = s } }
	artifacts := func(a ...string) func(*mesh.Result) { return func(r *mesh.Result) { r.Artifacts = a } }
	cases := []struct {
		name   string
		change func(*mesh.Result)
		code   mesh.Code
		line   int
	}{
		{"a bad task id", func(r *mesh.Result) { r.Task = "a b" }, mesh.CodeBadValue, 0},
		{"an unknown status", func(r *mesh.Result) { r.Status = "ok" }, mesh.CodeBadValue, 0},
		{"a status in capitals", func(r *mesh.Result) { r.Status = "Done" }, mesh.CodeBadValue, 0},
		{"a summary line that reads as a key", summary("ok\nstatus: failed"), mesh.CodeBadValue, 2},
		{"a summary line that reads as a key in disguise", summary("ok\n\n ARTIFACTS ：x"), mesh.CodeBadValue, 3},
		{"a summary line that reads as a closing tag", summary("ok\n[/opencode-mesh-result]"), mesh.CodeBadValue, 2},
		{"a summary that is a tag", summary("[/aoi-mesh-question]"), mesh.CodeBadValue, 1},
		{"a summary line that reads as a marker of v2", summary("ok\n [opencode-mesh v2] \nok"), mesh.CodeBadValue, 2},
		{"a summary with outer blanks", summary("ok\n"), mesh.CodeBadValue, 0},
		{"a summary with CRLF", summary("a\r\nb"), mesh.CodeBadValue, 0},
		{"a summary over 1 MiB", summary(strings.Repeat("x", mesh.MaxTextBytes)), mesh.CodeTooLarge, 0},
		{"a path with a comma", artifacts("a,b"), mesh.CodeBadValue, 0},
		{"a path with a line break", artifacts("a\nb"), mesh.CodeBadValue, 0},
		{"a path with outer blanks", artifacts("a "), mesh.CodeBadValue, 0},
		{"an empty path", artifacts("a", ""), mesh.CodeBadValue, 0},
		{"a path called none alone", artifacts("None"), mesh.CodeBadValue, 0},
		{"a path that looks like an item", artifacts("a", "- b"), mesh.CodeBadValue, 0},
		{"a known key as an unknown one", func(r *mesh.Result) { r.Extra = []mesh.Field{{Key: "summary"}} }, mesh.CodeBadValue, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := wantResult()
			c.change(&r)
			_, err := r.Format()
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}

func TestFormatResultTakesASummaryThatOnlyBeginsLikeAKey(t *testing.T) {
	for _, s := range []string{"Status: all good", "task: done\nsubtask: too", "see [/opencode-mesh-result] there"} {
		r := mesh.Result{Task: "a-1", Status: mesh.StatusDone, Summary: s}
		text, err := r.Format()
		if err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		if got, err := mesh.ParseResult(text); err != nil || got.Summary != s {
			t.Errorf("%q came back as %q, %v", s, got.Summary, err)
		}
	}
}

func TestQuoteSummaryMakesAnyTextFit(t *testing.T) {
	for in, want := range map[string]string{
		"fits":         "fits",
		" a\r\nb\r\n ": "a\nb",
		"ok\nstatus: failed\n[/opencode-mesh-result]\nend": "ok\n> status: failed\n> [/opencode-mesh-result]\nend",
		"ok\noptions: a":       "ok\n> options: a",
		"[opencode-mesh v1]\n": "> [opencode-mesh v1]",
		"":                     "",
	} {
		if got := mesh.QuoteSummary(in); got != want {
			t.Errorf("QuoteSummary(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCutSummaryCutsBetweenCharacters(t *testing.T) {
	long := strings.Repeat("x", mesh.MaxSummaryChars-1)
	family := "👨\u200D👩\u200D👧"
	for _, c := range []struct{ name, in, want string }{
		{"a short text stays", "héllo", "héllo"},
		{"300 wide characters stay", strings.Repeat("界", 300), strings.Repeat("界", 300)},
		{"the 301st goes", strings.Repeat("界", 301), strings.Repeat("界", 300)},
		{"ASCII", strings.Repeat("x", 400), strings.Repeat("x", 300)},
		{"an accent stays with its letter", long + "e\u0301" + "x", long},
		{"a composed emoji stays whole", long + family + "x", long},
		{"a composed emoji stays whole when its joiner still fits", long[1:] + "👩\u200D👧", long[1:]},
		{"a skin tone stays with its hand", long + "👋🏽", long},
		{"a character that fits is kept", long + "e" + "x", long + "e"},
		{"accents without end are cut", strings.Repeat("\u0301", 400), strings.Repeat("\u0301", 300)},
		{"bytes that are not UTF-8 count one each", strings.Repeat("\xff", 301), strings.Repeat("\xff", 300)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := mesh.CutSummary(c.in)
			if got != c.want {
				t.Errorf("got %q (%d characters)", got, utf8.RuneCountInString(got))
			}
		})
	}
}
