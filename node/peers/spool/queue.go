package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

// Queue is the part of a spool that is one endpoint's. It is safe for concurrent use.
// Its directories are made by the first message that is accepted.
//
// A change waits for at most LockTimeout for its turn in this process and for the lock,
// and a message to be accepted for AcceptTimeout.
// An error of one that is not about the message itself (*LockedError, ErrLockLost, those
// of the disk) left the messages as they were, or, at the worst, in a state that a
// repetition of the change recognises.
type Queue struct {
	name string // the endpoint
	dir  string
	cfg  Config
	sys  files.FS

	turn   chan struct{} // holds one while somebody changes something
	cache  cache         // for who has the turn
	pruned time.Time     // for who has the turn

	mu         sync.Mutex
	waiting    []*arrival        // messages to be accepted
	complaints map[string]string // what was said of which file
}

// within bounds a wait for the turn and the lock together.
func within(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, time.Now().Add(most), errLockTimeout)
}

// take waits for the turn until ctx, of within, ends.
func (q *Queue) take(ctx context.Context) error {
	if !endpointName.MatchString(q.name) {
		return q.badName()
	}
	began := time.Now()
	select {
	case q.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return q.late(ctx, began)
	}
}

// late is the error of a wait for the turn.
func (q *Queue) late(ctx context.Context, began time.Time) error {
	if err := context.Cause(ctx); !errors.Is(err, errLockTimeout) {
		return err
	}
	return &LockedError{Path: q.dir, PID: os.Getpid(), Waited: time.Since(began)}
}

func (q *Queue) badName() error { return fmt.Errorf("%q cannot be the name of an endpoint", q.name) }

func (q *Queue) give() { <-q.turn }

// change takes the lock and lets fn change what is there. Where there is no directory,
// fn sees that there is nothing.
func (q *Queue) change(ctx context.Context, fn func(*view) error) error {
	ctx, cancel := within(ctx, LockTimeout)
	defer cancel()
	if err := q.take(ctx); err != nil {
		return err
	}
	defer q.give()
	if _, err := q.sys.Lstat(q.dir); errors.Is(err, fs.ErrNotExist) {
		q.cache = nil
		return fn(&view{q: q})
	}
	return q.locked(ctx, fn)
}

// locked is change for who has the turn, where there is a directory.
func (q *Queue) locked(ctx context.Context, fn func(*view) error) error {
	l, err := takeLock(ctx, q.sys, q.dir)
	if err != nil {
		return err
	}
	defer func() {
		// What was written stays written; others remove the claim after LockStale.
		if err := l.release(); err != nil {
			q.cfg.Log.Warn("peers: a claim on the lock of the spool stays behind", "path", l.ticket, "err", err)
		}
	}()
	v, twins, err := q.look()
	if err != nil {
		return err
	}
	v.lock = l
	v.tidy(twins)
	return fn(v)
}

// idle says, without the lock, that no message is in one of some states.
func (q *Queue) idle(states ...State) (bool, error) {
	records, err := q.Records(states...)
	return len(records) == 0, err
}

func (q *Queue) now() float64 { return float64(q.cfg.Now().UnixMilli()) }

// done is a record as it is in the end.
func (q *Queue) done(r Record, status string) Record {
	r.State = StateDone
	r.HeldAt, r.ExpiresAt, r.Message.HeldAt, r.Message.ExpiresAt = 0, 0, 0, 0
	r.Ack = &StoredAck{
		Version: version, MessageID: r.Message.ID, FromEndpoint: r.Message.From.InstanceID, ToEndpoint: q.name,
		Status: status, AcknowledgedAt: q.now(),
	}
	return r
}

// queued is a record that waits for its delivery.
func queued(r Record) Record {
	r.State = StateQueued
	r.HeldAt, r.ExpiresAt, r.Message.HeldAt, r.Message.ExpiresAt = 0, 0, 0, 0
	return r
}

// Load recovers what a process left behind that died: what was inflight is queued again
// unless it is done, what is in two states stays in one, and what has been done for
// longer than peers.DoneRetention goes. It is called once when an endpoint is adopted and before
// anything of it is delivered. If a process died with the lock that is not known to have
// ended, it fails with a *LockedError until LockStale is over, and is to be tried again.
func (q *Queue) Load(ctx context.Context) error {
	return q.change(ctx, func(v *view) error {
		if v.lock == nil {
			return nil
		}
		v.sweep()
		var again []Record
		for _, r := range v.all(StateInflight) {
			full, err := v.whole(r)
			if err != nil {
				return err
			}
			again = append(again, queued(full))
		}
		if err := v.move(StateInflight, again...); err != nil {
			return fmt.Errorf("recover the spool of %s: %w", q.name, err)
		}
		v.prune()
		return nil
	})
}

// Drain makes all that is queued inflight and returns all that is inflight, in order.
func (q *Queue) Drain(ctx context.Context) ([]Record, error) {
	if idle, err := q.idle(StateQueued, StateInflight); idle || err != nil {
		return nil, err
	}
	var records []Record
	err := q.change(ctx, func(v *view) error {
		var next []Record
		for _, r := range v.all(StateQueued, StateInflight) {
			full, err := v.whole(r)
			if err != nil {
				return err
			}
			if full.State == StateQueued {
				full.State = StateInflight
				next = append(next, full)
			}
			records = append(records, full)
		}
		return v.move(StateQueued, next...)
	})
	if err != nil {
		return nil, fmt.Errorf("take what is queued for %s: %w", q.name, err)
	}
	return records, nil
}

