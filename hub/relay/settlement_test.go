package relay_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

// away ends a node's connection and lets its tasks become unknown.
func (h *harness) away(detach func(), id string) {
	h.t.Helper()
	detach()
	h.clock.forward(time.Minute)
	h.relay.Sweep(context.Background())
	h.await(id, api.StateUnknown)
}

func TestAnUnknownTaskSettlesWithWhatItsReturningNodeSays(t *testing.T) {
	for name, back := range map[string]func(*fakeNode, api.Offer, api.Outcome){
		"when it is asked": func(n *fakeNode, o api.Offer, out api.Outcome) {
			n.mu.Lock()
			n.known[o.Triple] = api.Receipt{Triple: o.Triple, State: out.State, Outcome: &out}
			n.mu.Unlock()
			n.attach()
		},
		"by itself, before it is asked": func(n *fakeNode, o api.Offer, out api.Outcome) {
			if err := n.settle(o, out); err != nil {
				n.h.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			detach := beta.attach()
			o := beta.run(id(1))
			h.away(detach, id(1))
			back(beta, o, done("all the while"))
			got := h.await(id(1), api.StateDone)
			if got.Outcome.Summary != "all the while" || got.Late != nil || slices.Contains(got.Flags, api.FlagMayHaveRun) {
				t.Errorf("task %+v", got)
			}
			if len(h.seen.late) != 0 {
				t.Errorf("late results counted: %v", h.seen.late)
			}
		})
	}
}

func TestAnOperatorGivesATaskUpInAnyState(t *testing.T) {
	type game struct {
		h      *harness
		beta   *fakeNode
		detach func()
	}
	for name, c := range map[string]struct {
		reach  func(game)
		mayRun bool
	}{
		"never offered": {func(g game) { g.detach(); g.h.submit("alice", "beta", id(1), "x") }, false},
		"running":       {func(g game) { g.beta.run(id(1)) }, true},
		"unknown":       {func(g game) { g.beta.run(id(1)); g.h.away(g.detach, id(1)) }, true},
		"waiting for an answer": {func(g game) {
			if err := g.beta.settle(g.beta.run(id(1)), asks("a")); err != nil {
				g.h.t.Fatal(err)
			}
		}, true},
		"asking in its turn": {func(g game) { g.beta.mustTell(g.beta.run(id(1)).Triple, "per_1", permission) }, true},
		"being canceled": {func(g game) {
			g.beta.withdraw = running
			g.beta.run(id(1))
			cancel(g.h.t, g.h, id(1))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			c.reach(game{h, beta, beta.attach()})
			got, err := h.relay.Abandon(context.Background(), id(1))
			if err != nil {
				t.Fatal(err)
			}
			if got.State != api.StateFailed || got.Outcome.Error.Code != api.TaskNodeLost || slices.Contains(got.Flags, api.FlagMayHaveRun) != c.mayRun {
				t.Errorf("task %+v, %+v", got, got.Outcome)
			}
			if got.Question != nil || got.Asking != "" || got.Answer != nil {
				t.Errorf("it still asks: %+v", got)
			}
			_, err = h.relay.Abandon(context.Background(), id(1))
			wantCode(t, err, api.CodeAlreadySettled)
			wantCode(t, h.answer(id(1), "", "a"), api.CodeQuestionGone)
		})
	}
}

func TestALateResultOfAnOlderAttemptLeavesTheNewOneAlone(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	old := beta.run(id(1))
	if _, err := h.relay.Abandon(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.relay.Retry(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	fresh := beta.next()
	beta.works(fresh)
	if err := beta.settle(old, api.Outcome{State: api.StateDone, Summary: "of the first", Reply: "the first reply"}); err != nil {
		t.Fatal(err)
	}
	got := h.await(id(1), api.StateRunning)
	if got.Late == nil || got.Late.Summary != "of the first" || got.Attempt != 2 || len(h.seen.late) != 1 {
		t.Errorf("task %+v, %v late results counted", got, h.seen.late)
	}
	if err := beta.settle(fresh, api.Outcome{State: api.StateDone, Summary: "of the second", Reply: "the second reply"}); err != nil {
		t.Fatal(err)
	}
	v := h.live(id(1))
	if v.Summary != "of the second" || v.Reply != "the second reply" || !v.LateResult || v.Attempt != 2 {
		t.Errorf("task %+v", v)
	}
	if err := beta.settle(old, api.Outcome{State: api.StateDone, Summary: "of the first", Reply: "the first reply"}); err != nil {
		t.Errorf("a repeat of the late result: %v", err)
	}
	if len(h.seen.late) != 1 {
		t.Errorf("a repeat was counted: %v", h.seen.late)
	}
}

func TestARetryKnowsNothingOfWhatTheAttemptBeforeAsked(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "que_1", which("a"))
	q := h.await(id(1), api.StateQuestion).Question.ID
	h.clock.forward(api.DefaultQuestionTimeout + time.Second)
	h.relay.Sweep(context.Background())
	beta.told()
	if err := beta.settle(o, api.Outcome{State: api.StatePartial, Summary: "assumed a"}); err != nil {
		t.Fatal(err)
	}
	if v := h.live(id(1)); v.Summary != "assumed a" || !slices.Contains(v.Flags, api.FlagAssumed) {
		t.Errorf("the assumption is not shown: %+v", v)
	}
	if _, err := h.relay.Retry(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	fresh := beta.next()
	beta.works(fresh)
	wantCode(t, h.answer(id(1), q, "1"), api.CodeQuestionGone)
	wantCode(t, beta.tell(o.Triple, "que_2", which("a")), api.CodeQuestionGone)
	beta.mustTell(fresh.Triple, "que_1", which("a"))
	got := h.await(id(1), api.StateQuestion) // which is waited for anew
	if slices.Contains(got.Flags, api.FlagAssumed) || got.Question.ID == q {
		t.Errorf("task %+v", got)
	}
}
