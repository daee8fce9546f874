package tasks_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

func hold(c *tasks.Config) { c.Policy = api.PolicyHold }

func TestHeld(t *testing.T) {
	t.Run("a task waits for its operator and does not block its lane's answers", func(t *testing.T) {
		a := newAgent(true, asks)
		g := newRig(t, a, hold)
		o := g.offer("t1")
		status, rc, err := g.put(o)
		if err != nil || status != http.StatusAccepted || rc.State != api.StateHeld {
			t.Fatalf("%d %+v %v", status, rc, err)
		}
		none(t, a.began, "start of a held task")
		held, herr := g.r.Held()
		if herr != nil || len(held) != 1 || held[0].Task != "t1" || held[0].Text != "do t1" || held[0].Controller != "alpha" {
			t.Fatalf("held: %+v %v", held, herr)
		}
		if err := g.r.Release("t1"); err != nil {
			t.Fatal(err)
		}
		if res := g.result(); res.Outcome.State != api.StateQuestion {
			t.Fatalf("result %+v", res)
		}
		if status, rc, _ := g.put(g.offer("t1", answer(2))); status != http.StatusAccepted || rc.State != api.StateAccepted {
			t.Fatalf("the answer of a released task: %d %+v", status, rc)
		}
		g.result()
	})

	t.Run("a refused task is delivered as refused and never runs", func(t *testing.T) {
		a := newAgent(true, done)
		g := newRig(t, a, hold)
		g.take("t1")
		if err := g.r.Refuse("t1"); err != nil {
			t.Fatal(err)
		}
		res := g.result()
		if res.Outcome.State != api.StateRefused || res.Outcome.Error == nil || res.Outcome.Error.Code != api.TaskRefused {
			t.Fatalf("result %+v", res)
		}
		if err := g.r.Refuse("t1"); !errors.Is(err, tasks.ErrNotHeld) {
			t.Fatalf("refused twice: %v", err)
		}
		if err := g.r.Release("t1"); !errors.Is(err, tasks.ErrNotHeld) {
			t.Fatalf("released after that: %v", err)
		}
		if len(a.starts()) != 0 {
			t.Fatal("it ran")
		}
	})

	t.Run("a held task can be canceled", func(t *testing.T) {
		g := newRig(t, newAgent(true, done), hold)
		o := g.take("t1")
		if status, rc, _ := g.withdraw(o.Triple, api.WithdrawCancel); status != http.StatusOK || rc.State != api.StateCanceled {
			t.Fatalf("%d %+v", status, rc)
		}
		if err := g.r.Release("t1"); !errors.Is(err, tasks.ErrNotHeld) {
			t.Fatalf("released: %v", err)
		}
	})

	t.Run("is held still after a restart, and a released one runs after a restart", func(t *testing.T) {
		a := newAgent(true, done)
		g := newRig(t, a, hold)
		g.take("t1")
		g.take("t2")
		path := g.crash()
		h := openRig(t, path, a, newHub(), hold)
		if held, _ := h.r.Held(); len(held) != 2 {
			t.Fatalf("held after the restart: %+v", held)
		}
		if err := h.r.Release("t2"); err != nil {
			t.Fatal(err)
		}
		if got := h.began(); got.Task != "t2" || got.Text != "do t2" {
			t.Fatalf("started %+v", got)
		}
		h.result()
	})

	t.Run("after 24 hours without an operator it is refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newAgent(true, done)
			g := newRig(t, a, hold)
			g.take("t1")
			time.Sleep(api.HeldLimit - 2*time.Minute)
			synctest.Wait()
			none(t, g.hub.results, "result before the limit")
			time.Sleep(4 * time.Minute)
			res := g.result()
			if res.Outcome.State != api.StateRefused || res.Outcome.Error.Code != api.TaskHeldTooLong {
				t.Fatalf("result %+v", res)
			}
			g.stop()
		})
	})
}
