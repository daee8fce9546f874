package relay

import (
	"slices"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// A turn may ask several things at once, a task asks one. The others wait behind it,
// in memory, until the node has been told its answer: a node tells what its agent
// asks anew on each connection. What the newest connection did not tell is not asked
// any more.

const (
	// maxBehind is how many questions of a turn wait behind the one that is asked,
	// the newest.
	maxBehind = 16
	// maxBehindNode is how many do of all turns of a node; more are not kept.
	maxBehindNode = 512
)

// behind is a question that waits behind another.
type behind struct {
	asking string
	q      *api.Question
	epoch  uint64 // of the connection that told it last
}

// heard notes that a node asks something, and what is to be asked after it.
func (r *Relay) heard(a api.Ask, later *behind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tasks[a.Task]
	if e == nil || e.task.Triple() != a.Triple {
		return
	}
	if later != nil {
		if later.asking != a.Question {
			later.epoch = e.heard // of the one that it displaced
		}
		if e.queue.behind < maxBehindNode {
			list := append(slices.Clone(e.behind), later)
			e.keepBehind(list[max(0, len(list)-maxBehind):])
		}
	}
	if e.task.Asking == a.Question {
		e.heard = a.Epoch
	}
	if g := e.task.Answer; g != nil && g.Asking == a.Question && later == nil {
		e.told = told{} // it asks what was answered already: it gets that once more
		e.again++
	}
	r.urge(e)
}

// waits reports whether a question waits behind another, and notes that its node
// asks it still.
func (r *Relay) waits(a api.Ask) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tasks[a.Task]
	if e == nil {
		return false
	}
	i := slices.IndexFunc(e.behind, func(b *behind) bool { return b.asking == a.Question })
	if i >= 0 {
		e.behind[i].epoch = a.Epoch
	}
	return i >= 0
}

// unwait drops a question that is not asked any more.
func (r *Relay) unwait(task, asking string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.tasks[task]; e != nil {
		e.dropBehind(func(b *behind) bool { return b.asking == asking })
	}
}

// keepBehind replaces what waits behind a task's question. Called with mu held.
func (e *entry) keepBehind(list []*behind) {
	e.queue.behind += len(list) - len(e.behind)
	e.behind = list
}

// dropBehind takes away what waits behind a task's question and is not wanted.
// Called with mu held.
func (e *entry) dropBehind(unwanted func(*behind) bool) {
	if slices.ContainsFunc(e.behind, unwanted) {
		e.keepBehind(slices.DeleteFunc(slices.Clone(e.behind), unwanted))
	}
}

// answering reports whether a node has still to be told an answer, which another one
// must not displace.
func (r *Relay) answering(t store.Task) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tasks[t.ID]
	return e != nil && t.Answer != nil && e.told.answer != t.Answer
}

// next is the question that is to be asked now, nil while there is none or another
// is in its way. Called with mu held.
func (c *conn) next(e *entry) *behind {
	t := e.task
	e.dropBehind(func(b *behind) bool { return b.epoch < c.Hello.Epoch })
	if len(e.behind) == 0 || t.Asking != "" || t.Journal != c.Hello.JournalID || c.owesAnswer(e) || !mayAsk(t, t.Triple()) {
		return nil
	}
	return e.behind[len(e.behind)-1]
}

// askNext asks what waited behind a question that is over.
func (r *Relay) askNext(c *conn, e *entry) error {
	r.mu.Lock()
	b, turn := c.next(e), e.task.Triple()
	r.mu.Unlock()
	if b == nil {
		return nil
	}
	asked := false
	_, err := r.change(c.ctx, turn.Task, func(t store.Task) (store.Task, []store.Part, error) {
		asked = false
		r.mu.Lock()
		still := slices.Contains(e.behind, b)
		r.mu.Unlock()
		if !still || !mayAsk(t, turn) || t.Asking != "" || r.answering(t) {
			return t, nil, errNoChange
		}
		asked = true
		return r.asks(t, b.asking, b.q), nil, nil
	})
	if err == nil && asked {
		r.mu.Lock()
		defer r.mu.Unlock()
		e.dropBehind(func(x *behind) bool { return x == b })
		e.heard = b.epoch
	}
	return err
}
