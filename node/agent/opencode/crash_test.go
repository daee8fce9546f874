package opencode_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
)

// crash ends a turn as the end of its process would: nothing more is recorded.
func crash(t *testing.T, done <-chan ended, cancel func(error)) {
	t.Helper()
	cancel(agent.ErrStopping)
	if e := <-done; !errors.Is(e.err, agent.ErrDetached) {
		t.Fatalf("outcome %+v, error %v; want detached", e.out, e.err)
	}
}

// crashed runs a turn until ready says so and crashes it.
func crashed(t *testing.T, f *fakeServer, turn agent.Turn, ready func(host *records)) agent.Turn {
	t.Helper()
	a, host := start(t, forFake(f, turn.Workspace.Dir)), newRecords()
	done, cancel := begin(t, a, turn, host)
	ready(host)
	crash(t, done, cancel)
	stop(t, a)
	return resumed(turn, host)
}

func TestAfterACrash(t *testing.T) {
	again := func(t *testing.T, f *fakeServer, turn agent.Turn) api.Outcome {
		t.Helper()
		return run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
	}
	seen := func(t *testing.T) func(*records) { return func(h *records) { h.awaitSeen(t) } }
	working := func(f *fakeServer, p fakePrompt) { f.work(p) }

	t.Run("before anything was recorded the turn starts anew, in the session of its mark", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		host := newRecords()
		held := make(chan struct{})
		host.checkpoints = func(int, []byte) error { close(held); return errors.New("the process died") }
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		<-held
		<-done
		turn.Resumed = true
		out := again(t, f, turn)
		expect(t, out, api.StateDone, "")
		if len(f.prompts) != 1 || len(f.sessions) != 1 {
			t.Errorf("%d prompts, %d sessions", len(f.prompts), len(f.sessions))
		}
	})
	t.Run("recorded but never sent: prompted once", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(*fakeServer, fakePrompt) {} // lost with the old process
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), func(*records) {
			f.await("a prompt", func() bool { return len(f.prompts) == 1 })
		})
		f.locked(func() { f.onPrompt = nil })
		out := again(t, f, turn)
		expect(t, out, api.StateDone, "")
		if len(f.prompts) != 2 || f.prompts[0].MessageID != f.prompts[1].MessageID {
			t.Errorf("prompts %+v", f.prompts)
		}
	})
	t.Run("between the 204 and the record of it: the answer is taken, not asked for again", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		host := newRecords()
		died := make(chan struct{}, 10)
		host.checkpoints = func(n int, _ []byte) error {
			if n == 1 {
				return nil
			}
			died <- struct{}{}
			return errors.New("the process died")
		}
		f.onPrompt = working
		done, cancel := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		<-died
		crash(t, done, cancel)
		if strings.Contains(string(host.last()), "seen") {
			t.Fatal("it was recorded")
		}
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "meanwhile")) })
		out := again(t, f, resumed(turn, host))
		expect(t, out, api.StateDone, "")
		if out.Summary != "meanwhile" || len(f.prompts) != 1 || out.Tokens.Limit != 1000 {
			t.Errorf("outcome %+v after %d prompts", out, len(f.prompts))
		}
	})
	t.Run("still at work: waited for", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = working
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), seen(t))
		host := newRecords()
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		f.await("a stream", func() bool { return len(f.streams) == 1 })
		f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "patience")) })
		out := settle(t, done)
		expect(t, out, api.StateDone, "")
		if len(f.prompts) != 1 {
			t.Errorf("%d prompts", len(f.prompts))
		}
	})
	t.Run("half answered: resumed with a flag", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.work(p)
			f.step(p, "half ", nil)
		}
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), seen(t))
		f.locked(func() { // the server died with it: nothing runs, nothing was completed
			f.busy = map[string]map[string]any{}
			f.onPrompt = nil
		})
		out := again(t, f, turn)
		expect(t, out, api.StateDone, "", api.FlagResumed)
		if len(f.prompts) != 2 || f.prompts[0].MessageID != f.prompts[1].MessageID || f.prompts[0].Parts[0].ID != f.prompts[1].Parts[0].ID {
			t.Errorf("prompts %+v", f.prompts)
		}
		if !strings.HasPrefix(out.Reply, "half ") {
			t.Errorf("reply %q", out.Reply)
		}
	})
	t.Run("half answered again and again: given up, may have run", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			f.store(p)
			f.step(p, "half", map[string]any{"finish": "tool-calls", "time": completed})
		}
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), seen(t))
		out := again(t, f, turn)
		expect(t, out, api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun, api.FlagResumed)
		if n := len(f.prompts); n != 1+api.MaxResumes {
			t.Errorf("%d prompts", n)
		}
		// The count is on record: a further life does not resume once more.
		turn.Checkpoint = []byte(strings.Replace(string(turn.Checkpoint), `"seen":true`, `"seen":true,"resumes":2`, 1))
		expect(t, again(t, f, turn), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun, api.FlagResumed)
		if n := len(f.prompts); n != 1+api.MaxResumes {
			t.Errorf("%d prompts", n)
		}
	})
	t.Run("aborted by somebody on a given server meanwhile: their word stands", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p); f.step(p, "half", nil) }
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), seen(t))
		f.locked(func() {
			f.failLast(f.sessions[0], "MessageAbortedError", "Aborted")
			f.busy = map[string]map[string]any{}
		})
		out := again(t, f, turn)
		expect(t, out, api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
		if len(f.prompts) != 1 {
			t.Errorf("%d prompts", len(f.prompts))
		}
	})
	t.Run("seen, and the message is gone: interrupted, never prompted again", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = working
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), seen(t))
		f.locked(func() { f.sessions[0].messages = nil; f.busy = map[string]map[string]any{} })
		out := again(t, f, turn)
		expect(t, out, api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
		if len(f.prompts) != 1 {
			t.Errorf("%d prompts", len(f.prompts))
		}
	})
	t.Run("the session is gone: interrupted, and the message moves to no other", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(*fakeServer, fakePrompt) {}
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), func(*records) {
			f.await("a prompt", func() bool { return len(f.prompts) == 1 })
		})
		f.locked(func() { f.remove(f.sessions[0].ID) })
		out := again(t, f, turn)
		expect(t, out, api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
		if len(f.prompts) != 1 || len(f.sessions) != 0 {
			t.Errorf("%d prompts, %d sessions", len(f.prompts), len(f.sessions))
		}
	})
	t.Run("the session vanishes under the second prompt: interrupted as well", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(*fakeServer, fakePrompt) {}
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), func(*records) {
			f.await("a prompt", func() bool { return len(f.prompts) == 1 })
		})
		f.locked(func() {
			f.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "/prompt_async") {
					f.locked(func() { f.remove(f.sessions[0].ID) })
				}
				return false
			}
		})
		out := again(t, f, turn)
		expect(t, out, api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
		if len(f.prompts) != 1 || len(f.sessions) != 0 {
			t.Errorf("%d prompts, %d sessions", len(f.prompts), len(f.sessions))
		}
	})
	t.Run("a checkpoint that cannot be read is no licence to run", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		turn.Resumed, turn.Checkpoint = true, []byte("{")
		done, _ := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		if e := <-done; e.err == nil || len(f.prompts) != 0 {
			t.Errorf("outcome %+v, %d prompts", e.out, len(f.prompts))
		}
	})
}

