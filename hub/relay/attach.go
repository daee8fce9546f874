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

// conn is an attached link. It has no goroutine of its own while there is nothing
// to do: a thousand idle nodes cost no stack here.
type conn struct {
	Link
	relay *Relay
	queue *queue
	ctx   context.Context
	work  sync.WaitGroup // pump and the offers that it started
	slots chan struct{}  // MaxOffersInFlight
	fail  func(error)

	// The following are guarded by Relay.mu. pumping says that pump runs, again that
	// there is more for it, closed that it must not be started any more; withdrawn
	// holds the triples whose withdrawal this connection has sent.
	pumping, again, closed bool
	withdrawn              map[api.Triple]bool
}

// wake makes the connection look for work. Called with mu held; it never blocks.
func (c *conn) wake() {
	switch {
	case c.closed:
	case c.pumping:
		c.again = true
	default:
		c.pumping = true
		c.work.Go(c.pump)
	}
}

// pump sends withdrawals and offers until there are none.
func (c *conn) pump() {
	r := c.relay
	for {
		if err := r.withdrawAll(c.ctx, c); err != nil {
			c.fail(err)
			return
		}
		for {
			select {
			case c.slots <- struct{}{}:
			case <-c.ctx.Done():
				return
			}
			e, l := r.take(c)
			if e == nil {
				<-c.slots
				break
			}
			c.work.Go(func() {
				defer func() { <-c.slots }()
				r.offer(c.ctx, c, e, l)
			})
		}
		r.mu.Lock()
		if !c.again {
			c.pumping = false
			r.mu.Unlock()
			return
		}
		c.again = false
		r.mu.Unlock()
	}
}

// Attach takes a connected node up: first what is to be withdrawn, then what both
// sides believe to be open; from then on it gets offers, lane by lane, until ctx
// ends. A newer Attach of the same identity takes the queue over at once. fail is
// told, at most once, that the connection is of no more use. The returned detach
// ends it and returns when everything that it started has ended.
func (r *Relay) Attach(ctx context.Context, l Link, fail func(error)) (detach func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &conn{Link: l, relay: r, ctx: ctx, slots: make(chan struct{}, MaxOffersInFlight), fail: fail, withdrawn: map[api.Triple]bool{}}
	if err := r.greet(ctx, c); err != nil {
		cancel()
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queue(l.Identity.ID)
	if old := q.conn; old != nil {
		r.release(old)
	}
	c.queue, q.conn = q, c
	for _, ln := range q.lanes {
		r.offerable(ln)
	}
	c.wake()
	return func() {
		cancel()
		r.mu.Lock()
		if q.conn == c {
			r.release(c)
			q.conn, q.awaySince = nil, r.clock.Now()
			r.forgetQueue(q)
		}
		c.closed = true
		r.mu.Unlock()
		c.work.Wait()
	}, nil
}

// greet settles with a node that has just connected what both know.
func (r *Relay) greet(ctx context.Context, c *conn) error {
	if err := r.orphan(ctx, c.Identity.ID, c.Hello.JournalID); err != nil {
		return err
	}
	if err := r.rebind(ctx, c.Link); err != nil {
		return err
	}
	r.mu.Lock()
	c.queue = r.queue(c.Identity.ID)
	r.mu.Unlock()
	if err := r.withdrawAll(ctx, c); err != nil {
		return err
	}
	return r.reconcile(ctx, c)
}

// release stops a connection from being given work. Called with mu held.
func (r *Relay) release(c *conn) {
	c.closed = true
	for _, l := range c.queue.ready {
		l.listed = false
	}
	c.queue.ready = nil
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
