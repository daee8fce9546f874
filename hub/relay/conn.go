package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// Pauses after a call to a node that failed for a passing reason: twice as long
// each time, half of it jittered.
const (
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second
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
	work  sync.WaitGroup // pump and what it started
	fail  func(error)

	// The following are guarded by Relay.mu.
	pumping bool // pump runs
	again   bool // there is more for it
	closed  bool // it must not be started any more
	failed  bool // fail was told
	paused  bool // the node stops: no new offers
	offers  int  // under way
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

// pump sends what is urgent, and then starts offers, until there is nothing.
func (c *conn) pump() {
	r := c.relay
	for {
		r.urgent(c)
		r.startOffers(c)
		r.mu.Lock()
		if !c.again || c.closed {
			c.pumping = false
			r.mu.Unlock()
			return
		}
		c.again = false
		r.mu.Unlock()
	}
}

// mayOffer reports whether another offer may go out: not while something is to be
// withdrawn (semantics 7). Called with mu held.
func (c *conn) mayOffer() bool {
	return !c.closed && !c.paused && c.offers < MaxOffersInFlight && c.queue.conn == c && len(c.queue.urgent) == 0
}

// Attach takes a connected node up: first what is to be withdrawn, then what both
// sides believe to be open, for as long as that takes; from then on it gets offers,
// lane by lane, until ctx ends. A newer Attach of the same identity takes the queue
// over at once. fail is told, at most once, that the connection is of no more use.
// The returned detach ends it and returns when everything that it started has
// ended.
func (r *Relay) Attach(ctx context.Context, l Link, fail func(error)) (detach func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &conn{Link: l, relay: r, ctx: ctx, fail: fail}
	r.mu.Lock()
	q := r.queue(l.Identity.ID)
	c.queue = q
	q.arriving++
	r.mu.Unlock()

	err = r.greet(c)

	r.mu.Lock()
	defer r.mu.Unlock()
	q.arriving--
	if err == nil && ctx.Err() != nil {
		// It ended meanwhile: a newer one may have the queue already.
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		r.forgetQueue(q)
		return nil, err
	}
	if q.conn != nil {
		r.release(q.conn)
	}
	q.conn = c
	for _, e := range q.tasks {
		e.urged = false // what the older one has not sent is this one's
		r.urge(e)
	}
	for _, ln := range q.lanes {
		r.offerable(ln)
	}
	c.wake()
	return func() {
		cancel()
		r.mu.Lock()
		r.release(c)
		if q.conn == c {
			q.conn, q.awaySince = nil, r.clock.Now()
			r.forgetQueue(q)
		}
		r.mu.Unlock()
		c.work.Wait()
	}, nil
}

// release stops a connection from being given work. Called with mu held.
func (r *Relay) release(c *conn) {
	c.closed = true
	if q := c.queue; q.conn == c {
		for _, l := range q.ready {
			l.listed = false
		}
		q.ready, q.urgent = nil, nil
	}
}

// giveUp ends a connection that is of no more use: the next one reconciles.
func (r *Relay) giveUp(c *conn, why error) {
	r.mu.Lock()
	first := !c.failed
	c.failed = true
	r.release(c)
	r.mu.Unlock()
	if first {
		c.fail(why)
	}
}

// Drain notes that a node stops, or does not after all: it gets no new offers
// meanwhile.
func (r *Relay) Drain(identity string, draining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[identity]; q != nil && q.conn != nil {
		q.conn.paused = draining
		q.conn.wake()
	}
}

// outdated reports whether a node's refusal says that the connection is: the node
// has another journal or epoch by now.
func outdated(err error) bool {
	var refusal *api.Error
	return errors.As(err, &refusal) && refusal.Code == api.CodeJournalMismatch
}

// passing reports whether a refusal may be another answer later.
func passing(e *api.Error) bool {
	return e.Code.Status() >= 500 || e.Code == api.CodeRateLimited || e.Code == api.CodeQueueFull
}

// pause waits before the next try, counted from 0, as long as ctx lives.
func (r *Relay) pause(ctx context.Context, try int) {
	d := min(r.cfg.RetryMin<<min(try, 6), retryMax)
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
