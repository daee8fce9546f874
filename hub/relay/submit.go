package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// Author is who dispatches.
type Author struct {
	Identity store.Identity
	// Token is the lineage token of the task that the dispatch comes from, "" for
	// none (semantics 20).
	Token string
	// Entry joins the audit log in the commit that makes the tasks; nil: none does.
	Entry *api.AuditEntry
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
	all := make([]draft, 0, len(news))
	var first []api.Party // targets whose session is compacted first
	for i, tg := range targets {
		b, err := r.enter(ctx, by.Identity, tg, d, &news[i])
		if err != nil {
			return nil, err
		}
		if tg.sessions() && !d.New && full(b, d.AutoCompact) {
			first = append(first, news[i].Task.Target)
			all = append(all, compactFirst(by.Identity, tg, news[i].Task, d))
		}
		all = append(all, news[i])
	}
	if len(first) > 0 {
		release, err := r.reserve(api.Party{ID: by.Identity.ID, Name: by.Identity.Name}, first...)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	made, err := r.create(ctx, all, by.Entry)
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrForgotten) {
		return r.repeated(ctx, by, news, nil)
	}
	if err == nil && parent != "" {
		// Who is above it may have left while it was made; the sweep sees to it then.
		err = r.doom(ctx)
	}
	return slices.DeleteFunc(made, func(t store.Task) bool { return t.Op != "" }), err
}

// draft is a task to create.
type draft struct {
	store.NewTask
	// ended is how many operations had ended when the binding was read that the task
	// enters.
	ended uint64
	// auto marks a compaction that the dispatch of a task asks for: one is enough.
	auto bool
}

// drafts makes the records of a dispatch as far as it says.
func drafts(by store.Identity, targets []target, d api.Dispatch, now time.Time) []draft {
	news := make([]draft, len(targets))
	text := []byte(d.Text)
	for i, tg := range targets {
		t := store.Task{
			ID: d.Targets[i].ID, Controller: api.Party{ID: by.ID, Name: by.Name}, Platform: by.Platform,
			Target: api.Party{ID: tg.id.ID, Name: tg.id.Name}, Workspace: tg.workspace(d.Workspace), Mode: d.Mode, New: d.New,
			State: api.StateQueued, Since: now, CreatedAt: now, ExpiresAt: now.Add(ms(d.TTLMS, api.DefaultTTL)),
			Deadline: ms(d.DeadlineMS, 0), QuestionTimeout: ms(d.QuestionTimeoutMS, 0),
			AutoAnswer: d.AutoAnswer, Attempt: 1, Turn: 1, Kind: api.TurnTask,
		}
		t.Hash = bodyHash(t, d.Workspace, d.Text)
		t.TurnHash = t.Hash
		news[i] = draft{NewTask: store.NewTask{Task: t, Text: text}}
	}
	return news
}

// enter finds the lane of a new task, and the generation that it is at now. Agents
// without sessions have neither.
func (r *Relay) enter(ctx context.Context, by store.Identity, tg target, d api.Dispatch, n *draft) (store.Binding, error) {
	if !tg.sessions() {
		return store.Binding{}, nil
	}
	r.mu.Lock()
	n.ended = r.ended
	r.mu.Unlock()
	b, err := r.entrance(ctx, by, tg.id.ID, n.Task.Workspace, d.New)
	n.Task.Lane, n.Task.Generation = laneOf(b), generationOf(b)
	return b, err
}

// full reports whether a bound session is filled to a percentage or more.
func full(b store.Binding, percent int) bool {
	p := b.Tokens.Percent()
	return percent > 0 && b.Session != "" && p != nil && *p >= percent
}

// compactFirst makes the compaction that precedes a task.
func compactFirst(by store.Identity, tg target, before store.Task, d api.Dispatch) draft {
	n := operation(by, tg, api.OpCompact, api.Operate{ID: mesh.NewID(by.Name), Workspace: d.Workspace}, before.CreatedAt)
	n.Task.Lane, n.auto = before.Lane, true
	return n
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
// one that otherwise precedes the offer (semantics 5); not if an operation of the
// lane may come before it, which decides in which session it is offered. A
// compaction that is not needed is left out. entry, if any, joins the audit log.
func (r *Relay) create(ctx context.Context, news []draft, entry *api.AuditEntry) (made []store.Task, err error) {
	ids := make([]string, len(news))
	for i := range news {
		ids[i] = news[i].Task.ID
	}
	release, err := r.lock(ctx, ids...)
	if err != nil {
		return nil, err
	}
	defer release()
	news, tickets, ends := r.announce(news)
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
	records := make([]store.NewTask, len(news))
	for i, n := range news {
		records[i] = n.NewTask
		if n.Task.Op == "" {
			continue
		}
		if err := r.precede(ctx, n.Task, tickets[i]); err != nil {
			return nil, err
		}
	}
	if entry == nil {
		return r.st.CreateTasks(ctx, records)
	}
	return r.st.CreateTasks(ctx, records, *entry)
}

// announce tells the lanes what is coming and gives new tasks their first state; it
// returns those that are to be made.
func (r *Relay) announce(news []draft) (kept []draft, tickets []uint64, ends []func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for _, n := range news {
		t := &n.Task
		q := r.queue(t.Target.ID)
		l := q.lanes[laneKey(*t)]
		operated := l != nil && len(l.ops)+l.comingOp > 0
		if n.auto && operated {
			continue
		}
		switch c := q.conn; {
		case t.Op != "":
		case c == nil || c.closed || c.paused || operated || n.ended != r.ended:
			t.Generation = 0
		default:
			t.Journal, t.State = c.Hello.JournalID, api.StateOffered
		}
		t.Life = []api.Step{{At: now, State: t.State, Attempt: 1, Turn: 1}}
		ticket, end := r.begin(q, *t)
		kept, tickets, ends = append(kept, n), append(tickets, ticket), append(ends, end)
	}
	return kept, tickets, ends
}

// anyKnown reports whether one of the ids was used before.
func (r *Relay) anyKnown(ctx context.Context, news []draft) (bool, error) {
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
func (r *Relay) repeated(ctx context.Context, by Author, news []draft, err error) ([]store.Task, error) {
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
