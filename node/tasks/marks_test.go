package tasks_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/tasks"
)

func TestMarks(t *testing.T) {
	t.Run("cost no commit of their own while there are others to ride along with", func(t *testing.T) {
		g := newRig(t, newAgent(true, done), func(c *tasks.Config) { c.MarkDelay = time.Hour })
		before := g.disk.commits()
		const n = 20
		for i := range n {
			g.take(fmt.Sprint("t", i))
			g.result()
			g.delivered()
		}
		if got := g.disk.commits() - before; got != 2*n {
			t.Fatalf("%d commits for %d tasks, want a receipt and a result each", got, n)
		}
	})

	t.Run("are written after the delay when there is nothing else to write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, newGated().run))
			g.take("t1")
			g.began()
			synctest.Wait()
			before := g.disk.commits()
			time.Sleep(tasks.DefaultMarkDelay + time.Millisecond)
			synctest.Wait()
			if got := g.disk.commits() - before; got != 1 {
				t.Fatalf("%d commits", got)
			}
			path := g.crash()
			g.stop()
			h := openRig(t, path, newAgent(true, done), newHub())
			if turn := h.began(); !turn.Resumed {
				t.Fatalf("turn %+v", turn)
			}
			h.result()
			h.stop()
		})
	})

	t.Run("are written when the runner stops", func(t *testing.T) {
		g := newRig(t, newAgent(true, done), func(c *tasks.Config) { c.MarkDelay = time.Hour })
		g.take("t1")
		g.result()
		g.delivered()
		g.stop()
		h := openRig(t, g.cfg.Path, newAgent(true, done), newHub())
		if s := h.r.Snapshot(); s.Undelivered != 0 || s.Remembered != 1 {
			t.Fatalf("after the restart: %+v", s)
		}
	})

	t.Run("of a record that is taken up again are not written over its later state", func(t *testing.T) {
		g := newRig(t, newAgent(true, asks), func(c *tasks.Config) { c.MarkDelay = time.Hour })
		o := g.take("t1")
		g.result()
		g.delivered() // the mark of the acknowledgement waits
		if _, rc, err := g.withdraw(o.Triple, "cancel"); err != nil || rc.State != "canceled" {
			t.Fatalf("cancel: %+v %v", rc, err)
		}
		g.stop()
		h := openRig(t, g.cfg.Path, newAgent(true, done), newHub())
		if got := h.reconcile(o.Triple); got[0].State != "canceled" {
			t.Fatalf("after the restart: %+v", got[0])
		}
	})
}
