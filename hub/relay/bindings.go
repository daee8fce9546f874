package relay

import (
	"cmp"
	"context"
	"errors"
	"slices"
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

// generationOf, laneOf and contextOf are those of a binding, also of one that does
// not exist yet: everything starts with 1.
func generationOf(b store.Binding) uint64 { return max(b.Generation, 1) }
func laneOf(b store.Binding) uint64       { return cmp.Or(b.Lane, generationOf(b)) }
func contextOf(b store.Binding) uint64    { return cmp.Or(b.Context, laneOf(b)) }

// taskLane is the lane in which a task waits; 0 for an agent without sessions.
func taskLane(t store.Task) uint64 { return cmp.Or(t.Lane, t.Generation) }

// generationIn is the generation that a lane of the binding is at: the bound one, or
// the last of a lane that --new left behind.
func generationIn(b store.Binding, lane uint64) uint64 {
	if lane == laneOf(b) {
		return generationOf(b)
	}
	for _, f := range slices.Backward(b.Former) {
		if f.Lane == lane {
			return f.Generation
		}
	}
	return lane
}

// sessionIn is the session of a generation, "" when none is known.
func sessionIn(b store.Binding, generation uint64) string {
	if b.Generation == generation {
		return b.Session
	}
	if i := formerAt(b.Former, generation); i >= 0 {
		return b.Former[i].Session
	}
	return ""
}

// formerAt finds the newest session of a generation that was bound before; -1 when
// there is none.
func formerAt(list []store.FormerSession, generation uint64) int {
	for i := range slices.Backward(list) {
		if list[i].Generation == generation {
			return i
		}
	}
	return -1
}

// archive keeps what is bound among the former sessions.
func archive(b *store.Binding, why string, now time.Time) {
	made := b.BoundAt
	if made.IsZero() {
		made = b.CreatedAt
	}
	list := append(slices.Clone(b.Former), store.FormerSession{
		FormerSession: api.FormerSession{
			Generation: generationOf(*b), Session: b.Session, CreatedAt: made, LastUsed: b.LastUsed, EndedAt: now, Tokens: b.Tokens, Why: why,
		},
		Lane: laneOf(*b),
	})
	b.Former = list[max(0, len(list)-store.MaxFormerSessions):]
}

// moveOn ends the bound generation and begins the next one, without a session. Only
// --new opens a lane: what else moves the binding on is an entry of the lane's queue,
// and what waits behind it follows. Only a compaction hands the context on.
func moveOn(b *store.Binding, why string, now time.Time) {
	lane, context := laneOf(*b), contextOf(*b)
	archive(b, why, now)
	// Generation 1 may have a lane already whose first result is not in.
	b.Generation = generationOf(*b) + 1
	b.Lane, b.Context = lane, context
	if why == api.EndedNew {
		b.Lane = b.Generation
	}
	if why != api.EndedCompact {
		b.Context = b.Generation
	}
	b.Session, b.Tokens, b.BoundAt, b.LastUsed = "", nil, time.Time{}, now
}

// binding reads a binding; one that does not exist yet has no generation.
func (r *Relay) binding(ctx context.Context, key store.BindingKey) (store.Binding, error) {
	b, err := r.st.Binding(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return store.Binding{BindingKey: key}, nil
	}
	return b, err
}

// rewrite is one compare-and-set on a binding: fn gets the newest record, or a fresh
// one, and says whether what it made of it is to be stored, perhaps with fills for
// its series. fn may run several times and must only compute.
func (r *Relay) rewrite(ctx context.Context, key store.BindingKey, fn func(b *store.Binding, exists bool) (changed bool, fills []api.Fill)) (store.Binding, error) {
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
		changed, fills := fn(&b, !missing)
		if !changed {
			return b, nil
		}
		got, err := r.st.PutBinding(ctx, b, fills...)
		if !errors.Is(err, store.ErrConflict) {
			return got, err
		}
	}
	return store.Binding{}, store.ErrConflict
}

// entrance finds the binding through which a dispatch goes; New moves it on, which
// opens a lane at once (semantics 12, 13).
func (r *Relay) entrance(ctx context.Context, by store.Identity, target string, workspace string, fresh bool) (store.Binding, error) {
	key := store.BindingKey{Controller: by.ID, Target: target, Workspace: workspace}
	if !fresh {
		return r.bindingNow(ctx, key)
	}
	return r.rewrite(ctx, key, func(b *store.Binding, _ bool) (bool, []api.Fill) {
		moveOn(b, api.EndedNew, r.clock.Now())
		b.Title = sessionTitle(by.Name)
		return true, nil
	})
}

