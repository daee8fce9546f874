package relay_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func (h *harness) sweep(forward time.Duration) {
	h.clock.forward(forward)
	h.relay.Sweep(context.Background())
}

// wantLost checks that a task whose node never returns comes to its end.
func wantLost(t *testing.T, h *harness, id string) {
	t.Helper()
	h.sweep(relay.UnknownAfter + time.Second)
	if s := h.state(id); s != api.StateUnknown {
		t.Fatalf("state %s, want unknown", s)
	}
	h.sweep(api.UnknownLimit + time.Second)
	got := h.await(id, api.StateFailed)
	if got.Outcome.Error.Code != api.TaskNodeLost || !slices.Contains(got.Flags, api.FlagMayHaveRun) {
		t.Errorf("outcome %+v, flags %v", got.Outcome, got.Flags)
	}
}

func TestEveryStateOfATaskWhoseNodeNeverReturnsHasABound(t *testing.T) {
	lose := func(o api.Offer) (api.Receipt, error) { return api.Receipt{}, errLost }
	for name, c := range map[string]struct {
		offer func(api.Offer) (api.Receipt, error)
		then  func(h *harness, beta *fakeNode, o api.Offer)
		after func(h *harness)
	}{
		"offered": {offer: lose},
		"offered, and then canceled": {offer: lose, after: func(h *harness) {
			if _, err := h.relay.Cancel(context.Background(), id(1)); err != nil {
				h.t.Error(err)
			}
		}},
		"offered, and then too old": {offer: lose, after: func(h *harness) { h.clock.forward(25 * time.Hour) }},
		"accepted":                  {then: func(h *harness, _ *fakeNode, _ api.Offer) { h.await(id(1), api.StateAccepted) }},
		"held": {
			offer: func(o api.Offer) (api.Receipt, error) {
				return api.Receipt{Triple: o.Triple, State: api.StateHeld}, nil
			},
			then: func(h *harness, _ *fakeNode, _ api.Offer) { h.await(id(1), api.StateHeld) },
		},
		"a question, canceled": {
			then: func(h *harness, beta *fakeNode, o api.Offer) {
				if err := beta.settle(o, asks()); err != nil {
					h.t.Error(err)
				}
			},
			after: func(h *harness) {
				if _, err := h.relay.Cancel(context.Background(), id(1)); err != nil {
					h.t.Error(err)
				}
			},
		},
		"a question that nobody answers": {
			then: func(h *harness, beta *fakeNode, o api.Offer) {
				if err := beta.settle(o, asks()); err != nil {
					h.t.Error(err)
				}
			},
			after: func(h *harness) { h.sweep(api.DefaultQuestionTimeout + time.Second) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.onOffer = c.offer
			detach := beta.attach()
			h.submit("alice", "beta", id(1), "x")
			o := beta.next()
			if c.then != nil {
				c.then(h, beta, o)
			}
			detach()
			if c.after != nil {
				c.after(h)
			}
			wantLost(t, h, id(1))
		})
	}
}

func TestWhatWasNeverSentGoesBackIntoTheQueueOfAnAbsentNode(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.onOffer = func(o api.Offer) (api.Receipt, error) { return api.Receipt{}, errLost }
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "sent")
	h.submit("alice", "beta", id(2), "waits behind it", func(d *api.Dispatch) { d.TTLMS = time.Hour.Milliseconds() })
	beta.next()
	detach()
	h.sweep(relay.UnknownAfter + time.Second)
	if s := h.state(id(2)); s != api.StateQueued {
		t.Fatalf("state %s", s)
	}
	h.sweep(time.Hour)
	h.await(id(2), api.StateExpired)
}

func TestAHeldTaskExpiresByItsNodesWord(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		return api.Receipt{Triple: o.Triple, State: api.StateHeld}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	beta.next()
	h.await(id(1), api.StateHeld)
	h.sweep(2 * time.Second)
	h.await(id(1), api.StateExpired)
}

func TestATaskThatGotTooOldWhileItsNodeWasAwayIsNotOfferedAnew(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.onOffer = func(o api.Offer) (api.Receipt, error) { return api.Receipt{}, errLost }
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = time.Hour.Milliseconds() })
	beta.next()
	detach()
	h.sweep(relay.UnknownAfter + time.Second)
	h.sweep(2 * time.Hour)
	h.sweep(time.Second)
	if s := h.state(id(1)); s != api.StateUnknown {
		t.Fatalf("state %s", s)
	}
	beta.onOffer = nil
	sent := beta.count(id(1))
	beta.attach()
	h.await(id(1), api.StateExpired)
	if n := beta.count(id(1)); n != sent {
		t.Errorf("it was offered %d times more", n-sent)
	}
}

