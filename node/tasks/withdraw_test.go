package tasks_test

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

func TestWithdraw(t *testing.T) {
	t.Run("of a running task aborts the agent and the result says canceled", func(t *testing.T) {
		for _, reason := range []string{api.WithdrawCancel, api.WithdrawRevoke} {
			gate := newGated()
			g := newRig(t, newAgent(true, gate.run))
			o := g.take("t1")
			g.began()
			status, rc, err := g.withdraw(o.Triple, reason)
			if err != nil || status != http.StatusAccepted || rc.State != api.StateRunning {
				t.Fatalf("%s: %d %+v %v", reason, status, rc, err)
			}
			if res := g.result(); res.Triple != o.Triple || res.Outcome.State != api.StateCanceled {
				t.Fatalf("%s: result %+v", reason, res)
			}
		}
	})

	t.Run("of a running task may be repeated", func(t *testing.T) {
		stubborn := make(chan struct{})
		a := newAgent(true, func(ctx context.Context, _ agent.Turn, _ agent.Host) (api.Outcome, error) {
			<-stubborn
			return aborted(ctx)
		})
		g := newRig(t, a)
		o := g.take("t1")
		g.began()
		for range 3 {
			if status, _, err := g.withdraw(o.Triple, api.WithdrawCancel); status != http.StatusAccepted {
				t.Fatalf("%d %v", status, err)
			}
		}
		close(stubborn)
		g.result()
	})

	t.Run("by expiry leaves a started task alone", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		o := g.take("t1")
		g.began()
		status, rc, err := g.withdraw(o.Triple, api.WithdrawExpire)
		if err != nil || status != http.StatusOK || rc.State != api.StateRunning {
			t.Fatalf("%d %+v %v", status, rc, err)
		}
		gate.open("t1")
		if res := g.result(); res.Outcome.State != api.StateDone {
			t.Fatalf("result %+v", res)
		}
	})

	t.Run("of a waiting task is final at once and the task never starts", func(t *testing.T) {
		for reason, want := range map[string]api.State{
			api.WithdrawCancel: api.StateCanceled, api.WithdrawExpire: api.StateExpired, api.WithdrawRevoke: api.StateCanceled,
		} {
			gate := newGated()
			a := newAgent(true, gate.run)
			g := newRig(t, a)
			g.take("t1")
			o := g.take("t2")
			g.take("t3")
			g.began()
			status, rc, err := g.withdraw(o.Triple, reason)
			if err != nil || status != http.StatusOK || rc.State != want || rc.Outcome == nil || rc.Outcome.State != want {
				t.Fatalf("%s: %d %+v %v", reason, status, rc, err)
			}
			if status, rc, _ := g.put(o); status != http.StatusOK || rc.State != want {
				t.Fatalf("%s: offered again: %d %+v", reason, status, rc)
			}
			gate.open("t1")
			if got := g.began(); got.Task != "t3" {
				t.Fatalf("%s: %s started", reason, got.Task)
			}
			gate.open("t3")
			g.result()
			g.result()
			none(t, g.hub.results, "result of a withdrawn task, whose receipt was the answer")
		}
	})

	t.Run("of an id that was never seen leaves a tombstone that its offer meets, also after a restart", func(t *testing.T) {
		a := newAgent(true, done)
		g := newRig(t, a)
		status, rc, err := g.withdraw(triple("t1", 1, 1), api.WithdrawCancel)
		if err != nil || status != http.StatusOK || rc.State != api.StateCanceled {
			t.Fatalf("%d %+v %v", status, rc, err)
		}
		if status, rc, err := g.put(g.offer("t1")); status != http.StatusOK || rc.State != api.StateCanceled {
			t.Fatalf("its offer: %d %+v %v", status, rc, err)
		}
		g.stop()
		h := openRig(t, g.cfg.Path, a, newHub())
		if status, rc, err := h.put(h.offer("t1")); status != http.StatusOK || rc.State != api.StateCanceled {
			t.Fatalf("its offer after a restart: %d %+v %v", status, rc, err)
		}
		if len(a.starts()) != 0 {
			t.Fatalf("it ran: %v", a.starts())
		}
	})

	t.Run("after the result was journaled returns that result", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		o := g.take("t1")
		g.result()
		g.delivered()
		status, rc, err := g.withdraw(o.Triple, api.WithdrawCancel)
		if err != nil || status != http.StatusOK || rc.State != api.StateDone || rc.Outcome == nil || rc.Outcome.Summary != "did t1" {
			t.Fatalf("%d %+v %v", status, rc, err)
		}
	})

	t.Run("that meets a result on its way to the disk waits and returns the result", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		o := g.take("t1")
		g.began()
		release := g.disk.hold()
		defer release()
		gate.open("t1")
		await(t, g.disk.at, "the result's commit")
		got := make(chan api.Receipt, 1)
		go func() {
			_, rc, _ := g.withdraw(o.Triple, api.WithdrawCancel)
			got <- rc
		}()
		none(t, got, "answer before the result is on disk")
		release()
		if rc := await(t, got, "the answer"); rc.State != api.StateDone || rc.Outcome == nil {
			t.Fatalf("receipt %+v", rc)
		}
	})

	t.Run("of a task that waits for an answer is final, and the answer finds it canceled", func(t *testing.T) {
		for _, acked := range []bool{false, true} {
			g := newRig(t, newAgent(true, asks))
			if !acked {
				g.hub.setAnswer(func(api.Result) error { return api.Errorf(api.CodeInternal, "not now") })
			}
			o := g.take("t1")
			g.result()
			if acked {
				g.delivered()
			}
			if _, rc, err := g.withdraw(o.Triple, api.WithdrawExpire); err != nil || rc.State != api.StateQuestion {
				t.Fatalf("an expiry: %+v %v", rc, err)
			}
			status, rc, err := g.withdraw(o.Triple, api.WithdrawCancel)
			if err != nil || status != http.StatusOK || rc.State != api.StateCanceled {
				t.Fatalf("a cancel: %d %+v %v", status, rc, err)
			}
			if status, _, err := g.put(g.offer("t1", answer(2))); status != http.StatusConflict {
				t.Fatalf("the answer: %d %v", status, err)
			}
			g.hub.setAnswer(nil)
		}
	})

	t.Run("that cannot be journaled changes nothing", func(t *testing.T) {
		gate := newGated()
		a := newAgent(true, gate.run)
		g := newRig(t, a)
		g.take("t1")
		o := g.take("t2")
		g.began()
		g.disk.fail(syscall.ENOSPC)
		if status, _, err := g.withdraw(o.Triple, api.WithdrawCancel); status != http.StatusInsufficientStorage || err.Code != api.CodeNodeFull {
			t.Fatalf("%d %v", status, err)
		}
		if status, _, err := g.withdraw(triple("t9", 1, 1), api.WithdrawCancel); status != http.StatusInsufficientStorage {
			t.Fatalf("of an id never seen: %d %v", status, err)
		}
		gate.open("t1")
		if got := g.began(); got.Task != "t2" {
			t.Fatalf("started %s", got.Task)
		}
		gate.open("t2")
	})

	t.Run("with another journal, epoch or reason is refused", func(t *testing.T) {
		g := newRig(t, newAgent(true, done))
		w := api.Withdraw{Triple: triple("t1", 1, 1), JournalID: g.id, Epoch: g.epoch + 1, Reason: api.WithdrawCancel}
		if _, err := g.call(http.MethodDelete, "/v1/tasks/t1", w, nil); err == nil || err.Code != api.CodeJournalMismatch {
			t.Fatalf("another epoch: %v", err)
		}
		w.Epoch, w.Reason = g.epoch, "mood"
		if _, err := g.call(http.MethodDelete, "/v1/tasks/t1", w, nil); err == nil || err.Code != api.CodeBadRequest {
			t.Fatalf("another reason: %v", err)
		}
	})
}

