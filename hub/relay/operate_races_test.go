package relay_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func TestATaskThatIsBeingMadeComesBeforeAnOperationThatIsAskedForMeanwhile(t *testing.T) {
	h, beta := talk(t, 1)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	h.gate.created = func(before bool) {
		if before && first.CompareAndSwap(false, true) {
			close(reached)
			<-goOn
		}
	}
	ended := make(chan struct{}, 2)
	go func() { h.submit("alice", "beta", "t1", "x"); ended <- struct{}{} }()
	<-reached
	go func() { h.operate("alice", "beta", api.OpCompact, "c1"); ended <- struct{}{} }()
	time.Sleep(50 * time.Millisecond) // a moment of its own
	if _, err := h.relay.Task(context.Background(), "c1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the operation is there already: %v", err)
	}
	close(goOn)
	<-ended
	<-ended
	op, before := beta.settled("c1"), beta.settled("t1")
	if before.Seq > op.Seq || before.Generation != 1 || op.State != api.StateDone {
		t.Errorf("task %d in generation %d, operation %d, %s", before.Seq, before.Generation, op.Seq, op.State)
	}
	beta.sound(t, "alice")
}

func TestADispatchThatReadTheBindingBeforeACompactionEntersTheNewSession(t *testing.T) {
	h, beta := talk(t, 1)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	h.gate.read = func() {
		if first.CompareAndSwap(false, true) {
			close(reached)
			<-goOn
		}
	}
	ended := make(chan struct{})
	go func() { h.submit("alice", "beta", "t1", "x"); close(ended) }()
	<-reached
	h.operate("alice", "beta", api.OpCompact, "c1")
	swapped := beta.settled("c1")
	close(goOn)
	<-ended
	if got := beta.settled("t1"); got.Outcome.Session != swapped.Outcome.Session || got.Generation != 2 {
		t.Errorf("it ran in %s, generation %d", got.Outcome.Session, got.Generation)
	}
	beta.sound(t, "alice")
}

func TestARetryWaitsForTheEndOfAnOperationThatWorks(t *testing.T) {
	h, beta := talk(t, 1)
	h.operate("alice", "beta", api.OpCompact, "c1")
	h.await("c1", api.StateAccepted)
	if _, err := h.relay.Retry(context.Background(), id(0)); err != nil {
		t.Fatal(err)
	}
	h.submit("bob", "beta", "other", "x") // would be offered after it
	h.await("other", api.StateAccepted)
	if got := h.state(id(0)); got != api.StateQueued {
		t.Errorf("the retry is %s while the session is handed over", got)
	}
	swapped := beta.settled("c1")
	if got := beta.settled(id(0)); got.Outcome.Session != swapped.Outcome.Session {
		t.Errorf("the retry ran in %s", got.Outcome.Session)
	}
	beta.sound(t, "alice")
}

func TestAResultOfAnotherTurnThanTheOneAtWorkIsLate(t *testing.T) {
	h, beta := talk(t, 1)
	beta.script = func(o api.Offer) *api.Outcome {
		if o.Kind == api.TurnResume {
			res := api.Result{Triple: api.Triple{Task: "c1", Attempt: 1, Turn: 1}, JournalID: "j1", Outcome: done("again, and otherwise")}
			wantCode(t, h.relay.Result(context.Background(), h.ids["beta"], res), api.CodeResultConflict)
			res.Turn = 3
			wantCode(t, h.relay.Result(context.Background(), h.ids["beta"], res), api.CodeBadRequest)
		}
		return nil
	}
	h.operate("alice", "beta", api.OpCompact, "c1")
	if got := beta.settled("c1"); got.State != api.StateDone || got.Turn != 2 {
		t.Errorf("%+v, turn %d", got.Outcome, got.Turn)
	}
}

func TestATurnOfAnOperationThatAHubDoesNotKnowIsAcknowledgedAndForgotten(t *testing.T) {
	h := newHarness(t)
	for _, kind := range []string{api.TurnDigest, api.TurnResume, api.TurnDelete} {
		res := api.Result{Triple: api.Triple{Task: "c-" + kind, Attempt: 1, Turn: 1}, JournalID: "j1", Outcome: done("x")}
		res.Outcome.Session = "ses_1"
		wantCode(t, h.relay.Result(context.Background(), h.ids["beta"], res), api.CodeUnknownTask)
		res.Recover = &api.Recover{Kind: kind, Controller: api.Party{ID: "id_alice", Name: "alice"}, Mode: "session", Hash: "x", Text: "x"}
		if err := h.relay.Result(context.Background(), h.ids["beta"], res); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := h.relay.Task(context.Background(), res.Task); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: a task was made of it: %v", kind, err)
		}
	}
	if list, err := h.relay.Sessions(context.Background(), "", "", 0); err != nil || len(list) != 0 {
		t.Errorf("sessions %+v, %v", list, err)
	}
}
