package opencode_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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

func (d *discard) Header() http.Header { return d.header }

func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

func (d *discard) WriteHeader(int) {}

// With a poll interval of an hour only events can bring the turn to its end.

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
