package relay

import (
	"context"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// pruneEvery is how many sweeps pass between two runs of retention, pruneBatch
// how many tasks one run removes.
const (
	pruneEvery = 60
	pruneBatch = 2000
)

// Run enforces the bounds that every state has (semantics 8) and retention, until
// ctx ends.
func (r *Relay) Run(ctx context.Context) {
	t := time.NewTicker(r.cfg.SweepEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		r.Sweep(ctx)
		if n%pruneEvery == 0 {
			if err := r.Prune(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("retention failed, trying again later", "err", err)
			}
		}
	}
}

// Sweep looks at every open task once.
func (r *Relay) Sweep(ctx context.Context) {
	now, may := r.clock.Now(), r.clock.MayExpire()
	var due []store.Task
	r.mu.Lock()
	for _, e := range r.tasks {
		if r.due(e.task, now, may) {
			due = append(due, e.task)
		}
	}
	r.mu.Unlock()
	for _, t := range due {
		if _, err := r.change(ctx, t.ID, func(t store.Task) (store.Task, []store.Part, error) { return r.overdue(t, now, may) }); err != nil {
			if ctx.Err() == nil {
				r.log.Warn("a bound could not be enforced, trying again", "task", t.ID, "err", err)
			}
			return
		}
	}
}

// due reports whether some bound of the task has been reached. Called with mu
// held.
func (r *Relay) due(t store.Task, now time.Time, may bool) bool {
	switch t.State {
	case api.StateQueued, api.StateOffered, api.StateAccepted:
		if may && t.Turn == 1 && t.StartedAt.IsZero() && t.ExpireAt.IsZero() && t.CancelAt.IsZero() && now.After(t.ExpiresAt) {
			return true
		}
		return t.State == api.StateAccepted && r.lost(t, now)
	case api.StateRunning:
		return r.lost(t, now)
	case api.StateQuestion:
		return may && t.CancelAt.IsZero() && now.After(*t.Question.ExpiresAt)
	case api.StateUnknown:
		return may && now.Sub(t.Since) > api.UnknownLimit
	}
	return false
}

// lost reports whether the task's node is away for too long to say what it does.
// Called with mu held.
func (r *Relay) lost(t store.Task, now time.Time) bool {
	q := r.queues[t.Target.ID]
	return q == nil || q.conn == nil && now.Sub(q.awaySince) > r.cfg.UnknownAfter
}

// overdue does what the bound that was reached demands.
func (r *Relay) overdue(t store.Task, now time.Time, may bool) (store.Task, []store.Part, error) {
	r.mu.Lock()
	due, lost := r.due(t, now, may), r.lost(t, now)
	r.mu.Unlock()
	switch {
	case !due:
		return t, nil, errNoChange
	case t.State == api.StateUnknown:
		return settle(t, failed(api.TaskNodeLost, "the node did not return", api.FlagMayHaveRun), now), nil, nil
	case t.State == api.StateQuestion:
		next, part := nextTurn(t, api.TurnAssume, assumption, now)
		return next, []store.Part{part}, nil
	case lost && (t.State == api.StateRunning || t.State == api.StateAccepted):
		return become(t, api.StateUnknown, now), nil, nil
	case t.Journal == "":
		return settle(t, api.Outcome{State: api.StateExpired}, now), nil, nil
	}
	t.ExpireAt = now
	return t, nil, nil
}

// Prune removes settled tasks beyond the limits; their tombstones stay for the
// nodes' window plus the largest TTL (semantics 6).
func (r *Relay) Prune(ctx context.Context) error {
	now := r.clock.Now()
	for {
		n, err := r.st.Prune(ctx, store.Retention{
			Now: now, Before: now.Add(-r.cfg.KeepSettled), Keep: r.cfg.KeepCount,
			TombstonesUntil: now.Add(api.JournalWindow + api.MaxTTL),
		}, pruneBatch)
		if err != nil || n < pruneBatch {
			return err
		}
	}
}
