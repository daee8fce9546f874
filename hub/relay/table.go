package relay

import (
	"context"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// maxTextMemory bounds the texts that wait in memory for their offer, in bytes;
// those beyond are read from the store when their turn comes.
const maxTextMemory = 32 << 20

// entry is an open task. Its task is replaced, never changed in place.
type entry struct {
	task    store.Task
	queue   *queue
	changed chan struct{} // closed at the next change
	text    []byte        // of the current turn, while its offer is imminent; else nil
	lane    *lane         // where it waits for its offer, nil when it does not
	barrier uint64        // see lane.inflight
	tried   bool          // an offer to task.Journal may have been sent
	doomed  bool          // dispatched from inside a task of a controller that is gone
	asked   ask           // the withdrawal that its node answered last
	told    told          // the answer that its node was told last
	again   int           // how often what was answered already was asked again
	behind  []*behind     // what its turn asks besides, newest last
	heard   uint64        // the epoch in which its node asked last what it asks
	urged   bool          // something urgent about it is listed or under way
	doing   *api.Activity // what its agent does, while it runs
	toDo    bool          // the relay has to work on it, or does: see operate.go
}

// add enters an open task. Called with mu held.
func (r *Relay) add(t store.Task) *entry {
	q := r.queue(t.Target.ID)
	e := &entry{task: t, queue: q, changed: make(chan struct{})}
	r.tasks[t.ID], q.tasks[t.ID] = e, e
	r.author(t.Controller.ID, +1)
	r.tally(e, t.State, +1)
	r.queueUp(e)
	r.place(e)
	r.urge(e)
	return e
}

// put takes a stored record over. The caller has the task's turn, so records come
// in the order of their revisions.
func (r *Relay) put(t store.Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.publish(t)
	r.noteOvertaken(t)
	e := r.tasks[t.ID]
	switch {
	case e == nil && t.State.Settled(): // a late result
		return
	case e == nil:
		r.add(t)
		return
	}
	r.tally(e, e.task.State, -1)
	if !active(t.State) {
		e.doing = nil
	}
	if t.Triple() != e.task.Triple() {
		e.keepBehind(nil)
		r.dropText(e) // it is of the turn before, whose result may overtake its receipt
	}
	e.task = t
	close(e.changed)
	if t.State.Settled() {
		r.drop(e)
		return
	}
	e.changed = make(chan struct{})
	r.tally(e, t.State, +1)
	r.place(e)
	r.urge(e)
	r.moved(e)
}

// drop takes a settled task out. Called with mu held.
func (r *Relay) drop(e *entry) {
	t := e.task
	r.unplace(e)
	e.keepBehind(nil)
	delete(r.tasks, t.ID)
	delete(e.queue.tasks, t.ID)
	r.author(t.Controller.ID, -1)
	r.moved(e)
	r.forgetQueue(e.queue)
	code := ""
	if t.Outcome != nil && t.Outcome.Error != nil {
		code = t.Outcome.Error.Code
	}
	r.cfg.Observer.Settled(t.State, code, t.EndedAt.Sub(t.CreatedAt))
}

// tally keeps the sums of the states. Called with mu held.
func (r *Relay) tally(e *entry, s api.State, d int) {
	if r.states[s] += d; r.states[s] == 0 {
		delete(r.states, s)
	}
	if s == api.StateRunning {
		e.queue.running += d
	}
}

// author keeps the sum of a controller's tasks. Called with mu held.
func (r *Relay) author(id string, d int) {
	if r.byAuthor[id] += d; r.byAuthor[id] == 0 {
		delete(r.byAuthor, id)
	}
}

// keepText keeps the text of an entry whose offer is imminent. Called with mu held.
func (r *Relay) keepText(e *entry, text []byte) {
	if e.lane != nil && r.textBytes+len(text) <= maxTextMemory {
		e.text = text
		r.textBytes += len(text)
	}
}

func (r *Relay) dropText(e *entry) {
	r.textBytes -= len(e.text)
	e.text = nil
}

// publish hands the change on while mu keeps the order of changes; the bus never
// blocks.
func (r *Relay) publish(t store.Task) { r.bus.Task(t.Controller.ID, r.view(t)) }

// current returns the copy of an open task, or the stored record.
func (r *Relay) current(ctx context.Context, id string) (store.Task, error) {
	r.mu.Lock()
	e := r.tasks[id]
	if e != nil {
		defer r.mu.Unlock()
		return e.task, nil
	}
	r.mu.Unlock()
	return r.st.Task(ctx, id)
}
