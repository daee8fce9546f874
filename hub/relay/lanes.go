package relay

import (
	"slices"
	"strconv"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// queue is what one target has open.
type queue struct {
	target  string
	lanes   map[string]*lane
	ready   []*lane // lanes whose head may be offered, each at most once
	conn    *conn   // the attached connection, nil while there is none
	open    int
	running int
	// withdrawals counts the tasks that the node is to be asked to end.
	withdrawals int
	// awaySince is when the node was last attached; since the hub's start at most.
	awaySince time.Time
}

// lane is the waiting line of one bound session (semantics 12): entries that need
// an offer, by Seq.
type lane struct {
	queue    *queue
	key      string
	waiting  []*entry
	offering bool // an offer is under way or paused: the next waits for its receipt
	listed   bool // in queue.ready

	// Creation commits of one lane may return out of order. An entry is offered
	// only when every creation that could have a smaller Seq has returned: those
	// that had begun when its own returned. tickets numbers the creations,
	// inflight holds those under way.
	tickets  uint64
	inflight map[uint64]struct{}
}

// count keeps the sums of an open task, entering (+1) or leaving (-1).
func (q *queue) count(t store.Task, d int) {
	q.open += d
	if t.State == api.StateRunning {
		q.running += d
	}
	if wantsWithdrawal(t) {
		q.withdrawals += d
		if d > 0 && q.conn != nil {
			q.conn.wake()
		}
	}
}

// queue returns a target's, made when missing. Called with mu held.
func (r *Relay) queue(target string) *queue {
	q := r.queues[target]
	if q == nil {
		q = &queue{target: target, lanes: map[string]*lane{}, awaySince: r.clock.Now()}
		r.queues[target] = q
	}
	return q
}

// forgetQueue drops a queue that holds nothing. Called with mu held.
func (r *Relay) forgetQueue(q *queue) {
	if q.conn == nil && q.open == 0 && len(q.lanes) == 0 {
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
	q := r.queue(e.task.Target.ID)
	l := q.lane(laneKey(e.task.Controller.ID, e.task.Workspace, e.task.Generation))
	if e.lane == nil {
		e.lane, e.barrier = l, l.tickets
		i, _ := slices.BinarySearchFunc(l.waiting, e.task.Seq, func(x *entry, seq uint64) int {
			switch {
			case x.task.Seq < seq:
				return -1
			case x.task.Seq > seq:
				return 1
			}
			return 0
		})
		l.waiting = slices.Insert(l.waiting, i, e)
	}
	r.offerable(l)
}

// unplace takes an entry out of its lane. Called with mu held.
func (r *Relay) unplace(e *entry) {
	l := e.lane
	if l == nil {
		return
	}
	e.lane, e.text = nil, nil
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
func (r *Relay) begin(target, key string) (end func()) {
	l := r.queue(target).lane(key)
	l.tickets++
	ticket := l.tickets
	l.inflight[ticket] = struct{}{}
	return func() {
		delete(l.inflight, ticket)
		r.offerable(l)
		r.forgetQueue(l.queue)
	}
}

// take hands out the next entry to offer and marks its lane. Called by the
// connection's loop.
func (r *Relay) take(c *conn) (*entry, *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := c.queue
	for q.conn == c && len(q.ready) > 0 {
		l := q.ready[0]
		q.ready = q.ready[1:]
		l.listed = false
		if l.offering || len(l.waiting) == 0 {
			r.offerable(l)
			continue
		}
		l.offering = true
		return l.waiting[0], l
	}
	return nil, nil
}

// done ends an offer; the lane's next may go.
func (r *Relay) done(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.offering = false
	r.offerable(l)
}
