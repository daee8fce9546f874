package relay

import (
	"context"
	"errors"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// sessionTitle is the title of bound sessions (mesh-protocol.md §9).
func sessionTitle(controller string) string { return "opencode-mesh " + controller }

func bindingKey(t store.Task) store.BindingKey {
	return store.BindingKey{Controller: t.Controller.ID, Target: t.Target.ID, Workspace: t.Workspace}
}

// generation finds the binding's generation for a dispatch; New moves it on by
// compare-and-set, which opens a new lane at once (semantics 12, 13). Agents
// without sessions have none.
func (r *Relay) generation(ctx context.Context, controller string, tg target, d api.Dispatch) (uint64, error) {
	if tg.rec.Hello.JournalID != "" && !tg.rec.Hello.Sessions {
		return 0, nil
	}
	key := store.BindingKey{Controller: controller, Target: tg.id.ID, Workspace: d.Workspace}
	for range casTries {
		b, err := r.st.Binding(ctx, key)
		missing := errors.Is(err, store.ErrNotFound)
		if err != nil && !missing {
			return 0, err
		}
		if !d.New {
			return max(b.Generation, 1), nil
		}
		if t, _, err := r.current(ctx, taskID(d, tg)); err == nil && t.Controller.ID == controller {
			return t.Generation, nil // a repeat must not rebind
		}
		now := r.clock.Now()
		if missing {
			// Generation 1 may have a lane already whose first result is not in.
			b = store.Binding{BindingKey: key, Generation: 1, CreatedAt: now}
		}
		b.Generation, b.Session, b.Tokens, b.LastUsed = b.Generation+1, "", nil, now
		if b, err = r.st.PutBinding(ctx, b); err == nil {
			return b.Generation, nil
		} else if !errors.Is(err, store.ErrConflict) {
			return 0, err
		}
	}
	return 0, store.ErrConflict
}

func taskID(d api.Dispatch, tg target) string {
	for _, dt := range d.Targets {
		if dt.Name == tg.id.Name {
			return dt.ID
		}
	}
	return ""
}

// bind notes the session that a turn ran in. A higher generation stands.
func (r *Relay) bind(ctx context.Context, t store.Task, session string, tokens *api.Tokens) error {
	now := r.clock.Now()
	for range casTries {
		b, err := r.st.Binding(ctx, bindingKey(t))
		switch {
		case errors.Is(err, store.ErrNotFound):
			b = store.Binding{BindingKey: bindingKey(t), Generation: t.Generation, Title: sessionTitle(t.Controller.Name), CreatedAt: now}
		case err != nil:
			return err
		case b.Generation > t.Generation:
			return nil
		}
		b.Generation, b.Session, b.LastUsed = t.Generation, session, now
		if tokens != nil {
			b.Tokens = tokens
		}
		if _, err = r.st.PutBinding(ctx, b); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return store.ErrConflict
}

// rebind takes over what a node says of the sessions that it made, for a hub that
// was restored to a time before them. A higher generation wins (semantics 13).
func (r *Relay) rebind(ctx context.Context, l Link) error {
	for _, s := range l.Hello.Bound[:min(len(l.Hello.Bound), api.MaxSessionsInHello)] {
		key := store.BindingKey{Controller: s.Controller, Target: l.Identity.ID, Workspace: s.Workspace}
		b, err := r.st.Binding(ctx, key)
		missing := errors.Is(err, store.ErrNotFound)
		switch {
		case err != nil && !missing:
			return err
		case !missing && (b.Generation > s.Generation || b.Generation == s.Generation && b.Session != ""):
			continue
		}
		who, err := r.st.Identity(ctx, s.Controller)
		if errors.Is(err, store.ErrNotFound) {
			continue // of another hub's life
		}
		if err != nil {
			return err
		}
		t := store.Task{Controller: api.Party{ID: s.Controller, Name: who.Name}, Target: api.Party{ID: l.Identity.ID}, Workspace: s.Workspace, Generation: s.Generation}
		if err := r.bind(ctx, t, s.Session, nil); err != nil {
			return err
		}
	}
	return nil
}
