package relay_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"opencode-mesh/hub/events"
	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func TestAfterACrashOfTheHubEverythingGoesOn(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "accepted")
	first := beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	h.submit("alice", "beta", id(2), "queued")
	h.crash()
	beta.attach()
	if o := beta.next(); o.Task != id(2) {
		t.Fatalf("offered %s", o.Task)
	}
	if err := beta.settle(first, done("ok")); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateDone)
	if n := beta.count(id(1)); n != 1 {
		t.Errorf("the accepted task was offered %d times", n)
	}
}

func TestAResultThatTheHubMissedIsTakenAtReconciliation(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	out := done("while away")
	beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: out.State, Outcome: &out}
	beta.attach()
	if got := h.await(id(1), api.StateDone); got.Outcome.Summary != "while away" {
		t.Errorf("task %+v", got)
	}
}

func TestAnOfferThatWasLostIsOfferedAgainToTheSameJournal(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.onOffer = func(o api.Offer) (api.Receipt, error) { return api.Receipt{}, errLost }
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	detach()
	if s := h.state(id(1)); s != api.StateOffered {
		t.Fatalf("state %s", s)
	}
	beta.onOffer = nil
	beta.attach()
	if o := beta.next(); o.Task != id(1) {
		t.Fatal("it was not offered again")
	}
	h.await(id(1), api.StateAccepted)
}

func TestATaskThatItsNodeForgotIsLostAndMayHaveRun(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	delete(beta.known, o.Triple)
	beta.attach()
	got := h.await(id(1), api.StateFailed)
	if got.Outcome.Error.Code != api.TaskJournalLost || !slices.Contains(got.Flags, api.FlagMayHaveRun) {
		t.Errorf("outcome %+v, flags %v", got.Outcome, got.Flags)
	}
}

func TestNothingIsOfferedToAnotherJournal(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	other := h.node("beta", "j2")
	detachOther := other.attach()
	h.await(id(1), api.StateUnknown)
	h.submit("alice", "beta", id(2), "y")
	if o := other.next(); o.Task != id(2) {
		t.Fatalf("the new journal was offered %s", o.Task)
	}
	detachOther()
	// The old journal returns: what it knows settles.
	out := done("from the old journal")
	tr := api.Triple{Task: id(1), Attempt: 1, Turn: 1}
	beta.known[tr] = api.Receipt{Triple: tr, State: out.State, Outcome: &out}
	beta.attach()
	h.await(id(1), api.StateDone)
}

func TestCancelOfAQueuedTaskIsImmediate(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "x")
	got, err := h.relay.Cancel(context.Background(), id(1))
	if err != nil || got.State != api.StateCanceled {
		t.Fatalf("%+v, %v", got, err)
	}
	_, err = h.relay.Cancel(context.Background(), id(1))
	wantCode(t, err, api.CodeAlreadySettled)
}

func TestCancelOfAnOfferedTaskIsDecidedByItsNode(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	got, err := h.relay.Cancel(context.Background(), id(1))
	if err != nil || got.State != api.StateAccepted || got.CancelAt.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	h.submit("alice", "beta", id(2), "next")
	h.crash() // the request survives
	beta.calls = nil
	beta.attach()
	h.await(id(1), api.StateCanceled)
	beta.next()
	beta.mu.Lock()
	defer beta.mu.Unlock()
	w, o := slices.Index(beta.calls, "withdraw "+id(1)), slices.Index(beta.calls, "offer "+id(2))
	if w < 0 || o < w {
		t.Errorf("the withdrawal must come before any new offer: %v", beta.calls)
	}
}

