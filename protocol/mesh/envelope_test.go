package mesh_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/mesh"
)

// sample is the envelope of the protocol's own description.
const sample = `[opencode-mesh v1]
from: alpha
task: alpha-m5x2k9-7f3q
mode: one-shot
reply: result-block
env: s=win32/x64 r=linux/x64
---
Task text.

Second paragraph.
`

func sampleEnvelope() mesh.Envelope {
	return mesh.Envelope{
		From: "alpha", Task: "alpha-m5x2k9-7f3q", Mode: mesh.ModeOneShot, Reply: mesh.ReplyResultBlock,
		Env: "s=win32/x64 r=linux/x64", Body: "Task text.\n\nSecond paragraph.\n",
	}
}

func TestParseEnvelopeReads(t *testing.T) {
	body := func(b string) mesh.Envelope {
		e := sampleEnvelope()
		e.Env, e.Body = "", b
		return e
	}
	const head = "from: alpha\ntask: alpha-m5x2k9-7f3q\nmode: one-shot\nreply: result-block\n"
	with := func(change func(*mesh.Envelope)) mesh.Envelope {
		e := body("x")
		change(&e)
		return e
	}
	cases := []struct {
		name, text string
		want       mesh.Envelope
	}{
		{"the sample", sample, sampleEnvelope()},
		{"the old marker", "[aoi-mesh v1]\n" + head + "---\nx", body("x")},
		{"a v1.5 marker", "[opencode-mesh v1.5]\n" + head + "---\nx", body("x")},
		{"a v1.2.3 marker", "[opencode-mesh v1.2.3]\n" + head + "---\nx", body("x")},
		{"a byte order mark", "\uFEFF[opencode-mesh v1]\n" + head + "---\nx", body("x")},
		{"blank lines and blanks round the marker", "\n \t\r\n  [opencode-mesh v1]\t \n" + head + "---\nx", body("x")},
		{"CRLF", strings.ReplaceAll("[opencode-mesh v1]\n"+head+"---\n", "\n", "\r\n") + "a\r\nb", body("a\r\nb")},
		{"an empty body", "[opencode-mesh v1]\n" + head + "---", body("")},
		{"an empty body after a line end", "[opencode-mesh v1]\n" + head + "---\n", body("")},
		{"a body that begins with blank lines", "[opencode-mesh v1]\n" + head + "---\n\n\n x ", body("\n\n x ")},
		{"markers, keys and --- in the body as text", "[opencode-mesh v1]\n" + head + "---\n---\n" + sample + "task: other\n[/opencode-mesh-result]",
			body("---\n" + sample + "task: other\n[/opencode-mesh-result]")},
		{"a body that is not UTF-8", "[opencode-mesh v1]\n" + head + "---\n\xff\x00\xfe", body("\xff\x00\xfe")},
		{"keys of any case with blanks", "[opencode-mesh v1]\n FROM :alpha\n\tTask:\talpha-m5x2k9-7f3q  \nmOdE : one-shot\nREPLY:result-block\n---\nx", body("x")},
		{"a full-width colon after a known key", strings.ReplaceAll("[opencode-mesh v1]\n"+head, ": ", "：") + "---\nx", body("x")},
		{"a full-width colon before an ASCII one", "[opencode-mesh v1]\n" + head + "env：s=? r=a:b\n---\nx", with(func(e *mesh.Envelope) { e.Env = "s=? r=a:b" })},
		{"a full-width colon after an unknown key as part of the key", "[opencode-mesh v1]\n" + head + "优先：级: 1\n---\nx",
			with(func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "优先：级", Value: "1"}} })},
		{"keys in another order with blank lines", "[opencode-mesh v1]\n\nreply: result-block\nmode: one-shot\n\ntask: alpha-m5x2k9-7f3q\nfrom: alpha\n---\nx", body("x")},
		{"the first of a repeated key", "[opencode-mesh v1]\n" + head + "task: other-1\nFROM: beta\nmode: nonsense\n---\nx", body("x")},
		{"subtask as another key than task", "[opencode-mesh v1]\nsubtask: no\ntask : alpha-m5x2k9-7f3q\nfrom: alpha\nmode: one-shot\nreply: result-block\ntasks: none\n---\nx",
			with(func(e *mesh.Envelope) {
				e.Extra = []mesh.Field{{Key: "subtask", Value: "no"}, {Key: "tasks", Value: "none"}}
			})},
		{"unknown keys once, in their order", "[opencode-mesh v1]\nZeta: 1\n" + head + "alpha: a: b\nzeta: 2\nempty:\n---\nx",
			with(func(e *mesh.Envelope) {
				e.Extra = []mesh.Field{{Key: "Zeta", Value: "1"}, {Key: "alpha", Value: "a: b"}, {Key: "empty"}}
			})},
		{"an unknown reply form", "[opencode-mesh v1]\nfrom: alpha\ntask: alpha-m5x2k9-7f3q\nmode: one-shot\nreply: json\n---\nx",
			with(func(e *mesh.Envelope) { e.Reply = "json" })},
		{"hops", "[opencode-mesh v1]\n" + head + "via: a, b ,,c\n---\nx", with(func(e *mesh.Envelope) { e.Via = []string{"a", "b", "c"} })},
		{"an empty via as none", "[opencode-mesh v1]\n" + head + "via: ,\n---\nx", body("x")},
		{"mode session", "[opencode-mesh v1]\n" + strings.Replace(head, "one-shot", "session", 1) + "---\nx", with(func(e *mesh.Envelope) { e.Mode = mesh.ModeSession })},
		{"mode resume", "[opencode-mesh v1]\n" + strings.Replace(head, "one-shot", "resume", 1) + "---\nx", with(func(e *mesh.Envelope) { e.Mode = mesh.ModeResume })},
		{"an id that a person gave", "[opencode-mesh v1]\n" + strings.Replace(head, "alpha-m5x2k9-7f3q", "Release_1.2", 1) + "---\nx", with(func(e *mesh.Envelope) { e.Task = "Release_1.2" })},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := mesh.ParseEnvelope(c.text)
			if err != nil {
				t.Fatalf("ParseEnvelope: %v", err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("envelope (-want +got):\n%s", d)
			}
			if !mesh.IsEnvelope(c.text) {
				t.Error("IsEnvelope says no")
			}
		})
	}
}

