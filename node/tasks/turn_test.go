package tasks_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// sleeper works for a while unless its context ends.
func sleeper(d time.Duration) runFunc {
	return func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
		select {
		case <-time.After(d):
			return done(ctx, turn, h)
		case <-ctx.Done():
			return aborted(ctx)
		}
	}
}

func TestDeadline(t *testing.T) {
	t.Run("aborts the turn, with that cause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, sleeper(time.Hour)))
			g.take("t1", func(o *api.Offer) { o.DeadlineMS = 60_000 })
			time.Sleep(time.Minute - time.Millisecond)
			synctest.Wait()
			none(t, g.hub.results, "result before the deadline")
			time.Sleep(2 * time.Millisecond)
			if out := g.result().Outcome; out.State != api.StateFailed || out.Error.Code != api.TaskDeadline || out.RanMS != 60_000 {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("is the node's default when the offer has none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, sleeper(3*time.Hour)), func(c *tasks.Config) { c.DefaultDeadline = time.Hour })
			g.take("t1")
			time.Sleep(time.Hour + time.Second)
			if out := g.result().Outcome; out.Error == nil || out.Error.Code != api.TaskDeadline {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("counts all turns of the attempt and not the time between them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if turn.Kind == api.TurnTask {
					time.Sleep(40 * time.Second)
					return asks(ctx, turn, h)
				}
				return sleeper(30*time.Second)(ctx, turn, h)
			})
			g := newRig(t, a)
			minute := func(o *api.Offer) { o.DeadlineMS = 60_000 }
			g.take("t1", minute)
			time.Sleep(40*time.Second + time.Millisecond)
			g.result()
			time.Sleep(time.Hour) // nobody answers
			g.take("t1", answer(2), minute)
			time.Sleep(20*time.Second + time.Millisecond)
			if out := g.result().Outcome; out.Error == nil || out.Error.Code != api.TaskDeadline || out.RanMS != 20_000 {
				t.Fatalf("outcome %+v", out)
			}
			g.take("t1", func(o *api.Offer) { o.Attempt = 2 }, minute)
			time.Sleep(time.Minute)
			if out := g.result().Outcome; out.State != api.StateQuestion {
				t.Fatalf("a further attempt begins with what is left of the last: %+v", out)
			}
			g.stop()
		})
	})

	t.Run("goes on where it was after a restart, the time in between not counted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			minute := func(o *api.Offer) { o.DeadlineMS = 60_000 }
			g := newRig(t, newAgent(true, sleeper(time.Hour)))
			g.take("t1", minute)
			time.Sleep(50 * time.Second)
			g.stop()
			time.Sleep(24 * time.Hour)
			h := openRig(t, g.cfg.Path, newAgent(true, sleeper(time.Hour)), newHub())
			time.Sleep(10*time.Second + 10*time.Millisecond)
			if out := h.result().Outcome; out.Error == nil || out.Error.Code != api.TaskDeadline || out.RanMS != 60_000 {
				t.Fatalf("outcome %+v", out)
			}
			h.stop()
		})
	})
}

