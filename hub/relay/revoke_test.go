package relay_test

import (
	"context"
	"errors"
	"testing"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func TestWhatAFullDiskLeftOfARevocationIsSettledWhenThereIsRoom(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "x")
	h.submit("bob", "alpha", id(2), "y")
	h.retire("beta")
	h.retire("bob")
	h.fill()
	if err := h.relay.RevokeTarget(context.Background(), "id_beta", api.TaskTargetReplaced); !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v", err)
	}
	if err := h.relay.RevokeController(context.Background(), "id_bob"); !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v", err)
	}
	h.free()
	h.sweep(0)
	if got := h.await(id(1), api.StateCanceled); got.Outcome.Error.Code != api.TaskTargetReplaced {
		t.Errorf("outcome %+v", got.Outcome)
	}
	if got := h.await(id(2), api.StateCanceled); got.Outcome.Error.Code != api.TaskControllerGone {
		t.Errorf("outcome %+v", got.Outcome)
	}
}

func TestARevocationThatACrashInterruptedIsFinishedByTheNextStart(t *testing.T) {
	h := newHarness(t)
	alpha := h.node("alpha", "ja")
	detach := alpha.attach()
	h.submit("bob", "alpha", id(1), "x")
	o := alpha.next()
	h.await(id(1), api.StateAccepted)
	if _, err := h.relay.Submit(context.Background(), relay.Author{Identity: h.ids["alpha"], Token: o.Token}, api.Dispatch{Text: "child", Targets: []api.DispatchTarget{{Name: "beta", ID: id(2)}}}); err != nil {
		t.Fatal(err)
	}
	h.submit("alice", "beta", id(3), "y")
	detach()
	gamma := h.identity("gamma", api.RoleNode)
	h.submit("alice", "gamma", id(4), "z")
	h.retire("bob")
	if err := h.store.RetireIdentity(context.Background(), gamma, h.clock.Now()); err != nil {
		t.Fatal(err)
	}
	h.crash()
	h.sweep(0)
	if got := h.await(id(4), api.StateCanceled); got.Outcome.Error.Code != api.TaskTargetRevoked {
		t.Errorf("outcome %+v", got.Outcome)
	}
	if got := h.await(id(2), api.StateCanceled); got.Outcome.Error.Code != api.TaskControllerGone {
		t.Errorf("outcome %+v", got.Outcome)
	}
	alpha.attach()
	h.await(id(1), api.StateCanceled)
	if s := h.state(id(3)); s != api.StateQueued {
		t.Errorf("alice's task is %s", s)
	}
}

func TestRevokingAControllerReachesWhatItsFinishedTasksLeftBehind(t *testing.T) {
	h := newHarness(t)
	alpha, beta := h.node("alpha", "ja"), h.node("beta", "jb")
	alpha.attach()
	beta.attach()
	h.submit("alice", "alpha", id(1), "x")
	o1 := alpha.next()
	h.await(id(1), api.StateAccepted)
	child := relay.Author{Identity: h.ids["alpha"], Token: o1.Token}
	if _, err := h.relay.Submit(context.Background(), child, api.Dispatch{Text: "child", Targets: []api.DispatchTarget{{Name: "beta", ID: id(2)}}}); err != nil {
		t.Fatal(err)
	}
	o2 := beta.next()
	h.await(id(2), api.StateAccepted)
	grandchild := relay.Author{Identity: h.ids["beta"], Token: o2.Token}
	if _, err := h.relay.Submit(context.Background(), grandchild, api.Dispatch{Text: "grandchild", Targets: []api.DispatchTarget{{Name: "alpha", ID: id(3)}}}); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func() error{
		func() error { return alpha.settle(o1, done("ok")) },
		func() error { return beta.settle(o2, done("ok")) },
	} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.relay.RevokeController(context.Background(), "id_alice"); err != nil {
		t.Fatal(err)
	}
	h.await(id(3), api.StateCanceled)
}

func TestAChildThatIsMadeWhileItsRootIsRevokedIsCanceled(t *testing.T) {
	h := newHarness(t)
	alpha := h.node("alpha", "ja")
	alpha.withdraw = running
	alpha.attach()
	h.submit("alice", "alpha", id(1), "x")
	o := alpha.next()
	h.await(id(1), api.StateAccepted)
	before(&h.gate.created,
		func() {
			if _, err := h.relay.Submit(context.Background(), relay.Author{Identity: h.ids["alpha"], Token: o.Token}, api.Dispatch{Text: "child", Targets: []api.DispatchTarget{{Name: "beta", ID: id(2)}}}); err != nil {
				t.Error(err)
			}
		},
		func() {
			h.retire("alice")
			if err := h.relay.RevokeController(context.Background(), "id_alice"); err != nil {
				t.Error(err)
			}
		})
	h.sweep(0)
	h.await(id(2), api.StateCanceled)
}