func TestParseEnvelopeRefuses(t *testing.T) {
	const head = "from: alpha\ntask: a-1\nmode: one-shot\nreply: result-block\n"
	without := func(key string) string {
		var keep []string
		for line := range strings.Lines(head) {
			if !strings.HasPrefix(line, key) {
				keep = append(keep, line)
			}
		}
		return "[opencode-mesh v1]\n" + strings.Join(keep, "") + "---\nx"
	}
	many := ""
	for i := range mesh.MaxExtraFields + 1 {
		many += fmt.Sprintf("k%d: v\n", i)
	}
	cases := []struct {
		name, text string
		code       mesh.Code
		line       int
	}{
		{"nothing", "", mesh.CodeNoMarker, 1},
		{"blanks only", " \n\n", mesh.CodeNoMarker, 3},
		{"plain text", "do it", mesh.CodeNoMarker, 1},
		{"text before the marker", "\nhello\n[opencode-mesh v1]\n" + head + "---\nx", mesh.CodeNoMarker, 2},
		{"text behind the marker", "[opencode-mesh v1] hello\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a quoted marker", "> [opencode-mesh v1]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a code fence first", "```\n[opencode-mesh v1]\n" + head + "---\nx\n```", mesh.CodeNoMarker, 1},
		{"a result marker", "[opencode-mesh-result v1]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a marker in capitals", "[OPENCODE-MESH V1]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a full-width marker", "［opencode-mesh v1］\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a marker with a zero-width space", "\u200B[opencode-mesh v1]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a defused marker", "[·opencode-mesh v1]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a marker without version", "[opencode-mesh]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a marker with half a version", "[opencode-mesh v1.]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a marker with the other half", "[opencode-mesh v.5]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"a marker with a lettered version", "[opencode-mesh v1a]\n" + head + "---\nx", mesh.CodeNoMarker, 1},
		{"v2", "\n[opencode-mesh v2]\n" + head + "---\nx", mesh.CodeUnsupportedVersion, 2},
		{"v2.1 of the old family", "[aoi-mesh v2.1]\n" + head + "---\nx", mesh.CodeUnsupportedVersion, 1},
		{"v10", "[opencode-mesh v10]\n" + head + "---\nx", mesh.CodeUnsupportedVersion, 1},
		{"v15 digits long", "[opencode-mesh v999999999999999999999]\n", mesh.CodeUnsupportedVersion, 1},
		{"v0", "[opencode-mesh v0]\n" + head + "---\nx", mesh.CodeUnsupportedVersion, 1},
		{"the marker alone", "[opencode-mesh v1]", mesh.CodeMalformed, 1},
		{"no closing line", "[opencode-mesh v1]\n" + head, mesh.CodeMalformed, 5},
		{"no closing line before the body", "[opencode-mesh v1]\n" + head + "Please build it.\n", mesh.CodeMalformed, 6},
		{"a closing line with blanks", "[opencode-mesh v1]\n" + head + "--- \nx", mesh.CodeMalformed, 6},
		{"a closing line of four", "[opencode-mesh v1]\n" + head + "----\nx", mesh.CodeMalformed, 6},
		{"a second marker in the header", "[opencode-mesh v1]\nfrom: a\n[opencode-mesh v1]\n" + head + "---\nx", mesh.CodeMalformed, 3},
		{"a line without key", "[opencode-mesh v1]\nhello\n" + head + "---\nx", mesh.CodeMalformed, 2},
		{"a line with an empty key", "[opencode-mesh v1]\n : x\n" + head + "---\nx", mesh.CodeMalformed, 2},
		{"an unknown key with a full-width colon only", "[opencode-mesh v1]\nsubtask：x\n" + head + "---\nx", mesh.CodeMalformed, 2},
		{"no from", without("from"), mesh.CodeMissingKey, 5},
		{"no task", without("task"), mesh.CodeMissingKey, 5},
		{"no mode", without("mode"), mesh.CodeMissingKey, 5},
		{"no reply", without("reply"), mesh.CodeMissingKey, 5},
		{"an empty task", "[opencode-mesh v1]\nfrom: a\ntask:\ntask: a-1\nmode: one-shot\nreply: result-block\n---\n", mesh.CodeMissingKey, 3},
		{"subtask instead of task", strings.Replace(without("nothing"), "task:", "subtask:", 1), mesh.CodeMissingKey, 6},
		{"an unknown mode", strings.Replace(without("nothing"), "one-shot", "twice", 1), mesh.CodeBadValue, 4},
		{"a mode in capitals", strings.Replace(without("nothing"), "one-shot", "ONE-SHOT", 1), mesh.CodeBadValue, 4},
		{"a task id with a slash", strings.Replace(without("nothing"), "a-1", "a/1", 1), mesh.CodeBadValue, 3},
		{"a task id that is a path", strings.Replace(without("nothing"), "a-1", "..", 1), mesh.CodeBadValue, 3},
		{"a task id that is too long", strings.Replace(without("nothing"), "a-1", strings.Repeat("a", 65), 1), mesh.CodeBadValue, 3},
		{"control characters in from", strings.Replace(without("nothing"), "alpha", "al\x1b[1mpha", 1), mesh.CodeBadValue, 2},
		{"a mandatory header over its limit", strings.Replace(without("nothing"), "alpha", strings.Repeat("a", 160), 1), mesh.CodeTooLarge, 2},
		{"five hops", "[opencode-mesh v1]\n" + head + "via: a,b,c,d,e\n---\nx", mesh.CodeHopLimit, 6},
		{"an endless env", "[opencode-mesh v1]\n" + head + "env: " + strings.Repeat("x", mesh.MaxFieldBytes+1) + "\n---\nx", mesh.CodeTooLarge, 6},
		{"an endless via", "[opencode-mesh v1]\n" + head + "via: " + strings.Repeat("x", mesh.MaxFieldBytes+1) + "\n---\nx", mesh.CodeTooLarge, 6},
		{"too many unknown keys", "[opencode-mesh v1]\n" + head + many + "---\nx", mesh.CodeTooLarge, 6 + mesh.MaxExtraFields},
		{"an endless unknown key", "[opencode-mesh v1]\n" + head + "x: " + strings.Repeat("x", mesh.MaxFieldBytes) + "\n---\nx", mesh.CodeTooLarge, 6},
		{"a text over 1 MiB", "[opencode-mesh v1]\n" + head + "---\n" + strings.Repeat("x", mesh.MaxTextBytes), mesh.CodeTooLarge, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := mesh.ParseEnvelope(c.text)
			wantSyntaxError(t, err, c.code, c.line)
		})
	}
}

