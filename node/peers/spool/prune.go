package spool

import (
	"cmp"
	"context"
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
