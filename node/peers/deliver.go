package peers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// endpoint is what the service knows of an Endpoint. Its loop is the only one that
// delivers.
type endpoint struct {
	id      string
	process string // process id in the registry
	token   string
	queue   *spool.Queue
	ready   chan struct{} // closed once the spool was read
	arrived chan struct{}
	end     context.CancelFunc
	ended   chan struct{} // closed when the loop is over

	taking sync.WaitGroup // messages that are being put into the spool

	mu      sync.Mutex // guards the following fields
	closed  bool       // nothing is taken any more
	what    Endpoint
	pending map[spool.Key]bool // delivered with ErrPending and not settled
}

func (e *endpoint) told() Endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.what
}

func (e *endpoint) put(what Endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.what = what
}

func (e *endpoint) receiver() Receiver { return e.told().Receiver }

// kick has the loop look at once. Any number of them are one.
func (e *endpoint) kick() {
	select {
	case e.arrived <- struct{}{}:
	default:
	}
}

// open says that a message is going to be put into the spool; false: none must be any more.
// Whoever opened calls taking.Done.
func (e *endpoint) open() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.taking.Add(1)
	}
	return !e.closed
}

// close has nothing be taken any more and returns when what was is in the spool.
func (e *endpoint) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.taking.Wait()
}

// awaitReady waits for the spool to be read, ReadyWait at most. It may have ended since.
func (e *endpoint) awaitReady(ctx context.Context) bool {
	timer := time.NewTimer(ReadyWait)
	defer timer.Stop()
	select {
	case <-e.ready:
		return true
	case <-e.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// run delivers until ctx ends: at every arrival and at every sweep.
func (s *Service) run(ctx context.Context, e *endpoint) {
	defer close(e.ended)
	tick := time.NewTicker(s.cfg.Options.Sweep)
	defer tick.Stop()
	for loaded := false; ctx.Err() == nil; {
		if !loaded {
			err := e.queue.Load(ctx)
			if loaded = err == nil; loaded {
				close(e.ready)
			} else if ctx.Err() == nil {
				s.cfg.Log.Error("peers: the messages of an endpoint cannot be read, it takes none until they can", "endpoint", e.id, "err", err)
			}
		}
		if loaded {
			if err := s.sweep(ctx, e); err != nil && ctx.Err() == nil {
				s.cfg.Log.Error("peers: messages wait for the next attempt", "endpoint", e.id, "err", err)
			}
			s.acks.note(e.id)
		}
		select {
		case <-ctx.Done():
		case <-e.arrived:
		case <-tick.C:
		}
	}
}

// sweep expires what was held too long and delivers what is queued.
func (s *Service) sweep(ctx context.Context, e *endpoint) error {
	expired, err := e.queue.Expire(ctx)
	if err != nil {
		return err
	}
	if expired > 0 {
		s.settled(e.id)
	}
	before := e.allPending()
	list, err := e.queue.Drain(ctx)
	if err != nil {
		return err
	}
	e.forgetPending(before, list)
	for i, r := range list {
		// What was under way before the look may be done since, however it looked then.
		if before[r.Key()] {
			continue
		}
		err := s.deliver(ctx, e, r)
		if err == nil {
			continue
		}
		// Also when ctx ended: what is inflight would be queued again at the next start,
		// but only by a process that has this endpoint.
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTimeout)
		defer cancel()
		err = errors.Join(ignoreLater(err), e.queue.Requeue(back, e.undelivered(list[i:])...))
		return err
	}
	return nil
}

// deliver hands one message over and notes what became of it. An error means that it
// has to come again.
func (s *Service) deliver(ctx context.Context, e *endpoint, r spool.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, peers.DeliverTimeout)
	defer cancel()
	// Before the call: Settle may come before it returns.
	e.setPending(r.Key())
	err := e.receiver().Deliver(limited, r)
	var final *Final
	status := peers.Delivered
	switch {
	case errors.Is(err, ErrPending):
		return nil
	case errors.As(err, &final):
		status = final.Status
	case err != nil:
		e.clearPending(r.Key())
		return err
	}
	// The host has it: this is written even if the service stops now.
	return s.finish(ctx, e, r.Key(), status)
}

// finish writes what became of a message, and has its sender told.
func (s *Service) finish(ctx context.Context, e *endpoint, k spool.Key, status string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTimeout)
	defer cancel()
	err := e.queue.Finish(ctx, k, status)
	e.clearPending(k)
	if err != nil {
		return err
	}
	s.settled(e.id)
	return nil
}

func (e *endpoint) isPending(k spool.Key) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending[k]
}

func (e *endpoint) allPending() map[spool.Key]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.pending)
}

// forgetPending forgets those of before that are not in what there is to deliver: they were
// settled before their delivery returned.
func (e *endpoint) forgetPending(before map[spool.Key]bool, list []spool.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range before {
		if !slices.ContainsFunc(list, func(r spool.Record) bool { return r.Key() == k }) {
			delete(e.pending, k)
		}
	}
}

func (e *endpoint) setPending(k spool.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending[k] = true
}

func (e *endpoint) clearPending(k spool.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pending, k)
}

// undelivered are the keys of those that are not under way.
func (e *endpoint) undelivered(list []spool.Record) []spool.Key {
	var keys []spool.Key
	for _, r := range list {
		if k := r.Key(); !e.isPending(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// ignoreLater leaves out what is no trouble: a receiver that said when.
func ignoreLater(err error) error {
	if errors.Is(err, ErrLater) {
		return nil
	}
	return err
}