// wantSyntaxError checks code and line of an error.
func wantSyntaxError(t *testing.T, err error, code mesh.Code, line int) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", code)
	}
	var se *mesh.SyntaxError
	if !errors.As(err, &se) {
		t.Fatalf("error is a %T: %v", err, err)
	}
	if se.Code != code || se.Line != line {
		t.Errorf("got %q, want code %s at line %d", err, code, line)
	}
	if se.Code != mesh.CodeOf(fmt.Errorf("wrapped: %w", err)) {
		t.Error("CodeOf does not see through wrapping")
	}
}

func TestParseEnvelopeTakesTextOfExactlyTheLimit(t *testing.T) {
	e := sampleEnvelope()
	e.Body = ""
	head, err := e.Format()
	if err != nil {
		t.Fatal(err)
	}
	text := head + strings.Repeat("x", mesh.MaxTextBytes-len(head))
	got, err := mesh.ParseEnvelope(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := got.Format(); err != nil || again != text {
		t.Errorf("it does not format back: %v", err)
	}
	got.Body += "x"
	_, err = got.Format()
	wantSyntaxError(t, err, mesh.CodeTooLarge, 0)
}

func TestIsEnvelopeLooksAtTheFirstLineOnly(t *testing.T) {
	for text, want := range map[string]bool{
		"[opencode-mesh v1]":             true,
		"\uFEFF\r\n\n  [aoi-mesh v1.5] ": true,
		"[opencode-mesh v2]\nx":          true, // so that its reader can name the version
		"":                               false,
		"hello\n[opencode-mesh v1]":      false,
		"[opencode-mesh-result v1]":      false,
		"[/opencode-mesh v1]":            false,
		"[/opencode-mesh]":               false,
		"[opencode-mesh-other v1]":       false,
		"[opencode-mesh v1":              false,
		"opencode-mesh v1":               false,
		"[]":                             false,
	} {
		if got := mesh.IsEnvelope(text); got != want {
			t.Errorf("IsEnvelope(%q) = %v", text, got)
		}
	}
}

func TestFormatEnvelopeWritesTheSample(t *testing.T) {
	got, err := sampleEnvelope().Format()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sample, got); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
}

