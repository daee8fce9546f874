package relay

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// What somebody who left the mesh leaves open is settled at once; what cannot be,
// because the disk is full or the hub dies in that moment, is found again by the
// sweep, which knows who is gone.

// RevokeTarget settles what is open for a node that is revoked or replaced
// (semantics 9, 15); code is api.TaskTargetRevoked or api.TaskTargetReplaced.
func (r *Relay) RevokeTarget(ctx context.Context, identity, code string) error {
	var ids []string
	r.mu.Lock()
	r.gone[identity] = code
	if q := r.queues[identity]; q != nil {
		for id := range q.tasks {
			ids = append(ids, id)
		}
	}
	r.mu.Unlock()
	return r.enforce(ctx, ids)
}

// RevokeController cancels the open tasks of a controller and those dispatched
// from inside them (semantics 15).
func (r *Relay) RevokeController(ctx context.Context, identity string) error {
	r.mu.Lock()
	if r.gone[identity] == "" {
		r.gone[identity] = api.TaskTargetRevoked
	}
	r.mu.Unlock()
	err := r.doom(ctx)
	var ids []string
	r.mu.Lock()
	for id, e := range r.tasks {
		if e.doomed || e.task.Controller.ID == identity {
			ids = append(ids, id)
		}
	}
	r.mu.Unlock()
	return errors.Join(err, r.enforce(ctx, ids))
}

// enforce makes the bounds of some tasks good, now.
func (r *Relay) enforce(ctx context.Context, ids []string) error {
	_, err := each(ids, func(id string) error { return r.overdue(ctx, id, r.clock.Now(), r.clock.MayExpire()) })
	return err
}

// loadGone finds out who of the parties of open tasks left before this start.
func (r *Relay) loadGone(ctx context.Context) error {
	parties := map[string]bool{}
	for _, e := range r.tasks {
		parties[e.task.Controller.ID], parties[e.task.Target.ID] = true, true
	}
	for id := range parties {
		who, err := r.st.Identity(ctx, id)
		switch {
		case errors.Is(err, store.ErrNotFound): // of a life before a restore
		case err != nil:
			return err
		case who.ReplacedBy != "":
			r.gone[id] = api.TaskTargetReplaced
		case !who.Live():
			r.gone[id] = api.TaskTargetRevoked
		}
	}
	return r.doom(ctx)
}

// doom marks the tasks that were dispatched from inside those of somebody who is
// gone.
func (r *Relay) doom(ctx context.Context) error {
	var children []store.Task
	r.mu.Lock()
	if len(r.gone) > 0 {
		for _, e := range r.tasks {
			if e.task.Parent != "" && !e.doomed {
				children = append(children, e.task)
			}
		}
	}
	r.mu.Unlock()
	_, err := each(children, func(t store.Task) error {
		above, err := r.ancestors(ctx, t)
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, controller := range above {
			if e := r.tasks[t.ID]; e != nil && r.gone[controller] != "" {
				e.doomed = true
			}
		}
		return err
	})
	return err
}

// ancestors are the controllers of the tasks above one, settled ones included.
func (r *Relay) ancestors(ctx context.Context, t store.Task) (controllers []string, _ error) {
	for parent := t.Parent; parent != "" && len(controllers) <= api.MaxHops; {
		p, err := r.current(ctx, parent)
		switch {
		case errors.Is(err, store.ErrForgotten):
			tomb, err := r.st.Tombstone(ctx, parent)
			if err == nil {
				controllers = append(controllers, tomb.Controller)
			}
			return controllers, nil // and what was above it is forgotten too
		case errors.Is(err, store.ErrNotFound):
			return controllers, nil
		case err != nil:
			return controllers, err
		}
		controllers = append(controllers, p.Controller.ID)
		parent = p.Parent
	}
	return controllers, nil
}

// left is what becomes of a task of somebody who is gone.
func left(t store.Task, b bound, code string, now time.Time) (store.Task, []store.Part, error) {
	if b == boundController {
		return ending(t, api.WithdrawRevoke, canceled(api.TaskControllerGone, "the controller has left the mesh"), now)
	}
	const why = "the target has left the mesh"
	if t.Journal == "" {
		return settle(t, canceled(code, why), now), nil, nil
	}
	return settle(t, failed(code, why, api.FlagMayHaveRun), now), nil, nil
}
