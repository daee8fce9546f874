package opencode_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func TestATurnIsPromptedOnceWithItsOwnIds(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "do it")
	a := start(t, forFake(f, turn.Workspace.Dir))
	host := newRecords()
	out := run(t, a, turn, host)
	expect(t, out, api.StateDone, "")
	if out.Summary != "well" || !slices.Equal(out.Artifacts, []string{"out/a.txt"}) || !out.NewSession || out.Session != "ses_1" {
		t.Errorf("outcome %+v", out)
	}
	if out.Tokens == nil || out.Tokens.Total != 250 || out.Tokens.Limit != 1000 {
		t.Errorf("tokens %+v", out.Tokens)
	}
	if len(f.prompts) != 1 {
		t.Fatalf("%d prompts", len(f.prompts))
	}
	p := f.prompts[0]
	message, part := regexp.MustCompile(`^msg_mesh_[0-9a-f]{26}$`), regexp.MustCompile(`^prt_mesh_[0-9a-f]{26}$`)
	if !message.MatchString(p.MessageID) || !part.MatchString(p.Parts[0].ID) || p.MessageID[4:] != p.Parts[0].ID[4:] {
		t.Errorf("ids %s %s", p.MessageID, p.Parts[0].ID)
	}
	if p.Agent != "build" || p.Model.Provider != "stub" || p.Model.ID != "one" || p.System != mesh.Conduct() || p.Parts[0].Text != turn.Text {
		t.Errorf("prompt %+v", p)
	}
	// The session is marked, titled and on record before the prompt.
	s := f.sessions[0]
	mark, _ := s.Metadata["mesh"].(map[string]any)
	if s.Title != "opencode-mesh alpha" || mark["hub"] != "hub" || mark["key"] != "c1/main" || mark["gen"] != 1.0 {
		t.Errorf("session %+v", s)
	}
	if !slices.Equal(host.made, []string{"ses_1"}) || len(host.saved) < 2 ||
		strings.Contains(host.saved[0], "seen") || !strings.Contains(host.saved[0], p.MessageID) || !strings.Contains(string(host.last()), `"seen":true`) {
		t.Errorf("made %q, saved %q", host.made, host.saved)
	}
}

func TestIdsDifferBetweenTurnsAndSessions(t *testing.T) {
	f := newFake(t)
	base := newTurn(t, "alpha-1-aaaa", "x")
	a := start(t, forFake(f, base.Workspace.Dir))
	seen := map[string]bool{}
	for _, change := range []func(*agent.Turn){
		func(*agent.Turn) {},
		func(t *agent.Turn) { t.HubID = "other" },
		func(t *agent.Turn) { t.Task = "alpha-1-bbbb" },
		func(t *agent.Turn) { t.Attempt = 2 },
		func(t *agent.Turn) { t.Turn = 2 },
		func(t *agent.Turn) { t.Session.Generation = 2 },
	} {
		turn := base
		change(&turn)
		run(t, a, turn, newRecords())
		seen[f.prompts[len(f.prompts)-1].MessageID] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d different ids for 6 turns", len(seen))
	}
}

