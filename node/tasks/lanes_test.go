package tasks_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// asks asks once per task and is content with any answer.
func asks(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
	if turn.Kind == api.TurnTask {
		return api.Outcome{State: api.StateQuestion, Question: &api.Asked{Kind: api.QuestionText, Text: "which?"}, Session: turn.Session.ID}, nil
	}
	return done(ctx, turn, h)
}

// answer turns an offer into that of an answer.
func answer(turn int) func(*api.Offer) {
	return func(o *api.Offer) {
		o.Turn, o.Kind = turn, api.TurnAnswer
		o.Hash += fmt.Sprint("-turn-", turn)
		o.Text = "the answer"
	}
}

// from names a controller.
func from(name string) func(*api.Offer) {
	return func(o *api.Offer) { o.Controller = api.Party{ID: "id-" + name, Name: name} }
}

// seq sets the hub's commit order.
func seq(n uint64) func(*api.Offer) { return func(o *api.Offer) { o.Seq = n } }

func TestLanes(t *testing.T) {
	t.Run("one turn of a lane runs at once, in the hub's order", func(t *testing.T) {
		gate := newGated()
		a := newAgent(true, gate.run)
		g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 8 })
		for i := range 5 {
			g.take(fmt.Sprint("t", i))
		}
		for i := range 5 {
			if got := g.began(); got.Task != fmt.Sprint("t", i) {
				t.Fatalf("turn %d to start is %s", i, got.Task)
			}
			none(t, a.began, "second turn of the lane")
			gate.open(fmt.Sprint("t", i))
			g.result()
		}
		if a.peak != 1 {
			t.Fatalf("%d turns of one lane at once", a.peak)
		}
	})

	t.Run("a turn starts only after the one before it is journaled as settled", func(t *testing.T) {
		gate := newGated()
		a := newAgent(true, gate.run)
		g := newRig(t, a)
		g.take("t1")
		g.take("t2")
		g.began()
		release := g.disk.hold()
		defer release()
		gate.open("t1")
		await(t, g.disk.at, "the result's commit")
		none(t, a.began, "start while the result is not on disk")
		release()
		if got := g.began(); got.Task != "t2" {
			t.Fatalf("started %s", got.Task)
		}
		gate.open("t2")
	})

	t.Run("lanes differ by controller, workspace and generation and run side by side", func(t *testing.T) {
		gate := newGated()
		a := newAgent(true, gate.run)
		g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 8 })
		g.take("t1")
		g.take("t2", from("beta"))
		g.take("t3", func(o *api.Offer) { o.Workspace = "other" })
		g.take("t4", func(o *api.Offer) { o.Binding.Generation = 2 })
		var got []string
		for range 4 {
			turn := g.began()
			got = append(got, turn.Task+" "+turn.Workspace.Name+" "+turn.Session.Key)
		}
		slices.Sort(got)
		want := []string{"t1 main id-alpha//1", "t2 main id-beta//1", "t3 other id-alpha/other/1", "t4 main id-alpha//2"}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for i := 1; i <= 4; i++ {
			gate.open(fmt.Sprint("t", i))
		}
	})

	t.Run("slots that are short go to the lowest sequence number of all lanes", func(t *testing.T) {
		gate := newGated()
		a := newAgent(true, gate.run)
		g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 1 })
		g.take("t0")
		g.began()
		g.take("t5", from("e"), seq(50))
		g.take("t3", from("c"), seq(30))
		g.take("t4", from("d"), seq(40))
		g.take("t2", from("b"), seq(20))
		gate.open("t0")
		for i := 2; i <= 5; i++ {
			if got := g.began(); got.Task != fmt.Sprint("t", i) {
				t.Fatalf("started %s, want t%d", got.Task, i)
			}
			gate.open(fmt.Sprint("t", i))
		}
	})

	t.Run("an agent without sessions runs turns of one controller in parallel, started in order", func(t *testing.T) {
		gate := newGated()
		a := newAgent(false, gate.run)
		g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 3 })
		for i := range 6 {
			g.take(fmt.Sprint("t", i))
		}
		var first []string
		for range 3 {
			first = append(first, g.began().Task)
		}
		slices.Sort(first)
		if !slices.Equal(first, []string{"t0", "t1", "t2"}) {
			t.Fatalf("first started: %v", first)
		}
		for i := 3; i < 6; i++ {
			gate.open(fmt.Sprint("t", i-3))
			if got := g.began(); got.Task != fmt.Sprint("t", i) {
				t.Fatalf("started %s, want t%d", got.Task, i)
			}
		}
		for i := 3; i < 6; i++ {
			gate.open(fmt.Sprint("t", i))
		}
		if a.peak != 3 {
			t.Fatalf("%d at once, want 3", a.peak)
		}
	})

	t.Run("a question frees the lane and its answer re-enters at the head", func(t *testing.T) {
		gate := newGated()
		a := newAgent(true, nil)
		a.run = func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			if turn.Task == "t1" {
				return asks(ctx, turn, h)
			}
			return gate.run(ctx, turn, h)
		}
		g := newRig(t, a)
		g.take("t1")
		g.take("t2")
		g.take("t3")
		g.began() // t1, which asks
		g.began() // t2, which runs
		g.take("t1", answer(2), seq(99))
		gate.open("t2")
		if got := g.began(); got.Task != "t1" || got.Turn != 2 || got.Kind != api.TurnAnswer || got.Text != "the answer" {
			t.Fatalf("started %+v", got)
		}
		if got := g.began(); got.Task != "t3" {
			t.Fatalf("started %s", got.Task)
		}
		gate.open("t3")
	})

	t.Run("a session that was made serves the later turns of its lane, also after a restart", func(t *testing.T) {
		a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			if turn.Session.ID == "" {
				if err := h.SessionMade(ctx, "ses_1"); err != nil {
					return api.Outcome{}, err
				}
			}
			return done(ctx, turn, h)
		})
		g := newRig(t, a)
		g.take("t1")
		g.take("t2")
		g.take("t3", func(o *api.Offer) { o.Binding.Generation = 2; o.Binding.Session = "ses_of_the_hub" })
		for range 3 {
			g.result()
		}
		a.mu.Lock()
		got := map[string]string{}
		for _, turn := range a.turns {
			got[turn.Task] = turn.Session.ID
		}
		a.mu.Unlock()
		if got["t1"] != "" || got["t2"] != "ses_1" || got["t3"] != "ses_of_the_hub" {
			t.Fatalf("sessions by task: %v", got)
		}
		g.delivered()
		g.stop()

		h := openRig(t, g.cfg.Path, newAgent(true, done), newHub())
		bound := h.r.Bound()
		want := api.BoundSession{Controller: "id-alpha", Generation: 1, Session: "ses_1"}
		if len(bound) != 1 || bound[0] != want {
			t.Fatalf("bound sessions: %+v", bound)
		}
		h.take("t4")
		if turn := h.began(); turn.Session.ID != "ses_1" {
			t.Fatalf("session after the restart: %q", turn.Session.ID)
		}
	})
}