func TestAgentFaults(t *testing.T) {
	t.Run("an error settles the turn as agent_unavailable", func(t *testing.T) {
		g := newRig(t, newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{}, errors.New("no such server")
		}))
		g.take("t1")
		if out := g.result().Outcome; out.State != api.StateFailed || out.Error.Code != api.TaskAgentUnavailable || !strings.Contains(out.Error.Message, "no such server") {
			t.Fatalf("outcome %+v", out)
		}
	})

	t.Run("an error because of a cancel or the deadline is that, not a failure of the agent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, _ agent.Turn, _ agent.Host) (api.Outcome, error) {
				<-ctx.Done()
				return api.Outcome{}, ctx.Err()
			}))
			o := g.take("t1")
			g.began()
			g.withdraw(o.Triple, api.WithdrawCancel)
			if out := g.result().Outcome; out.State != api.StateCanceled || out.Error != nil {
				t.Fatalf("canceled: %+v", out)
			}
			g.take("t2", func(o *api.Offer) { o.DeadlineMS = 1000 })
			if out := g.result().Outcome; out.State != api.StateFailed || out.Error.Code != api.TaskDeadline || !strings.Contains(out.Error.Message, "1s") {
				t.Fatalf("deadline: %+v", out)
			}
			g.take("t3")
			g.began()
			g.began()
			g.stop() // leaves it to the next process
			none(t, g.hub.results, "result of a turn that the node's stop interrupted")
		})
	})

	t.Run("an outcome that makes no sense settles it the same way", func(t *testing.T) {
		for _, out := range []api.Outcome{{}, {State: api.StateRunning}, {State: api.StateExpired}, {State: api.StateQuestion}} {
			g := newRig(t, newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) { return out, nil }))
			g.take("t1")
			if got := g.result().Outcome; got.State != api.StateFailed || got.Error.Code != api.TaskAgentUnavailable {
				t.Fatalf("%+v became %+v", out, got)
			}
		}
	})

	t.Run("a panic fails its turn and leaves the node and the lane alive", func(t *testing.T) {
		a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			if turn.Task == "t1" {
				panic("bug")
			}
			return done(ctx, turn, h)
		})
		g := newRig(t, a)
		g.take("t1")
		g.take("t2")
		got := map[string]api.Outcome{} // results travel side by side: in any order
		for range 2 {
			res := g.result()
			got[res.Task] = res.Outcome
		}
		if out := got["t1"]; out.State != api.StateFailed || !slices.Contains(out.Flags, api.FlagMayHaveRun) {
			t.Errorf("the panic: %+v", out)
		}
		if out := got["t2"]; out.State != api.StateDone {
			t.Errorf("the next turn: %+v", out)
		}
	})

	t.Run("an agent that lets go of a turn without reason gets it again as resumed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if !turn.Resumed {
					if err := h.Checkpoint(ctx, []byte("half")); err != nil {
						return api.Outcome{}, err
					}
					return api.Outcome{}, agent.ErrDetached
				}
				return api.Outcome{State: api.StateDone, Summary: string(turn.Checkpoint)}, nil
			})
			g := newRig(t, a)
			g.take("t1")
			if out := g.result().Outcome; out.Summary != "half" {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("an agent that ignores its context is settled without, and keeps its lane", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			stuck := make(chan struct{})
			a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if turn.Task == "t1" {
					<-stuck
				}
				return done(ctx, turn, h)
			})
			g := newRig(t, a, func(c *tasks.Config) { c.AbortLimit = 30 * time.Second })
			o := g.take("t1")
			g.take("t2")
			g.began()
			g.withdraw(o.Triple, api.WithdrawCancel)
			time.Sleep(29 * time.Second)
			synctest.Wait()
			none(t, g.hub.results, "result before the abort limit")
			time.Sleep(2 * time.Second)
			if out := g.result().Outcome; out.State != api.StateCanceled || !slices.Contains(out.Flags, api.FlagMayHaveRun) {
				t.Fatalf("outcome %+v", out)
			}
			none(t, a.began, "second turn of a session that may still be busy")
			close(stuck)
			if res := g.result(); res.Task != "t2" {
				t.Fatalf("result %+v", res)
			}
			g.stop()
		})
	})

	t.Run("a checkpoint after the end is refused", func(t *testing.T) {
		var host agent.Host
		g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			host = h
			return done(ctx, turn, h)
		}))
		g.take("t1")
		g.result()
		if err := host.Checkpoint(t.Context(), []byte("late")); err == nil {
			t.Fatal("taken")
		}
	})
}