func TestSessions(t *testing.T) {
	t.Run("are used again when they are alive", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, forFake(f, turn.Workspace.Dir))
		first := run(t, a, turn, newRecords())
		turn.Task, turn.Text, turn.Session.ID = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x"), first.Session
		host := newRecords()
		second := run(t, a, turn, host)
		expect(t, second, api.StateDone, "")
		if second.Session != first.Session || second.NewSession || len(f.sessions) != 1 || len(host.made) != 0 {
			t.Errorf("second turn in %s, new %v, %d sessions", second.Session, second.NewSession, len(f.sessions))
		}
	})
	t.Run("are replaced with a flag when they are gone", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		turn.Session.ID = "ses_gone"
		a := start(t, forFake(f, turn.Workspace.Dir))
		host := newRecords()
		out := run(t, a, turn, host)
		expect(t, out, api.StateDone, "", api.FlagSessionReplaced)
		if !out.NewSession || !slices.Equal(host.made, []string{out.Session}) {
			t.Errorf("outcome %+v, made %q", out, host.made)
		}
	})
	t.Run("are replaced when they vanish between look and prompt", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, forFake(f, turn.Workspace.Dir))
		turn.Session.ID = run(t, a, turn, newRecords()).Session
		f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/"+turn.Session.ID+"/prompt_async") {
				f.locked(func() { f.remove(turn.Session.ID) })
			}
			return false
		}
		turn.Task, turn.Text = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x")
		host := newRecords()
		out := run(t, a, turn, host)
		expect(t, out, api.StateDone, "", api.FlagSessionReplaced)
		if id := f.prompts[len(f.prompts)-1].MessageID; out.Session == turn.Session.ID || strings.Contains(host.saved[0], id) {
			t.Errorf("outcome %+v; message %s moved from %s", out, id, host.saved[0])
		}
	})
	t.Run("are replaced when they belong to another directory", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() { f.add(&fakeSession{ID: "ses_other", Dir: t.TempDir()}) })
		turn.Session.ID = "ses_other"
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "", api.FlagSessionReplaced)
	})
	t.Run("are recognised through a link in the path", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(turn.Workspace.Dir, link); err != nil {
			t.Fatal(err)
		}
		f.locked(func() { f.add(&fakeSession{ID: "ses_real", Dir: turn.Workspace.Dir}) })
		turn.Workspace.Dir, turn.Session.ID = link, "ses_real"
		out := run(t, start(t, forFake(f, link)), turn, newRecords())
		expect(t, out, api.StateDone, "")
		if out.Session != "ses_real" {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("are found by their mark when a crash kept them from the journal", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, forFake(f, turn.Workspace.Dir))
		first := run(t, a, turn, newRecords())
		turn.Task, turn.Text = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x")
		host := newRecords()
		second := run(t, a, turn, host)
		if second.Session != first.Session || !slices.Equal(host.made, []string{first.Session}) {
			t.Errorf("found %s, made %q", second.Session, host.made)
		}
		turn.Session.Generation = 2
		if third := run(t, a, turn, newRecords()); third.Session == first.Session {
			t.Error("a session of another generation was taken")
		}
	})
	t.Run("are not replaced because a proxy answers 404", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() { f.add(&fakeSession{ID: "ses_real", Dir: turn.Workspace.Dir}) })
		turn.Session.ID = "ses_real"
		failures := 3
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/session/ses_real" && failures > 0 {
				failures--
				http.Error(w, "<html>no such app", http.StatusNotFound)
				return true
			}
			return false
		}
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
	})
	t.Run("wait for a human who types in them", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_shared", Dir: turn.Workspace.Dir})
			f.busy["ses_shared"] = map[string]any{"type": "busy"}
			// The human's own business, not ours to reject.
			f.asks["permission"] = []map[string]any{{"id": "per_h", "sessionID": "ses_shared", "permission": "bash"}}
		})
		turn.Session.ID = "ses_shared"
		host := newRecords()
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitNote(t, "in use")
		f.locked(func() {
			if len(f.prompts) != 0 {
				t.Error("a busy session was prompted")
			}
			f.idle("ses_shared")
		})
		expect(t, settle(t, done), api.StateDone, "")
		if len(f.replies) != 0 {
			t.Errorf("the human's permission was answered: %q", f.replies)
		}
	})
	t.Run("take one turn at a time even if the runner does not", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
		a := start(t, forFake(f, turn.Workspace.Dir))
		f.locked(func() { f.add(&fakeSession{ID: "ses_one", Dir: turn.Workspace.Dir}) })
		turn.Session.ID = "ses_one"
		first, _ := begin(t, a, turn, newRecords())
		f.await("the first prompt", func() bool { return len(f.prompts) == 1 })
		other := turn
		other.Task, other.Text, other.Session.Key = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x"), "another lane"
		second, _ := begin(t, a, other, newRecords())
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "one")) })
		if out := settle(t, first); out.Summary != "one" {
			t.Errorf("first %+v", out)
		}
		f.await("the second prompt", func() bool { return len(f.prompts) == 2 })
		f.locked(func() { f.finish(f.prompts[1], resultBlock(f.prompts[1], "done", "two")) })
		if out := settle(t, second); out.Summary != "two" {
			t.Errorf("second %+v", out)
		}
	})
}

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

