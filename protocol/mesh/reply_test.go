package mesh_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/mesh"
)

// resultFor makes a result block of task a-1 or another.
func resultFor(task, status, summary string) string {
	return "[opencode-mesh-result v1]\ntask: " + task + "\nstatus: " + status + "\nsummary: " + summary + "\nartifacts: none\n[/opencode-mesh-result]\n"
}

func questionFor(task, text string) string {
	return "[opencode-mesh-question v1]\ntask: " + task + "\nquestion: " + text + "\noptions:\n[/opencode-mesh-question]\n"
}

func TestReadReplyFindsTheBlockThatCounts(t *testing.T) {
	result := func(status mesh.Status, summary string, flags ...string) mesh.Reply {
		return mesh.Reply{
			Kind:   mesh.KindResult,
			Result: mesh.Result{Task: "a-1", Status: status, Summary: summary},
			Flags:  flags,
		}
	}
	unterminated := func(r mesh.Reply) mesh.Reply {
		r.Result.Unterminated = true
		r.Flags = []string{mesh.FlagUnterminated}
		return r
	}
	ok := resultFor("a-1", "done", "ok")
	cases := []struct {
		name, text string
		want       mesh.Reply
	}{
		{"a block alone", ok, result(mesh.StatusDone, "ok")},
		{"a block after prose", "I did it.\n\n" + ok, result(mesh.StatusDone, "ok")},
		{"a block in a code fence", "Result:\n```text\n" + ok + "```\nBye.", result(mesh.StatusDone, "ok")},
		{"an indented block", "  " + strings.ReplaceAll(ok, "\n", "\n  "), result(mesh.StatusDone, "ok")},
		{"an old block", strings.ReplaceAll(ok, "opencode-mesh", "aoi-mesh"), result(mesh.StatusDone, "ok")},
		{"mixed tags", strings.Replace(ok, "[opencode-mesh", "[aoi-mesh", 1), result(mesh.StatusDone, "ok")},
		{"CRLF", strings.ReplaceAll("x\n"+ok, "\n", "\r\n"), result(mesh.StatusDone, "ok")},
		{"a byte order mark", "\uFEFF" + ok, result(mesh.StatusDone, "ok")},
		{"a v1.5 block", strings.Replace(ok, "v1", "v1.5", 1), result(mesh.StatusDone, "ok")},
		{"the last of several", resultFor("a-1", "failed", "first try") + ok, result(mesh.StatusDone, "ok")},
		{"another task's block after ours", ok + resultFor("b-2", "failed", "no"), result(mesh.StatusDone, "ok")},
		{"another task's broken block after ours", ok + resultFor("b-2", "?", "no"), result(mesh.StatusDone, "ok")},
		{"a subtask key before the task", strings.Replace(ok, "task:", "subtask: b-2\ntask:", 1), func() mesh.Reply {
			r := result(mesh.StatusDone, "ok")
			r.Result.Extra = []mesh.Field{{Key: "subtask", Value: "b-2"}}
			return r
		}()},
		{"a good block before a broken one", ok + resultFor("a-1", "finished", "no"), result(mesh.StatusDone, "ok")},
		{"a good block before one of v2", ok + strings.Replace(resultFor("a-1", "failed", "no"), "v1", "v2", 1), result(mesh.StatusDone, "ok")},
		{"a block within a block", "[opencode-mesh-result v1]\ntask: a-1\n" + resultFor("a-1", "partial", "inner") + "[/opencode-mesh-result]\n", result(mesh.StatusPartial, "inner")},
		{"a quoted block after ours", ok + "> " + strings.ReplaceAll(resultFor("a-1", "failed", "no"), "\n", "\n> "), result(mesh.StatusDone, "ok")},
		{"the template quoted after ours", ok + resultFor("<task id>", "done | partial | failed", "<the conclusion>"), result(mesh.StatusDone, "ok")},
		{"a result after a question", questionFor("a-1", "why?") + ok, result(mesh.StatusDone, "ok")},
		{"a result after an envelope", sample + "\n" + ok, result(mesh.StatusDone, "ok")},
		{"a question after a result", ok + questionFor("a-1", "why?"), mesh.Reply{Kind: mesh.KindQuestion, Question: mesh.Question{Task: "a-1", Text: "why?"}}},
		{"a question and another task's result", questionFor("a-1", "why?") + resultFor("b-2", "done", "x"), mesh.Reply{Kind: mesh.KindQuestion, Question: mesh.Question{Task: "a-1", Text: "why?"}}},
		{"a question before a broken result", questionFor("a-1", "why?") + resultFor("a-1", "", "x"), mesh.Reply{Kind: mesh.KindQuestion, Question: mesh.Question{Task: "a-1", Text: "why?"}}},
		{"a block that ends with the text", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\nsummary: ok", unterminated(result(mesh.StatusDone, "ok"))},
		{"a block that ends at an envelope", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\nsummary: ok\n" + sample, unterminated(result(mesh.StatusDone, "ok"))},
		{"a block that ends at another kind's closing tag", strings.Replace(ok, "/opencode-mesh-result", "/opencode-mesh-question", 1), unterminated(result(mesh.StatusDone, "ok"))},
		{"a block that ends at a block of v2", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\nsummary: ok\n[opencode-mesh-digest v2]\n", unterminated(result(mesh.StatusDone, "ok"))},
		{"an unterminated block before another task's", "[opencode-mesh-result v1]\ntask: a-1\nstatus: done\nsummary: ok\n" + resultFor("b-2", "failed", "no"), unterminated(result(mesh.StatusDone, "ok"))},
		{"an unterminated question", strings.TrimSuffix(questionFor("a-1", "why?"), "[/opencode-mesh-question]\n"),
			mesh.Reply{Kind: mesh.KindQuestion, Question: mesh.Question{Task: "a-1", Text: "why?", Unterminated: true}, Flags: []string{mesh.FlagUnterminated}}},
		{"a closing tag that no block has", resultFor("a-1", "done", "ok\n[/opencode-mesh]"), result(mesh.StatusDone, "ok\n[/opencode-mesh]")},
		{"a summary of 300 wide characters", resultFor("a-1", "done", strings.Repeat("界", 300)), result(mesh.StatusDone, strings.Repeat("界", 300))},
		{"a summary of 301 characters, kept whole", resultFor("a-1", "done", strings.Repeat("界", 301)), result(mesh.StatusDone, strings.Repeat("界", 301), mesh.FlagSummaryTooLong)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.want, mesh.ReadReply("a-1", c.text)); d != "" {
				t.Errorf("reply (-want +got):\n%s", d)
			}
		})
	}
}

func TestReadReplyWithoutABlockIsFree(t *testing.T) {
	broken := resultFor("a-1", "finished", "x")
	cases := []struct {
		name, text string
		status     mesh.Status
	}{
		{"plain text", "All tests pass.\nNothing else.", mesh.StatusDone},
		{"nothing", "", mesh.StatusDone},
		{"another task's block", resultFor("b-2", "failed", "x"), mesh.StatusDone},
		{"another task's broken block", resultFor("b-2", "finished", "x"), mesh.StatusDone},
		{"a template", resultFor("<task id>", "done", "x"), mesh.StatusDone},
		{"a digest only", sampleDigest, mesh.StatusDone},
		{"a closing tag only", "[/opencode-mesh-result]", mesh.StatusDone},
		{"a defused block", "[·opencode-mesh-result v1]\ntask: a-1\nstatus: failed\n[·/opencode-mesh-result]", mesh.StatusDone},
		{"a block within a line", "see [opencode-mesh-result v1] task: a-1", mesh.StatusDone},
		{"another status", broken, mesh.StatusPartial},
		{"no status", "[opencode-mesh-result v1]\ntask: a-1\nsummary: x\n[/opencode-mesh-result]", mesh.StatusPartial},
		{"no task", "[opencode-mesh-result v1]\nstatus: done\n[/opencode-mesh-result]", mesh.StatusPartial},
		{"v2", strings.Replace(resultFor("a-1", "done", "x"), "v1", "v2", 1), mesh.StatusPartial},
		{"a question of v2", strings.Replace(questionFor("a-1", "why?"), "v1", "v2", 1), mesh.StatusPartial},
		{"a question without text", questionFor("a-1", ""), mesh.StatusPartial},
		{"a broken block and another task's good one", broken + resultFor("b-2", "done", "x"), mesh.StatusPartial},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := mesh.Reply{
				Kind:   mesh.KindFree,
				Result: mesh.Result{Task: "a-1", Status: c.status, Summary: strings.TrimSpace(c.text)},
				Flags:  []string{mesh.FlagFreeReply},
			}
			if d := cmp.Diff(want, mesh.ReadReply("a-1", c.text)); d != "" {
				t.Errorf("reply (-want +got):\n%s", d)
			}
		})
	}
	t.Run("without the byte order mark", func(t *testing.T) {
		if got := mesh.ReadReply("a-1", "\uFEFFdone").Result.Summary; got != "done" {
			t.Errorf("summary %q", got)
		}
	})
	t.Run("a long one", func(t *testing.T) {
		text := strings.Repeat("word ", 100)
		got := mesh.ReadReply("a-1", text)
		if d := cmp.Diff([]string{mesh.FlagFreeReply, mesh.FlagSummaryTooLong}, got.Flags); d != "" {
			t.Errorf("flags (-want +got):\n%s", d)
		}
		if got.Result.Summary != strings.TrimSpace(text) {
			t.Error("the summary was not kept whole")
		}
	})
}