func TestAnAbortBySomebodyElseEndsTheTurn(t *testing.T) {
	for name, fields := range map[string]map[string]any{
		"with an error":    {"time": completed, "error": map[string]any{"name": "MessageAbortedError", "data": map[string]any{"message": "Aborted"}}},
		"without an error": {"time": completed},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.onPrompt = func(f *fakeServer, p fakePrompt) {
				f.store(p)
				f.step(p, "half", fields)
				f.idle(p.Session)
			}
			turn := newTurn(t, "alpha-1-aaaa", "x")
			out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
			expect(t, out, api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
			if out.Reply != "half" || len(f.prompts) != 1 {
				t.Errorf("outcome %+v after %d prompts", out, len(f.prompts))
			}
		})
	}
}

func TestATurnThatTheServerDisposedIsResumed(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		if len(f.prompts) > 1 {
			// For a moment the aborted answer is still the newest.
			time.AfterFunc(30*time.Millisecond, func() {
				f.locked(func() { f.finish(p, resultBlock(p, "done", "after all")) })
			})
			return
		}
		f.work(p)
		f.step(p, "half", nil)
		f.failLast(f.find(p.Session), "MessageAbortedError", "Aborted")
		f.idle(p.Session)
		// The history tells of the abort before the stream tells why.
		time.AfterFunc(30*time.Millisecond, func() {
			f.locked(func() { f.event(p.Session, "server.instance.disposed", nil) })
		})
	}
	turn := newTurn(t, "alpha-1-aaaa", "x")
	out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
	expect(t, out, api.StateDone, "", api.FlagResumed)
	if out.Summary != "after all" {
		t.Errorf("outcome %+v", out)
	}
}