func TestA204IsNotAnExecution(t *testing.T) {
	t.Run("nothing happens: sent again with the same ids, then not started", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(*fakeServer, fakePrompt) {}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateFailed, api.TaskNotStarted)
		if len(f.prompts) != 3 || f.prompts[0].MessageID != f.prompts[2].MessageID || f.prompts[0].Parts[0].ID != f.prompts[2].Parts[0].ID {
			t.Errorf("prompts %+v", f.prompts)
		}
		if len(f.aborts) == 0 {
			t.Error("what was given up was not aborted")
		}
	})
	t.Run("the second one arrives", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			if len(f.prompts) == 2 {
				f.answer(p, resultBlock(p, "done", "second"))
			}
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
	})
	t.Run("stored but never run: resumed twice, then not started", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.store(p) }
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateFailed, api.TaskNotStarted, api.FlagResumed)
		if len(f.prompts) != 1+api.MaxResumes {
			t.Errorf("%d prompts", len(f.prompts))
		}
	})
	t.Run("a bad agent: the event alone says why", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			for _, text := range []string{`Agent not found: "x"`, "UnknownError\n at y"} {
				f.event(p.Session, "session.error", map[string]any{"error": map[string]any{"name": "UnknownError", "data": map[string]any{"message": text}}})
			}
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateFailed, api.TaskNotStarted)
		if !strings.Contains(out.Summary, `Agent not found: "x"`) || len(f.prompts) != 1 {
			t.Errorf("summary %q after %d prompts", out.Summary, len(f.prompts))
		}
	})
	t.Run("stored and never run, with a reason", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.store(p)
			f.event(p.Session, "session.error", map[string]any{"error": map[string]any{"data": map[string]any{"message": "Model not found"}}})
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateFailed, api.TaskNotStarted)
		if !strings.Contains(out.Summary, "Model not found") || len(f.prompts) != 1 {
			t.Errorf("summary %q after %d prompts", out.Summary, len(f.prompts))
		}
	})
	t.Run("an answer that is lost on the way is no failure", func(t *testing.T) {
		f := newFake(t)
		lost := false
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/prompt_async") && !lost {
				lost = true
				f.intercept(w, r) // let it through, then cut the connection
				rec := &discard{header: http.Header{}}
				f.ServeHTTP(rec, r)
				panic(http.ErrAbortHandler)
			}
			return false
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
		if len(f.prompts) != 1 {
			t.Errorf("%d prompts", len(f.prompts))
		}
	})
	t.Run("a refused prompt is not started", func(t *testing.T) {
		f := newFake(t)
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/prompt_async") {
				f.reply(w, 400, map[string]any{"name": "BadRequest", "data": map[string]any{"message": "Missing key\n at parts"}})
				return true
			}
			return false
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateFailed, api.TaskNotStarted)
		if !strings.Contains(out.Summary, "400: Missing key") {
			t.Errorf("summary %q", out.Summary)
		}
	})
}

// discard is a ResponseWriter that nobody reads.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

func TestLostEventsAreRecoveredByPolling(t *testing.T) {
	t.Run("the idle event never comes", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.work(p)
			f.dropStreams()
			time.AfterFunc(20*time.Millisecond, func() {
				f.locked(func() {
					f.step(p, resultBlock(p, "done", "quiet"), map[string]any{"finish": "stop", "time": completed})
					delete(f.busy, p.Session)
				})
			})
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
	})
	t.Run("there is no event stream at all", func(t *testing.T) {
		f := newFake(t)
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/event" {
				return false
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprint(w, "<html>")
			return true
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		expect(t, run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords()), api.StateDone, "")
	})
	t.Run("idle for another session and premature idle decide nothing", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.work(p)
			f.event("ses_other", "session.idle", nil)
			f.event(p.Session, "session.idle", nil)
		}
		turn := newTurn(t, "alpha-1-aaaa", "x")
		host := newRecords()
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitSeen(t)
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "later")) })
		if out := settle(t, done); out.Summary != "later" || len(f.prompts) != 1 {
			t.Errorf("outcome %+v", out)
		}
	})
}

