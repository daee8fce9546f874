package opencode_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// operation makes a turn of an operation on a session.
func operation(t *testing.T, kind, session string) agent.Turn {
	t.Helper()
	turn := newTurn(t, "alpha-1-oper", "x")
	turn.Kind, turn.Session.ID = kind, session
	if kind == api.TurnResume {
		turn.Session.Generation, turn.Session.Compaction, turn.Session.Title = 2, turn.Task, "opencode-mesh alpha #2"
	}
	return turn
}

func marked(generation int, compaction string) map[string]any {
	m := map[string]any{"hub": "hub", "key": "c1/main", "gen": generation}
	if compaction != "" {
		m["compaction"] = compaction
	}
	return map[string]any{"mesh": m}
}

func TestADigestIsAskedOfASessionThatIsThere(t *testing.T) {
	t.Run("and no other is made", func(t *testing.T) {
		f := newFake(t)
		turn := operation(t, api.TurnDigest, "ses_bound")
		f.locked(func() { f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir}) })
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.answer(p, "the digest") }
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "", api.FlagFreeReply)
		if out.Reply != "the digest" || out.Session != "ses_bound" || out.NewSession || len(f.sessions) != 1 {
			t.Errorf("outcome %+v, %d sessions", out, len(f.sessions))
		}
	})
	for name, arrange := range map[string]func(f *fakeServer, turn *agent.Turn){
		"none is bound":              func(_ *fakeServer, turn *agent.Turn) { turn.Session.ID = "" },
		"it is gone":                 func(*fakeServer, *agent.Turn) {},
		"it is of another directory": func(f *fakeServer, _ *agent.Turn) { f.add(&fakeSession{ID: "ses_bound", Dir: "/elsewhere"}) },
		"another one has the mark": func(f *fakeServer, turn *agent.Turn) {
			f.add(&fakeSession{ID: "ses_other", Dir: turn.Workspace.Dir, Metadata: marked(1, "")})
		},
		"it vanishes before the prompt": func(f *fakeServer, turn *agent.Turn) {
			f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir})
			f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "/prompt_async") {
					f.locked(func() { f.remove("ses_bound") })
				}
				return false
			}
		},
		"it vanishes under the turn": func(f *fakeServer, turn *agent.Turn) {
			f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir})
			f.onPrompt = func(f *fakeServer, p fakePrompt) { f.store(p); f.remove(p.Session); f.dropStreams() }
		},
	} {
		t.Run("but not if "+name, func(t *testing.T) {
			f := newFake(t)
			turn := operation(t, api.TurnDigest, "ses_bound")
			f.locked(func() { arrange(f, &turn) })
			made := f.made
			host := newRecords()
			out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
			expect(t, out, api.StateFailed, api.TaskSessionGone)
			if f.made != made || len(host.made) != 0 {
				t.Error("a session was made")
			}
		})
	}
	t.Run("and a full context is said", func(t *testing.T) {
		f := newFake(t)
		turn := operation(t, api.TurnDigest, "ses_bound")
		f.locked(func() { f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir}) })
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.store(p)
			f.step(p, "", map[string]any{"finish": "error", "time": completed, "error": map[string]any{"name": "ContextOverflowError"}})
			f.idle(p.Session)
		}
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateFailed, "", api.FlagContextFull, api.FlagProviderError)
	})
}

