package relay

import (
	"context"

	"opencode-mesh/store"
)

// noting is what results say of a binding while it is on its way to the disk. A task
// and its binding are two records, and the task's end may be seen first.
type noting struct {
	n    int           // results
	done chan struct{} // closed when there are none any more
}

// noteBinding holds the operations of a task's lane back, and those who ask for its
// binding, while what its result says of the session is on its way to the disk.
func (r *Relay) noteBinding(t store.Task) (release func()) {
	lane, key := laneKey(t), bindingKey(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queue(t.Target.ID)
	q.binding[lane]++
	note := r.noting[key]
	if note == nil {
		note = &noting{done: make(chan struct{})}
		r.noting[key] = note
	}
	note.n++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if note.n--; note.n == 0 {
			delete(r.noting, key)
			close(note.done)
		}
		if q.binding[lane]--; q.binding[lane] == 0 {
			delete(q.binding, lane)
		}
		if l := q.lanes[lane]; l != nil {
			r.offerable(l)
		}
		r.forgetQueue(q)
	}
}

// caughtUp waits until the results that came so far are in the bindings that match, so
// that who saw a task end also sees its session.
func (r *Relay) caughtUp(ctx context.Context, match func(store.BindingKey) bool) error {
	var waits []<-chan struct{}
	r.mu.Lock()
	for key, note := range r.noting {
		if match(key) {
			waits = append(waits, note.done)
		}
	}
	r.mu.Unlock()
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// bindingNow is binding with all that the results so far say of it.
func (r *Relay) bindingNow(ctx context.Context, key store.BindingKey) (store.Binding, error) {
	if err := r.caughtUp(ctx, func(k store.BindingKey) bool { return k == key }); err != nil {
		return store.Binding{}, err
	}
	return r.binding(ctx, key)
}
