package relay

import (
	"cmp"
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
	// awaySince is when the node was last attached; since the hub's start at most.
	awaySince time.Time
}

// lane is the waiting line of one bound session (semantics 12): entries that need
// an offer, by Seq.
type lane struct {
	queue    *queue
	key      string
	waiting  []*entry
	offering bool // an offer is under way or pauses: the next waits for its receipt
	listed   bool // in queue.ready
	tries    int  // failed ones in a row; its offer's goroutine owns it

	// Creation commits of one lane may return out of order. An entry is offered
	// only when every creation that could have a smaller Seq has returned: those
	// that had begun when its own returned. tickets numbers the creations,
	// inflight holds those under way.
	tickets  uint64
	inflight map[uint64]struct{}
}

// queue returns a target's, made when missing. Called with mu held.
func (r *Relay) queue(target string) *queue {
	q := r.queues[target]
	if q == nil {
		q = &queue{target: target, tasks: map[string]*entry{}, lanes: map[string]*lane{}, awaySince: r.clock.Now()}
		r.queues[target] = q
	}
	return q
}

// forgetQueue drops a queue that holds nothing. Called with mu held.
func (r *Relay) forgetQueue(q *queue) {
	if q.conn == nil && q.arriving == 0 && q.coming == 0 && len(q.tasks) == 0 && len(q.lanes) == 0 {
		delete(r.queues, q.target)
	}
}

func laneKey(controller, workspace string, generation uint64) string {
	return controller + "/" + workspace + "/" + strconv.FormatUint(generation, 10)
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
	l := e.queue.lane(laneKey(e.task.Controller.ID, e.task.Workspace, e.task.Generation))
	if e.lane == nil {
		e.lane, e.barrier = l, l.tickets
		i, _ := slices.BinarySearchFunc(l.waiting, e.task.Seq, func(x *entry, seq uint64) int { return cmp.Compare(x.task.Seq, seq) })
		l.waiting = slices.Insert(l.waiting, i, e)
	}
	r.offerable(l)
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

// offerable lists the lane as ready when its head may be offered now, and drops
// a lane that holds nothing. Called with mu held.
func (r *Relay) offerable(l *lane) {
	if len(l.waiting) == 0 && len(l.inflight) == 0 && !l.offering && !l.listed {
		delete(l.queue.lanes, l.key)
		return
	}
	if l.offering || l.listed || len(l.waiting) == 0 || l.queue.conn == nil {
		return
	}
	if !l.clear(l.waiting[0].barrier) {
		return
	}
	l.listed = true
	l.queue.ready = append(l.queue.ready, l)
	l.queue.conn.wake()
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

// begin announces a creation in a lane; the returned function ends it. Called
// with mu held, both.
func (r *Relay) begin(q *queue, key string) (end func()) {
	l := q.lane(key)
	l.tickets++
	ticket := l.tickets
	l.inflight[ticket] = struct{}{}
	return func() {
		delete(l.inflight, ticket)
		r.offerable(l)
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
		if l.offering || len(l.waiting) == 0 {
			r.offerable(l)
			continue
		}
		e := l.waiting[0]
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
