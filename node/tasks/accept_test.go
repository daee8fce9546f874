package tasks_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"

	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

func TestOffer(t *testing.T) {
	t.Run("is taken with 202, run once and its result delivered", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		o := g.take("t1")
		res := g.result()
		if res.Triple != o.Triple || res.JournalID != g.id || res.Epoch != g.epoch || res.Outcome.State != api.StateDone {
			t.Fatalf("result %+v", res)
		}
		if res.Recover != nil {
			t.Fatal("a result tells the whole task although the hub knows it")
		}
		g.delivered()
		if got := g.agent.starts(); len(got) != 1 {
			t.Fatalf("starts: %v", got)
		}
	})

	t.Run("that is repeated returns what is recorded and runs nothing again", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		o := g.take("t1")
		g.began()
		if status, rc, err := g.put(o); err != nil || status != http.StatusOK || rc.State != api.StateRunning || rc.Outcome != nil {
			t.Fatalf("repeat while running: %d %+v %v", status, rc, err)
		}
		gate.open("t1")
		g.result()
		g.delivered()
		status, rc, err := g.put(o)
		if err != nil || status != http.StatusOK || rc.State != api.StateDone || rc.Outcome == nil || rc.Outcome.Summary != "did t1" {
			t.Fatalf("repeat after the end: %d %+v %v", status, rc, err)
		}
		if got := g.agent.starts(); len(got) != 1 {
			t.Fatalf("starts: %v", got)
		}
	})

	t.Run("of the same triple with another body is a task_conflict, also after the end", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		o := g.take("t1")
		other := o
		other.Hash = "another"
		if status, _, err := g.put(other); status != http.StatusConflict || err.Code != api.CodeTaskConflict {
			t.Fatalf("while running: %d %v", status, err)
		}
		gate.open("t1")
		g.result()
		g.delivered()
		if status, _, err := g.put(other); status != http.StatusConflict || err.Code != api.CodeTaskConflict {
			t.Fatalf("after the end: %d %v", status, err)
		}
	})

	t.Run("for another hub, journal or epoch is a journal_mismatch", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		for what, change := range map[string]func(*api.Offer){
			"hub":         func(o *api.Offer) { o.HubID = "hub-2" },
			"journal":     func(o *api.Offer) { o.JournalID = "other" },
			"older epoch": func(o *api.Offer) { o.Epoch-- },
			"newer epoch": func(o *api.Offer) { o.Epoch++ },
		} {
			if status, _, err := g.put(g.offer("t-"+what[:3], change)); status != http.StatusConflict || err.Code != api.CodeJournalMismatch {
				t.Errorf("%s: %d %v", what, status, err)
			}
		}
		if s := g.r.Snapshot(); s.Remembered != 0 {
			t.Fatalf("something was recorded: %+v", s)
		}
	})

	t.Run("that makes no sense is a bad_request", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		for what, change := range map[string]func(*api.Offer){
			"attempt 0":         func(o *api.Offer) { o.Attempt = 0 },
			"turn 0":            func(o *api.Offer) { o.Turn = 0 },
			"no hash":           func(o *api.Offer) { o.Hash = "" },
			"unknown kind":      func(o *api.Offer) { o.Kind = "song" },
			"unknown mode":      func(o *api.Offer) { o.Mode = "loud" },
			"no controller":     func(o *api.Offer) { o.Controller = api.Party{} },
			"negative deadline": func(o *api.Offer) { o.DeadlineMS = -1 },
		} {
			o := g.offer("t1", change)
			if status, _, err := g.put(o); status != http.StatusBadRequest || err.Code != api.CodeBadRequest {
				t.Errorf("%s: %d %v", what, status, err)
			}
		}
		o := g.offer("t1")
		if _, err := g.call(http.MethodPut, "/v1/tasks/t2", o, nil); err == nil || err.Code != api.CodeBadRequest {
			t.Errorf("path and body differ: %v", err)
		}
		o = g.offer("../../etc")
		if _, err := g.call(http.MethodPut, "/v1/tasks/x", o, nil); err == nil || err.Code != api.CodeBadRequest {
			t.Errorf("id that is a path: %v", err)
		}
		if _, err := g.call(http.MethodPut, "/v1/tasks/t1", "not an object", nil); err == nil || err.Code != api.CodeBadRequest {
			t.Errorf("no offer at all: %v", err)
		}
	})

	t.Run("of a later attempt runs once the recorded one is over", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		g.take("t1")
		g.began()
		again := g.offer("t1", func(o *api.Offer) { o.Attempt = 2 })
		if status, _, err := g.put(again); status != http.StatusConflict || err.Code != api.CodeConflict {
			t.Fatalf("while attempt 1 runs: %d %v", status, err)
		}
		gate.open("t1")
		g.result()
		if status, _, err := g.put(again); status != http.StatusAccepted {
			t.Fatalf("after attempt 1: %d %v", status, err)
		}
		if res := g.result(); res.Attempt != 2 {
			t.Fatalf("result %+v", res)
		}
		if status, _, err := g.put(g.offer("t1", func(o *api.Offer) { o.Attempt = 1; o.Turn = 2 })); status != http.StatusConflict {
			t.Fatalf("a turn of the older attempt: %d %v", status, err)
		}
	})

	t.Run("of a later turn runs only after a question", func(t *testing.T) {
		a := newAgent(true, nil)
		g := newRig(t, a)
		a.run = asks
		g.take("t1")
		if res := g.result(); res.Outcome.State != api.StateQuestion || res.Outcome.Question.Text != "which?" {
			t.Fatalf("result %+v", res)
		}
		g.take("t1", answer(2))
		g.result()
		if status, _, err := g.put(g.offer("t1", answer(3))); status != http.StatusConflict {
			t.Fatalf("a turn after the end: %d %v", status, err)
		}
	})

	t.Run("is refused with node_full when the disk is, and taken once there is room", func(t *testing.T) {
		a := newAgent(true, done)
		g := newRig(t, a)
		g.disk.fail(syscall.ENOSPC)
		o := g.offer("t1")
		if status, _, err := g.put(o); status != http.StatusInsufficientStorage || err.Code != api.CodeNodeFull {
			t.Fatalf("%d %v", status, err)
		}
		if len(a.starts()) != 0 || g.r.Snapshot().Remembered != 0 {
			t.Fatal("a task that was not acknowledged is in hand")
		}
	})

	t.Run("is refused with node_full when too much is open", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run), func(c *tasks.Config) { c.MaxOpen = 3 })
		for i := range 3 {
			g.take(fmt.Sprint("t", i))
		}
		if status, _, err := g.put(g.offer("t9")); status != http.StatusInsufficientStorage || err.Code != api.CodeNodeFull {
			t.Fatalf("%d %v", status, err)
		}
	})

	t.Run("is refused while the node is superseded", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		g.r.Park()
		if status, _, err := g.put(g.offer("t1")); status != http.StatusServiceUnavailable || err.Code != api.CodeShuttingDown {
			t.Fatalf("%d %v", status, err)
		}
	})
}