func TestReadReplyFindsTheBlockBehindMoreThanAMebibyte(t *testing.T) {
	text := strings.Repeat("line of output\n", mesh.MaxTextBytes/10) + resultFor("a-1", "done", "ok")
	if got := mesh.ReadReply("a-1", text); got.Kind != mesh.KindResult || got.Result.Summary != "ok" {
		t.Errorf("got kind %s, summary of %d bytes", got.Kind, len(got.Result.Summary))
	}
}

func TestConductNamesEveryFormat(t *testing.T) {
	text := mesh.Conduct()
	if len(text) >= 2048 {
		t.Errorf("it takes %d bytes", len(text))
	}
	for _, s := range []string{
		"[opencode-mesh v1]", "[opencode-mesh-result v1]\n", "\n[/opencode-mesh-result]\n", "[opencode-mesh-question v1]\n", "\n[/opencode-mesh-question]\n",
		"[opencode-mesh-digest v1]\n", "\n[/opencode-mesh-digest]\n", "done | partial | failed", "artifacts:", "options:", "facts:\n- ", "pending:", "refs:", "gen:", "mode: one-shot", "resume",
	} {
		if !strings.Contains(text, s) {
			t.Errorf("it does not mention %q", s)
		}
	}
	t.Run("and quoting it answers nothing", func(t *testing.T) {
		if got := mesh.ReadReply("a-1", text); got.Kind != mesh.KindFree || got.Result.Status != mesh.StatusDone {
			t.Errorf("got %s %s", got.Kind, got.Result.Status)
		}
	})
	t.Run("and its frame delimiters are the ones that Frame writes", func(t *testing.T) {
		framed, _ := mesh.Frame("0123456789abcdef", "label", "x")
		for line := range strings.Lines(framed) {
			if head, _, ok := strings.Cut(line, "0123456789abcdef"); ok && !strings.Contains(text, head+"nonce") {
				t.Errorf("it does not mention %q", head)
			}
		}
	})
}
