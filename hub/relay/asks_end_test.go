package relay_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func TestACancelEndsATurnThatAsks(t *testing.T) {
	for name, first := range map[string]bool{"while it waits": false, "after the answer": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.withdraw = running
			detach := beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			detach()
			if first {
				h.mustAnswer(id(1), "", "once")
			}
			cancel(t, h, id(1))
			if !first {
				wantCode(t, h.answer(id(1), "", "once"), api.CodeQuestionGone)
			}
			wantCode(t, beta.tell(o.Triple, "per_2", permission), api.CodeQuestionGone)
			beta.attach()
			beta.await(func() bool { return len(beta.withdrawn) == 1 })
			h.clock.forward(api.DefaultQuestionTimeout + time.Second)
			h.relay.Sweep(context.Background()) // nobody goes on by assumption any more
			if err := beta.settle(o, api.Outcome{State: api.StateCanceled}); err != nil {
				t.Fatal(err)
			}
			if got := h.await(id(1), api.StateCanceled); got.Question != nil || got.Answer != nil || got.Late != nil {
				t.Errorf("task %+v", got)
			}
			beta.untold()
		})
	}
}

func TestAPermissionThatNobodyAnswersIsRejected(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1), func(d *api.Dispatch) { d.QuestionTimeoutMS, d.AutoAnswer = 60_000, api.AutoAnswerFirst })
	if o.QuestionMS != 60_000 {
		t.Errorf("the node is told %d ms", o.QuestionMS)
	}
	for i := range 2 {
		beta.mustTell(o.Triple, id(i), permission)
		q := h.await(id(1), api.StateQuestion).Question.ID
		h.clock.forward(59 * time.Second)
		h.relay.Sweep(context.Background())
		if s := h.state(id(1)); s != api.StateQuestion {
			t.Fatalf("state %s before the time is over", s)
		}
		h.clock.forward(2 * time.Second)
		h.clock.expires(false) // the hub has just started, say
		h.relay.Sweep(context.Background())
		if s := h.state(id(1)); s != api.StateQuestion {
			t.Fatalf("state %s while nothing expires", s)
		}
		h.clock.expires(true)
		h.relay.Sweep(context.Background())
		if a := beta.told(); a.Question != id(i) || !strings.HasPrefix(a.Text, "reject Nobody answered") {
			t.Errorf("reply %+v", a)
		}
		wantCode(t, h.answer(id(1), q, "once"), api.CodeAlreadyAnswered)
	}
	got := h.taken(id(1))
	if !slices.Equal(got.Flags, []api.Flag{api.FlagPermissionRejected}) || got.Turn != 1 || got.State != api.StateRunning {
		t.Errorf("task %+v", got)
	}
	if last := got.Life[len(got.Life)-1]; last.Note != "nobody answered in time" {
		t.Errorf("life %+v", got.Life)
	}
}

func TestAQuestionInATurnIsWaitedForOnce(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "que_1", which("a", "b"))
	h.clock.forward(api.DefaultQuestionTimeout + time.Second)
	h.relay.Sweep(context.Background())
	if a := beta.told(); !strings.Contains(a.Text, "most sensible assumption") {
		t.Errorf("reply %+v", a)
	}
	if got := h.taken(id(1)); !slices.Equal(got.Flags, []api.Flag{api.FlagAssumed}) {
		t.Errorf("flags %v", got.Flags)
	}
	beta.mustTell(o.Triple, "que_2", which("c"))
	if a := beta.told(); a.Question != "que_2" || !strings.Contains(a.Text, "most sensible assumption") {
		t.Errorf("reply %+v", a)
	}
	beta.mustTell(o.Triple, "per_1", permission) // which a person may still grant
	h.await(id(1), api.StateQuestion)
	if err := beta.settle(o, done("assumed a")); err != nil {
		t.Fatal(err)
	}
	if got := h.await(id(1), api.StateDone); !slices.Contains(got.Flags, api.FlagAssumed) {
		t.Errorf("flags %v", got.Flags)
	}
}

func TestAPermissionThatEndedItsTurnIsRejectedToo(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1), func(d *api.Dispatch) { d.AutoAnswer = api.AutoAnswerFirst })
	if err := beta.settle(o, api.Outcome{State: api.StateQuestion, Question: permission}); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateQuestion)
	h.clock.forward(api.DefaultQuestionTimeout + time.Second)
	h.relay.Sweep(context.Background())
	o = beta.next()
	if o.Kind != api.TurnAssume || !strings.Contains(o.Text, "not permitted") || strings.Contains(o.Text, "sensible assumption") {
		t.Errorf("offer %+v", o)
	}
	if got := h.await(id(1), api.StateAccepted); !slices.Contains(got.Flags, api.FlagPermissionRejected) {
		t.Errorf("flags %v", got.Flags)
	}
}

