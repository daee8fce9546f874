package bolt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
)

const (
	// confirmEvery is how often it is asked for the outcome of changes that is open.
	confirmEvery = time.Second
	// touchChunk is how many credentials one enqueued function touches, so that the
	// writer is not held up by a fleet.
	touchChunk = 256
)

// errGivenUp is why a change was not stored if nothing more is known of it.
var errGivenUp = errors.New("bolt: change given up in a disk trouble")

// UpdateTaskLater implements store.Store. Either it returns an error, or the
// change is on its way: then onFail, which may be nil, runs once if it cannot be
// stored. That is on a goroutine of the store, never inside this call, one onFail
// after the other. It may call the store, but not Close, which waits for it. A
// change that waited when the disk gave out is reported when the trouble is over.
func (s *Store) UpdateTaskLater(t store.Task, onFail func(error)) (store.Task, error) {
	u, err := prepareUpdate(&t, nil)
	if err != nil {
		return store.Task{}, err
	}
	apply := func(tx *bbolt.Tx) error { return s.apply(tx, &u) }
	if err := s.later.enqueue(s.db.Enqueue, apply, onFail); err != nil {
		return store.Task{}, fault(err)
	}
	t.Rev = head(u.record).rev()
	return t, nil
}

// TouchCredentialsLater implements store.Store. Uses of unknown credentials, and
// uses that are not newer than the one recorded, are passed over.
func (s *Store) TouchCredentialsLater(uses map[string]time.Time) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(uses)), touchChunk) {
		at := make([]time.Time, len(ids))
		for i, id := range ids {
			at[i] = uses[id]
		}
		err := s.db.Enqueue(func(tx *bbolt.Tx) error {
			for i, id := range ids {
				if err := touch(tx, id, at[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fault(err)
		}
	}
	return nil
}

// change is a queued change whose outcome is open.
type change struct {
	number uint64
	onFail func(error)
}

// laterQueue knows the changes that the engine took without anybody waiting. The
// engine tells of a commit only, but it works in order: what is not committed when
// something that was queued behind it is, was given up. If a change stays open,
// one goroutine queues something behind it to know; it runs the onFail functions
// too. Bounded by the engine's queue, but for the onFail functions that wait while
// one of them hangs.
type laterQueue struct {
	// pass goes through the engine's queue and changes nothing.
	pass func() error
	wake chan struct{} // room for one
	quit chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex // guards the following fields
	last   uint64     // number of the newest change
	open   []change   // by number
	failed []func()   // onFail functions to run
}

func newLaterQueue(pass func() error) *laterQueue {
	q := &laterQueue{pass: pass, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	q.wg.Go(q.run)
	return q
}

// enqueue hands a change to the engine. The lock makes the order of the numbers
// that of the engine's queue, which does not wait either.
func (q *laterQueue) enqueue(engine func(func(*bbolt.Tx) error) error, apply func(*bbolt.Tx) error, onFail func(error)) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.last + 1
	err := engine(func(tx *bbolt.Tx) error {
		var verdict *refusal
		if err := apply(tx); err != nil && !errors.As(err, &verdict) {
			return err
		}
		tx.OnCommit(func() { q.committed(n, verdict) })
		return nil
	})
	if err != nil {
		return err
	}
	q.last = n
	q.open = append(q.open, change{number: n, onFail: onFail})
	return nil
}

// committed takes a change out that was committed or refused. The writer calls it.
func (q *laterQueue) committed(n uint64, verdict *refusal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveUp(n-1, errGivenUp)
	if len(q.open) == 0 || q.open[0].number != n {
		return
	}
	if verdict != nil {
		q.fail(q.open[0], verdict.err)
	}
	q.open = q.open[1:]
}

// giveUp fails the open changes up to number n. Called with mu held.
func (q *laterQueue) giveUp(n uint64, err error) {
	for len(q.open) > 0 && q.open[0].number <= n {
		q.fail(q.open[0], err)
		q.open = q.open[1:]
	}
}

// fail queues the change's onFail. Called with mu held.
func (q *laterQueue) fail(c change, err error) {
	if c.onFail != nil {
		q.failed = append(q.failed, func() { c.onFail(err) })
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// run is the queue's goroutine.
func (q *laterQueue) run() {
	tick := time.NewTicker(confirmEvery)
	defer tick.Stop()
	cause := errGivenUp
	for {
		select {
		case <-q.wake:
		case <-tick.C:
			cause = q.confirm(cause)
		case <-q.quit:
			q.callFailed()
			return
		}
		q.callFailed()
	}
}

// confirm asks for the outcome of the changes that are open. While the disk is in
// trouble or the store closes nothing can be said of them: what stands in the way
// is returned as the cause for later.
func (q *laterQueue) confirm(cause error) error {
	q.mu.Lock()
	n, open := q.last, len(q.open)
	q.mu.Unlock()
	if open == 0 {
		return errGivenUp
	}
	switch err := q.pass(); {
	case errors.Is(err, store.ErrFailed):
		cause = err
	case err != nil:
		return fmt.Errorf("%w: %w", errGivenUp, err)
	}
	q.mu.Lock()
	q.giveUp(n, cause)
	q.mu.Unlock()
	return errGivenUp
}

// callFailed runs the onFail functions that are due.
func (q *laterQueue) callFailed() {
	for {
		q.mu.Lock()
		failed := q.failed
		q.failed = nil
		q.mu.Unlock()
		if len(failed) == 0 {
			return
		}
		for _, call := range failed {
			call()
		}
	}
}

// close gives up what is open with err, once the engine is closed, and waits for
// the onFail functions.
func (q *laterQueue) close(err error) {
	q.mu.Lock()
	q.giveUp(q.last, err)
	q.mu.Unlock()
	close(q.quit)
	q.wg.Wait()
}

// pass goes through the writer and changes nothing.
func (s *Store) pass() error {
	return s.write(context.Background(), func(*bbolt.Tx) error { return nil })
}