func TestWorkspace(t *testing.T) {
	a := newAgent(true, done)
	g := newRig(t, a)
	t.Run("that is not offered fails the task without the agent", func(t *testing.T) {
		g.take("t1", func(o *api.Offer) { o.Workspace = "elsewhere" })
		if out := g.result().Outcome; out.State != api.StateFailed || out.Error.Code != api.TaskBadWorkspace {
			t.Fatalf("outcome %+v", out)
		}
	})
	t.Run("whose directory is gone fails the task without the agent", func(t *testing.T) {
		if err := os.Remove(g.cfg.Workspaces[1].Dir); err != nil {
			t.Fatal(err)
		}
		g.take("t2", func(o *api.Offer) { o.Workspace = "other" })
		if out := g.result().Outcome; out.State != api.StateFailed || out.Error.Code != api.TaskBadWorkspace {
			t.Fatalf("outcome %+v", out)
		}
	})
	t.Run("is the first one when none is named", func(t *testing.T) {
		g.take("t3")
		g.result()
		if got := a.turns[0].Workspace; got != g.cfg.Workspaces[0] {
			t.Fatalf("workspace %+v", got)
		}
	})
	if got := a.starts(); !slices.Equal(got, []string{"t3/1/1"}) {
		t.Fatalf("starts: %v", got)
	}
}

func TestProgress(t *testing.T) {
	t.Run("costs nothing for a turn that ends at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, sleeper(99*time.Millisecond)))
			g.take("t1")
			time.Sleep(time.Minute)
			g.result()
			none(t, g.hub.progress, "progress")
			g.stop()
		})
	})

	t.Run("says once that a turn runs, and how long it does", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, sleeper(time.Minute)))
			o := g.take("t1")
			time.Sleep(30 * time.Second)
			p := await(t, g.hub.progress, "progress")
			if p.Triple != o.Triple || p.State != api.StateRunning || p.RanMS != 100 || p.JournalID != g.id || p.Epoch != g.epoch {
				t.Fatalf("progress %+v", p)
			}
			time.Sleep(time.Minute)
			none(t, g.hub.progress, "further progress without news")
			g.stop()
		})
	})

	t.Run("passes the newest note at most once a second, and the session", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if err := h.SessionMade(ctx, "ses_1"); err != nil {
					return api.Outcome{}, err
				}
				for i := range 25 { // every 100 ms a note: 0 to 24
					h.Progress(api.Activity{Note: strings.Repeat("n", i)})
					time.Sleep(100 * time.Millisecond)
				}
				return sleeper(time.Minute)(ctx, turn, h)
			}))
			g.take("t1")
			time.Sleep(time.Hour)
			var got []int
			for len(g.hub.progress) > 0 {
				p := <-g.hub.progress
				if p.Session != "ses_1" {
					t.Errorf("session %q", p.Session)
				}
				got = append(got, len(p.Note))
			}
			if len(got) < 3 || len(got) > 4 || got[len(got)-1] != 24 || !slices.IsSorted(got) {
				t.Fatalf("notes of length %v", got)
			}
			g.stop()
		})
	})

	t.Run("passes tool call, last line and tokens, cut to their limit, and nothing twice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			doing := api.Activity{Note: strings.Repeat("é", 300), Tool: strings.Repeat("t", 301), Line: strings.Repeat("l", 1<<20)}
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				for range 20 {
					tokens := api.Tokens{Total: 5, Limit: 10}
					doing.Tokens = &tokens
					h.Progress(doing)
					tokens.Total = 6 // nobody was told
					time.Sleep(time.Second)
				}
				return sleeper(time.Minute)(ctx, turn, h)
			}))
			g.take("t1")
			time.Sleep(15 * time.Second)
			p := await(t, g.hub.progress, "progress")
			if len(p.Note) != 300 || len(p.Tool) != 300 || len(p.Line) != 300 || p.Tokens == nil || p.Tokens.Total != 5 || p.Tokens.Limit != 10 {
				t.Fatalf("progress %+v", p)
			}
			time.Sleep(time.Minute)
			none(t, g.hub.progress, "further progress without news")
			g.stop()
		})
	})

	t.Run("that met no hub is told after the reconnect", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, sleeper(time.Minute)))
			g.r.Connect(nil)
			g.take("t1")
			time.Sleep(10 * time.Second)
			synctest.Wait()
			g.r.Connect(g.hub)
			if p := await(t, g.hub.progress, "progress"); p.RanMS != 10_000 {
				t.Fatalf("progress %+v", p)
			}
			g.stop()
		})
	})
}