func TestABoundIsEnforcedOnce(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.onOffer = func(o api.Offer) (api.Receipt, error) { return api.Receipt{}, errLost }
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	beta.next()
	detach()
	h.sweep(2 * time.Second)
	asked := h.agree(id(1))
	if asked.ExpireAt.IsZero() {
		t.Fatal("it is not to expire")
	}
	h.sweep(time.Second)
	if again := h.agree(id(1)); again.Rev != asked.Rev {
		t.Error("the same was written again")
	}
}

func TestNoBoundIsTriedOnADiskThatIsFull(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	h.fill()
	if _, err := h.relay.Cancel(context.Background(), id(1)); !errors.Is(err, store.ErrFull) {
		t.Fatalf("got %v", err)
	}
	h.gate.fail = func(string) error {
		t.Error("it was tried")
		return nil
	}
	h.sweep(2 * time.Second)
	h.gate.fail = nil
	h.free()
	h.sweep(0)
	h.await(id(1), api.StateExpired)
}

func TestANodeThatIsBeingGreetedIsNotAway(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	asked, goOn := make(chan struct{}), make(chan struct{})
	beta.onAsk = func(q api.Reconcile) (api.Reconciled, error) {
		close(asked)
		<-goOn
		return api.Reconciled{Tasks: []api.Receipt{{Triple: o.Triple, State: api.StateRunning}}}, nil
	}
	attached := make(chan struct{})
	go func() { beta.attach(); close(attached) }()
	<-asked
	h.sweep(relay.UnknownAfter + time.Second)
	if s := h.state(id(1)); s != api.StateAccepted {
		t.Errorf("state %s while its node says what it knows", s)
	}
	close(goOn)
	<-attached
	h.await(id(1), api.StateRunning)
}

func TestOneTaskThatCannotBeChangedDoesNotKeepOthersFromTheirBounds(t *testing.T) {
	h := newHarness(t)
	h.gate.fail = func(task string) error {
		if task == id(1) {
			return errors.New("this one is stuck")
		}
		return nil
	}
	for i := range 20 {
		h.submit("alice", "beta", id(i), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	}
	h.sweep(2 * time.Second)
	for i := range 20 {
		if s := h.state(id(i)); i != 1 && s != api.StateExpired {
			t.Errorf("task %d is %s", i, s)
		}
	}
	h.gate.fail = nil
	h.sweep(0)
	h.await(id(1), api.StateExpired)
}

func TestBoundsThatAFullDiskHeldBackAreEnforcedWhenThereIsRoom(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	if err := beta.settle(beta.next(), asks()); err != nil {
		t.Fatal(err)
	}
	h.fill()
	h.sweep(api.DefaultQuestionTimeout + time.Second)
	if s := h.state(id(1)); s != api.StateQuestion {
		t.Fatalf("state %s", s)
	}
	h.free()
	h.sweep(0)
	if o := beta.next(); o.Kind != api.TurnAssume {
		t.Errorf("offer %+v", o)
	}
}

func TestAFullDiskLosesNoOfferNoCancelAndNoReceipt(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "to be canceled")
	beta.next()
	h.await(id(1), api.StateAccepted)
	detach()
	h.submit("alice", "beta", id(2), "to be offered")
	answered := make(chan struct{}, 100)
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		answered <- struct{}{}
		out := api.Outcome{State: api.StateCanceled}
		return api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}, nil
	}
	cancel(t, h, id(1))
	h.fill()
	attached := make(chan struct{})
	go func() { beta.attach(); close(attached) }()
	<-answered // and the answer cannot be stored
	h.free()
	<-attached
	h.await(id(1), api.StateCanceled)
	if o := beta.next(); o.Task != id(2) {
		t.Fatalf("offered %s", o.Task)
	}
	h.await(id(2), api.StateAccepted)

	// The same while the node is attached already.
	h.submit("alice", "beta", id(3), "x")
	beta.next()
	h.await(id(3), api.StateAccepted)
	full := false
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		if o.Task == id(4) && !full {
			full = true
			h.fill()
		}
		return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
	}
	h.submit("alice", "beta", id(4), "y")
	beta.next()
	if err := beta.settle(api.Offer{Triple: api.Triple{Task: id(3), Attempt: 1, Turn: 1}}, done("not acknowledged")); !errors.Is(err, store.ErrFull) {
		t.Errorf("a result on a full disk: %v", err)
	}
	h.free()
	h.await(id(4), api.StateAccepted)
	if s := h.state(id(3)); s != api.StateAccepted {
		t.Errorf("state %s", s)
	}
}
