package relay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func TestHopsAreDerivedFromTheTaskTokenAndBounded(t *testing.T) {
	h := newHarness(t)
	names := []string{"n0", "n1", "n2", "n3", "n4", "n5"}
	for _, n := range names {
		h.identity(n, api.RoleNode)
	}
	h.identity("outsider", api.RoleController)
	by := h.by("alice")
	for i, n := range names {
		node := h.node(n, "j"+n)
		node.attach()
		d := api.Dispatch{Text: "pass it on", Targets: []api.DispatchTarget{{Name: n, ID: fmt.Sprintf("hop-%d", i)}}}
		_, err := h.relay.Submit(context.Background(), by, d)
		if i == 5 {
			wantCode(t, err, api.CodeHopLimit)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		o := node.next()
		env, err := mesh.ParseEnvelope(o.Text)
		if err != nil || len(env.Via) != i {
			t.Fatalf("hop %d: via %v, %v", i, env.Via, err)
		}
		h.await(o.Task, api.StateAccepted)
		by = relay.Author{Identity: h.ids[n], Token: o.Token}
		if i == 2 { // a node that drops the token inherits what it runs
			by.Token = ""
		}
	}
}

func TestAForgedTaskTokenIsRefused(t *testing.T) {
	h := newHarness(t)
	by := h.by("alice")
	by.Token = id(1) + ":Zm9yZ2Vk"
	_, err := h.relay.Submit(context.Background(), by, api.Dispatch{Text: "x", Targets: []api.DispatchTarget{{Name: "beta", ID: id(2)}}})
	wantCode(t, err, api.CodeForbidden)
}

func TestANodeInheritsHopsFromWhatItIsThoughtToRun(t *testing.T) {
	h := newHarness(t)
	alpha := h.node("alpha", "ja")
	detach := alpha.attach()
	h.submit("alice", "alpha", id(1), "x")
	alpha.next()
	h.await(id(1), api.StateAccepted)
	detach()
	h.sweep(relay.UnknownAfter + time.Second) // the hub does not know, the node still runs it
	made, err := h.relay.Submit(context.Background(), relay.Author{Identity: h.ids["alpha"]}, api.Dispatch{Text: "child", Targets: []api.DispatchTarget{{Name: "beta", ID: id(2)}}})
	if err != nil || made[0].Parent != id(1) || len(made[0].Via) != 1 {
		t.Errorf("%+v, %v", made, err)
	}
}

func TestATaskThatIsBeingEndedStartsNoMoreTasks(t *testing.T) {
	h := newHarness(t)
	alpha := h.node("alpha", "ja")
	alpha.withdraw = running
	alpha.attach()
	h.submit("alice", "alpha", id(1), "x")
	o := alpha.next()
	h.await(id(1), api.StateAccepted)
	cancel(t, h, id(1))
	h.await(id(1), api.StateRunning)
	_, err := h.relay.Submit(context.Background(), relay.Author{Identity: h.ids["alpha"], Token: o.Token}, api.Dispatch{Text: "child", Targets: []api.DispatchTarget{{Name: "beta", ID: id(2)}}})
	wantCode(t, err, api.CodeForbidden)
}