func TestStop(t *testing.T) {
	t.Run("leaves running turns to the next process and delivers what is done", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		g.take("t1")
		g.take("t2", from("beta"))
		g.began()
		g.began()
		gate.open("t2")
		g.stop()
		g.result()
		none(t, g.hub.results, "result of the turn that goes on")

		h := openRig(t, g.cfg.Path, newAgent(true, done), newHub())
		if turn := h.began(); name(turn) != "t1/1/1+" {
			t.Fatalf("turn %+v", turn)
		}
	})

	t.Run("waits a little for the hub to take the last results", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newGated()
			g := newRig(t, newAgent(true, gate.run))
			g.hub.setAnswer(func(api.Result) error { time.Sleep(time.Second); return nil })
			g.take("t1")
			gate.open("t1")
			synctest.Wait()
			g.stop()
			h := openRig(t, g.cfg.Path, newAgent(true, done), newHub())
			synctest.Wait()
			none(t, h.hub.results, "second delivery")
			h.stop()
		})
	})

	t.Run("does not wait for a hub that takes none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, done))
			g.hub.setAnswer(func(api.Result) error { return api.Errorf(api.CodeInternal, "no") })
			g.take("t1")
			synctest.Wait()
			began := time.Now()
			g.stop()
			if d := time.Since(began); d > 3*time.Second {
				t.Fatalf("it took %v", d)
			}
		})
	})

	t.Run("is bounded when an agent does not stop", func(t *testing.T) {
		stuck := make(chan struct{})
		a := newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			<-stuck
			return api.Outcome{}, agent.ErrDetached
		})
		cfg := tasks.Config{Path: t.TempDir() + "/journal.db", HubID: hubID, Agent: a}
		r, err := tasks.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		g := &rig{t: t, r: r, agent: a, hub: newHub(), disk: newDisk(), cfg: cfg, mux: newMux(r)}
		g.hello()
		r.Start()
		g.take("t1")
		g.began()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := r.Stop(ctx); err == nil || !strings.Contains(err.Error(), "did not stop in time") {
			t.Fatalf("stop: %v", err)
		}
		close(stuck)
	})

	t.Run("may be called twice, and nothing is taken after it", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.stop()
		g.stop()
		if _, _, err := g.put(g.offer("t1")); err == nil || err.Code != api.CodeShuttingDown {
			t.Fatalf("offer: %v", err)
		}
	})
}

func TestSuperseded(t *testing.T) {
	gate := newGated()
	a := newAgent(true, gate.run)
	g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 1 })
	g.take("t1")
	g.began()
	g.take("t2")
	g.take("t3", from("beta"))
	g.r.Park()
	none(t, g.r.Drained(), "drained although a turn runs")
	g.r.Connect(nil)
	gate.open("t1")
	eventually(t, "the turn to end", func() bool { return g.r.Snapshot().Undelivered == 1 })
	none(t, g.r.Drained(), "drained although a result is not delivered")
	g.r.Connect(g.hub)
	g.result()
	await(t, g.r.Drained(), "the runner to be drained")
	if got := a.starts(); !slices.Equal(got, []string{"t1/1/1"}) {
		t.Fatalf("a superseded process started %v", got)
	}
}

func TestRevoked(t *testing.T) {
	gate := newGated()
	a := newAgent(true, gate.run)
	g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 1 })
	g.take("t1")
	g.began()
	g.take("t2")
	g.r.Revoke()
	if out := g.result().Outcome; out.State != api.StateCanceled {
		t.Fatalf("outcome %+v", out)
	}
	await(t, g.r.Drained(), "the runner to be drained")
	if got := a.starts(); !slices.Equal(got, []string{"t1/1/1"}) {
		t.Fatalf("a revoked process started %v", got)
	}
}
