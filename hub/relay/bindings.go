package relay

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// sessionTitle is the title of bound sessions (mesh-protocol.md §9).
func sessionTitle(controller string) string { return "opencode-mesh " + controller }

func bindingKey(t store.Task) store.BindingKey {
	return store.BindingKey{Controller: t.Controller.ID, Target: t.Target.ID, Workspace: t.Workspace}
}

// rewrite is one compare-and-set on a binding: fn gets the newest record, or a fresh
// one, and says whether what it made of it is to be stored. fn may run several
// times and must only compute.
func (r *Relay) rewrite(ctx context.Context, key store.BindingKey, fn func(b *store.Binding, exists bool) (changed bool)) (store.Binding, error) {
	// Many changes of one binding at once are usual: a fleet of --new dispatches.
	release, err := r.lock(ctx, "binding/"+key.Controller+"/"+key.Target+"/"+key.Workspace)
	if err != nil {
		return store.Binding{}, err
	}
	defer release()
	for range casTries {
		b, err := r.st.Binding(ctx, key)
		missing := errors.Is(err, store.ErrNotFound)
		if err != nil && !missing {
			return b, err
		}
		if missing {
			b = store.Binding{BindingKey: key, CreatedAt: r.clock.Now()}
		}
		if !fn(&b, !missing) {
			return b, nil
		}
		got, err := r.st.PutBinding(ctx, b)
		if !errors.Is(err, store.ErrConflict) {
			return got, err
		}
	}
	return store.Binding{}, store.ErrConflict
}

// generation finds the binding's generation for a dispatch; New moves it on, which
// opens a new lane at once (semantics 12, 13). Agents without sessions have none.
func (r *Relay) generation(ctx context.Context, by store.Identity, tg target, d api.Dispatch) (uint64, error) {
	if tg.rec.Hello.JournalID != "" && !tg.rec.Hello.Sessions {
		return 0, nil
	}
	key := store.BindingKey{Controller: by.ID, Target: tg.id.ID, Workspace: d.Workspace}
	if !d.New {
		b, err := r.st.Binding(ctx, key)
		if errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		return max(b.Generation, 1), err
	}
	b, err := r.rewrite(ctx, key, func(b *store.Binding, _ bool) bool {
		// Generation 1 may have a lane already whose first result is not in.
		b.Generation = max(b.Generation, 1) + 1
		b.Session, b.Title, b.Tokens, b.LastUsed = "", sessionTitle(by.Name), nil, r.clock.Now()
		return true
	})
	return b.Generation, err
}

// sameMoment is how far the times of two results may be off because of the way that
// they took.
const sameMoment = 100 * time.Millisecond

// bind notes the session that a turn ran in and that ended at the given time. A
// higher generation stands, and so does what a later turn said: a result that comes
// late, or again (first is false), must not turn the binding back.
func (r *Relay) bind(ctx context.Context, t store.Task, session string, tokens *api.Tokens, at time.Time, first bool) error {
	_, err := r.rewrite(ctx, bindingKey(t), func(b *store.Binding, exists bool) bool {
		switch {
		case b.Generation > t.Generation:
			return false
		case !exists, b.Generation < t.Generation, b.Session == "":
		case !first && !at.After(b.LastUsed), at.Add(sameMoment).Before(b.LastUsed):
			return false
		}
		b.Generation, b.Session, b.Title = t.Generation, session, sessionTitle(t.Controller.Name)
		if at.After(b.LastUsed) {
			b.LastUsed = at
		}
		if tokens != nil {
			b.Tokens = tokens
		}
		return true
	})
	return err
}

// maxGeneration is the highest generation that a node is believed: nobody rebinds
// so often.
const maxGeneration = 1 << 32

// rebind takes over what a node says of the sessions that it made, for a hub that
// was restored to a time before them. A higher generation wins (semantics 13).
func (r *Relay) rebind(ctx context.Context, l Link) error {
	_, err := each(l.Hello.Bound[:min(len(l.Hello.Bound), api.MaxSessionsInHello)], func(s api.BoundSession) error {
		if s.Controller == "" || !validWorkspace(s.Workspace) || s.Generation == 0 || s.Generation > maxGeneration ||
			!shown.IsLine(s.Session, maxSessionID) {
			return nil
		}
		b, err := r.st.Binding(ctx, store.BindingKey{Controller: s.Controller, Target: l.Identity.ID, Workspace: s.Workspace})
		if err == nil && (b.Generation > s.Generation || b.Generation == s.Generation && b.Session != "") {
			return nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		who, err := r.st.Identity(ctx, s.Controller)
		if errors.Is(err, store.ErrNotFound) || err == nil && !who.Live() {
			return nil // of another hub's life, or gone
		}
		if err != nil {
			return err
		}
		t := store.Task{Controller: api.Party{ID: s.Controller, Name: who.Name}, Target: api.Party{ID: l.Identity.ID}, Workspace: s.Workspace, Generation: s.Generation}
		return r.bind(ctx, t, s.Session, nil, time.Time{}, true)
	})
	return err
}
