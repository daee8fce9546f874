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

// Run goes on with operations on sessions, and enforces the bounds that every state
// has (semantics 8) and retention, until ctx ends.
func (r *Relay) Run(ctx context.Context) {
	t := time.NewTicker(r.cfg.SweepEvery)
	defer t.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-r.due:
			r.goOn(ctx)
			continue
		case <-t.C:
		}
		r.Sweep(ctx)
		if n++; n%pruneEvery == 0 {
			if err := r.Prune(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("retention failed, trying again later", "err", err)
			}
		}
	}
}

// Sweep looks at every open task once, a queue at a time so that nobody waits long
// for it. Operations that could not go on are tried again.
func (r *Relay) Sweep(ctx context.Context) {
	if r.st.Writable() != nil {
		return // the next one finds the same
	}
	r.goOn(ctx)
	now, may := r.clock.Now(), r.clock.MayExpire()
	var queues []*queue
	r.mu.Lock()
	for _, q := range r.queues {
		queues = append(queues, q)
	}
	r.mu.Unlock()
	var due []string
	for _, q := range queues {
		r.mu.Lock()
		for id, e := range q.tasks {
			if b, _ := r.bound(e.task, now, may); b != boundNone {
				due = append(due, id)
			}
		}
		r.mu.Unlock()
	}
	failed, err := each(due, func(id string) error { return r.overdue(ctx, id, now, may) })
	if failed > 0 && ctx.Err() == nil {
		r.log.Warn("bounds could not be enforced, trying again", "tasks", failed, "err", err)
	}
}

// bound is what a task has come to.
type bound int

const (
	boundNone       bound = iota
	boundTarget           // its node has left the mesh
	boundController       // its controller has
	boundLost             // its node is away for too long to say what it does
	boundExpired          // too old to start
	boundQuestion         // nobody answered in time
	boundUnknown          // its node did not return
)

// bound finds what a task has come to. Called with mu held.
func (r *Relay) bound(t store.Task, now time.Time, may bool) (b bound, code string) {
	if t.State.Settled() {
		return boundNone, ""
	}
	if code := r.gone[t.Target.ID]; code != "" {
		return boundTarget, code
	}
	e := r.tasks[t.ID]
	if t.CancelAt.IsZero() && (r.gone[t.Controller.ID] != "" || e != nil && e.doomed) {
		return boundController, ""
	}
	if due(t) {
		return boundNone, "" // the relay goes on with it
	}
	ended := !t.CancelAt.IsZero() || !t.ExpireAt.IsZero() || sealed(t) // its node was asked already, or it is too late
	old := may && !ended && t.StartedAt.IsZero() && t.Turn == 1 && now.After(t.ExpiresAt)
	away := r.away(t.Target.ID, now)
	switch t.State {
	case api.StateOffered, api.StateAccepted, api.StateHeld, api.StateRunning:
		if away {
			return boundLost, ""
		}
	case api.StateQuestion:
		if away && (ended || t.Asking != "") { // a turn that asked and runs on
			return boundLost, ""
		}
	case api.StateUnknown:
		if may && now.Sub(t.Since) > api.UnknownLimit {
			return boundUnknown, ""
		}
	}
	if asks := t.State == api.StateQuestion || t.Asking != ""; asks && may && !ended && now.After(*t.Question.ExpiresAt) {
		return boundQuestion, ""
	}
	if old {
		return boundExpired, ""
	}
	return boundNone, ""
}

// away reports whether a node is away for too long to say what it does. Called
// with mu held.
func (r *Relay) away(target string, now time.Time) bool {
	q := r.queues[target]
	return q == nil || q.conn == nil && q.arriving == 0 && now.Sub(q.awaySince) > r.cfg.UnknownAfter
}

// overdue does what the bound that a task has reached demands.
func (r *Relay) overdue(ctx context.Context, id string, now time.Time, may bool) error {
	_, err := r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		r.mu.Lock()
		b, code := r.bound(t, now, may)
		r.mu.Unlock()
		switch b {
		case boundTarget, boundController:
			return left(t, b, code, now)
		case boundLost:
			return r.lose(t), nil, nil
		case boundUnknown:
			o := failed(api.TaskNodeLost, "the node did not return", api.FlagMayHaveRun)
			if sealed(t) {
				o = lost(t)
			}
			return settle(t, o, now), nil, nil
		case boundQuestion:
			return timedOut(t, now)
		case boundExpired:
			if t.Journal == "" {
				return settle(t, api.Outcome{State: api.StateExpired}, now), nil, nil
			}
			t.ExpireAt = now // its node decides
			return t, nil, nil
		}
		return t, nil, errNoChange
	})
	return err
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