// A human's prompt to a busy session takes the turn over: ours never gets its own
// answer.
func TestATurnThatAnotherPromptTookOver(t *testing.T) {
	play := func(last string) (*fakeServer, agent.Turn) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			if len(f.prompts) > 1 {
				text := last
				if text == "" {
					text = resultBlock(p, "done", "well")
				}
				f.finish(p, text)
				return
			}
			f.store(p)
			f.step(p, "calling", map[string]any{"finish": "tool-calls", "time": completed})
			f.say(p.Session, "msg_human", "how are you?")
			f.step(fakePrompt{Session: p.Session, MessageID: "msg_human"}, resultBlock(p, "failed", "not mine"), map[string]any{"finish": "stop", "time": completed})
			f.idle(p.Session)
		}
		return f, newTurn(t, "alpha-1-aaaa", "x")
	}
	t.Run("is resumed and its own result counts", func(t *testing.T) {
		f, turn := play("")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StateDone, "", api.FlagResumed)
		if strings.Contains(out.Reply, "not mine") {
			t.Errorf("reply %q", out.Reply)
		}
	})
	t.Run("is partial if all that comes is free text", func(t *testing.T) {
		f, turn := play("I am fine")
		out := run(t, start(t, forFake(f, turn.Workspace.Dir)), turn, newRecords())
		expect(t, out, api.StatePartial, "", api.FlagFreeReply, api.FlagResumed)
	})
}