func TestAResultJournaledBeforeTheCancelWins(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	out := done("was faster")
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		return api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	h.await(id(1), api.StateAccepted)
	if _, err := h.relay.Cancel(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	if got := h.await(id(1), api.StateDone); got.Outcome.Summary != "was faster" {
		t.Errorf("task %+v", got)
	}
}

func TestACanceledRunEndsWithTheNodesResult(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	asked := make(chan struct{}, 1)
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		asked <- struct{}{}
		return api.Receipt{Triple: w.Triple, State: api.StateRunning}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	if _, err := h.relay.Cancel(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	<-asked
	h.await(id(1), api.StateRunning)
	if err := beta.settle(o, api.Outcome{State: api.StateCanceled}); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateCanceled)
}

func TestATaskNobodyTookExpires(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	h.clock.forward(2 * time.Second)
	h.clock.may = false // just started, or just woke
	h.relay.Sweep(context.Background())
	if s := h.state(id(1)); s != api.StateQueued {
		t.Fatalf("it expired in the time of grace: %s", s)
	}
	h.clock.may = true
	h.relay.Sweep(context.Background())
	h.await(id(1), api.StateExpired)
}

func TestAnOfferedTaskExpiresOnlyByItsNodesWord(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	started := false
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		if w.Reason != api.WithdrawExpire {
			t.Errorf("reason %s", w.Reason)
		}
		started = true
		return api.Receipt{Triple: w.Triple, State: api.StateRunning}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	h.clock.forward(2 * time.Second)
	h.relay.Sweep(context.Background())
	h.await(id(1), api.StateRunning)
	beta.mu.Lock()
	if !started {
		t.Error("the node was not asked")
	}
	beta.mu.Unlock()
	if err := beta.settle(o, done("it had started")); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateDone)
}

func TestAnAbsentNodesTasksAreUnknownAndSettleWhenItReturns(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	h.clock.forward(relay.UnknownAfter - time.Second)
	h.relay.Sweep(context.Background())
	if s := h.state(id(1)); s != api.StateAccepted {
		t.Fatalf("unknown too early: %s", s)
	}
	h.clock.forward(2 * time.Second)
	h.relay.Sweep(context.Background())
	h.await(id(1), api.StateUnknown)
	beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
	beta.attach()
	h.await(id(1), api.StateRunning)
}

func TestUnknownEndsAfterItsLimit(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	h.clock.forward(time.Minute)
	h.relay.Sweep(context.Background())
	h.clock.forward(api.UnknownLimit + time.Second)
	h.relay.Sweep(context.Background())
	got := h.await(id(1), api.StateFailed)
	if got.Outcome.Error.Code != api.TaskNodeLost || !slices.Contains(got.Flags, api.FlagMayHaveRun) {
		t.Errorf("outcome %+v", got.Outcome)
	}
	if err := beta.settle(o, done("after all")); err != nil {
		t.Fatal(err)
	}
	if h.state(id(1)) != api.StateFailed {
		t.Error("a settled state changed")
	}
}

func TestRefusalsSettleAndFullNodesKeepTheTaskQueued(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	full := make(chan struct{})
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		switch o.Task {
		case id(1):
			return api.Receipt{}, api.Errorf(api.CodeRefused, "policy")
		case id(2):
			return api.Receipt{}, api.Errorf(api.CodeTooOld, "too old")
		}
		select {
		case <-full:
			return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
		default:
			return api.Receipt{}, api.Errorf(api.CodeNodeFull, "no room")
		}
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	if got := h.await(id(1), api.StateRefused); got.Outcome.Error.Code != api.TaskRefused {
		t.Errorf("outcome %+v", got.Outcome)
	}
	h.submit("alice", "beta", id(2), "x")
	h.await(id(2), api.StateFailed)
	h.submit("alice", "beta", id(3), "x")
	for o := beta.next(); o.Task != id(3); o = beta.next() {
	}
	if s := h.state(id(3)); s != api.StateOffered {
		t.Fatalf("state %s", s)
	}
	close(full)
	h.await(id(3), api.StateAccepted)
}

func TestRevokingANodeSettlesWhatWasOpenForIt(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "taken")
	beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	h.submit("alice", "beta", id(2), "waiting")
	if err := h.relay.RevokeTarget(context.Background(), "id_beta", api.TaskTargetRevoked); err != nil {
		t.Fatal(err)
	}
	got := h.await(id(1), api.StateFailed)
	if got.Outcome.Error.Code != api.TaskTargetRevoked || !slices.Contains(got.Flags, api.FlagMayHaveRun) {
		t.Errorf("taken: %+v", got.Outcome)
	}
	if got := h.await(id(2), api.StateCanceled); got.Outcome.Error.Code != api.TaskTargetRevoked {
		t.Errorf("waiting: %+v", got.Outcome)
	}
}