func TestPolicy(t *testing.T) {
	t.Run("refuse takes nothing", func(t *testing.T) {
		g := newRig(t, newAgent(true, done), func(c *tasks.Config) { c.Policy = api.PolicyRefuse })
		if status, _, err := g.put(g.offer("t1")); status != http.StatusForbidden || err.Code != api.CodeRefused {
			t.Fatalf("%d %v", status, err)
		}
	})

	t.Run("the allow list goes by name or identity", func(t *testing.T) {
		g := newRig(t, newAgent(true, done), func(c *tasks.Config) { c.AcceptFrom = []string{"alpha", "id-beta"} })
		g.take("t1")
		g.take("t2", func(o *api.Offer) { o.Controller = api.Party{ID: "id-beta", Name: "renamed"} })
		o := g.offer("t3", func(o *api.Offer) { o.Controller = api.Party{ID: "id-mallory", Name: "mallory"} })
		if status, _, err := g.put(o); status != http.StatusForbidden || err.Code != api.CodeRefused {
			t.Fatalf("%d %v", status, err)
		}
		if s := g.r.Snapshot(); s.Remembered != 2 {
			t.Fatalf("a refused task was recorded: %+v", s)
		}
	})

	t.Run("a repeat of a task taken before is answered whatever the policy is now", func(t *testing.T) {
		a := newAgent(true, done)
		g := newRig(t, a)
		o := g.take("t1")
		g.result()
		g.delivered()
		g.stop()
		h := openRig(t, g.cfg.Path, newAgent(true, done), newHub(), func(c *tasks.Config) { c.Policy = api.PolicyRefuse })
		o.JournalID, o.Epoch = h.id, h.epoch
		if status, rc, err := h.put(o); status != http.StatusOK || rc.State != api.StateDone {
			t.Fatalf("%d %+v %v", status, rc, err)
		}
	})
}
