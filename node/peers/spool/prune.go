package spool

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"opencode-mesh/protocol/peers"
)

const (
	// DefaultMaxDone is how many messages of one endpoint are known that are done. Above it, the
	// oldest go, a tenth at a time.
	DefaultMaxDone = 10_000

	// pruneEvery is the time between two removals of what is older than peers.DoneRetention, beside
	// that of Load. The original only has that, and a node may run for years.
	pruneEvery = time.Hour
)

// pruneDue says whether it is time for prune.
func (q *Queue) pruneDue(ctx context.Context) bool {
	if q.take(ctx) != nil {
		return false
	}
	defer q.give()
	if q.pruned.IsZero() {
		q.pruned = q.cfg.Now() // Load was the first, or nothing was there
	}
	return q.cfg.Now().Sub(q.pruned) >= pruneEvery
}

// Clear forgets what has been done for long enough at an endpoint and, where nothing is left
// then, removes its directories and everything that is remembered of it. It reports whether
// they are gone. It is for endpoints that nobody publishes any more.
func (s *Spool) Clear(ctx context.Context, endpoint string) (gone bool, err error) {
	gone, err = s.Queue(endpoint).clear(ctx)
	if gone {
		// Whoever has the Queue still may use it: another one of the same endpoint is like
		// that of another process.
		s.queues.Delete(endpoint)
	}
	return gone, err
}

// clear is Clear for one endpoint, but for what the Spool remembers.
func (q *Queue) clear(ctx context.Context) (gone bool, err error) {
	wait, cancel := within(ctx, LockTimeout)
	defer cancel()
	if err := q.take(wait); err != nil {
		return false, err
	}
	defer q.give()
	if _, err := q.sys.Lstat(q.dir); errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	left := true
	err = q.locked(wait, func(v *view) error {
		v.sweep()
		v.prune()
		found, err := q.list() // with what is not valid
		if left = len(found) > 0; left || err != nil {
			return err
		}
		for _, s := range precedence {
			left = left || !q.removed(string(s))
		}
		if !left {
			left = !q.removed(sequenceName)
		}
		return nil
	})
	// Whoever wants the lock now keeps the directories.
	return err == nil && !left && q.removed(lockDir) && q.removed(""), err
}

// removed removes a file or an empty directory of the endpoint's, and says whether it is gone.
func (q *Queue) removed(name string) bool {
	err := q.sys.Remove(filepath.Join(q.dir, name))
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

// prune forgets messages that have been done for long enough. They do no harm where they
// are, so what cannot be removed is left for the next time.
func (v *view) prune() {
	v.q.pruned = v.q.cfg.Now()
	done := v.all(StateDone)
	slices.SortFunc(done, func(a, b Record) int { return cmp.Compare(a.Ack.AcknowledgedAt, b.Ack.AcknowledgedAt) })
	excess := 0
	if most := v.q.cfg.MaxDone; len(done) > most {
		excess = len(done) - most*9/10
	}
	now, removed := v.q.now(), false
	for i, r := range done {
		if i >= excess && now-r.Ack.AcknowledgedAt <= float64(peers.DoneRetention.Milliseconds()) {
			break
		}
		if v.stuck[nameOf(r)] {
			continue
		}
		if !v.lock.ours() {
			return
		}
		if err := v.q.sys.Remove(v.q.path(StateDone, nameOf(r))); err != nil {
			v.q.cfg.Log.Warn("peers: an old record of the spool stays", "path", v.q.path(StateDone, nameOf(r)), "err", err)
			break
		}
		removed = true
	}
	if removed {
		_ = v.sync(StateDone) // an old record that comes back goes the next time
	}
}
