package tasks_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

func TestWindow(t *testing.T) {
	small := func(c *tasks.Config) { c.WindowCount = 2 }

	t.Run("ids beyond age and count are forgotten, and anything as old is refused with too_old", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, done), small)
			var all []api.Offer
			for i := range 5 {
				all = append(all, g.take(fmt.Sprint("t", i)))
				g.result()
			}
			time.Sleep(api.JournalWindow - 2*time.Minute)
			synctest.Wait()
			if n := g.r.Snapshot().Remembered; n != 5 {
				t.Fatalf("%d are remembered before the window's end", n)
			}
			time.Sleep(4 * time.Minute)
			synctest.Wait()
			if n := g.r.Snapshot().Remembered; n != 2 {
				t.Fatalf("%d are remembered after it, want the newest 2", n)
			}
			for i, o := range all {
				status, _, err := g.put(o)
				if i < 3 && (status != http.StatusGone || err.Code != api.CodeTooOld) {
					t.Errorf("repeat of forgotten %s: %d %v", o.Task, status, err)
				}
				if i >= 3 && status != http.StatusOK {
					t.Errorf("repeat of remembered %s: %d %v", o.Task, status, err)
				}
			}
			older := g.offer("never-seen", func(o *api.Offer) { o.CreatedMS = all[2].CreatedMS })
			if status, _, err := g.put(older); status != http.StatusGone || err.Code != api.CodeTooOld {
				t.Errorf("an id as old as a forgotten one: %d %v", status, err)
			}
			g.take("newer")
			g.result()
			g.stop()

			h := openRig(t, g.cfg.Path, newAgent(true, done), newHub(), small)
			o := all[0]
			o.JournalID, o.Epoch = h.id, h.epoch
			if status, _, err := h.put(o); status != http.StatusGone {
				t.Errorf("the mark is lost with a restart: %d %v", status, err)
			}
			h.stop()
		})
	})

	t.Run("an id without acknowledgement is never forgotten", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, done), small)
			g.r.Connect(nil)
			for i := range 5 {
				g.take(fmt.Sprint("t", i))
			}
			time.Sleep(30 * 24 * time.Hour)
			synctest.Wait()
			g.r.Connect(g.hub)
			for range 5 {
				g.result()
			}
			g.stop()
		})
	})

	t.Run("an id that waits for an answer is not forgotten, nor one that runs again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newGated()
			a := newAgent(true, asks)
			g := newRig(t, a, small)
			g.take("t1")
			g.result()
			a.mu.Lock()
			a.run = done
			a.mu.Unlock()
			g.take("t2")
			g.result()
			a.mu.Lock()
			a.run = gate.run
			a.mu.Unlock()
			g.take("t2", func(o *api.Offer) { o.Attempt = 2; o.DeadlineMS = api.MaxDeadline.Milliseconds() })
			for i := 3; i < 7; i++ {
				gate.open(fmt.Sprint("t", i))
				g.take(fmt.Sprint("t", i), from("beta"))
				g.result()
			}
			time.Sleep(3 * api.JournalWindow)
			synctest.Wait()
			got := g.reconcile(triple("t1", 1, 1), triple("t2", 1, 1), triple("t3", 1, 1))
			if got[0].State != api.StateQuestion || got[1].State != api.StateDone || got[2].State != "" {
				t.Fatalf("remembered: %+v", got)
			}
			if _, rc, err := g.put(g.offer("t1", answer(2))); err != nil || rc.State != api.StateAccepted {
				t.Fatalf("the answer: %+v %v", rc, err)
			}
			gate.open("t1")
			gate.open("t2")
			g.result()
			g.result()
			g.stop()
		})
	})
}
