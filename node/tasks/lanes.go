package tasks

import (
	"cmp"
	"container/heap"
)

// lane is a queue of turns that start in order and, when it is exclusive, run one
// after the other (semantics 12). Fields are guarded by Runner.mu.
type lane struct {
	key   string
	queue recordQueue
	busy  bool // exclusive, and a turn of it runs
	place int  // in the ready queue; -1 when not there
}

// lanes holds all lanes that have something to do and hands out the turn to start
// next. It is guarded by Runner.mu.
type lanes struct {
	exclusive bool
	byKey     map[string]*lane
	ready     laneQueue // lanes whose first turn may start, by that turn
}

func newLanes(exclusive bool) *lanes {
	return &lanes{exclusive: exclusive, byKey: make(map[string]*lane)}
}

func (ls *lanes) lane(key string) *lane {
	l := ls.byKey[key]
	if l == nil {
		l = &lane{key: key, place: -1}
		ls.byKey[key] = l
	}
	return l
}

// push adds a waiting turn.
func (ls *lanes) push(key string, rec *record) {
	l := ls.lane(key)
	heap.Push(&l.queue, rec)
	ls.settle(l)
}

// occupy marks a lane as having a running turn.
func (ls *lanes) occupy(key string) *lane {
	l := ls.lane(key)
	l.busy = ls.exclusive
	ls.settle(l)
	return l
}

// next takes the turn that is to start first and occupies its lane; nil when no
// turn may start.
func (ls *lanes) next() (*record, *lane) {
	if len(ls.ready) == 0 {
		return nil, nil
	}
	l := ls.ready[0]
	rec := heap.Pop(&l.queue).(*record)
	l.busy = ls.exclusive
	ls.settle(l)
	return rec, l
}

// release ends the running turn of a lane.
func (ls *lanes) release(l *lane) {
	l.busy = false
	ls.settle(l)
}

// settle puts a lane where it belongs after a change.
func (ls *lanes) settle(l *lane) {
	able := len(l.queue) > 0 && !l.busy
	switch {
	case able && l.place < 0:
		heap.Push(&ls.ready, l)
	case able:
		heap.Fix(&ls.ready, l.place)
	case l.place >= 0:
		heap.Remove(&ls.ready, l.place)
	}
	// A lane that does not exclude may have gone and come again while a turn of it
	// ran, so that another one has its key now.
	if len(l.queue) == 0 && !l.busy && ls.byKey[l.key] == l {
		delete(ls.byKey, l.key)
	}
}

// earlier orders turns: an answer re-enters at the head of its lane, everything
// else starts in the hub's commit order.
func earlier(a, b *record) bool {
	if head := (a.Turn > 1); head != (b.Turn > 1) {
		return head
	}
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.arrival, b.arrival)) < 0
}

// recordQueue is a heap of the turns of a lane.
type recordQueue []*record

func (q recordQueue) Len() int           { return len(q) }
func (q recordQueue) Less(a, b int) bool { return earlier(q[a], q[b]) }
func (q recordQueue) Swap(a, b int)      { q[a], q[b] = q[b], q[a] }
func (q *recordQueue) Push(x any)        { *q = append(*q, x.(*record)) }
func (q *recordQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return last
}

// laneQueue is a heap of lanes by their first turn.
type laneQueue []*lane

func (q laneQueue) Len() int           { return len(q) }
func (q laneQueue) Less(a, b int) bool { return earlier(q[a].queue[0], q[b].queue[0]) }
func (q laneQueue) Swap(a, b int) {
	q[a], q[b] = q[b], q[a]
	q[a].place, q[b].place = a, b
}
func (q *laneQueue) Push(x any) {
	l := x.(*lane)
	l.place = len(*q)
	*q = append(*q, l)
}
func (q *laneQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	last.place = -1
	return last
}