func TestAQuestionOfAnAbsentNodeIsUnknownAndStillAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		away func(*harness)
		told string
	}{
		"by a person":   {func(h *harness) { h.mustAnswer(id(1), "", "always") }, "always"},
		"by nobody yet": {func(*harness) {}, ""},
		"by its time-out": {func(h *harness) {
			h.clock.forward(api.DefaultQuestionTimeout)
			h.relay.Sweep(context.Background())
		}, "reject "},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			detach := beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			beta.mu.Lock()
			beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
			beta.mu.Unlock()
			detach()
			h.clock.forward(time.Minute)
			h.relay.Sweep(context.Background())
			if s := h.state(id(1)); s != api.StateUnknown {
				t.Fatalf("state %s", s)
			}
			c.away(h)
			if s := h.state(id(1)); s != api.StateUnknown {
				t.Errorf("state %s while its node is away", s)
			}
			h.crash()
			beta.attach()
			if c.told == "" {
				if got := h.await(id(1), api.StateQuestion); got.Asking != "per_1" || got.Question == nil {
					t.Errorf("task %+v", got)
				}
				h.mustAnswer(id(1), "", "once")
				c.told = "once"
			}
			if a := beta.told(); !strings.HasPrefix(a.Text, c.told) {
				t.Errorf("reply %+v, want %q", a, c.told)
			}
			if got := h.taken(id(1)); got.State != api.StateRunning {
				t.Errorf("state %s", got.State)
			}
		})
	}
}

func TestAnUnknownTaskWhoseTurnAskedSettlesWhenItsNodeReturns(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	q := h.await(id(1), api.StateQuestion).Question.ID
	detach()
	h.clock.forward(time.Minute)
	h.relay.Sweep(context.Background())
	h.await(id(1), api.StateUnknown)
	out := api.Outcome{State: api.StateFailed, Error: &api.TaskError{Code: api.TaskDeadline}}
	beta.mu.Lock()
	beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: out.State, Outcome: &out}
	beta.mu.Unlock()
	beta.attach()
	if got := h.await(id(1), api.StateFailed); got.Question != nil || got.Asking != "" || got.Late != nil {
		t.Errorf("task %+v", got)
	}
	wantCode(t, h.answer(id(1), q, "once"), api.CodeQuestionGone)
}

func TestAQuestionTellsThatItsTurnRuns(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 60_000 })
	o := beta.next()
	beta.mustTell(o.Triple, "per_1", permission) // before any progress, or even the receipt
	got := h.await(id(1), api.StateQuestion)
	if !got.Received || got.StartedAt.IsZero() {
		t.Errorf("task %+v", got)
	}
	h.clock.forward(2 * time.Minute)
	h.relay.Sweep(context.Background())
	if got := h.await(id(1), api.StateQuestion); !got.ExpireAt.IsZero() {
		t.Error("it is asked to expire")
	}
	h.mustAnswer(id(1), "", "once")
	beta.told()
	h.taken(id(1))
	if n := beta.count(id(1)); n != 1 {
		t.Errorf("it was offered %d times", n)
	}
}

func TestATaskThatAsksInItsTurnRunsForItsLineage(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	if got := h.submit("beta", "alpha", id(2), "from inside"); got.Parent != id(1) {
		t.Errorf("parent %q", got.Parent)
	}
}

func TestNobodyIsAskedInTheMiddleOfAnOperation(t *testing.T) {
	h := newHarness(t)
	at := h.clock.Now()
	task := store.Task{
		ID: id(1), Controller: api.Party{ID: "id_alice", Name: "alice"}, Target: api.Party{ID: "id_beta", Name: "beta"},
		Op: api.OpCompact, Kind: api.TurnDigest, Mode: "session", Attempt: 1, Turn: 1, Generation: 1, Lane: 1,
		State: api.StateRunning, Since: at, CreatedAt: at, ExpiresAt: at.Add(time.Hour), StartedAt: at, Journal: "j1", Received: true,
	}
	if _, err := h.store.CreateTasks(context.Background(), []store.NewTask{{Task: task, Text: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	h.crash()
	beta := h.node("beta", "j1")
	beta.known[task.Triple()] = api.Receipt{Triple: task.Triple(), State: api.StateRunning}
	beta.attach()
	beta.mustTell(task.Triple(), "per_1", permission)
	if a := beta.told(); !strings.HasPrefix(a.Text, "reject ") {
		t.Errorf("reply %+v", a)
	}
	if got := h.taken(id(1)); got.State != api.StateRunning {
		t.Errorf("state %s", got.State)
	}
}
