package relay

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// Author is who dispatches.
type Author struct {
	Identity store.Identity
	// Token is the lineage token of the task that the dispatch comes from, "" for
	// none (semantics 20).
	Token string
}

// Submit creates the tasks of a dispatch, all or none, and returns them in the
// order of the targets once they are on disk. A repeat with the same ids and the
// same content returns the tasks as they are now; with other content it is
// CodeTaskConflict (semantics 4).
func (r *Relay) Submit(ctx context.Context, by Author, d api.Dispatch) ([]store.Task, error) {
	if err := checkDispatch(&d); err != nil {
		return nil, err
	}
	targets, err := r.targets(ctx, d)
	if err != nil {
		return nil, err
	}
	via, parent, err := r.lineage(by)
	if err != nil {
		return nil, err
	}
	news := drafts(by.Identity, targets, d, r.clock.Now())
	parties := make([]api.Party, len(news))
	for i := range news {
		t := &news[i].Task
		t.Via, t.Parent, parties[i] = via, parent, t.Target
	}
	if d.New { // a repeat, or what is refused, must not rebind
		if known, err := r.anyKnown(ctx, news); known || err != nil {
			return r.repeated(ctx, by, news, err)
		}
	}
	release, err := r.reserve(api.Party{ID: by.Identity.ID, Name: by.Identity.Name}, parties...)
	if err != nil {
		return nil, err
	}
	defer release()
	for i, tg := range targets {
		if news[i].Task.Generation, err = r.generation(ctx, by.Identity, tg, d); err != nil {
			return nil, err
		}
	}
	made, err := r.create(ctx, news)
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrForgotten) {
		return r.repeated(ctx, by, news, nil)
	}
	if err == nil && parent != "" {
		// Who is above it may have left while it was made; the sweep sees to it then.
		err = r.doom(ctx)
	}
	return made, err
}

// drafts makes the records of a dispatch as far as it says.
func drafts(by store.Identity, targets []target, d api.Dispatch, now time.Time) []store.NewTask {
	news := make([]store.NewTask, len(targets))
	text := []byte(d.Text)
	for i, tg := range targets {
		t := store.Task{
			ID: d.Targets[i].ID, Controller: api.Party{ID: by.ID, Name: by.Name}, Platform: by.Platform,
			Target: api.Party{ID: tg.id.ID, Name: tg.id.Name}, Workspace: d.Workspace, Mode: d.Mode, New: d.New,
			State: api.StateQueued, Since: now, CreatedAt: now, ExpiresAt: now.Add(ms(d.TTLMS, api.DefaultTTL)),
			Deadline: ms(d.DeadlineMS, 0), QuestionTimeout: ms(d.QuestionTimeoutMS, 0),
			AutoAnswer: d.AutoAnswer, Attempt: 1, Turn: 1, Kind: api.TurnTask,
		}
		t.Hash = bodyHash(t, d.Text)
		t.TurnHash = t.Hash
		news[i] = store.NewTask{Task: t, Text: text}
	}
	return news
}

// reserve takes places for tasks under way to their commit, so that limits hold
// whatever comes in at once; release gives them back when the tasks are entered, or
// are not to be.
func (r *Relay) reserve(author api.Party, targets ...api.Party) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(targets)
	if wait := r.pace(author.ID, n); wait > 0 {
		return nil, tooFast(author.Name, wait)
	}
	if has := r.byAuthor[author.ID]; has+n > api.MaxOpenPerController {
		return nil, api.Errorf(api.CodeQueueFull, "%s has %d unsettled tasks; wait for some of them or cancel them", author.Name, has)
	}
	for _, t := range targets {
		if q := r.queues[t.ID]; q != nil && len(q.tasks)+q.coming >= api.MaxOpenPerTarget {
			return nil, api.Errorf(api.CodeQueueFull, "%d tasks wait for %s already; wait for some of them or cancel them", len(q.tasks)+q.coming, t.Name)
		}
	}
	r.author(author.ID, n)
	for _, t := range targets {
		r.queue(t.ID).coming++
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.author(author.ID, -n)
		for _, t := range targets {
			q := r.queue(t.ID)
			q.coming--
			r.forgetQueue(q)
		}
	}, nil
}

// create commits new tasks and enters them into their lanes. When the target is
// attached, the offer to its journal is part of the same commit, which spares the
// one that otherwise precedes the offer (semantics 5).
func (r *Relay) create(ctx context.Context, news []store.NewTask) (made []store.Task, err error) {
	ids := make([]string, len(news))
	for i := range news {
		ids[i] = news[i].Task.ID
	}
	release, err := r.lock(ctx, ids...)
	if err != nil {
		return nil, err
	}
	defer release()
	ends := r.announce(news)
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i, t := range made {
			e := r.add(t)
			if t.State == api.StateOffered { // its offer is imminent
				r.keepText(e, news[i].Text)
			}
			r.publish(t)
		}
		for _, end := range ends {
			end()
		}
	}()
	return r.st.CreateTasks(ctx, news)
}

// announce tells the lanes what is coming and gives new tasks their first state.
func (r *Relay) announce(news []store.NewTask) (ends []func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for i := range news {
		t := &news[i].Task
		q := r.queue(t.Target.ID)
		if c := q.conn; c != nil && !c.closed && !c.paused {
			t.Journal, t.State = c.Hello.JournalID, api.StateOffered
		}
		t.Life = []api.Step{{At: now, State: t.State, Attempt: 1, Turn: 1}}
		ends = append(ends, r.begin(q, laneKey(t.Controller.ID, t.Workspace, t.Generation)))
	}
	return ends
}

// anyKnown reports whether one of the ids was used before.
func (r *Relay) anyKnown(ctx context.Context, news []store.NewTask) (bool, error) {
	for i := range news {
		switch _, err := r.current(ctx, news[i].Task.ID); {
		case err == nil, errors.Is(err, store.ErrForgotten):
			return true, nil
		case !errors.Is(err, store.ErrNotFound):
			return false, err
		}
	}
	return false, nil
}

// repeated answers a dispatch whose ids exist. Whose they are is not told.
func (r *Relay) repeated(ctx context.Context, by Author, news []store.NewTask, err error) ([]store.Task, error) {
	if err != nil {
		return nil, err
	}
	taken := func(id string) error {
		return api.Errorf(api.CodeTaskConflict, "task id %s is taken; use a new id", id)
	}
	out := make([]store.Task, 0, len(news))
	for _, n := range news {
		t, err := r.current(ctx, n.Task.ID)
		switch {
		case errors.Is(err, store.ErrForgotten):
			if tomb, err := r.st.Tombstone(ctx, n.Task.ID); err != nil || tomb.Controller != by.Identity.ID {
				return nil, taken(n.Task.ID)
			}
			return nil, api.Errorf(api.CodeTaskForgotten, "task id %s was used and its task has been forgotten; use a new id", n.Task.ID)
		case errors.Is(err, store.ErrNotFound):
			return nil, api.Errorf(api.CodeTaskConflict, "some of the task ids exist already and others do not; use new ids")
		case err != nil:
			return nil, err
		case t.Controller.ID != by.Identity.ID:
			return nil, taken(n.Task.ID)
		case t.Hash != n.Task.Hash:
			return nil, api.Errorf(api.CodeTaskConflict, "task id %s was used for another text, target or option; use a new id", n.Task.ID)
		}
		out = append(out, t)
	}
	return out, nil
}