func TestRevokingAControllerCancelsItsTasksAndThoseFromInsideThem(t *testing.T) {
	h := newHarness(t)
	alpha := h.node("alpha", "j1")
	alpha.attach()
	h.submit("alice", "alpha", id(1), "x")
	o := alpha.next()
	h.await(id(1), api.StateAccepted)
	if _, err := h.relay.Submit(context.Background(), relay.Author{Identity: h.ids["alpha"], Token: o.Token}, api.Dispatch{Text: "child", Targets: []api.DispatchTarget{{Name: "beta", ID: id(2)}}}); err != nil {
		t.Fatal(err)
	}
	h.submit("bob", "beta", id(3), "not hers")
	if err := h.relay.RevokeController(context.Background(), "id_alice"); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateCanceled)
	h.await(id(2), api.StateCanceled)
	if s := h.state(id(3)); s != api.StateQueued {
		t.Errorf("bob's task is %s", s)
	}
}

func TestARestoredHubAdoptsResultsOfTasksThatItDoesNotKnow(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	res := api.Result{Triple: api.Triple{Task: id(9), Attempt: 1, Turn: 1}, JournalID: "j1", Epoch: 3, Outcome: done("from before the restore")}
	err := h.relay.Result(context.Background(), h.ids["beta"], res)
	wantCode(t, err, api.CodeUnknownTask)
	res.Recover = &api.Recover{Controller: api.Party{ID: "id_alice", Name: "alice"}, Hash: "h", Mode: "session", CreatedMS: h.clock.Now().UnixMilli(), Text: "the text"}
	if err := h.relay.Result(context.Background(), h.ids["beta"], res); err != nil {
		t.Fatal(err)
	}
	got := h.await(id(9), api.StateDone)
	if !slices.Contains(got.Flags, api.FlagRecovered) || got.Controller.Name != "alice" {
		t.Errorf("task %+v", got)
	}
	if err := h.relay.Result(context.Background(), h.ids["beta"], res); err != nil {
		t.Errorf("a repeat: %v", err)
	}
	_ = beta
}

func TestANodesSessionsRebindARestoredHub(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.bound = []api.BoundSession{{Controller: "id_alice", Generation: 4, Session: "ses_4"}}
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	first := beta.next() // submitted while the node was still being greeted
	h.submit("alice", "beta", id(2), "y")
	if o := beta.next(); o.Binding.Generation != 4 || o.Binding.Session != "ses_4" {
		t.Errorf("binding %+v (first %+v)", o.Binding, first.Binding)
	}
}

func TestAForgottenTaskNeverRunsAgain(t *testing.T) {
	h := newHarness(t, func(c *relay.Config) { c.KeepSettled = time.Hour })
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	if err := beta.settle(beta.next(), done("ok")); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateDone)
	h.clock.forward(2 * time.Hour)
	if err := h.relay.Prune(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err := h.trySubmit("alice", "beta", id(1), "x")
	wantCode(t, err, api.CodeTaskForgotten)
	if _, err := h.relay.Task(context.Background(), id(1)); err != store.ErrForgotten { //nolint:errorlint // the sentinel itself
		t.Errorf("got %v", err)
	}
	if n := beta.count(id(1)); n != 1 {
		t.Errorf("offered %d times", n)
	}
}

func TestWaitReturnsAtTheEndAndUnknownIsNotOne(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	got := make(chan store.Task, 1)
	go func() {
		t, _ := h.relay.Wait(context.Background(), id(1), true)
		got <- t
	}()
	if err := beta.settle(o, done("ok")); err != nil {
		t.Fatal(err)
	}
	if got := <-got; got.State != api.StateDone {
		t.Errorf("state %s", got.State)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.submit("alice", "beta", id(2), "x")
	if got, err := h.relay.Wait(ctx, id(2), true); err != nil || got.State.Settled() {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEveryChangeIsPublishedInOrder(t *testing.T) {
	h := newHarness(t)
	_, sub, _ := h.bus.Subscribe("", func(e *events.Event) bool { return e.Type == api.EventTask })
	defer sub.Close()
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	if err := beta.settle(o, done("ok")); err != nil {
		t.Fatal(err)
	}
	var states []api.State
	for e := range sub.C {
		s := e.Value.(api.Task).State
		if len(states) == 0 || states[len(states)-1] != s {
			states = append(states, s)
		}
		if s.Settled() {
			break
		}
	}
	if last := states[len(states)-2:]; last[0] != api.StateAccepted || last[1] != api.StateDone {
		t.Errorf("states %v", states)
	}
}