func TestFormatEnvelopeWritesViaAndUnknownKeysLast(t *testing.T) {
	e := sampleEnvelope()
	e.Env, e.Body = "", "x"
	e.Via = []string{"a", "b"}
	e.Extra = []mesh.Field{{Key: "prio", Value: "1"}, {Key: "empty"}}
	got, err := e.Format()
	if err != nil {
		t.Fatal(err)
	}
	want := "[opencode-mesh v1]\nfrom: alpha\ntask: alpha-m5x2k9-7f3q\nmode: one-shot\nreply: result-block\nvia: a,b\nprio: 1\nempty:\n---\nx"
	if got != want {
		t.Errorf("got %q", got)
	}
}

func TestFormatEnvelopeRefusesWhatWouldNotParseBack(t *testing.T) {
	cases := []struct {
		name   string
		change func(*mesh.Envelope)
		code   mesh.Code
	}{
		{"an empty from", func(e *mesh.Envelope) { e.From = "" }, mesh.CodeMissingKey},
		{"a from of two lines", func(e *mesh.Envelope) { e.From = "a\ntask: b" }, mesh.CodeBadValue},
		{"a from with outer blanks", func(e *mesh.Envelope) { e.From = " a" }, mesh.CodeBadValue},
		{"an empty task", func(e *mesh.Envelope) { e.Task = "" }, mesh.CodeBadValue},
		{"a bad task id", func(e *mesh.Envelope) { e.Task = "a b" }, mesh.CodeBadValue},
		{"no mode", func(e *mesh.Envelope) { e.Mode = "" }, mesh.CodeBadValue},
		{"an unknown mode", func(e *mesh.Envelope) { e.Mode = "later" }, mesh.CodeBadValue},
		{"an empty reply", func(e *mesh.Envelope) { e.Reply = "" }, mesh.CodeMissingKey},
		{"a reply of two lines", func(e *mesh.Envelope) { e.Reply = "a\n---" }, mesh.CodeBadValue},
		{"an env of two lines", func(e *mesh.Envelope) { e.Env = "s=?\n---" }, mesh.CodeBadValue},
		{"an endless env", func(e *mesh.Envelope) { e.Env = strings.Repeat("x", 2000) }, mesh.CodeTooLarge},
		{"a header over its limit", func(e *mesh.Envelope) { e.From = strings.Repeat("x", 120) }, mesh.CodeTooLarge},
		{"five hops", func(e *mesh.Envelope) { e.Via = []string{"a", "b", "c", "d", "e"} }, mesh.CodeHopLimit},
		{"an empty hop", func(e *mesh.Envelope) { e.Via = []string{"a", ""} }, mesh.CodeBadValue},
		{"a hop with a comma", func(e *mesh.Envelope) { e.Via = []string{"a,b"} }, mesh.CodeBadValue},
		{"a hop with a blank before it", func(e *mesh.Envelope) { e.Via = []string{"a", " b"} }, mesh.CodeBadValue},
		{"a hop with a line break", func(e *mesh.Envelope) { e.Via = []string{"a\n---\nb"} }, mesh.CodeBadValue},
		{"a known key as an unknown one", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "TASK", Value: "x"}} }, mesh.CodeBadValue},
		{"a known key with a full-width colon", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "mode：x", Value: "x"}} }, mesh.CodeBadValue},
		{"an unknown key with a colon", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "a:b", Value: "x"}} }, mesh.CodeBadValue},
		{"an unknown key without a name", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Value: "x"}} }, mesh.CodeBadValue},
		{"an unknown key with a line break", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "a\nb", Value: "x"}} }, mesh.CodeBadValue},
		{"an unknown value with a line break", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "a", Value: "x\n---"}} }, mesh.CodeBadValue},
		{"an unknown value with outer blanks", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "a", Value: "x "}} }, mesh.CodeBadValue},
		{"an unknown key twice", func(e *mesh.Envelope) { e.Extra = []mesh.Field{{Key: "a"}, {Key: "A"}} }, mesh.CodeBadValue},
		{"an endless unknown value", func(e *mesh.Envelope) {
			e.Extra = []mesh.Field{{Key: "a", Value: strings.Repeat("x", mesh.MaxFieldBytes)}}
		}, mesh.CodeTooLarge},
		{"too many unknown keys", func(e *mesh.Envelope) { e.Extra = make([]mesh.Field, mesh.MaxExtraFields+1) }, mesh.CodeTooLarge},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := sampleEnvelope()
			c.change(&e)
			got, err := e.Format()
			wantSyntaxError(t, err, c.code, 0)
			if got != "" {
				t.Errorf("it returned a text beside the error: %q", got)
			}
		})
	}
}

