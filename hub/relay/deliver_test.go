package relay_test

import (
	"testing"

	"opencode-mesh/protocol/api"
)

func TestAnAnswerIsToldUntilTheNodeHasIt(t *testing.T) {
	for name, trouble := range map[string]error{
		"when the tunnel breaks":      errLost,
		"when the node has no room":   api.Errorf(api.CodeNodeFull, "no room"),
		"when the node is not up yet": api.Errorf(api.CodeUnavailable, "not yet"),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			tries := 0
			beta.mu.Lock()
			beta.onAnswer = func(a api.Reply) (api.Receipt, error) {
				if tries++; tries < 3 {
					return api.Receipt{}, trouble
				}
				return api.Receipt{Triple: a.Triple, State: api.StateRunning}, nil
			}
			beta.mu.Unlock()
			h.mustAnswer(id(1), "", "once")
			for range 3 {
				if a := beta.told(); a.Text != "once" {
					t.Errorf("reply %+v", a)
				}
			}
			h.taken(id(1))
			beta.untold()
		})
	}
}

func TestAnAnswerOutlivesTheHubAndTheConnection(t *testing.T) {
	for name, interrupt := range map[string]func(*harness){
		"of a hub that crashes between answer and delivery": func(h *harness) { h.crash() },
		"of a node that comes back":                         func(*harness) {},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			detach := beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			q := h.await(id(1), api.StateQuestion).Question.ID
			detach()
			h.mustAnswer(id(1), q, "always")
			interrupt(h)
			wantCode(t, h.answer(id(1), q, "reject"), api.CodeAlreadyAnswered)
			beta.attach()
			if a := beta.told(); a.Text != "always" || a.Question != "per_1" || a.Triple != o.Triple || a.Epoch != beta.epoch {
				t.Errorf("reply %+v", a)
			}
			if got := h.taken(id(1)); got.State.Settled() {
				t.Errorf("task %+v", got)
			}
			h.crash()
			beta.attach()
			if err := beta.settle(o, done("ok")); err != nil {
				t.Fatal(err)
			}
			h.await(id(1), api.StateDone)
		})
	}
}

func TestAnAgentThatWasStartedAnewGetsTheAnswerWhenItAsksAgain(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	detach()
	h.mustAnswer(id(1), "", "once")
	beta.mu.Lock()
	beta.onAnswer = func(api.Reply) (api.Receipt, error) {
		return api.Receipt{}, api.Errorf(api.CodeQuestionGone, "nothing asks that yet")
	}
	beta.mu.Unlock()
	beta.attach()
	beta.told()
	beta.mu.Lock()
	beta.onAnswer = nil
	beta.mu.Unlock()
	beta.mustTell(o.Triple, "per_1", permission)
	if a := beta.told(); a.Text != "once" {
		t.Errorf("reply %+v", a)
	}
	if got := h.taken(id(1)); got.State != api.StateAccepted || got.Question != nil { // as it said when it came back
		t.Errorf("task %+v", got)
	}
	// From then on the same is a question again: the answer was used up.
	beta.mustTell(o.Triple, "per_1", permission)
	h.await(id(1), api.StateQuestion)
	h.mustAnswer(id(1), "", "reject")
	if a := beta.told(); a.Text != "reject" {
		t.Errorf("reply %+v", a)
	}
}

func TestAnAnswerWaitsBesideANewerQuestion(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	first := h.await(id(1), api.StateQuestion).Question.ID
	detach()
	h.mustAnswer(id(1), first, "always")
	beta.mustTell(o.Triple, "per_2", permission)
	wantCode(t, h.answer(id(1), first, "reject"), api.CodeAlreadyAnswered)
	beta.attach()
	beta.mustTell(o.Triple, "per_2", permission) // as on each connection
	if a := beta.told(); a.Question != "per_1" || a.Text != "always" {
		t.Errorf("reply %+v", a)
	}
	if got := h.await(id(1), api.StateQuestion); got.Asking != "per_2" || got.Answer != nil {
		t.Errorf("task %+v", got)
	}
	h.mustAnswer(id(1), "", "once")
	if a := beta.told(); a.Question != "per_2" || a.Text != "once" {
		t.Errorf("reply %+v", a)
	}
}

func TestAnAnswerToWhatWasWithdrawnIsNotTold(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	detach()
	h.mustAnswer(id(1), "", "once")
	beta.mustTell(o.Triple, "per_1", nil)
	h.taken(id(1))
	beta.attach()
	beta.quiet()
	beta.untold()
}

func TestAReceiptThatComesLateTakesTheNextAnswerNotAway(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	called, goOn := make(chan struct{}), make(chan struct{})
	beta.mu.Lock()
	beta.onAnswer = func(a api.Reply) (api.Receipt, error) {
		if a.Question == "per_1" {
			close(called)
			<-goOn
		}
		return api.Receipt{Triple: a.Triple, State: api.StateRunning}, nil
	}
	beta.mu.Unlock()
	h.mustAnswer(id(1), "", "once")
	<-called
	beta.mustTell(o.Triple, "per_1", nil)
	beta.mustTell(o.Triple, "per_2", permission)
	h.mustAnswer(id(1), "", "always")
	close(goOn)
	for _, want := range []string{"per_1", "per_2"} {
		if a := beta.told(); a.Question != want {
			t.Errorf("reply %+v, want one to %s", a, want)
		}
	}
	h.taken(id(1))
}

func TestAnAnswerGoesToNoOtherJournal(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	detach()
	h.mustAnswer(id(1), "", "once")
	other := h.node("beta", "j2")
	other.attach()
	h.await(id(1), api.StateUnknown)
	other.quiet()
	other.untold()
}

func TestAReceiptThatTellsTheEndEndsTheTask(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	beta.mu.Lock()
	beta.onAnswer = func(a api.Reply) (api.Receipt, error) {
		out := done("it was over")
		return api.Receipt{State: out.State, Outcome: &out}, nil
	}
	beta.mu.Unlock()
	h.mustAnswer(id(1), "", "once")
	if got := h.await(id(1), api.StateDone); got.Answer != nil || got.Outcome.Summary != "it was over" {
		t.Errorf("task %+v", got)
	}
}
