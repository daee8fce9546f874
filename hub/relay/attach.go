package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// Link is a connection of a node that said hello.
type Link struct {
	Identity store.Identity
	Node     Node
	Hello    api.Hello
}

// conn is an attached link.
type conn struct {
	Link
	queue *queue
	woken chan struct{} // capacity 1
	// withdrawn holds the triples whose withdrawal this connection has sent.
	// Guarded by Relay.mu.
	withdrawn map[api.Triple]bool
}

// wake makes the connection's loop look again; it never blocks.
func (c *conn) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// Attach serves a connected node until ctx ends: first what is to be withdrawn,
// then what both sides believe to be open, then offers, lane by lane. It returns
// when everything it started has ended. A newer Attach of the same identity takes
// the queue over at once.
func (r *Relay) Attach(ctx context.Context, l Link) error {
	c := &conn{Link: l, woken: make(chan struct{}, 1), withdrawn: map[api.Triple]bool{}}
	if err := r.orphan(ctx, l.Identity.ID, l.Hello.JournalID); err != nil {
		return err
	}
	r.mu.Lock()
	c.queue = r.queue(l.Identity.ID)
	r.mu.Unlock()
	if err := r.rebind(ctx, l); err != nil {
		return err
	}
	if err := r.withdrawAll(ctx, c); err != nil {
		return err
	}
	if err := r.reconcile(ctx, c); err != nil {
		return err
	}
	r.mu.Lock()
	q := r.queue(l.Identity.ID) // anew: an empty one may have been dropped meanwhile
	c.queue, q.conn = q, c
	for _, ln := range q.lanes {
		r.offerable(ln)
	}
	r.mu.Unlock()
	defer r.detach(c)

	var offers sync.WaitGroup
	defer offers.Wait()
	slots := make(chan struct{}, MaxOffersInFlight)
	c.wake()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.woken:
		}
		if err := r.withdrawAll(ctx, c); err != nil {
			return err
		}
		for {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			e, ln := r.take(c)
			if e == nil {
				<-slots
				break
			}
			offers.Go(func() {
				defer func() { <-slots }()
				r.offer(ctx, c, e, ln)
			})
		}
	}
}

// detach ends the connection's hold on its queue.
func (r *Relay) detach(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := c.queue
	if q.conn != c {
		return
	}
	q.conn, q.awaySince = nil, r.clock.Now()
	for _, l := range q.ready {
		l.listed = false
	}
	q.ready = nil
	r.forgetQueue(q)
}

// open lists the open tasks of a target that pass keep.
func (r *Relay) open(target string, keep func(store.Task) bool) []store.Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []store.Task
	for _, e := range r.tasks {
		if e.task.Target.ID == target && keep(e.task) {
			out = append(out, e.task)
		}
	}
	return out
}

// orphan marks as unknown what was offered to another journal of this node than
// the one that it has now: it is never offered anew (semantics 5). What was meant
// for that journal but never sent goes back into the queue.
func (r *Relay) orphan(ctx context.Context, target, journal string) error {
	lost := r.open(target, func(t store.Task) bool {
		return t.Journal != "" && t.Journal != journal && t.State != api.StateUnknown
	})
	for _, t := range lost {
		if err := r.orphanOne(ctx, t.ID, journal); err != nil {
			return err
		}
	}
	return nil
}

func (r *Relay) orphanOne(ctx context.Context, id, journal string) error {
	r.mu.Lock()
	e := r.tasks[id]
	sent := e == nil || e.tried
	r.mu.Unlock()
	_, err := r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		switch {
		case t.State.Settled() || t.Journal == "" || t.Journal == journal || t.State == api.StateUnknown:
			return t, nil, errNoChange
		case !sent && t.CancelAt.IsZero():
			t.Journal = ""
			return become(t, api.StateQueued, r.clock.Now()), nil, nil
		}
		return become(t, api.StateUnknown, r.clock.Now()), nil, nil
	})
	return err
}

