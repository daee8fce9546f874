package relay

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// queue is what one target has open.
type queue struct {
	target   string
	tasks    map[string]*entry
	lanes    map[string]*lane
	ready    []*lane  // lanes whose head may be offered, each at most once
	urgent   []*entry // about which the connection has something urgent to do, each at most once
	conn     *conn    // the attached connection, nil while there is none
	arriving int      // connections that are being greeted
	coming   int      // tasks under way to their commit
	behind   int      // questions that wait behind others, of all its tasks
	running  int
	ops      int            // open operations on sessions
	binding  map[string]int // results under way whose session is being bound, by lane
	// awaySince is when the node was last attached; since the hub's start at most.
	awaySince time.Time
}

// lane is the waiting line of a bound session and of those that operations put into
// its place (semantics 12): entries that need an offer, by Seq.
type lane struct {
	queue    *queue
	key      string
	waiting  []*entry
	ops      []*entry // its open operations, by Seq: what comes after one waits for its end
	offering bool     // an offer is under way or pauses: the next waits for its receipt
	listed   bool     // in queue.ready
	tries    int      // failed ones in a row; its offer's goroutine owns it

	// Creation commits of one lane may return out of order. An entry is offered
	// only when every creation that could have a smaller Seq has returned: those
	// that had begun when its own returned. tickets numbers the creations,
	// inflight holds those under way.
	tickets  uint64
	inflight map[uint64]struct{}
	comingOp int           // operations among them
	returned chan struct{} // closed when one returns, if somebody waits for that
}

// queue returns a target's, made when missing. Called with mu held.
func (r *Relay) queue(target string) *queue {
	q := r.queues[target]
	if q == nil {
		q = &queue{target: target, tasks: map[string]*entry{}, lanes: map[string]*lane{}, binding: map[string]int{}, awaySince: r.clock.Now()}
		r.queues[target] = q
	}
	return q
}

// forgetQueue drops a queue that holds nothing. Called with mu held.
func (r *Relay) forgetQueue(q *queue) {
	if q.conn == nil && q.arriving == 0 && q.coming == 0 && len(q.tasks) == 0 && len(q.lanes) == 0 && len(q.binding) == 0 {
		delete(r.queues, q.target)
	}
}

// laneKey names the lane of a task among those of its target.
func laneKey(t store.Task) string {
	return t.Controller.ID + "/" + t.Workspace + "/" + strconv.FormatUint(taskLane(t), 10)
}

func (q *queue) lane(key string) *lane {
	l := q.lanes[key]
	if l == nil {
		l = &lane{queue: q, key: key, inflight: map[uint64]struct{}{}}
		q.lanes[key] = l
	}
	return l
}

// needsOffer reports whether the task's current turn still has to reach its node.
func needsOffer(t store.Task) bool {
	return !t.Received && (t.State == api.StateQueued || t.State == api.StateOffered) &&
		t.CancelAt.IsZero() && t.ExpireAt.IsZero()
}

// place puts an entry into its lane or takes it out. Called with mu held.
func (r *Relay) place(e *entry) {
	if !needsOffer(e.task) {
		r.unplace(e)
		return
	}
	if e.lane == nil {
		l := e.queue.lane(laneKey(e.task))
		e.lane, e.barrier = l, l.tickets
		l.waiting = insert(l.waiting, e)
	}
	r.offerable(e.lane)
}

// insert puts an entry into a list by Seq.
func insert(list []*entry, e *entry) []*entry {
	i, _ := slices.BinarySearchFunc(list, e.task.Seq, func(x *entry, seq uint64) int { return cmp.Compare(x.task.Seq, seq) })
	return slices.Insert(list, i, e)
}

// unplace takes an entry out of its lane. Called with mu held.
func (r *Relay) unplace(e *entry) {
	r.dropText(e)
	l := e.lane
	if l == nil {
		return
	}
	e.lane = nil
	if i := slices.Index(l.waiting, e); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	r.offerable(l)
}