// With a poll interval of an hour only events can bring the turn to its end.
func TestAnEventLineOf300KBIsReadAndSoIsTheNext(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
	turn := newTurn(t, "alpha-1-aaaa", "x")
	cfg := forFake(f, turn.Workspace.Dir)
	cfg.PollInterval = time.Hour
	host := newRecords()
	done, _ := begin(t, start(t, cfg), turn, host)
	host.awaitSeen(t)
	f.locked(func() {
		p := f.prompts[0]
		big := strings.Repeat("x", 300<<10)
		f.event(p.Session, "message.part.updated", map[string]any{"part": map[string]any{"text": big}})
		f.raw(p.Session, `{"id":"e","type":"session.idle","properties":{"junk":"`+strings.Repeat("y", 5<<20)+`"}}`) // over the limit: skipped
		f.raw(p.Session, `not json`)
		f.finish(p, resultBlock(p, "done", "after the big one"))
	})
	if out := settle(t, done); out.Summary != "after the big one" {
		t.Errorf("outcome %+v", out)
	}
}

func TestAFaultIsReadFromAnEventOf300KB(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		f.event(p.Session, "session.error", map[string]any{"error": map[string]any{"data": map[string]any{
			"message": "the reason", "responseBody": strings.Repeat("x", 300<<10)}}})
	}
	turn := newTurn(t, "alpha-1-aaaa", "x")
	out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
	expect(t, out, api.StateFailed, api.TaskNotStarted)
	if !strings.Contains(out.Summary, "the reason") {
		t.Errorf("summary %q", out.Summary)
	}
}

func TestAProvidersRetriesAreProgress(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		f.work(p)
		f.busy[p.Session] = map[string]any{"type": "retry", "attempt": 2, "message": "overloaded", "next": 1}
	}
	turn := newTurn(t, "alpha-1-aaaa", "x")
	host := newRecords()
	done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
	host.awaitNote(t, "attempt 2): overloaded")
	f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "in the end")) })
	expect(t, settle(t, done), api.StateDone, "")
}

func TestWhatAsksForAHumanIsDeclined(t *testing.T) {
	asking := func(kind string, ask map[string]any) func(f *fakeServer, p fakePrompt) {
		return func(f *fakeServer, p fakePrompt) {
			f.work(p)
			if ask["sessionID"] == nil {
				ask["sessionID"] = p.Session
			}
			f.asks[kind] = append(f.asks[kind], ask)
			f.event(p.Session, kind+".asked", ask)
		}
	}
	t.Run("a permission is rejected with a message", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = asking("permission", map[string]any{"id": "per_1", "permission": "external_directory", "patterns": []string{"/etc/*"}})
		turn := newTurn(t, "alpha-1-aaaa", "x")
		host := newRecords()
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		expect(t, out, api.StateDone, "", api.FlagPermissionRejected)
		if len(f.replies) != 1 || !strings.Contains(f.replies[0], `"reply":"reject"`) || !strings.Contains(f.replies[0], `"message":"Nobody`) {
			t.Errorf("replies %q", f.replies)
		}
		host.awaitNote(t, "external_directory /etc/*")
	})
	t.Run("a question is answered in words, each part of it", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = asking("question", map[string]any{"id": "que_1", "questions": []any{map[string]any{"question": "A?"}, map[string]any{"question": "B?"}}})
		turn := newTurn(t, "alpha-1-aaaa", "x")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "", api.FlagAssumed)
		if len(f.replies) != 1 || strings.Count(f.replies[0], "Nobody is here") != 2 {
			t.Errorf("replies %q", f.replies)
		}
	})
	t.Run("so is what a sub-agent asks for, and nothing of other sessions", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.add(&fakeSession{ID: "ses_child", Dir: turn.Workspace.Dir, Parent: p.Session})
			f.add(&fakeSession{ID: "ses_grandchild", Dir: turn.Workspace.Dir, Parent: "ses_child"})
			f.add(&fakeSession{ID: "ses_stranger", Dir: turn.Workspace.Dir})
			f.busy["ses_grandchild"] = map[string]any{"type": "busy"}
			f.asks["permission"] = []map[string]any{{"id": "per_s", "sessionID": "ses_stranger", "permission": "bash"}}
			asking("permission", map[string]any{"id": "per_1", "sessionID": "ses_grandchild", "permission": "bash"})(f, p)
		}
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "", api.FlagPermissionRejected)
		if len(f.replies) != 1 || !strings.HasPrefix(f.replies[0], "permission per_1") {
			t.Errorf("replies %q", f.replies)
		}
	})
	t.Run("but not what an aborted turn left behind", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_one", Dir: turn.Workspace.Dir})
			f.asks["permission"] = []map[string]any{{"id": "per_old", "sessionID": "ses_one", "permission": "bash"}}
		})
		turn.Session.ID = "ses_one"
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
		host := newRecords()
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitSeen(t)
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
		expect(t, settle(t, done), api.StateDone, "")
	})
}

