package boltdb

import (
	"context"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// States of a request. It leaves stateWaiting once, by compare-and-swap: either
// the writer takes it or its caller withdraws it.
const (
	stateWaiting int32 = iota
	stateTaken
	stateWithdrawn
)

// request is one function on its way to the writer.
type request struct {
	fn        func(tx *bolt.Tx) error
	retention bool // may use the ballast
	state     atomic.Int32
	done      chan error // gets the outcome, room for one; nil if nobody waits
}

// queue is the bounded, ordered line of requests before the writer. Callers that
// wait do so for a slot, outside of the lock.
type queue struct {
	slots chan struct{} // holds a token per request in line; its capacity is the bound
	wake  chan struct{} // room for one; tells the writer that there is something to take

	closing chan struct{} // closed by close

	mu     sync.Mutex // guards the following fields
	line   []*request
	closed bool
}

func newQueue(size int) *queue {
	return &queue{
		slots:   make(chan struct{}, size),
		wake:    make(chan struct{}, 1),
		closing: make(chan struct{}),
	}
}

// push appends a request, waiting for a slot as long as ctx lives.
func (q *queue) push(ctx context.Context, r *request) error {
	select {
	case q.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-q.closing:
		return ErrClosed
	}
	return q.append(r)
}

// offer appends a request or returns ErrBusy at once.
func (q *queue) offer(r *request) error {
	select {
	case q.slots <- struct{}{}:
		return q.append(r)
	case <-q.closing:
		return ErrClosed
	default:
		return ErrBusy
	}
}

// append puts a request that has its slot in line.
func (q *queue) append(r *request) error {
	q.mu.Lock()
	closed := q.closed
	if !closed {
		q.line = append(q.line, r)
	}
	q.mu.Unlock()
	if closed {
		<-q.slots
		return ErrClosed
	}
	q.signal()
	return nil
}

// signal wakes the writer.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take moves up to limit requests to batch, passing over withdrawn ones, and
// reports whether the queue is closed and empty. Only the writer calls it.
func (q *queue) take(batch []*request, limit int) (taken []*request, end bool) {
	q.mu.Lock()
	n := 0
	for n < len(q.line) && len(batch) < limit {
		if r := q.line[n]; r.state.CompareAndSwap(stateWaiting, stateTaken) {
			batch = append(batch, r)
		}
		n++
	}
	rest := copy(q.line, q.line[n:])
	clear(q.line[rest:])
	q.line = q.line[:rest]
	end = q.closed && rest == 0 && len(batch) == 0
	q.mu.Unlock()
	for range n {
		<-q.slots
	}
	return batch, end
}

// close refuses further requests; those in line stay.
func (q *queue) close() {
	q.mu.Lock()
	first := !q.closed
	q.closed = true
	q.mu.Unlock()
	if first {
		close(q.closing)
	}
	q.signal()
}

// len returns the number of requests in line.
func (q *queue) len() int { return len(q.slots) }
