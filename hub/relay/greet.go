package relay

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// greet settles with a node that has just connected what both know. What fails for
// a passing reason, such as a full disk here or there, is tried again for as long
// as the connection lives.
func (r *Relay) greet(c *conn) error {
	for try := 0; ; try++ {
		err := r.greetOnce(c)
		switch {
		case err == nil:
			c.Hello.Bound = nil // taken over; up to thousands
			return nil
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case outdated(err), errors.Is(err, store.ErrFailed), errors.Is(err, store.ErrClosed):
			return err
		}
		r.log.Warn("what a node has open could not be settled with it, trying again", "node", c.Identity.Name, "err", err)
		r.pause(c.ctx, try)
	}
}

func (r *Relay) greetOnce(c *conn) error {
	if err := r.orphan(c); err != nil {
		return err
	}
	if err := r.rebind(c.ctx, c.Link); err != nil {
		return err
	}
	if _, err := each(r.owed(c), func(e *entry) error { return r.withdraw(c, e) }); err != nil {
		return err
	}
	return r.reconcile(c)
}

// open lists the open tasks of a queue that pass keep.
func (r *Relay) open(q *queue, keep func(store.Task) bool) []store.Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []store.Task
	for _, e := range q.tasks {
		if keep(e.task) {
			out = append(out, e.task)
		}
	}
	return out
}

// orphan marks as unknown what was offered to another journal of this node than
// the one that it has now: it is never offered anew (semantics 5). What was meant
// for that journal but never sent goes back into the queue.
func (r *Relay) orphan(c *conn) error {
	lost := r.open(c.queue, func(t store.Task) bool {
		return orphaned(t, c.Hello.JournalID)
	})
	_, err := each(lost, func(t store.Task) error { return r.orphanOne(c.ctx, t.ID, c.Hello.JournalID) })
	return err
}

func (r *Relay) orphanOne(ctx context.Context, id, journal string) error {
	_, err := r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		switch {
		case !orphaned(t, journal):
			return t, nil, errNoChange
		case t.Op != "" && !r.unsent(t): // its lane goes on
			return settle(t, lost(t), r.clock.Now()), nil, nil
		}
		return r.lose(t), nil, nil
	})
	return err
}

// orphaned reports whether a task waits for a journal that its node does not have
// any more. The turn of an operation whose result is stored does not.
func orphaned(t store.Task, journal string) bool {
	return !t.State.Settled() && t.Journal != "" && t.Journal != journal && (t.State != api.StateUnknown || t.Op != "") && !due(t)
}

// lose is what becomes of a task whose node or journal is gone: unknown, or queued
// again if it was never sent.
func (r *Relay) lose(t store.Task) store.Task {
	if r.unsent(t) {
		t.Journal = ""
		return become(t, api.StateQueued, r.clock.Now())
	}
	return become(t, api.StateUnknown, r.clock.Now())
}

// unsent reports whether the task was meant for a journal, and no offer was sent.
func (r *Relay) unsent(t store.Task) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tasks[t.ID]
	return e != nil && !e.tried && needsOffer(t)
}

// reconcile asks the node about every task that was offered to its journal.
func (r *Relay) reconcile(c *conn) error {
	open := r.open(c.queue, func(t store.Task) bool { return t.Journal == c.Hello.JournalID })
	for len(open) > 0 {
		n := min(len(open), api.MaxReconcile)
		batch := open[:n]
		open = open[n:]
		q := api.Reconcile{JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch}
		for _, t := range batch {
			q.Tasks = append(q.Tasks, t.Triple())
		}
		ctx, cancel := context.WithTimeout(c.ctx, OfferTimeout)
		a, err := c.Node.Reconcile(ctx, q)
		cancel()
		if err != nil {
			return err
		}
		if len(a.Tasks) != len(batch) {
			return api.Errorf(api.CodeBadRequest, "the node answered %d of %d tasks", len(a.Tasks), len(batch))
		}
		for i := range a.Tasks {
			a.Tasks[i].Triple = q.Tasks[i]
		}
		if _, err := each(a.Tasks, func(rc api.Receipt) error { return r.reconciled(c, rc) }); err != nil {
			return err
		}
	}
	return nil
}

// reconciled takes the node's word on one triple.
func (r *Relay) reconciled(c *conn, rc api.Receipt) error {
	if rc.Outcome != nil {
		return r.settleByReceipt(c, rc)
	}
	_, err := r.change(c.ctx, rc.Task, func(t store.Task) (store.Task, []store.Part, error) {
		now := r.clock.Now()
		switch {
		case t.State.Settled() || t.Triple() != rc.Triple || t.Journal != c.Hello.JournalID || due(t):
			return t, nil, errNoChange
		case rc.State == "" && !t.Received && t.State != api.StateQuestion:
			// Only offered: the loop offers it again.
			if t.State == api.StateUnknown {
				return become(t, api.StateOffered, now), nil, nil
			}
			return t, nil, errNoChange
		case rc.State == "":
			return settle(t, lost(t), now), nil, nil
		case t.State == api.StateQuestion:
			return t, nil, errNoChange
		default:
			return received(t, rc.State, now), nil, nil
		}
	})
	return err
}

// received notes the node's receipt and the state that it reported.
func received(t store.Task, s api.State, now time.Time) store.Task {
	switch s {
	case api.StateAccepted, api.StateHeld, api.StateRunning:
	default:
		s = api.StateAccepted
	}
	t.Received = true
	if s == api.StateRunning {
		t.ExpireAt = time.Time{} // it has started: too late to expire
		if t.StartedAt.IsZero() {
			t.StartedAt = now
		}
	}
	if t.Asking != "" {
		s = api.StateQuestion // in the middle of the turn
	}
	return become(t, s, now)
}

// become changes a task's state.
func become(t store.Task, s api.State, now time.Time) store.Task {
	if t.State != s {
		t.State, t.Since = s, now
	}
	return t
}
