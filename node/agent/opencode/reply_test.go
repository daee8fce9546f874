package opencode_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

func TestReplies(t *testing.T) {
	length := map[string]any{"finish": "length", "time": completed}
	for _, c := range []struct {
		name  string
		play  func(f *fakeServer, p fakePrompt)
		state api.State
		flags []api.Flag
		check func(t *testing.T, out api.Outcome)
	}{
		{name: "a failed result block", state: api.StateFailed,
			play: func(f *fakeServer, p fakePrompt) { f.answer(p, resultBlock(p, "failed", "no compiler")) },
			check: func(t *testing.T, out api.Outcome) {
				if out.Summary != "no compiler" {
					t.Errorf("summary %q", out.Summary)
				}
			}},
		{name: "a free reply", state: api.StateDone, flags: []api.Flag{api.FlagFreeReply},
			play: func(f *fakeServer, p fakePrompt) { f.answer(p, "just text") },
			check: func(t *testing.T, out api.Outcome) {
				if out.Summary != "just text" || out.Reply != "just text" {
					t.Errorf("outcome %+v", out)
				}
			}},
		{name: "a question", state: api.StateQuestion,
			play: func(f *fakeServer, p fakePrompt) {
				f.answer(p, "[opencode-mesh-question v1]\ntask: alpha-1-aaaa\nquestion: which?\noptions: a | b\n[/opencode-mesh-question]")
			},
			check: func(t *testing.T, out api.Outcome) {
				if q := out.Question; q == nil || q.Kind != api.QuestionText || q.Text != "which?" || !slices.Equal(q.Options, []string{"a", "b"}) {
					t.Errorf("question %+v", q)
				}
			}},
		{name: "text of all steps of a turn, not of the last alone", state: api.StateDone,
			play: func(f *fakeServer, p fakePrompt) {
				f.store(p)
				f.step(p, resultBlock(p, "done", "early"), map[string]any{"finish": "tool-calls", "time": completed, "tokens": map[string]any{"total": 100}})
				for i := range 50 { // more than a page
					f.step(p, fmt.Sprintf("step %d", i), map[string]any{"finish": "tool-calls", "time": completed})
				}
				f.finish(p, "the end")
			},
			check: func(t *testing.T, out api.Outcome) {
				if out.Summary != "early" || !strings.HasPrefix(out.Reply, "[opencode-mesh-result") || !strings.HasSuffix(out.Reply, "step 49\nthe end") ||
					out.Tokens.Total != 250 {
					t.Errorf("outcome %+v", out)
				}
			}},
		{name: "no text of other turns and of compaction", state: api.StateDone, flags: []api.Flag{api.FlagFreeReply},
			play: func(f *fakeServer, p fakePrompt) {
				f.step(fakePrompt{Session: p.Session, MessageID: "msg_other"}, resultBlock(p, "failed", "old"), nil)
				f.store(p)
				f.step(p, "a summary", map[string]any{"summary": true, "finish": "stop", "time": completed})
				f.finish(p, "mine")
			},
			check: func(t *testing.T, out api.Outcome) {
				if out.Reply != "mine" {
					t.Errorf("reply %q", out.Reply)
				}
			}},
		{name: "a free reply cut off by its length is partial", state: api.StatePartial, flags: []api.Flag{api.FlagFreeReply, api.FlagTruncated},
			play: func(f *fakeServer, p fakePrompt) { f.store(p); f.step(p, "so far", length); f.idle(p.Session) }},
		{name: "a result block that came before the cut counts", state: api.StateDone,
			play: func(f *fakeServer, p fakePrompt) {
				f.store(p)
				f.step(p, resultBlock(p, "done", "well")+"\nand so", length)
				f.idle(p.Session)
			}},
		{name: "a provider's error", state: api.StateFailed, flags: []api.Flag{api.FlagProviderError},
			play: func(f *fakeServer, p fakePrompt) {
				f.store(p)
				f.step(p, "half", nil)
				f.failLast(f.find(p.Session), "APIError", "rate limited\n  at stack")
				f.idle(p.Session)
			},
			check: func(t *testing.T, out api.Outcome) {
				if out.Summary != "rate limited" || out.Reply != "half" {
					t.Errorf("outcome %+v", out)
				}
			}},
		{name: "a full context", state: api.StateFailed, flags: []api.Flag{api.FlagProviderError, "context_full"},
			play: func(f *fakeServer, p fakePrompt) {
				f.store(p)
				f.step(p, "", map[string]any{"finish": "error", "time": completed,
					"error": map[string]any{"name": "ContextOverflowError", "data": map[string]any{"message": "too long"}}})
				f.idle(p.Session)
			}},
		{name: "an error without a message", state: api.StateFailed, flags: []api.Flag{api.FlagProviderError},
			play: func(f *fakeServer, p fakePrompt) {
				f.store(p)
				f.step(p, "", map[string]any{"time": completed, "error": map[string]any{"name": "MessageOutputLengthError", "data": map[string]any{}}})
				f.idle(p.Session)
			},
			check: func(t *testing.T, out api.Outcome) {
				if out.Summary != "MessageOutputLengthError" {
					t.Errorf("summary %q", out.Summary)
				}
			}},
		{name: "idle twice on an error, the first before the message is final", state: api.StateFailed, flags: []api.Flag{api.FlagProviderError},
			play: func(f *fakeServer, p fakePrompt) {
				f.store(p)
				f.step(p, "", nil)
				f.event(p.Session, "session.error", map[string]any{"error": map[string]any{"name": "APIError", "data": map[string]any{"message": "down"}}})
				f.idle(p.Session)
				time.AfterFunc(30*time.Millisecond, func() {
					f.locked(func() { f.failLast(f.find(p.Session), "APIError", "down"); f.idle(p.Session) })
				})
			},
			check: func(t *testing.T, out api.Outcome) {
				if out.Summary != "down" {
					t.Errorf("summary %q", out.Summary)
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			f.onPrompt = c.play
			turn := newTurn(t, "alpha-1-aaaa", "x")
			out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
			expect(t, out, c.state, "", c.flags...)
			if len(f.prompts) != 1 {
				t.Errorf("%d prompts", len(f.prompts))
			}
			if c.check != nil {
				c.check(t, out)
			}
		})
	}
}

func TestAReplyThatDoesNotFitIsCutAndKeptInTheWorkspace(t *testing.T) {
	f := newFake(t)
	long := strings.Repeat("é", 700)
	f.onPrompt = func(f *fakeServer, p fakePrompt) { f.answer(p, long+"\n"+resultBlock(p, "done", "well")) }
	turn := newTurn(t, "alpha-1-aaaa", "x")
	cfg := forFake(f, turn.Workspace.Dir)
	cfg.MaxReply = 1001
	out := run(t, start(t, cfg), turn, newRecords())
	expect(t, out, api.StateDone, "", api.FlagTruncated)
	const name = ".opencode-mesh/alpha-1-aaaa/reply.txt"
	if out.Summary != "well" || out.Reply != long[:1000] || !slices.Equal(out.Artifacts, []string{"out/a.txt", name}) {
		t.Errorf("summary %q, %d bytes, artifacts %q", out.Summary, len(out.Reply), out.Artifacts)
	}
	kept, err := os.ReadFile(filepath.Join(turn.Workspace.Dir, name))
	if err != nil || !strings.HasPrefix(string(kept), long) || !strings.HasSuffix(string(kept), "[/opencode-mesh-result]") {
		t.Errorf("kept %d bytes, %v", len(kept), err)
	}

	t.Run("and not outside of it", func(t *testing.T) {
		outside := t.TempDir()
		turn := newTurn(t, "alpha-1-bbbb", "x")
		if err := os.Symlink(outside, filepath.Join(turn.Workspace.Dir, ".opencode-mesh")); err != nil {
			t.Fatal(err)
		}
		out := run(t, start(t, cfg), turn, newRecords())
		expect(t, out, api.StateDone, "", api.FlagTruncated)
		if left, _ := os.ReadDir(outside); len(left) != 0 || len(out.Artifacts) != 1 {
			t.Errorf("outside: %v, artifacts %q", left, out.Artifacts)
		}
	})
}