// reconcile asks the node about every task that was offered to its journal.
func (r *Relay) reconcile(ctx context.Context, c *conn) error {
	open := r.open(c.Identity.ID, func(t store.Task) bool { return t.Journal == c.Hello.JournalID })
	for len(open) > 0 {
		n := min(len(open), api.MaxReconcile)
		batch := open[:n]
		open = open[n:]
		q := api.Reconcile{JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch}
		for _, t := range batch {
			q.Tasks = append(q.Tasks, t.Triple())
		}
		callCtx, cancel := context.WithTimeout(ctx, OfferTimeout)
		a, err := c.Node.Reconcile(callCtx, q)
		cancel()
		if err != nil {
			return err
		}
		if len(a.Tasks) != len(batch) {
			return api.Errorf(api.CodeBadRequest, "the node answered %d of %d tasks", len(a.Tasks), len(batch))
		}
		for i, rc := range a.Tasks {
			rc.Triple = q.Tasks[i]
			if err := r.reconciled(ctx, c, rc); err != nil {
				return err
			}
		}
	}
	return nil
}

// reconciled takes the node's word on one triple.
func (r *Relay) reconciled(ctx context.Context, c *conn, rc api.Receipt) error {
	if rc.Outcome != nil {
		return r.settleByReceipt(ctx, c, rc)
	}
	_, err := r.change(ctx, rc.Task, func(t store.Task) (store.Task, []store.Part, error) {
		now := r.clock.Now()
		switch {
		case t.State.Settled() || t.Triple() != rc.Triple || t.Journal != c.Hello.JournalID:
			return t, nil, errNoChange
		case rc.State == "" && !t.Received && t.State != api.StateQuestion:
			// Only offered: the loop offers it again.
			if t.State == api.StateUnknown {
				return become(t, api.StateOffered, now), nil, nil
			}
			return t, nil, errNoChange
		case rc.State == "":
			return settle(t, failed(api.TaskJournalLost, "the node no longer knows this task", api.FlagMayHaveRun), now), nil, nil
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
	return become(t, s, now)
}

// become changes a task's state.
func become(t store.Task, s api.State, now time.Time) store.Task {
	if t.State != s {
		t.State, t.Since = s, now
	}
	return t
}

// withdrawAll sends what is to be withdrawn, before any new offer (semantics 7).
func (r *Relay) withdrawAll(ctx context.Context, c *conn) error {
	r.mu.Lock()
	var list []store.Task
	if c.queue.withdrawals > 0 {
		for _, e := range r.tasks {
			t := e.task
			if t.Target.ID == c.Identity.ID && wantsWithdrawal(t) && t.Journal == c.Hello.JournalID && !c.withdrawn[t.Triple()] {
				list = append(list, t)
			}
		}
	}
	r.mu.Unlock()
	for _, t := range list {
		if err := r.withdraw(ctx, c, t); err != nil {
			return err
		}
	}
	return nil
}

// wantsWithdrawal reports whether the node is to be asked to end the task.
func wantsWithdrawal(t store.Task) bool {
	return !t.State.Settled() && t.Journal != "" && (!t.CancelAt.IsZero() || !t.ExpireAt.IsZero())
}

func (r *Relay) withdraw(ctx context.Context, c *conn, t store.Task) error {
	reason := t.CancelReason
	if t.CancelAt.IsZero() {
		reason = api.WithdrawExpire
	}
	callCtx, cancel := context.WithTimeout(ctx, OfferTimeout)
	defer cancel()
	rc, err := c.Node.Withdraw(callCtx, api.Withdraw{
		Triple: t.Triple(), JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch,
		Reason: reason, CreatedMS: t.CreatedAt.UnixMilli(),
	})
	var refusal *api.Error
	switch {
	case errors.As(err, &refusal) && refusal.Code.Status() < 500:
		r.log.Warn("the node refused a withdrawal", "task", t.ID, "node", c.Identity.Name, "err", err)
		rc = api.Receipt{Triple: t.Triple(), State: api.StateRunning}
	case err != nil:
		return err // the tunnel or the node's disk: the next connection asks again
	}
	rc.Triple = t.Triple()
	r.mu.Lock()
	c.withdrawn[t.Triple()] = true
	r.mu.Unlock()
	switch {
	case rc.Outcome != nil:
		return r.settleByReceipt(ctx, c, rc)
	case rc.State == api.StateCanceled || rc.State == api.StateExpired:
		rc.Outcome = &api.Outcome{State: rc.State}
		return r.settleByReceipt(ctx, c, rc)
	}
	// It runs: a cancel's result comes by itself, an expiry came too late.
	_, err = r.change(ctx, t.ID, func(t store.Task) (store.Task, []store.Part, error) {
		if t.State.Settled() || t.Triple() != rc.Triple || t.State == api.StateQuestion {
			return t, nil, errNoChange
		}
		t.ExpireAt = time.Time{}
		return received(t, rc.State, r.clock.Now()), nil, nil
	})
	return err
}
