// Package room bounds the memory that bodies take which the hub has to read whole.
//
// It guarantees: what is taken at any time is at most what there is, for each owner and
// for all together; who waits is served in order, so that one that wants much is not
// passed by for ever, except that an owner who has its share holds up nobody else. It
// does not count bytes by itself: who reads takes room first, and no more than it took.
package room

import (
	"context"
	"sync"
)

// Room is so many bytes, for everybody and for each owner. Safe for concurrent use.
type Room struct {
	all, each int64

	mu      sync.Mutex // guards the following fields
	taken   int64
	by      map[string]int64 // what each owner has of it; none is 0
	waiting []*waiter        // in the order in which they came
}

type waiter struct {
	owner   string
	bytes   int64
	granted chan struct{} // closed once it has them
}

// New makes a Room of so many bytes in all and for each owner.
func New(all, each int64) *Room {
	return &Room{all: all, each: min(each, all), by: map[string]int64{}}
}

// Take takes room for an owner and waits for it within ctx, whose error it returns.
// More than an owner's share counts as the share. Call release once.
func (r *Room) Take(ctx context.Context, owner string, bytes int64) (release func(), err error) {
	w := &waiter{owner: owner, bytes: min(bytes, r.each), granted: make(chan struct{})}
	r.mu.Lock()
	r.waiting = append(r.waiting, w)
	r.serve()
	r.mu.Unlock()
	release = func() { r.leave(w) }
	select {
	case <-w.granted:
		return release, nil
	default:
	}
	select {
	case <-w.granted:
		return release, nil
	case <-ctx.Done():
		release()
		return nil, ctx.Err()
	}
}

// leave gives back what a waiter has, or its place.
func (r *Room) leave(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-w.granted:
		r.taken -= w.bytes
		if r.by[w.owner] -= w.bytes; r.by[w.owner] == 0 {
			delete(r.by, w.owner)
		}
	default:
		for i, other := range r.waiting {
			if other == w {
				r.waiting = append(r.waiting[:i], r.waiting[i+1:]...)
				break
			}
		}
	}
	r.serve()
}

// serve gives room to those who wait, as far as it goes. The caller holds mu.
func (r *Room) serve() {
	left := r.waiting[:0]
	full := false // somebody waits for the room of all: nobody overtakes
	for _, w := range r.waiting {
		switch {
		case full || r.by[w.owner]+w.bytes > r.each:
			left = append(left, w)
		case r.taken+w.bytes > r.all:
			full = true
			left = append(left, w)
		default:
			r.taken += w.bytes
			r.by[w.owner] += w.bytes
			close(w.granted)
		}
	}
	clear(r.waiting[len(left):])
	r.waiting = left
}