func TestReconcile(t *testing.T) {
	t.Run("says what is recorded of each triple, in order", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		g.take("t1")
		g.take("t2")
		g.take("t3", from("beta"))
		g.began()
		g.began()
		gate.open("t3")
		g.result()
		g.delivered()
		got := g.reconcile(triple("t3", 1, 1), triple("t0", 1, 1), triple("t2", 1, 1), triple("t1", 1, 1), triple("t1", 2, 1))
		var states []string
		for _, rc := range got {
			states = append(states, rc.Task+"="+string(rc.State))
		}
		if s := strings.Join(states, " "); s != "t3=done t0= t2=accepted t1=running t1=" {
			t.Fatalf("got %s", s)
		}
		if got[0].Outcome == nil || got[0].Outcome.Summary != "did t3" {
			t.Fatalf("the settled one has outcome %+v", got[0].Outcome)
		}
		gate.open("t1")
		gate.open("t2")
	})

	t.Run("delivers again what does not fit into one answer", func(t *testing.T) {
		big := strings.Repeat("x", api.MaxReply)
		a := newAgent(false, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{State: api.StateDone, Reply: big}, nil
		})
		g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 10 })
		var all []api.Triple
		for _, id := range []string{"t1", "t2", "t3", "t4", "t5"} {
			all = append(all, g.take(id).Triple)
		}
		for range all {
			g.result()
		}
		g.delivered()
		direct, later := 0, 0
		for _, rc := range g.reconcile(all...) {
			if rc.Outcome != nil {
				direct++
				continue
			}
			later++
			if rc.State != api.StateRunning {
				t.Errorf("state of %s is %s although its result is still to come", rc.Task, rc.State)
			}
		}
		if direct == 0 || later == 0 {
			t.Fatalf("%d outcomes in the answer, %d to be delivered", direct, later)
		}
		for range later {
			if res := g.result(); len(res.Outcome.Reply) != len(big) {
				t.Fatalf("redelivered reply of %d bytes", len(res.Outcome.Reply))
			}
		}
		g.delivered()
	})

	t.Run("does not deliver twice what is on its way already", func(t *testing.T) {
		big := strings.Repeat("x", api.MaxReply)
		a := newAgent(false, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{State: api.StateDone, Reply: big}, nil
		})
		g := newRig(t, a, func(c *tasks.Config) { c.MaxParallel = 10 })
		g.r.Connect(nil)
		var all []api.Triple
		for _, id := range []string{"t1", "t2", "t3", "t4", "t5"} {
			all = append(all, g.take(id).Triple)
		}
		eventually(t, "the results", func() bool { return g.r.Snapshot().Undelivered == len(all) })
		g.reconcile(all...)
		g.r.Connect(g.hub)
		g.delivered()
		if n := len(g.hub.results); n != len(all) {
			t.Fatalf("%d deliveries of %d results", n, len(all))
		}
	})
}
