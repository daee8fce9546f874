package relay_test

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/hub/events"
	"opencode-mesh/protocol/api"
)

// does reports what the agent of a turn does.
func (n *fakeNode) does(o api.Offer, a api.Activity) {
	n.h.t.Helper()
	p := api.Progress{Triple: o.Triple, JournalID: n.journal, Epoch: n.epoch, State: api.StateRunning, Activity: a}
	if err := n.h.relay.ProgressFrom(context.Background(), n.h.ids[n.name], p); err != nil {
		n.h.t.Fatal(err)
	}
}

// live is a task as controllers see it now.
func (h *harness) live(id string) api.Task {
	h.t.Helper()
	t, err := h.relay.Task(context.Background(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	v, err := h.relay.Detail(context.Background(), t)
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

// published drains what a subscription got.
func published(sub *events.Sub) (list []api.Task) {
	for {
		select {
		case e := <-sub.C:
			list = append(list, e.Value.(api.Task))
		default:
			return list
		}
	}
}

func TestNothingOfWhatAnAgentDoesIsStored(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	if _, err := h.store.PutSetting(context.Background(), "barrier", nil, 0); err != nil { // what was not awaited is on disk too
		t.Fatal(err)
	}
	commits, writes := h.disk.commits.Load(), h.gate.writes.Load()
	_, sub, _ := h.bus.Subscribe("", func(*events.Event) bool { return true })
	defer sub.Close()
	const secret = "rm -rf of-a-directory"
	for i := range 100 {
		beta.does(o, api.Activity{Tool: "bash: " + secret, Line: id(i), Tokens: &api.Tokens{Total: int64(i), Limit: 1000}})
		beta.does(o, api.Activity{Tool: "bash: " + secret, Line: id(i), Tokens: &api.Tokens{Total: int64(i), Limit: 1000}})
	}
	if n := h.gate.writes.Load() - writes; n != 0 {
		t.Errorf("%d changes of tasks", n)
	}
	if n := h.disk.commits.Load() - commits; n != 0 {
		t.Errorf("%d commits", n)
	}
	list := published(sub)
	if len(list) != 100 { // each that says something new, once
		t.Errorf("%d events", len(list))
	}
	if v := list[len(list)-1]; v.Activity == nil || v.Activity.Line != id(99) || v.Activity.Tokens.Total != 99 || v.State != api.StateRunning {
		t.Errorf("event %+v", v)
	}
	if a := h.live(id(1)).Activity; a == nil || a.Tool != "bash: "+secret {
		t.Errorf("activity %+v", a)
	}
	if err := beta.settle(o, done("ok")); err != nil {
		t.Fatal(err)
	}
	if a := h.live(id(1)).Activity; a != nil {
		t.Errorf("a settled task does %+v", a)
	}
	h.stop()
	if err := h.store.Close(); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(h.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s has it", filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h.open() // the harness closes it
}

func TestTheFirstWordOfARunIsOneEvent(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x")
	o := beta.next()
	h.await(id(1), api.StateAccepted)
	_, sub, _ := h.bus.Subscribe("", func(*events.Event) bool { return true })
	defer sub.Close()
	beta.does(o, api.Activity{Note: "waits for its server"})
	if list := published(sub); len(list) != 1 || list[0].State != api.StateRunning || list[0].Activity == nil {
		t.Errorf("events %+v", list)
	}
}

func TestWhatAnAgentDoesIsBoundedAndCleaned(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.does(o, api.Activity{
		Note: evil(1 << 18), Tool: "two\nlines \x1b[31mred" + evil(1<<18), Line: evil(1 << 18),
		Tokens: &api.Tokens{Total: math.MaxInt64, Limit: -1},
	})
	v := h.live(id(1))
	wantSmall(t, v, 8<<10)
	if a := v.Activity; !strings.HasPrefix(a.Tool, "two lines red") || a.Tokens.Total == math.MaxInt64 || a.Tokens.Limit != 0 {
		t.Errorf("activity %+v", a)
	}
	beta.does(o, api.Activity{})
	if a := h.live(id(1)).Activity; a != nil {
		t.Errorf("an agent that does nothing does %+v", a)
	}
}

func TestOnlyATurnThatRunsDoesSomething(t *testing.T) {
	busy := api.Activity{Tool: "bash"}
	for name, end := range map[string]func(*harness, *fakeNode, api.Offer){
		"not one that asks": func(h *harness, beta *fakeNode, o api.Offer) {
			beta.mustTell(o.Triple, "per_1", permission)
			if a := h.live(id(1)).Activity; a != nil {
				h.t.Errorf("it asks and does %+v", a)
			}
		},
		"not what it did before it asked": func(h *harness, beta *fakeNode, o api.Offer) {
			beta.mustTell(o.Triple, "per_1", permission)
			h.mustAnswer(id(1), "", "once")
			h.await(id(1), api.StateRunning)
		},
		"not what it is said to do while it asks": func(h *harness, beta *fakeNode, o api.Offer) {
			beta.mustTell(o.Triple, "per_1", permission)
			beta.does(o, busy)
			h.mustAnswer(id(1), "", "once")
			h.await(id(1), api.StateRunning)
		},
		"not the one before": func(h *harness, beta *fakeNode, o api.Offer) {
			if err := beta.settle(o, asks("a")); err != nil {
				h.t.Fatal(err)
			}
			beta.does(o, busy)
			h.mustAnswer(id(1), "", "1")
			beta.next()
			h.await(id(1), api.StateAccepted)
			beta.does(o, busy)
		},
		"not after a restart of the hub": func(h *harness, _ *fakeNode, _ api.Offer) { h.crash() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1))
			beta.does(o, busy)
			if h.live(id(1)).Activity == nil {
				t.Fatal("it does nothing")
			}
			end(h, beta, o)
			if a := h.live(id(1)).Activity; a != nil {
				t.Errorf("it does %+v", a)
			}
		})
	}
}

func TestWhatAnAgentDoesIsToldByItsOwnNode(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	for name, p := range map[string]api.Progress{
		"alpha": {Triple: o.Triple, JournalID: "j1", State: api.StateRunning, Activity: api.Activity{Line: "forged"}},
		"beta":  {Triple: o.Triple, JournalID: "j2", State: api.StateRunning, Activity: api.Activity{Line: "forged"}},
	} {
		wantCode(t, h.relay.ProgressFrom(context.Background(), h.ids[name], p), api.CodeForbidden)
	}
	if a := h.live(id(1)).Activity; a != nil {
		t.Errorf("it does %+v", a)
	}
}
