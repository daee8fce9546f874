package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// step turns an offer into one turn of an operation.
func step(kind string, turn int, b api.Binding) func(*api.Offer) {
	return func(o *api.Offer) {
		o.Kind, o.Turn, o.Binding = kind, turn, b
		o.Hash += fmt.Sprint("-", kind, "-", turn)
	}
}

// inSession ends each turn as done, in the session that it is given or in the one
// that it makes: the task's id with "ses_" before it.
func inSession(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
	out := api.Outcome{State: api.StateDone, Session: turn.Session.ID}
	if out.Session == "" && turn.Kind != api.TurnDelete {
		out.Session = "ses_" + turn.Task
		if err := h.SessionMade(ctx, out.Session); err != nil {
			return out, err
		}
	}
	return out, nil
}

func TestOperations(t *testing.T) {
	bound := api.Binding{Generation: 1, Session: "ses_old", Title: "opencode-mesh alpha"}
	fresh := api.Binding{Generation: 2, Title: "opencode-mesh alpha", Compaction: "c1"}

	t.Run("each of their turns follows the one before it, with kind, session and mark", func(t *testing.T) {
		g := newRig(t, newAgent(true, inSession))
		g.take("c1", step(api.TurnDigest, 1, bound))
		if turn := g.began(); turn.Kind != api.TurnDigest || turn.Session.ID != "ses_old" || turn.Session.Compaction != "" {
			t.Fatalf("digest %+v", turn)
		}
		g.result()
		g.take("c1", step(api.TurnResume, 2, fresh), func(o *api.Offer) { o.Mode = "resume" })
		turn := g.began()
		if turn.Kind != api.TurnResume || turn.Mode != "resume" || turn.Session.ID != "" || turn.Session.Compaction != "c1" || turn.Session.Generation != 2 {
			t.Fatalf("resume %+v", turn)
		}
		if res := g.result(); res.Outcome.Session != "ses_c1" {
			t.Fatalf("resume: %+v", res.Outcome)
		}
		g.take("c1", step(api.TurnDelete, 3, fresh))
		if turn := g.began(); turn.Kind != api.TurnDelete || turn.Session.ID != "ses_c1" || turn.Session.Compaction != "c1" {
			t.Fatalf("delete %+v", turn)
		}
		g.result()
	})

	t.Run("but a task has no next turn after its end", func(t *testing.T) {
		g := newRig(t, newAgent(true, inSession))
		g.take("t1")
		g.result()
		for _, kind := range []string{api.TurnTask, api.TurnAnswer, api.TurnAssume} {
			if _, _, err := g.put(g.offer("t1", step(kind, 2, bound))); err == nil || err.Code != api.CodeConflict {
				t.Errorf("%s: %v", kind, err)
			}
		}
	})

	t.Run("the session that a compaction makes is not that of its generation", func(t *testing.T) {
		g := newRig(t, newAgent(true, inSession))
		g.take("c1", step(api.TurnResume, 1, fresh))
		if turn := g.began(); turn.Session.Key != "id-alpha//2/c1" {
			t.Fatalf("key %q", turn.Session.Key)
		}
		g.result()
		if b := g.r.Bound(); len(b) != 0 {
			t.Fatalf("told in a hello: %+v", b)
		}
		// --new came first: the generation gets a session of its own.
		g.take("t2", func(o *api.Offer) { o.Binding.Generation = 2 })
		if turn := g.began(); turn.Session.ID != "" || turn.Session.Key != "id-alpha//2" {
			t.Fatalf("turn of the generation %+v", turn.Session)
		}
		g.result()
		g.stop()

		h := openRig(t, g.cfg.Path, newAgent(true, inSession), newHub())
		if b := h.r.Bound(); len(b) != 1 || b[0].Session != "ses_t2" {
			t.Fatalf("told in a hello after a restart: %+v", b)
		}
		h.take("c1", step(api.TurnDelete, 2, fresh))
		if turn := h.began(); turn.Session.ID != "ses_c1" {
			t.Fatalf("the compaction's session is not found again: %+v", turn.Session)
		}
	})

	t.Run("the session of a swap is told in a hello once a turn used it", func(t *testing.T) {
		g := newRig(t, newAgent(true, inSession))
		g.take("c1", step(api.TurnResume, 1, fresh))
		g.result()
		swapped := api.Binding{Generation: 2, Session: "ses_c1"}
		for _, id := range []string{"t2", "t3"} {
			g.take(id, func(o *api.Offer) { o.Binding = swapped })
			g.result()
		}
		g.delivered()
		for _, h := range []*rig{g, openRigAfter(t, g)} {
			want := api.BoundSession{Controller: "id-alpha", Generation: 2, Session: "ses_c1"}
			if b := h.r.Bound(); len(b) != 1 || b[0] != want {
				t.Fatalf("told in a hello: %+v", b)
			}
			g = h
		}
		for len(g.agent.began) > 0 {
			g.began()
		}
		g.take("c1", step(api.TurnDelete, 2, fresh)) // which comes too late
		if turn := g.began(); turn.Session.ID != "" {
			t.Fatalf("the compaction's roll-back finds the bound session %q", turn.Session.ID)
		}
	})

	t.Run("what a turn did not use is not told", func(t *testing.T) {
		used := ""
		g := newRig(t, newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{State: api.StateFailed, Session: used}, nil
		}))
		g.take("t1", func(o *api.Offer) { o.Binding = bound })
		g.result()
		used = "ses_else" // without a word of it to the journal
		g.take("t2", func(o *api.Offer) { o.Binding = bound })
		g.result()
		if b := g.r.Bound(); len(b) != 0 {
			t.Fatalf("told in a hello: %+v", b)
		}
	})

	t.Run("a resume that fails after it made its session names it, so that it can be deleted", func(t *testing.T) {
		ends := map[string]runFunc{
			"a cancel": func(ctx context.Context, _ agent.Turn, _ agent.Host) (api.Outcome, error) {
				<-ctx.Done()
				return api.Outcome{}, ctx.Err()
			},
			"an error": func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
				return api.Outcome{}, errors.New("no such server")
			},
			"a crash": func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) { panic("bug") },
		}
		for name, end := range ends {
			made := make(chan struct{})
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if err := h.SessionMade(ctx, "ses_fresh"); err != nil {
					return api.Outcome{}, err
				}
				close(made)
				return end(ctx, turn, h)
			}))
			o := g.take("c1", step(api.TurnResume, 1, fresh))
			<-made
			g.withdraw(o.Triple, api.WithdrawCancel)
			if out := g.result().Outcome; out.State == api.StateDone || out.Session != "ses_fresh" {
				t.Errorf("after %s: %+v", name, out)
			}
		}
		g := newRig(t, newAgent(true, ends["an error"]))
		g.take("c1", step(api.TurnResume, 1, fresh))
		if out := g.result().Outcome; out.Session != "" {
			t.Errorf("it names a session that it did not make: %+v", out)
		}
	})

	t.Run("a session that was deleted is forgotten, and one that was not is kept", func(t *testing.T) {
		state := api.StateFailed
		a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			if turn.Kind == api.TurnDelete {
				return api.Outcome{State: state}, nil
			}
			return inSession(ctx, turn, h)
		})
		g := newRig(t, a)
		g.take("t1")
		g.result()
		mine := api.Binding{Generation: 1, Session: "ses_t1"}
		g.take("c1", step(api.TurnDelete, 1, mine))
		g.result()
		if b := g.r.Bound(); len(b) != 1 {
			t.Fatalf("told after a delete that failed: %+v", b)
		}
		state = api.StateDone
		g.take("c2", step(api.TurnDelete, 1, mine))
		g.result()
		if b := g.r.Bound(); len(b) != 0 {
			t.Fatalf("told after the delete: %+v", b)
		}
		if h := openRigAfter(t, g); len(h.r.Bound()) != 0 {
			t.Fatalf("told after a restart: %+v", h.r.Bound())
		}
	})

	t.Run("a delete means the session that the hub names", func(t *testing.T) {
		g := newRig(t, newAgent(true, inSession))
		g.take("t1")
		g.result()
		g.take("c1", step(api.TurnDelete, 1, bound))
		g.began()
		if turn := g.began(); turn.Session.ID != "ses_old" {
			t.Fatalf("session %q", turn.Session.ID)
		}
	})

	t.Run("neither a digest nor a delete makes a session", func(t *testing.T) {
		for _, kind := range []string{api.TurnDigest, api.TurnDelete} {
			g := newRig(t, newAgent(true, func(ctx context.Context, _ agent.Turn, h agent.Host) (api.Outcome, error) {
				return api.Outcome{State: api.StateDone}, h.SessionMade(ctx, "ses_x")
			}))
			g.take("c1", step(kind, 1, api.Binding{Generation: 1}))
			if out := g.result().Outcome; out.State != api.StateFailed || !strings.Contains(out.Error.Message, "makes no session") {
				t.Errorf("%s: %+v", kind, out)
			}
			if b := g.r.Bound(); len(b) != 0 {
				t.Errorf("%s: told in a hello: %+v", kind, b)
			}
		}
	})

	t.Run("an agent without sessions has none", func(t *testing.T) {
		g := newRig(t, newAgent(false, done))
		for kind, b := range map[string]api.Binding{api.TurnDigest: bound, api.TurnResume: fresh, api.TurnDelete: bound} {
			if status, _, err := g.put(g.offer("c1", step(kind, 1, b))); err == nil || err.Code != api.CodeNotSupported || status != http.StatusNotImplemented {
				t.Errorf("%s: %d %v", kind, status, err)
			}
		}
	})

	t.Run("offers of them that make no sense are refused", func(t *testing.T) {
		g := newRig(t, newAgent(true, inSession))
		for name, o := range map[string]api.Offer{
			"another kind":             g.offer("c1", step("dance", 1, bound)),
			"a resume without mark":    g.offer("c1", step(api.TurnResume, 1, bound)),
			"a task with one":          g.offer("c1", step(api.TurnTask, 1, fresh)),
			"a digest with one":        g.offer("c1", step(api.TurnDigest, 1, fresh)),
			"a mark that is no id":     g.offer("c1", step(api.TurnResume, 1, api.Binding{Generation: 2, Compaction: "a/b"})),
			"a negative question time": g.offer("c1", func(o *api.Offer) { o.QuestionMS = -1 }),
		} {
			if _, _, err := g.put(o); err == nil || err.Code != api.CodeBadRequest {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	t.Run("their result tells a hub that does not know them what they are", func(t *testing.T) {
		g := newRig(t, newAgent(true, inSession))
		g.hub.setAnswer(func(res api.Result) error {
			if res.Recover == nil {
				return api.Errorf(api.CodeUnknownTask, "never heard of it")
			}
			return nil
		})
		g.take("c1", step(api.TurnDelete, 1, bound))
		g.result()
		if res := g.result(); res.Recover == nil || res.Recover.Kind != api.TurnDelete {
			t.Fatalf("recover %+v", res.Recover)
		}
	})
}

func TestOperationsUnderAPolicy(t *testing.T) {
	bound := api.Binding{Generation: 1, Session: "ses_old"}
	fresh := api.Binding{Generation: 2, Compaction: "c1"}
	first := map[string]api.Binding{api.TurnDigest: bound, api.TurnResume: fresh, api.TurnDelete: bound}

	t.Run("refuse and the allow list refuse them like tasks", func(t *testing.T) {
		for _, opt := range []option{
			func(c *tasks.Config) { c.Policy = api.PolicyRefuse },
			func(c *tasks.Config) { c.AcceptFrom = []string{"beta"} },
		} {
			g := newRig(t, newAgent(true, inSession), opt)
			for kind, b := range first {
				if _, _, err := g.put(g.offer("c1", step(kind, 1, b))); err == nil || err.Code != api.CodeRefused {
					t.Errorf("%s: %v", kind, err)
				}
			}
		}
	})

	t.Run("hold parks the first turn, and what follows it goes on", func(t *testing.T) {
		for kind, b := range first {
			g := newRig(t, newAgent(true, inSession), func(c *tasks.Config) { c.Policy = api.PolicyHold })
			status, rc, err := g.put(g.offer("c1", step(kind, 1, b)))
			if err != nil || status != http.StatusAccepted || rc.State != api.StateHeld {
				t.Fatalf("%s: %d %+v %v", kind, status, rc, err)
			}
			if err := g.r.Release("c1"); err != nil {
				t.Fatal(err)
			}
			g.result()
			if _, rc, err := g.put(g.offer("c1", step(api.TurnDelete, 2, fresh))); err != nil || rc.State != api.StateAccepted {
				t.Fatalf("delete after %s: %+v %v", kind, rc, err)
			}
			g.result()
		}
	})
}

// openRigAfter stops a rig and opens another one on its journal.
func openRigAfter(t *testing.T, g *rig) *rig {
	t.Helper()
	g.stop()
	return openRig(t, g.cfg.Path, g.agent, newHub())
}

func TestSessionsOfUnfinishedTasksAreNeeded(t *testing.T) {
	gate := newGated()
	g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
		switch {
		case strings.HasPrefix(turn.Task, "ask"):
			return asks(ctx, turn, h)
		case strings.HasPrefix(turn.Task, "made"):
			return inSession(ctx, turn, h)
		case turn.Task == "running":
			if err := h.SessionMade(ctx, "ses_replaced"); err != nil {
				return api.Outcome{}, err
			}
			return gate.run(ctx, turn, h)
		}
		return done(ctx, turn, h)
	}), func(c *tasks.Config) { c.AcceptFrom = []string{"alpha"} })
	generation := uint64(0)
	in := func(session string) func(*api.Offer) {
		generation++
		n := generation
		return func(o *api.Offer) { o.Binding = api.Binding{Generation: n, Session: session} }
	}
	over := func(id string, changes ...func(*api.Offer)) api.Offer {
		o := g.take(id, changes...)
		g.result()
		g.delivered()
		return o
	}
	over("done", in("ses_done"))
	over("made1", in(""))
	over("ask1", in("ses_question"))
	over("ask4", in("ses_condensed"), func(o *api.Offer) { o.Kind = api.TurnDigest }) // the hub answers nothing that this asks
	answered := in("ses_answered")
	over("ask2", answered)
	over("ask2", answered, answer(2))
	g.withdraw(over("ask3", in("ses_canceled")).Triple, api.WithdrawCancel)
	lane := in("ses_running")
	g.take("running", lane)
	eventually(t, "the turn to run", func() bool {
		return slices.ContainsFunc(g.r.Bound(), func(b api.BoundSession) bool { return b.Session == "ses_replaced" })
	})
	g.take("waiting", lane)
	g.stop()
	got, err := g.r.Needed()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, []string{"ses_question", "ses_replaced", "ses_running"}) {
		t.Fatalf("needed %v", got)
	}
}
