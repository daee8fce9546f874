package relay_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// agree checks that the relay's copy of a task is what the store has.
func (h *harness) agree(id string) store.Task {
	h.t.Helper()
	copied, err := h.relay.Task(context.Background(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	stored, err := h.store.Task(context.Background(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	if copied.Rev != stored.Rev || copied.State != stored.State {
		h.t.Errorf("the relay believes %s (revision %d), the store has %s (revision %d)", copied.State, copied.Rev, stored.State, stored.Rev)
	}
	return stored
}

// between runs second while first stands after its commit and before its return.
// second may wait for first, or not: it gets a moment of its own.
func between(hook *func(bool), first, second func()) {
	committed, goOn := make(chan struct{}), make(chan struct{})
	var used atomic.Bool
	*hook = func(before bool) {
		if !before && used.CompareAndSwap(false, true) {
			close(committed)
			<-goOn
		}
	}
	ended, other := make(chan struct{}), make(chan struct{})
	go func() { first(); close(ended) }()
	<-committed
	go func() { second(); close(other) }()
	select {
	case <-other:
	case <-time.After(50 * time.Millisecond): // it waits for the first, as it should
	}
	close(goOn)
	<-ended
	<-other
}

func TestACancelThatMeetsARetryLeavesNoGhost(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "x")
	cancel(t, h, id(1))
	between(&h.gate.updated,
		func() {
			if _, err := h.relay.Retry(context.Background(), id(1)); err != nil {
				t.Error(err)
			}
		},
		func() {
			if _, err := h.relay.Cancel(context.Background(), id(1)); err != nil {
				t.Error(err)
			}
		})
	if got := h.agree(id(1)); got.State != api.StateCanceled || got.Attempt != 2 {
		t.Errorf("task %+v", got)
	}
	if n := h.relay.Open(); n != 0 {
		t.Errorf("%d tasks are open", n)
	}
}

func TestACancelThatMeetsTheCreationLeavesNoGhost(t *testing.T) {
	h := newHarness(t)
	between(&h.gate.created,
		func() { h.submit("alice", "beta", id(1), "x") },
		func() {
			if _, err := h.relay.Cancel(context.Background(), id(1)); err != nil {
				t.Error(err)
			}
		})
	if got := h.agree(id(1)); got.State != api.StateCanceled {
		t.Errorf("state %s", got.State)
	}
	if n := h.relay.Open(); n != 0 {
		t.Errorf("%d tasks are open", n)
	}
	h.submit("alice", "beta", id(2), "the lane is free")
	beta := h.node("beta", "j1")
	beta.attach()
	if o := beta.next(); o.Task != id(2) {
		t.Errorf("offered %s", o.Task)
	}
}

// before runs second while first stands before its commit.
func before(hook *func(bool), first, second func()) {
	reached, goOn := make(chan struct{}), make(chan struct{})
	var used atomic.Bool
	*hook = func(before bool) {
		if before && used.CompareAndSwap(false, true) {
			close(reached)
			<-goOn
		}
	}
	ended := make(chan struct{})
	go func() { first(); close(ended) }()
	<-reached
	second()
	close(goOn)
	<-ended
}

func (h *harness) retire(name string) {
	h.t.Helper()
	if err := h.store.RetireIdentity(context.Background(), h.ids[name], h.clock.Now()); err != nil {
		h.t.Error(err)
	}
}

func TestATaskThatIsMadeWhileItsNodeIsRevokedIsCanceled(t *testing.T) {
	h := newHarness(t)
	before(&h.gate.created,
		func() { h.submit("alice", "beta", id(1), "x") },
		func() {
			h.retire("beta")
			if err := h.relay.RevokeTarget(context.Background(), "id_beta", api.TaskTargetRevoked); err != nil {
				t.Error(err)
			}
		})
	h.sweep(0)
	if got := h.await(id(1), api.StateCanceled); got.Outcome.Error.Code != api.TaskTargetRevoked {
		t.Errorf("outcome %+v", got.Outcome)
	}
}

func TestATaskThatIsMadeWhileItsControllerIsRevokedIsCanceled(t *testing.T) {
	h := newHarness(t)
	before(&h.gate.created,
		func() { h.submit("alice", "beta", id(1), "x") },
		func() {
			h.retire("alice")
			if err := h.relay.RevokeController(context.Background(), "id_alice"); err != nil {
				t.Error(err)
			}
		})
	h.sweep(0)
	if got := h.await(id(1), api.StateCanceled); got.Outcome.Error.Code != api.TaskControllerGone {
		t.Errorf("outcome %+v", got.Outcome)
	}
	_, err := h.trySubmit("alice", "beta", id(2), "with a request that was let in before")
	wantCode(t, err, api.CodeRevoked)
}

func TestAnAnswerAndATimeoutAtOnceMakeOneTurn(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	for i := range 20 {
		h.submit("alice", "beta", id(i), "x", asNew)
		if err := beta.settle(beta.next(), asks()); err != nil {
			t.Fatal(err)
		}
	}
	h.clock.forward(api.DefaultQuestionTimeout + time.Second)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := h.relay.Answer(context.Background(), id(i), id(i)+".1.1", "yes")
			if err != nil && api.ErrorCode(err) != api.CodeAlreadyAnswered {
				t.Error(err)
			}
		})
	}
	h.relay.Sweep(context.Background())
	wg.Wait()
	for range 20 {
		if o := beta.next(); o.Turn != 2 {
			t.Errorf("offer %+v", o)
		}
	}
	for i := range 20 {
		if got := h.await(id(i), api.StateAccepted); got.Turn != 2 {
			t.Errorf("task %s is at turn %d", got.ID, got.Turn)
		}
	}
}

