package relay

import (
	"context"
	"errors"
	"slices"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// Sessions lists the bound sessions of a controller and a target, by identity; ""
// stands for any. Each has its newest fills, as many as are asked for.
func (r *Relay) Sessions(ctx context.Context, controller, target string, fills int) ([]api.Session, error) {
	err := r.caughtUp(ctx, func(k store.BindingKey) bool {
		return (controller == "" || k.Controller == controller) && (target == "" || k.Target == target)
	})
	if err != nil {
		return nil, err
	}
	list, err := r.st.Bindings(ctx, controller, target)
	if err != nil {
		return nil, err
	}
	ops, names := r.operations(), map[string]string{}
	out := make([]api.Session, 0, len(list))
	for _, b := range list {
		s, err := r.session(ctx, b, ops, names)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if fills < 1 {
		return out, nil
	}
	series, err := r.st.NewestFills(ctx, list, fills)
	for i, s := range series {
		out[i].Fills = s
	}
	return out, err
}

// Session is one bound session with those that were bound before and the fill of the
// context over time. store.ErrNotFound: there is none, and never was.
func (r *Relay) Session(ctx context.Context, key store.BindingKey) (api.Session, error) {
	if err := r.caughtUp(ctx, func(k store.BindingKey) bool { return k == key }); err != nil {
		return api.Session{}, err
	}
	b, err := r.st.Binding(ctx, key)
	if err != nil {
		return api.Session{}, err
	}
	s, err := r.session(ctx, b, r.operations(), map[string]string{})
	if err != nil {
		return s, err
	}
	for _, f := range slices.Backward(b.Former) {
		if f.Session != "" {
			s.Former = append(s.Former, f.FormerSession)
		}
	}
	s.Fills, err = r.st.Fills(ctx, key)
	return s, err
}

// session is a binding as controllers see it.
func (r *Relay) session(ctx context.Context, b store.Binding, ops map[store.BindingKey]store.Task, names map[string]string) (s api.Session, err error) {
	s = api.Session{
		Workspace: b.Workspace, Title: b.Title, Generation: generationOf(b), CreatedAt: b.BoundAt, LastUsed: b.LastUsed,
		Tokens: b.Tokens, CtxPercent: b.Tokens.Percent(), Digest: b.Digest,
	}
	if b.Session != "" {
		s.Session = &b.Session
	}
	if s.CreatedAt.IsZero() {
		s.CreatedAt = b.CreatedAt
	}
	if s.Controller, err = r.nameOf(ctx, b.Controller, names); err != nil {
		return s, err
	}
	if s.Target, err = r.nameOf(ctx, b.Target, names); err != nil {
		return s, err
	}
	if t, ok := ops[b.BindingKey]; ok {
		v := r.Live(t)
		s.Operation = &v
	}
	return s, nil
}

// nameOf is the name of an identity, kept in names for the next one who asks; its id
// if it is not known any more.
func (r *Relay) nameOf(ctx context.Context, id string, names map[string]string) (string, error) {
	if name, ok := names[id]; ok {
		return name, nil
	}
	who, err := r.st.Identity(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		who.Name = shown.Line(id, maxWord)
	case err != nil:
		return "", err
	}
	names[id] = who.Name
	return who.Name, nil
}

// operations are the open operations, of each binding the first.
func (r *Relay) operations() map[store.BindingKey]store.Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := map[store.BindingKey]store.Task{}
	for _, q := range r.queues {
		if q.ops == 0 {
			continue
		}
		for _, l := range q.lanes {
			for _, e := range l.ops {
				key := bindingKey(e.task)
				if t, ok := first[key]; !ok || e.task.Seq < t.Seq {
					first[key] = e.task
				}
			}
		}
	}
	return first
}

// Digests are all generations of a binding's digest, oldest first, as they may be
// shown.
func (r *Relay) Digests(ctx context.Context, key store.BindingKey) ([]api.Digest, error) {
	all, err := r.st.Digests(ctx, key)
	if err != nil {
		return nil, err
	}
	out := make([]api.Digest, 0, len(all))
	for _, d := range all {
		v := d.Digest
		v.Facts = make([]string, 0, len(d.Facts))
		for _, fact := range d.Facts {
			v.Facts = append(v.Facts, shown.Line(fact, api.MaxDigest))
		}
		v.Pending, v.Refs = shown.Text(v.Pending, api.MaxDigest), shown.Text(v.Refs, api.MaxDigest)
		out = append(out, v)
	}
	return out, nil
}