func TestCancelAndDeadline(t *testing.T) {
	for _, c := range []struct {
		name  string
		cause error
		state api.State
		code  string
	}{
		{"cancel aborts and ends in canceled", agent.ErrCanceled, api.StateCanceled, ""},
		{"a deadline aborts and fails", agent.ErrDeadline, api.StateFailed, api.TaskDeadline},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			f.onPrompt = func(f *fakeServer, p fakePrompt) {
				f.work(p)
				f.step(p, "so far", map[string]any{"tokens": map[string]any{"total": 77}})
			}
			turn := newTurn(t, "alpha-1-aaaa", "x")
			host := newRecords()
			done, cancel := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
			host.awaitSeen(t)
			cancel(c.cause)
			out := settle(t, done)
			expect(t, out, c.state, c.code)
			if len(f.aborts) == 0 || out.Reply != "so far" || out.Session != "ses_1" || out.Tokens.Total != 77 {
				t.Errorf("outcome %+v after aborts %q", out, f.aborts)
			}
		})
	}
	t.Run("before the prompt: nothing is sent and nobody else is aborted", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.locked(func() {
			f.add(&fakeSession{ID: "ses_shared", Dir: turn.Workspace.Dir})
			f.busy["ses_shared"] = map[string]any{"type": "busy"}
		})
		turn.Session.ID = "ses_shared"
		host := newRecords()
		done, cancel := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitNote(t, "in use")
		cancel(agent.ErrCanceled)
		out := settle(t, done)
		expect(t, out, api.StateCanceled, "")
		if len(f.prompts) != 0 || len(f.aborts) != 0 || out.RanMS != 0 {
			t.Errorf("%d prompts, aborts %q, %+v", len(f.prompts), f.aborts, out)
		}
	})
	t.Run("after a crash: a message that never arrived is not aborted for", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(*fakeServer, fakePrompt) {}
		turn := crashed(t, f, newTurn(t, "alpha-1-aaaa", "x"), func(*records) {
			f.await("a prompt", func() bool { return len(f.prompts) == 1 })
		})
		f.locked(func() { f.busy[f.sessions[0].ID] = map[string]any{"type": "busy"}; f.aborts = nil })
		host := newRecords()
		done, cancel := begin(t, start(t, forFake(f, turn.Workspace.Dir)), turn, host)
		host.awaitNote(t, "in use")
		cancel(agent.ErrCanceled)
		expect(t, settle(t, done), api.StateCanceled, "")
		if len(f.aborts) != 0 {
			t.Errorf("aborts %q", f.aborts)
		}
	})
	t.Run("right after the 204: a turn that starts after the abort is aborted too", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		f.onPrompt = func(f *fakeServer, p fakePrompt) {
			time.AfterFunc(300*time.Millisecond, func() {
				f.locked(func() { f.work(p); f.step(p, "late", nil) })
			})
		}
		cfg := forFake(f, turn.Workspace.Dir)
		cfg.StallAfter = time.Hour
		done, cancel := begin(t, start(t, cfg), turn, newRecords())
		f.await("a prompt", func() bool { return len(f.prompts) == 1 })
		cancel(agent.ErrCanceled)
		out := settle(t, done)
		expect(t, out, api.StateCanceled, "")
		if out.Reply != "late" || len(f.busy) != 0 {
			t.Errorf("outcome %+v, busy %v", out, f.busy)
		}
	})
	t.Run("stopping leaves the turn alone", func(t *testing.T) {
		f := newFake(t)
		f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
		turn := newTurn(t, "alpha-1-aaaa", "x")
		crashed(t, f, turn, func(h *records) { h.awaitSeen(t) })
		if len(f.aborts) != 0 {
			t.Errorf("aborts %q", f.aborts)
		}
	})
}

func TestAServerThatGoesAwayInMidTurn(t *testing.T) {
	f := newFake(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
	var away bool
	f.intercept = func(http.ResponseWriter, *http.Request) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if away {
			panic(http.ErrAbortHandler)
		}
		return false
	}
	turn := newTurn(t, "alpha-1-aaaa", "x")
	a := start(t, forFake(f, turn.Workspace.Dir))
	host := newRecords()
	done, _ := begin(t, a, turn, host)
	host.awaitSeen(t)
	f.locked(func() { away = true; f.dropStreams() })
	host.awaitNote(t, "cannot be reached")
	awaitHealth(t, a, api.HealthUnreachable)
	f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "late")); away = false })
	out := settle(t, done)
	expect(t, out, api.StateDone, "")
	if out.Summary != "late" || len(f.prompts) != 1 {
		t.Errorf("outcome %+v after %d prompts", out, len(f.prompts))
	}
}

// awaitHealth polls, for Status has no event to wait for.
func awaitHealth(t *testing.T, a *opencode.Agent, want string) api.AgentStatus {
	t.Helper()
	limit := time.After(testLimit)
	for {
		s := a.Status(t.Context())
		if s.Health == want {
			return s
		}
		select {
		case <-limit:
			t.Fatalf("health %q, want %q (%+v)", s.Health, want, s)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