// settle moves one message, from one of some states, if it is not done already.
func (q *Queue) settle(ctx context.Context, k Key, to func(Record) Record, from ...State) error {
	return q.change(ctx, func(v *view) error {
		r, err := v.find(k)
		if err != nil {
			return err
		}
		for _, s := range from {
			if r.State != s {
				continue
			}
			full, err := v.whole(r)
			if err != nil {
				return err
			}
			return v.move(s, to(full))
		}
		return &StateError{Key: k, State: r.State}
	})
}

// Finish makes a message done with a final status. What is queued can be finished, too:
// the news of a delivery may come after a restart. A message that is done stays as it is,
// without an error.
func (q *Queue) Finish(ctx context.Context, k Key, status string) error {
	if !peers.Final(status) {
		return fmt.Errorf("%q is no final status", status)
	}
	err := q.settle(ctx, k, func(r Record) Record { return q.done(r, status) }, StateInflight, StateQueued)
	if e := (*StateError)(nil); errors.As(err, &e) && e.State == StateDone {
		return nil
	}
	return err
}

// Requeue makes messages that are inflight queued again, in their old places. Messages
// that are queued or done stay as they are. The error says which cannot be, if any; the
// others are queued then.
func (q *Queue) Requeue(ctx context.Context, keys ...Key) error {
	if len(keys) == 0 {
		return nil
	}
	return q.change(ctx, func(v *view) error {
		var again []Record
		var refused []error
		for _, k := range keys {
			r, err := v.find(k)
			switch {
			case err != nil:
			case r.State == StateHeld:
				err = &StateError{Key: k, State: r.State}
			case r.State == StateInflight:
				r, err = v.whole(r)
				again = append(again, queued(r))
			}
			refused = append(refused, err)
		}
		return errors.Join(append(refused, v.move(StateInflight, again...))...)
	})
}

// Release makes a held message queued. ErrFull: there is no room; it stays held. One that
// is queued or inflight already stays as it is.
func (q *Queue) Release(ctx context.Context, k Key) error {
	return q.change(ctx, func(v *view) error {
		r, err := v.find(k)
		if err != nil {
			return err
		}
		switch {
		case r.State == StateDone:
			return &StateError{Key: k, State: r.State}
		case r.State != StateHeld:
			return nil
		case v.count(StateQueued, StateInflight) >= q.cfg.MaxQueue:
			return ErrFull
		}
		if r, err = v.whole(r); err != nil {
			return err
		}
		return v.move(StateHeld, queued(r))
	})
}

// Drop makes a held message done, as dropped.
func (q *Queue) Drop(ctx context.Context, k Key) error {
	return q.settle(ctx, k, func(r Record) Record { return q.done(r, peers.Dropped) }, StateHeld)
}

// DropAll makes all that is not done done, as dropped, and says how many that were.
func (q *Queue) DropAll(ctx context.Context) (n int, err error) {
	open := []State{StateHeld, StateQueued, StateInflight}
	if idle, err := q.idle(open...); idle || err != nil {
		return 0, err
	}
	err = q.change(ctx, func(v *view) error {
		for _, s := range open {
			var over []Record
			for _, r := range v.all(s) {
				full, err := v.whole(r)
				if err != nil {
					return err
				}
				over = append(over, q.done(full, peers.Dropped))
			}
			if err := v.move(s, over...); err != nil {
				return err
			}
			n += len(over)
		}
		return nil
	})
	return n, err
}

// Expire makes held messages whose time is over done, as expired, and says how many. It
// is to be called every few seconds, and once an hour removes what has been done for
// longer than peers.DoneRetention.
func (q *Queue) Expire(ctx context.Context) (n int, err error) {
	held, err := q.Records(StateHeld)
	if err != nil {
		return 0, err
	}
	over := false
	for _, r := range held {
		over = over || q.over(r)
	}
	if !over && !q.pruneDue(ctx) {
		return 0, nil
	}
	err = q.change(ctx, func(v *view) error {
		if v.lock == nil {
			return nil
		}
		var gone []Record
		for _, r := range v.all(StateHeld) {
			if !q.over(r) {
				continue
			}
			full, err := v.whole(r)
			if err != nil {
				return err
			}
			gone = append(gone, q.done(full, peers.Expired))
		}
		if err := v.move(StateHeld, gone...); err != nil {
			return err
		}
		n = len(gone)
		v.prune()
		return nil
	})
	return n, err
}

func (q *Queue) over(r Record) bool { return q.now() >= r.ExpiresAt }

// Acks returns the records whose final acknowledgement was not taken by the sender yet,
// in order and without their texts.
func (q *Queue) Acks(ctx context.Context) ([]Record, error) {
	ctx, cancel := within(ctx, LockTimeout)
	defer cancel()
	if err := q.take(ctx); err != nil {
		return nil, err
	}
	defer q.give()
	v, _, err := q.look()
	if err != nil {
		return nil, err
	}
	records := v.all(StateDone)
	open := records[:0]
	for _, r := range records {
		if r.AckSentAt == 0 {
			open = append(open, r)
		}
	}
	return open, nil
}

// AckSent notes that senders took final acknowledgements. For those that it knows of
// already, and those that are gone, there is nothing to do.
func (q *Queue) AckSent(ctx context.Context, keys ...Key) error {
	return q.change(ctx, func(v *view) error {
		var wrong []error
		changed := false
		for _, k := range keys {
			r, err := v.find(k)
			if err != nil {
				continue // its time was over meanwhile
			}
			if r.State != StateDone {
				wrong = append(wrong, &StateError{Key: k, State: r.State})
				continue
			}
			if r.AckSentAt != 0 {
				continue
			}
			if r, err = v.whole(r); err == nil {
				r.AckSentAt = q.now()
				err = v.place(StateDone, nameOf(r), r)
				changed = changed || err == nil
			}
			wrong = append(wrong, err)
		}
		if changed {
			wrong = append(wrong, v.sync(StateDone))
		}
		return errors.Join(wrong...)
	})
}