func TestTheModelIsAlwaysNamed(t *testing.T) {
	for _, c := range []struct {
		name, configured, override, want string
	}{
		{"the configured one", "stub/two", "", "two"},
		{"the first provider's default", "", "", "one"},
		{"the node's own", "stub/one", "stub/two", "two"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			f.config["model"] = c.configured
			turn := newTurn(t, "alpha-1-aaaa", "x")
			cfg := forFake(f, turn.Workspace.Dir)
			cfg.Model, cfg.AgentName = c.override, "plan"
			out := run(t, start(t, cfg), turn, newRecords())
			if p := f.prompts[0]; p.Model.Provider != "stub" || p.Model.ID != c.want || p.Agent != "plan" {
				t.Errorf("prompt %+v", p)
			}
			if want := map[string]int64{"one": 1000, "two": 2000}[c.want]; out.Tokens.Limit != want {
				t.Errorf("limit %d, want %d", out.Tokens.Limit, want)
			}
		})
	}
	t.Run("one that opencode does not have is not sent: it would poison the session", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		cfg := forFake(f, turn.Workspace.Dir)
		cfg.Model = "stub/nope"
		out := run(t, start(t, cfg), turn, newRecords())
		expect(t, out, api.StateFailed, api.TaskNotStarted)
		if len(f.prompts) != 0 || !strings.Contains(out.Summary, "stub/nope") {
			t.Errorf("%d prompts, summary %q", len(f.prompts), out.Summary)
		}
	})
}

func TestAWorkspaceThatIsNotThereFailsBeforeAnything(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	a := start(t, forFake(f, turn.Workspace.Dir))
	turn.Workspace.Dir = filepath.Join(turn.Workspace.Dir, "gone")
	expect(t, run(t, a, turn, newRecords()), api.StateFailed, api.TaskBadWorkspace)
	if len(f.sessions) != 0 {
		t.Error("a session was made")
	}
}

func TestNothingIsSentThatCannotBeRecorded(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	host := newRecords()
	full := errors.New("disk full")
	host.checkpoints = func(int, []byte) error { return full }
	done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
	if e := <-done; !errors.Is(e.err, full) {
		t.Errorf("outcome %+v, error %v", e.out, e.err)
	}
	if len(f.prompts) != 0 {
		t.Error("the prompt was sent")
	}

	t.Run("but a failure to record what was seen is made good later", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
		turn := newTurn(t, "alpha-1-aaaa", "x")
		host := newRecords()
		refusals := 2
		host.checkpoints = func(n int, _ []byte) error {
			if n > 1 && refusals > 0 {
				refusals--
				return full
			}
			return nil
		}
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitSeen(t)
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
		expect(t, settle(t, done), api.StateDone, "")
	})
}