// offerable lists the lane as ready when its next may be offered now, and drops a
// lane that holds nothing. Called with mu held.
func (r *Relay) offerable(l *lane) {
	if len(l.waiting) == 0 && len(l.inflight) == 0 && len(l.ops) == 0 && !l.offering && !l.listed {
		delete(l.queue.lanes, l.key)
		return
	}
	if l.offering || l.listed {
		return
	}
	e := l.next()
	switch {
	case e == nil:
		return
	case e.task.Op == api.OpReset:
		r.toDo(e) // takes no node
		return
	case l.queue.conn == nil:
		return
	}
	l.listed = true
	l.queue.ready = append(l.queue.ready, l)
	l.queue.conn.wake()
}

// next is the entry that is to be offered next, nil when none may be now. Called
// with mu held.
func (l *lane) next() *entry {
	for _, e := range l.waiting {
		switch {
		case l.blocked(e):
			if e.task.Seq > l.ops[0].task.Seq {
				return nil // as is all that follows
			}
			continue
		case !l.clear(e.barrier), e.task.Op != "" && !working(e.task) && l.busy(e):
			return nil
		}
		return e
	}
	return nil
}

// blocked reports whether an entry waits for the end of an operation: one that comes
// before it, or one that has begun, unless it goes on with a turn that has begun
// itself.
func (l *lane) blocked(e *entry) bool {
	for _, op := range l.ops {
		if op != e && (op.task.Seq < e.task.Seq || working(op.task) && e.task.Kind == api.TurnTask) {
			return true
		}
	}
	return false
}

// clear reports whether every creation up to the ticket has returned.
func (l *lane) clear(ticket uint64) bool {
	for t := range l.inflight {
		if t <= ticket {
			return false
		}
	}
	return true
}

// begin announces the creation of a task in its lane; the returned function ends it.
// Called with mu held, both.
func (r *Relay) begin(q *queue, t store.Task) (ticket uint64, end func()) {
	l := q.lane(laneKey(t))
	l.tickets++
	ticket = l.tickets
	l.inflight[ticket] = struct{}{}
	if t.Op != "" {
		l.comingOp++
	}
	return ticket, func() {
		delete(l.inflight, ticket)
		if t.Op != "" {
			l.comingOp--
		}
		if l.returned != nil {
			close(l.returned)
			l.returned = nil
		}
		r.offerable(l)
	}
}

// precede waits until the creations that were announced before an operation's have
// returned: what was offered with its creation has a smaller Seq then, and is in
// the session that it was offered in.
func (r *Relay) precede(ctx context.Context, op store.Task, ticket uint64) error {
	for {
		r.mu.Lock()
		l := r.queue(op.Target.ID).lane(laneKey(op))
		if l.clear(ticket - 1) {
			r.mu.Unlock()
			return nil
		}
		if l.returned == nil {
			l.returned = make(chan struct{})
		}
		returned := l.returned
		r.mu.Unlock()
		select {
		case <-returned:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// startOffers starts what the connection may offer now.
func (r *Relay) startOffers(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := c.queue
	for c.mayOffer() && len(q.ready) > 0 {
		l := q.ready[0]
		q.ready[0] = nil
		q.ready = q.ready[1:]
		l.listed = false
		e := l.next()
		if l.offering || e == nil || e.task.Op == api.OpReset {
			r.offerable(l)
			continue
		}
		l.offering = true
		c.offers++
		c.work.Go(func() { r.offer(c, e, l) })
	}
}

// offered ends the call of an offer: there is room for another.
func (r *Relay) offered(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.offers--
	if len(c.queue.ready) > 0 {
		c.wake()
	}
}

// done ends an offer and its pause; the lane's next may go.
func (r *Relay) done(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.offering = false
	r.offerable(l)
	r.forgetQueue(l.queue)
}
