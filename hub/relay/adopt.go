package relay

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// adopt takes the result of a task that a restored hub does not know
// (semantics 10).
func (r *Relay) adopt(ctx context.Context, from store.Identity, res api.Result) error {
	if tomb, err := r.st.Tombstone(ctx, res.Task); err == nil {
		if tomb.Target != from.ID {
			return api.Errorf(api.CodeForbidden, "task %s is not addressed to this node", res.Task)
		}
		r.cfg.Observer.LateResult("forgotten")
		return nil // settled and forgotten here: nothing left to keep it with
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if res.Recover == nil {
		return api.Errorf(api.CodeUnknownTask, "task %s is not known here; send what is needed to adopt it", res.Task)
	}
	switch res.Recover.Kind {
	case api.TurnDigest, api.TurnResume, api.TurnDelete:
		return nil // what it was part of is not known here, and the binding stands
	}
	n, err := r.recovered(ctx, from, res)
	if err != nil {
		return err
	}
	r.mu.Lock()
	wait := r.pace(from.ID, 1)
	r.mu.Unlock()
	if wait > 0 {
		return tooFast(from.Name, wait)
	}
	t, err := r.take(ctx, n)
	if err != nil {
		return err
	}
	return r.apply(ctx, t, res)
}

// take creates an adopted task, unless somebody else just did.
func (r *Relay) take(ctx context.Context, n store.NewTask) (store.Task, error) {
	release, err := r.lock(ctx, n.Task.ID)
	if err != nil {
		return n.Task, err
	}
	defer release()
	made, err := r.st.CreateTasks(ctx, []store.NewTask{n})
	if errors.Is(err, store.ErrExists) {
		return r.current(ctx, n.Task.ID)
	}
	if err != nil {
		return n.Task, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(made[0])
	r.log.Info("adopted a task that this hub did not know", "task", n.Task.ID, "node", n.Task.Target.Name)
	return made[0], nil
}

// recovered checks what a node says of a task and makes the record of it.
func (r *Relay) recovered(ctx context.Context, from store.Identity, res api.Result) (store.NewTask, error) {
	rec := res.Recover
	now := r.clock.Now()
	created := time.UnixMilli(rec.CreatedMS).UTC()
	if created.After(now) || now.Sub(created) > maxClaim {
		created = now
	}
	switch {
	case len(rec.Text) > mesh.MaxTextBytes:
		return store.NewTask{}, api.Errorf(api.CodeTooLarge, "the text is larger than %d bytes", mesh.MaxTextBytes)
	case !mesh.Mode(rec.Mode).Valid() || !ValidWorkspace(rec.Workspace) || !shown.IsLine(rec.Hash, maxWord):
		return store.NewTask{}, api.Errorf(api.CodeBadRequest, "mode, workspace or hash of task %s is none", res.Task)
	}
	controller, err := r.controllerOf(ctx, rec.Controller)
	if err != nil {
		return store.NewTask{}, err
	}
	text := rec.Text // an envelope, if the node is one of ours
	if env, err := mesh.ParseEnvelope(text); err == nil {
		text = env.Body
	}
	t := store.Task{
		ID: res.Task, Hash: rec.Hash, Controller: controller, Target: api.Party{ID: from.ID, Name: from.Name},
		Mode: rec.Mode, Workspace: rec.Workspace, Attempt: 1, Turn: 1, Kind: api.TurnTask, TurnHash: rec.Hash,
		State: api.StateAccepted, Since: now, CreatedAt: created, ExpiresAt: now.Add(api.DefaultTTL),
		Journal: res.JournalID, Received: true, Flags: []api.Flag{api.FlagRecovered},
		Life: []api.Step{{At: now, State: api.StateAccepted, Attempt: 1, Turn: 1}},
	}
	return store.NewTask{Task: t, Text: []byte(text)}, nil
}

// controllerOf is the controller of an adopted task: its own name if it is known
// here, else what the node says.
func (r *Relay) controllerOf(ctx context.Context, p api.Party) (api.Party, error) {
	bad := api.Errorf(api.CodeBadRequest, "the task's controller is none")
	if !shown.IsLine(p.ID, maxWord) {
		return p, bad
	}
	who, err := r.st.Identity(ctx, p.ID)
	switch {
	case err == nil:
		return api.Party{ID: who.ID, Name: who.Name}, nil
	case !errors.Is(err, store.ErrNotFound):
		return p, err
	case !api.ValidName(p.Name):
		return p, bad
	}
	return p, nil
}