func TestAJournalThatChangesWhileATaskIsMadeGetsIt(t *testing.T) {
	h := newHarness(t)
	old, fresh := h.node("beta", "j1"), h.node("beta", "j2")
	detach := old.attach()
	before(&h.gate.created,
		func() { h.submit("alice", "beta", id(1), "x") },
		func() {
			detach()
			fresh.attach()
		})
	if o := fresh.next(); o.Task != id(1) || o.JournalID != "j2" {
		t.Errorf("offer %+v", o)
	}
	if got := h.await(id(1), api.StateAccepted); got.Journal != "j2" {
		t.Errorf("journal %s", got.Journal)
	}
	if n := old.count(id(1)); n != 0 {
		t.Errorf("the old journal was offered it %d times", n)
	}
}

func TestACancelThatOvertakesItsOfferEndsTheTaskOnce(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	reached, withdrawn := make(chan struct{}), make(chan struct{})
	out := api.Outcome{State: api.StateCanceled}
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		if o.Task != id(1) {
			return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
		}
		close(reached)
		<-withdrawn // the tombstone is there before the offer
		return api.Receipt{Triple: o.Triple, State: out.State, Outcome: &out}, nil
	}
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		close(withdrawn)
		return api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	<-reached
	cancel(t, h, id(1))
	h.await(id(1), api.StateCanceled)
	h.submit("alice", "beta", id(2), "the lane goes on")
	h.await(id(2), api.StateAccepted)
	if got := h.agree(id(1)); len(got.Results) != 1 || got.Late != nil {
		t.Errorf("results %+v, late %+v", got.Results, got.Late)
	}
}

func TestAReceiptThatComesAfterTheResultChangesNothing(t *testing.T) {
	for name, out := range map[string]api.Outcome{"an end": done("quick"), "a question": asks()} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.onOffer = func(o api.Offer) (api.Receipt, error) {
				if o.Task == id(1) {
					if err := beta.settle(o, out); err != nil {
						t.Error(err)
					}
				}
				return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
			}
			beta.attach()
			h.submit("alice", "beta", id(1), "x")
			h.submit("alice", "beta", id(2), "behind it")
			h.await(id(2), api.StateAccepted)
			if got := h.agree(id(1)); got.State != out.State {
				t.Errorf("state %s", got.State)
			}
			if n := beta.count(id(1)); n != 1 {
				t.Errorf("offered %d times", n)
			}
		})
	}
}

func TestAnExpiryThatMeetsTheStartLetsTheTaskRun(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		// It has just started, and says so on another stream before it answers.
		p := api.Progress{Triple: w.Triple, JournalID: "j1", State: api.StateRunning}
		if err := h.relay.ProgressFrom(context.Background(), h.ids["beta"], p); err != nil {
			t.Error(err)
		}
		return running(w)
	}
	h.sweep(2 * time.Second)
	h.await(id(1), api.StateRunning)
	h.sweep(time.Hour)
	if err := beta.settle(o, done("ok")); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateDone)
	if n := beta.asked(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// TestEverythingAtOnceEndsInAgreement lets changes of all kinds meet each other.
func TestEverythingAtOnceEndsInAgreement(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	ctx := context.Background()
	const n = 40
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 8 {
			beta.attach()()
		}
	})
	for i := range n {
		wg.Go(func() { h.submit("alice", "beta", id(i), "x", asNew) })
		wg.Go(func() { _, _ = h.relay.Cancel(ctx, id(i)) })
		wg.Go(func() { _, _ = h.relay.Retry(ctx, id(i)) })
		wg.Go(func() {
			_ = h.relay.Result(ctx, h.ids["beta"], api.Result{Triple: api.Triple{Task: id(i), Attempt: 1, Turn: 1}, JournalID: "j1", Outcome: done("ok")})
		})
		wg.Go(func() {
			_ = h.relay.ProgressFrom(ctx, h.ids["beta"], api.Progress{Triple: api.Triple{Task: id(i), Attempt: 1, Turn: 1}, JournalID: "j1", State: api.StateRunning})
		})
		wg.Go(func() { h.relay.Sweep(ctx) })
	}
	wg.Wait()
	beta.attach()
	open := 0
	for i := range n {
		if _, err := h.relay.Abandon(ctx, id(i)); err != nil {
			wantCode(t, err, api.CodeAlreadySettled)
		}
		if got := h.agree(id(i)); !got.State.Settled() {
			open++
		}
	}
	if open > 0 || h.relay.Open() != 0 {
		t.Errorf("%d tasks of the store and %d of the relay are open", open, h.relay.Open())
	}
	if running, waiting := h.relay.Counts("id_beta"); running != 0 || waiting != 0 {
		t.Errorf("%d run and %d wait", running, waiting)
	}
}
