package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

const (
	// casTries bounds retries of a change that lost a race; losing that often means
	// a bug, not bad luck.
	casTries = 32
	// atOnce is how many changes of many tasks wait for the disk together.
	atOnce = 64
)

// errNoChange ends a change without writing.
var errNoChange = errors.New("no change")

// change is one compare-and-set on a task: fn gets the newest record and returns
// the next one with parts to store beside it. fn may run several times and must
// only compute. errNoChange leaves the record alone. It returns once the change
// is on disk.
func (r *Relay) change(ctx context.Context, id string, fn func(store.Task) (store.Task, []store.Part, error)) (store.Task, error) {
	release, err := r.lock(ctx, id)
	if err != nil {
		return store.Task{}, err
	}
	defer release()
	for range casTries {
		t, err := r.current(ctx, id)
		if err != nil {
			return store.Task{}, err
		}
		next, parts, err := fn(t)
		if errors.Is(err, errNoChange) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		next.Life = step(next, r.clock.Now())
		got, err := r.st.UpdateTask(ctx, next, parts...)
		if errors.Is(err, store.ErrConflict) {
			// The copy was built on a note that did not reach the disk.
			if got, err = r.st.Task(ctx, id); err == nil {
				r.put(got)
				continue
			}
		}
		if err != nil {
			return t, err
		}
		r.put(got)
		return got, nil
	}
	return store.Task{}, fmt.Errorf("task %s: %w", id, store.ErrConflict)
}

// note is change without waiting for the disk, for states that a crash may
// forget because the node reports them again. Only of open tasks. It reports whether
// something changed.
func (r *Relay) note(ctx context.Context, id string, fn func(store.Task) (store.Task, error)) (changed bool) {
	release, err := r.lock(ctx, id)
	if err != nil {
		return false
	}
	defer release()
	r.mu.Lock()
	e := r.tasks[id]
	if e == nil {
		r.mu.Unlock()
		return false
	}
	t := e.task
	r.mu.Unlock()
	next, err := fn(t)
	if err != nil {
		return false
	}
	next.Life = step(next, r.clock.Now())
	got, err := r.st.UpdateTaskLater(next, func(err error) {
		// The copy is ahead of the store until the next change finds out.
		r.log.Warn("a task's state could not be noted", "task", id, "err", err)
	})
	if err != nil {
		return false // refused (full queue, disk trouble): the node will report it again
	}
	r.put(got)
	return true
}

// turn is the right to change one record: in this process the changes of a task go
// one after the other, so that what the relay believes follows the store in order.
// Correctness of the store rests on the revisions alone.
type turn struct {
	token chan struct{} // room for one
	users int           // who has it or waits, guarded by Relay.mu
}

// lock takes the turns of some records, named by task id or, with a slash, by what
// else they are.
func (r *Relay) lock(ctx context.Context, ids ...string) (release func(), err error) {
	ids = slices.Sorted(slices.Values(ids)) // two that want the same ones must not wait for each other
	held := make([]*turn, 0, len(ids))
	release = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, k := range held {
			<-k.token
			r.leave(ids[i], k)
		}
	}
	for _, id := range ids {
		r.mu.Lock()
		k := r.turns[id]
		if k == nil {
			k = &turn{token: make(chan struct{}, 1)}
			r.turns[id] = k
		}
		k.users++
		r.mu.Unlock()
		select {
		case k.token <- struct{}{}:
			held = append(held, k)
		case <-ctx.Done():
			release()
			r.mu.Lock()
			r.leave(id, k)
			r.mu.Unlock()
			return nil, context.Cause(ctx)
		}
	}
	return release, nil
}

// leave forgets a turn that nobody uses. Called with mu held.
func (r *Relay) leave(id string, k *turn) {
	if k.users--; k.users == 0 {
		delete(r.turns, id)
	}
}

// step appends to a task's life when its state, attempt or turn is another than that
// of the last step.
func step(t store.Task, now time.Time) []api.Step {
	if n := len(t.Life); n > 0 {
		if last := t.Life[n-1]; last.State == t.State && last.Attempt == t.Attempt && last.Turn == t.Turn {
			return t.Life
		}
	}
	note := ""
	if o := t.Outcome; t.State.Settled() && o != nil && o.Error != nil {
		note = o.Error.Code
	}
	return noted(t, note, now).Life
}

// noted appends the state that a task is in to its life, with a note.
func noted(t store.Task, note string, now time.Time) store.Task {
	life := slices.Clone(t.Life)
	life = append(life, api.Step{At: now, State: t.State, Attempt: t.Attempt, Turn: t.Turn, Note: note})
	if len(life) > store.MaxLife { // keep the first step and the newest
		life = slices.Delete(life, 1, len(life)-store.MaxLife+1)
	}
	t.Life = life
	return t
}

// each calls fn for all of a list, atOnce at a time so that they share commits. It
// goes on after an error and returns how many there were and the first.
func each[T any](list []T, fn func(T) error) (failed int, first error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, v := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := fn(v); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if failed++; first == nil {
					first = err
				}
			}
		})
	}
	wg.Wait()
	return failed, first
}