// sameMoment is how far the times of two results may be off because of the way that
// they took.
const sameMoment = 100 * time.Millisecond

// bind notes the session that a turn ran in and that ended at the given time. A
// higher generation stands, and so does what a later turn said: a result that comes
// late, or again (first is false), must not turn the binding back.
func (r *Relay) bind(ctx context.Context, t store.Task, session string, tokens *api.Tokens, at time.Time, first bool) error {
	if t.Generation == 0 { // adopted: whose session that is, its node's hello says
		return nil
	}
	_, err := r.rewrite(ctx, bindingKey(t), func(b *store.Binding, exists bool) (bool, []api.Fill) {
		switch {
		case b.Generation > t.Generation:
			return noteFormer(b, t.Generation, session, tokens, at), nil
		case !exists, b.Generation < t.Generation, b.Session == "":
		case !first && !at.After(b.LastUsed), at.Add(sameMoment).Before(b.LastUsed):
			return false, nil
		}
		again := b.Session == session && at.Sub(b.LastUsed) <= sameMoment && same(tokens, b.Tokens)
		now := r.clock.Now()
		switch {
		case exists && b.Generation < t.Generation: // a hub that was restored to a time before it
			archive(b, api.EndedReplaced, now)
			b.Lane, b.Context = t.Generation, t.Generation
			b.Tokens = nil
		case b.Session != "" && b.Session != session:
			archive(b, api.EndedReplaced, now)
			b.Tokens = nil
		}
		if b.Session != session {
			b.BoundAt = now
		}
		b.Generation, b.Session, b.Title = t.Generation, session, sessionTitle(t.Controller.Name)
		if at.After(b.LastUsed) {
			b.LastUsed = at
		}
		if tokens == nil {
			return true, nil
		}
		b.Tokens = tokens
		if !first || again {
			return true, nil
		}
		return true, []api.Fill{{At: b.LastUsed, Generation: b.Generation, Tokens: *tokens}}
	})
	return err
}

func same(a, b *api.Tokens) bool { return a == b || a != nil && b != nil && *a == *b }

// noteFormer notes what a turn said of a session that is not bound any more: tasks of
// a lane that --new has left, and answers, still run. A generation that was left before
// its first result has its session only now, and one may be replaced as the bound one.
func noteFormer(b *store.Binding, generation uint64, session string, tokens *api.Tokens, at time.Time) (changed bool) {
	list := slices.Clone(b.Former)
	i := slices.IndexFunc(list, func(f store.FormerSession) bool { return f.Generation == generation && f.Session == session })
	switch newest := formerAt(list, generation); {
	case newest < 0, i >= 0 && !at.After(list[i].LastUsed):
		return false
	case i >= 0:
	case list[newest].Session == "":
		i = newest
	default:
		next := list[newest]
		if list[newest].Why != api.EndedClear {
			list[newest].Why = api.EndedReplaced
		}
		next.Why, next.Tokens, next.CreatedAt = api.EndedNew, nil, at
		i = newest + 1
		list = slices.Insert(list, i, next)
	}
	f := &list[i]
	f.Session = session
	if at.After(f.LastUsed) {
		f.LastUsed = at
	}
	if tokens != nil {
		f.Tokens = tokens
	}
	b.Former = list[max(0, len(list)-store.MaxFormerSessions):]
	return true
}

// maxGeneration is the highest generation that a node is believed: nobody rebinds
// so often.
const maxGeneration = 1 << 32

// rebind takes over what a node says of the sessions that it made, for a hub that
// was restored to a time before them. A higher generation wins (semantics 13).
func (r *Relay) rebind(ctx context.Context, l Link) error {
	_, err := each(l.Hello.Bound[:min(len(l.Hello.Bound), api.MaxSessionsInHello)], func(s api.BoundSession) error {
		if s.Controller == "" || !ValidWorkspace(s.Workspace) || s.Generation == 0 || s.Generation > maxGeneration ||
			!shown.IsLine(s.Session, maxSessionID) {
			return nil
		}
		b, err := r.binding(ctx, store.BindingKey{Controller: s.Controller, Target: l.Identity.ID, Workspace: s.Workspace})
		if err != nil {
			return err
		}
		known := b.Session != ""
		if b.Generation > s.Generation { // left, perhaps before its first result came in
			i := formerAt(b.Former, s.Generation)
			known = i < 0 || b.Former[i].Session != ""
		}
		if known && b.Generation >= s.Generation {
			return nil
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