func TestAHandOverGoesToASessionOfItsOwn(t *testing.T) {
	t.Run("marked with the compaction, under the title that is given", func(t *testing.T) {
		f := newFake(t)
		turn := operation(t, api.TurnResume, "")
		host := newRecords()
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		expect(t, out, api.StateDone, "")
		s := f.sessions[0]
		mark, _ := s.Metadata["mesh"].(map[string]any)
		if !out.NewSession || out.Session != s.ID || s.Title != "opencode-mesh alpha #2" || mark["compaction"] != "alpha-1-oper" || mark["gen"] != 2.0 ||
			!slices.Equal(host.made, []string{s.ID}) {
			t.Errorf("outcome %+v, session %+v", out, s)
		}
	})
	t.Run("the same when it is repeated after a crash", func(t *testing.T) {
		f := newFake(t)
		turn := operation(t, api.TurnResume, "")
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_made", Dir: turn.Workspace.Dir, Metadata: marked(2, "alpha-1-oper")})
		})
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
		if out.Session != "ses_made" || !out.NewSession || len(f.removed) != 0 {
			t.Errorf("outcome %+v, removed %q", out, f.removed)
		}
	})
	t.Run("after what abandoned compactions made is deleted, and nothing else", func(t *testing.T) {
		f := newFake(t)
		turn := operation(t, api.TurnResume, "")
		other := map[string]any{"mesh": map[string]any{"hub": "other", "key": "c1/main", "gen": 2, "compaction": "x"}}
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_busy", Dir: turn.Workspace.Dir, Metadata: marked(2, "alpha-1-dead")})
			f.busy["ses_busy"] = map[string]any{"type": "busy"}
			f.add(&fakeSession{ID: "ses_dead", Dir: turn.Workspace.Dir, Metadata: marked(2, "alpha-1-gone")})
			f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir, Metadata: marked(1, "alpha-1-first")})
			f.add(&fakeSession{ID: "ses_plain", Dir: turn.Workspace.Dir, Metadata: marked(2, "")})
			f.add(&fakeSession{ID: "ses_other", Dir: turn.Workspace.Dir, Metadata: other})
			f.add(&fakeSession{ID: "ses_human", Dir: turn.Workspace.Dir})
		})
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "")
		slices.Sort(f.removed)
		if !slices.Equal(f.removed, []string{"ses_busy", "ses_dead"}) || !slices.Contains(f.aborts, "ses_busy") || f.find(out.Session) == nil {
			t.Errorf("removed %q, aborted %q, outcome %+v", f.removed, f.aborts, out)
		}
	})
	t.Run("which an ordinary turn does not find by its generation", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		turn.Session.Generation = 2
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_made", Dir: turn.Workspace.Dir, Metadata: marked(2, "alpha-1-oper")})
		})
		a := start(t, forFake(f, turn.Workspace.Dir))
		if out := run(t, a, turn, newRecords()); out.Session == "ses_made" || !out.NewSession {
			t.Errorf("outcome %+v", out)
		}
		// Once it is bound it is named.
		turn.Task, turn.Text, turn.Session.ID = "alpha-1-bbbb", envelope("alpha-1-bbbb", "x"), "ses_made"
		if out := run(t, a, turn, newRecords()); out.Session != "ses_made" || out.NewSession {
			t.Errorf("outcome %+v", out)
		}
	})
	t.Run("even if the offer names another", func(t *testing.T) {
		f := newFake(t)
		turn := operation(t, api.TurnResume, "ses_bound")
		f.locked(func() { f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir, Metadata: marked(1, "")}) })
		if out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords()); out.Session == "ses_bound" {
			t.Errorf("outcome %+v", out)
		}
	})
}

func TestASessionIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(f *fakeServer, turn *agent.Turn)
		removed []string
		aborts  int
	}{
		"when it is there": {func(f *fakeServer, turn *agent.Turn) {
			f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir})
		}, []string{"ses_bound"}, 0},
		"with what runs in it": {func(f *fakeServer, turn *agent.Turn) {
			f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir})
			f.busy["ses_bound"] = map[string]any{"type": "busy"}
		}, []string{"ses_bound"}, 1},
		"when it is gone already": {func(*fakeServer, *agent.Turn) {}, nil, 0},
		"when it vanishes at the last moment": {func(f *fakeServer, turn *agent.Turn) {
			f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir})
			f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodDelete {
					f.locked(func() { f.remove("ses_bound") })
				}
				return false
			}
		}, nil, 0},
		"unless it is of another directory": {func(f *fakeServer, _ *agent.Turn) {
			f.add(&fakeSession{ID: "ses_bound", Dir: "/elsewhere"})
		}, nil, 0},
		"and none when none is named": {func(_ *fakeServer, turn *agent.Turn) { turn.Session.ID = "" }, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			turn := operation(t, api.TurnDelete, "ses_bound")
			f.locked(func() { c.arrange(f, &turn) })
			out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
			expect(t, out, api.StateDone, "")
			if !slices.Equal(f.removed, c.removed) || len(f.aborts) != c.aborts || out.Session != "" || len(f.prompts) != 0 {
				t.Errorf("removed %q, aborted %q, outcome %+v", f.removed, f.aborts, out)
			}
		})
	}
	t.Run("after the turn that is in it", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
		working := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, forFake(f, working.Workspace.Dir))
		done, _ := begin(t, a, working, newRecords())
		f.await("a prompt", func() bool { return len(f.prompts) == 1 })
		turn := operation(t, api.TurnDelete, f.prompts[0].Session)
		turn.Workspace, turn.Session.Key = working.Workspace, "another lane"
		asked := make(chan struct{}, 100)
		f.locked(func() {
			f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet && r.URL.Path == "/session/"+turn.Session.ID {
					asked <- struct{}{}
				}
				return false
			}
		})
		deleted, _ := begin(t, a, turn, newRecords())
		<-asked
		f.awaitPolls(5)
		f.locked(func() {
			if len(f.removed)+len(f.aborts) != 0 {
				t.Error("it was not waited for")
			}
			f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well"))
		})
		expect(t, settle(t, done), api.StateDone, "")
		expect(t, settle(t, deleted), api.StateDone, "")
	})
	t.Run("not when the server cannot be reached, and that is an error", func(t *testing.T) {
		f := newFake(t)
		turn := operation(t, api.TurnDelete, "ses_bound")
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_bound", Dir: turn.Workspace.Dir})
			f.lose = func(path string) bool { return path != "/global/health" }
		})
		cfg := forFake(f, turn.Workspace.Dir)
		cfg.ReadyWait = 50 * time.Millisecond
		done, _ := begin(t, start(t, cfg), turn, newRecords())
		if e := <-done; e.err == nil {
			t.Errorf("outcome %+v", e.out)
		}
	})
}