func TestEveryNameAndIDFitsTheHeader(t *testing.T) {
	name := strings.Repeat("n", 32)
	t.Run("with the longest id that a person may give", func(t *testing.T) {
		e := mesh.Envelope{From: name, Task: strings.Repeat("x", mesh.MaxTaskIDBytes), Mode: mesh.ModeOneShot, Reply: mesh.ReplyResultBlock}
		if _, err := e.Format(); err != nil {
			t.Error(err)
		}
	})
	t.Run("with a minted id, marker and closing line within 160 bytes", func(t *testing.T) {
		e := mesh.Envelope{From: name, Task: mesh.NewID(name), Mode: mesh.ModeOneShot, Reply: mesh.ReplyResultBlock}
		text, err := e.Format()
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > mesh.MaxHeaderBytes {
			t.Errorf("the header takes %d bytes", len(text))
		}
	})
}

func TestEnvTagSpellsPlatformsLikeNode(t *testing.T) {
	for _, c := range []struct {
		sender, receiver mesh.Platform
		want             string
	}{
		{"windows/amd64", "linux/amd64", "s=win32/x64 r=linux/x64"},
		{"darwin/arm64", "windows/386", "s=darwin/arm64 r=win32/ia32"},
		{"linux/mipsle", "illumos/ppc64le", "s=linux/mipsel r=sunos/ppc64"},
		{"win32/x64", "", "s=win32/x64 r=?"},
		{"plan9/amd64", "linux/wasm", "s=?/x64 r=linux/?"},
		{"plan9/wasm", "linux", "s=? r=linux/?"},
		{"Windows/AMD64", "a/b/c\nmode: resume", "s=win32/x64 r=?"},
	} {
		if got := mesh.EnvTag(c.sender, c.receiver); got != c.want {
			t.Errorf("EnvTag(%q, %q) = %q, want %q", c.sender, c.receiver, got, c.want)
		}
	}
}
