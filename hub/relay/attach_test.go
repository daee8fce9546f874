package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
)

func TestALateGreetingOfAnOlderConnectionDoesNotTakeTheQueue(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	h.await(id(1), api.StateAccepted)
	detach()

	older := h.node("beta", "j1")
	asked, goOn := make(chan struct{}), make(chan struct{})
	older.onAsk = func(q api.Reconcile) (api.Reconciled, error) {
		close(asked)
		<-goOn
		return api.Reconciled{Tasks: []api.Receipt{{Triple: q.Tasks[0], State: api.StateAccepted}}}, nil
	}
	ctx, broken := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		end, err := older.tryAttach(ctx)
		if err == nil {
			end()
		}
		ended <- err
	}()
	<-asked
	beta.attach()
	broken()
	close(goOn)
	if err := <-ended; err == nil {
		t.Error("a connection that had ended was attached")
	}
	h.submit("alice", "beta", id(2), "y")
	beta.next() // the newer connection still gets what there is
}

func TestAConnectionThatHasEndedIsNotAttached(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	ctx, broken := context.WithCancel(context.Background())
	broken()
	if _, err := h.node("beta", "j1").tryAttach(ctx); err == nil {
		t.Error("it was attached")
	}
	h.submit("alice", "beta", id(1), "x")
	beta.next() // the other still gets what there is
}

func TestAGreetingThatFailsForAPassingReasonIsTriedAgain(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	tries := 0
	beta.onAsk = func(api.Reconcile) (api.Reconciled, error) {
		if tries++; tries < 3 {
			return api.Reconciled{}, api.Errorf(api.CodeUnavailable, "not yet")
		}
		return api.Reconciled{Tasks: []api.Receipt{{Triple: o.Triple, State: api.StateRunning}}}, nil
	}
	beta.attach()
	h.await(id(1), api.StateRunning)
}

func TestAGreetingOfANodeOfAnotherJournalThanItSaidEnds(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	beta.onAsk = func(api.Reconcile) (api.Reconciled, error) {
		return api.Reconciled{}, api.Errorf(api.CodeJournalMismatch, "the journal here is another one")
	}
	_, err := beta.tryAttach(context.Background())
	wantCode(t, err, api.CodeJournalMismatch)
}

func TestAGreetingEndsWithItsConnection(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	ctx, broken := context.WithCancel(context.Background())
	beta.onAsk = func(api.Reconcile) (api.Reconciled, error) {
		broken()
		return api.Reconciled{}, errLost
	}
	if _, err := beta.tryAttach(ctx); err == nil {
		t.Error("it was attached")
	}
}

func TestANodeOfAnotherJournalThanItSaidIsGivenUpAndNotAskedInALoop(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	var offers atomic.Int32
	failed := make(chan error, 10)
	beta.onFail = func(err error) { failed <- err }
	beta.onOffer = func(api.Offer) (api.Receipt, error) {
		offers.Add(1)
		return api.Receipt{}, api.Errorf(api.CodeJournalMismatch, "the journal here is another one")
	}
	detach := beta.attach()
	for i := range 5 { // lanes of their own
		h.submit("alice", "beta", id(i), "x", asNew)
	}
	select {
	case <-failed:
	case <-time.After(2 * time.Minute):
		t.Fatal("the connection goes on")
	}
	detach() // waits for what is under way
	if n := offers.Load(); n > 5 {
		t.Errorf("%d offers of 5 tasks", n)
	}
	if len(failed) > 0 {
		t.Error("told more than once")
	}
	beta.onOffer = nil
	beta.attach()
	h.await(id(4), api.StateAccepted)
}

func TestLanesThatPauseTakeNobodysPlace(t *testing.T) {
	h := newHarness(t, func(c *relay.Config) { c.RetryMin = time.Hour })
	beta := h.node("beta", "j1")
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		if o.Controller.Name == "alice" {
			return api.Receipt{}, api.Errorf(api.CodeNodeFull, "no room")
		}
		return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
	}
	beta.attach()
	for i := range relay.MaxOffersInFlight {
		h.submit("alice", "beta", id(i), "x", asNew)
	}
	for range relay.MaxOffersInFlight {
		beta.next()
	}
	h.submit("bob", "beta", "small", "x")
	h.await("small", api.StateAccepted)
}

func TestADrainingNodeGetsNoOffersUntilItSaysOtherwise(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.relay.Drain("id_beta", true)
	if got := h.submit("alice", "beta", id(1), "x"); got.State != api.StateQueued {
		t.Errorf("state %s", got.State)
	}
	alpha := h.node("alpha", "ja")
	alpha.attach()
	h.submit("alice", "alpha", id(2), "meanwhile")
	h.await(id(2), api.StateAccepted)
	if n := beta.count(id(1)); n != 0 {
		t.Errorf("offered %d times", n)
	}
	h.relay.Drain("id_beta", false)
	beta.next()
	h.await(id(1), api.StateAccepted)
	if n := beta.count(id(1)); n != 1 {
		t.Errorf("offered %d times", n)
	}
}

func TestRubbishFromANodeEndsTheTaskAndNotTheNode(t *testing.T) {
	rubbish := &api.Outcome{State: "sleeping"}
	wantRejected := func(t *testing.T, h *harness, id string) {
		t.Helper()
		got := h.await(id, api.StateFailed)
		if got.Outcome.Error == nil || got.Outcome.Error.Code != api.TaskResultRejected {
			t.Errorf("outcome %+v", got.Outcome)
		}
	}
	t.Run("in a receipt", func(t *testing.T) {
		h := newHarness(t)
		beta := h.node("beta", "j1")
		beta.onOffer = func(o api.Offer) (api.Receipt, error) {
			if o.Task == id(1) {
				return api.Receipt{Triple: o.Triple, State: api.StateDone, Outcome: rubbish}, nil
			}
			return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
		}
		beta.attach()
		h.submit("alice", "beta", id(1), "x")
		wantRejected(t, h, id(1))
		h.submit("alice", "beta", id(2), "y")
		h.await(id(2), api.StateAccepted)
	})
	t.Run("at reconciliation", func(t *testing.T) {
		h := newHarness(t)
		beta := h.node("beta", "j1")
		detach := beta.attach()
		h.submit("alice", "beta", id(1), "x")
		o := beta.next()
		h.await(id(1), api.StateAccepted)
		detach()
		beta.known[o.Triple] = api.Receipt{Triple: o.Triple, Outcome: rubbish}
		beta.attach()
		wantRejected(t, h, id(1))
	})
	t.Run("in answer to a cancel", func(t *testing.T) {
		h := newHarness(t)
		beta := h.node("beta", "j1")
		beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
			return api.Receipt{Triple: w.Triple, Outcome: rubbish}, nil
		}
		beta.attach()
		h.submit("alice", "beta", id(1), "x")
		beta.next()
		h.await(id(1), api.StateAccepted)
		cancel(t, h, id(1))
		wantRejected(t, h, id(1))
	})
}
