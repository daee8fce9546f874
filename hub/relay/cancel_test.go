package relay_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
)

func cancel(t tester, h *harness, id string) {
	t.Helper()
	if _, err := h.relay.Cancel(context.Background(), id); err != nil {
		t.Fatal(err)
	}
}

func asks(options ...string) api.Outcome {
	return api.Outcome{State: api.StateQuestion, Question: &api.Asked{Kind: api.QuestionText, Text: "which?", Options: options}}
}

func running(w api.Withdraw) (api.Receipt, error) {
	return api.Receipt{Triple: w.Triple, State: api.StateRunning}, nil
}

func TestCancelOfATaskThatWaitsForAnAnswerEndsIt(t *testing.T) {
	for name, away := range map[string]bool{"while its node is there": false, "when its node returns": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			detach := beta.attach()
			h.submit("alice", "beta", id(1), "x")
			if err := beta.settle(beta.next(), asks()); err != nil {
				t.Fatal(err)
			}
			if away {
				detach()
			}
			cancel(t, h, id(1))
			if away {
				_, err := h.relay.Answer(context.Background(), id(1), "", "too late")
				wantCode(t, err, api.CodeQuestionGone)
				beta.attach()
			}
			got := h.await(id(1), api.StateCanceled)
			if got.Question != nil {
				t.Errorf("the question is still there: %+v", got.Question)
			}
		})
	}
}

func TestACancelAfterAnExpiryThatCameTooLateReachesTheNode(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	asked := make(chan string, 2)
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		asked <- w.Reason
		return running(w)
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	beta.next()
	h.await(id(1), api.StateAccepted)
	h.clock.forward(2 * time.Second)
	h.relay.Sweep(context.Background())
	if r := <-asked; r != api.WithdrawExpire {
		t.Fatalf("reason %s", r)
	}
	h.await(id(1), api.StateRunning)
	cancel(t, h, id(1))
	select {
	case r := <-asked:
		if r != api.WithdrawCancel {
			t.Errorf("reason %s", r)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the cancel never reached the node")
	}
}

func TestACancelGoesOutWhileEveryOfferHangs(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	release := make(chan struct{})
	var once sync.Once
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		if o.Task != id(0) {
			<-release
		}
		return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
	}
	t.Cleanup(func() { once.Do(func() { close(release) }) })
	beta.attach()
	h.submit("alice", "beta", id(0), "x")
	beta.next()
	h.await(id(0), api.StateAccepted)
	for i := range relay.MaxOffersInFlight + 5 { // each in a lane of its own
		h.submit("alice", "beta", id(i+1), "x", asNew)
	}
	beta.await(func() bool { return len(beta.offers) == relay.MaxOffersInFlight+1 })
	cancel(t, h, id(0))
	h.await(id(0), api.StateCanceled)
	once.Do(func() { close(release) })
	for range relay.MaxOffersInFlight + 5 {
		beta.next()
	}
}

func TestWithdrawalsGoOutBeforeTheOffersThatWait(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	release := make(chan struct{})
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		if o.Task != id(0) {
			<-release
		}
		return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
	}
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		close(release) // only now may the offers that hang come to an end
		out := api.Outcome{State: api.StateCanceled}
		return api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(0), "x")
	beta.next()
	h.await(id(0), api.StateAccepted)
	for i := range relay.MaxOffersInFlight + 20 {
		h.submit("alice", "beta", id(i+1), "x", asNew)
	}
	beta.await(func() bool { return len(beta.offers) == relay.MaxOffersInFlight+1 })
	cancel(t, h, id(0))
	for range relay.MaxOffersInFlight + 20 {
		beta.next()
	}
	beta.mu.Lock()
	defer beta.mu.Unlock()
	if i := slices.Index(beta.calls, "withdraw "+id(0)); i < 0 || i > relay.MaxOffersInFlight+1 {
		t.Errorf("the withdrawal was call %d of %d", i, len(beta.calls))
	}
}

func TestANodeThatCannotNoteACancelIsAskedAgain(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	tries := 0
	beta.withdraw = func(w api.Withdraw) (api.Receipt, error) {
		if tries++; tries < 3 {
			return api.Receipt{}, api.Errorf(api.CodeNodeFull, "no room for the tombstone")
		}
		out := api.Outcome{State: api.StateCanceled}
		return api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}, nil
	}
	beta.attach() // whose failure fails the test
	h.submit("alice", "beta", id(1), "x")
	beta.next()
	h.await(id(1), api.StateAccepted)
	cancel(t, h, id(1))
	h.await(id(1), api.StateCanceled)
}

func TestARefusedWithdrawalChangesNothing(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.withdraw = func(api.Withdraw) (api.Receipt, error) {
		return api.Receipt{}, api.Errorf(api.CodeBadRequest, "what is that?")
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	cancel(t, h, id(1))
	beta.await(func() bool { return slices.Contains(beta.calls, "withdraw "+id(1)) })
	h.submit("alice", "beta", id(2), "the lane goes on")
	beta.next()
	if s := h.state(id(1)); s != api.StateAccepted {
		t.Errorf("state %s", s)
	}
	if err := beta.settle(o, done("ran to its end")); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateDone)
}

func TestARunningCancelIsSentOncePerConnection(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.withdraw = running
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	cancel(t, h, id(1))
	h.await(id(1), api.StateRunning)
	for _, note := range []string{"aborting", "still aborting"} {
		if err := h.relay.ProgressFrom(context.Background(), h.ids["beta"], api.Progress{Triple: o.Triple, JournalID: "j1", State: api.StateRunning, Activity: api.Activity{Note: note}}); err != nil {
			t.Fatal(err)
		}
	}
	h.submit("alice", "beta", id(2), "x") // the loop has been round once more when this is offered
	beta.next()
	if n := beta.asked(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	detach()
	beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
	beta.attach()
	if n := beta.asked(); n != 2 {
		t.Errorf("after a reconnect asked %d times", n)
	}
}

func TestAWithdrawalThatPausedWithAnOlderConnectionIsTheNewersToSend(t *testing.T) {
	h := newHarness(t, func(c *relay.Config) { c.RetryMin = time.Hour })
	beta := h.node("beta", "j1")
	beta.withdraw = func(api.Withdraw) (api.Receipt, error) {
		return api.Receipt{}, api.Errorf(api.CodeNodeFull, "no room")
	}
	detach := beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 1000 })
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	h.sweep(2 * time.Second)
	beta.await(func() bool { return len(beta.withdrawn) == 1 })
	detach()
	beta.withdraw = running
	beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
	beta.attach()
	h.await(id(1), api.StateRunning)
	cancel(t, h, id(1))
	beta.await(func() bool { return beta.withdrawn[len(beta.withdrawn)-1].Reason == api.WithdrawCancel })
}
