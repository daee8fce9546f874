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

// Operations on bound sessions are tasks: an entry of the lane's queue with an id, a
// state and an end (semantics 12). A reset is the hub's own. Clear and compact are
// turns at the node, and what a turn came to is stored before the hub goes on from
// it, so that a crash at any instant leaves a step that can be done again.

// Operate creates an operation on the session of a controller and a target and
// returns its task once it is on disk. by is who asks. A repeat with the same id and
// content returns the task as it is. CodeNotSupported: the target's agent has no
// sessions. CodeConflict: there is nothing to operate on, or a question waits in the
// session that is to be cleared.
func (r *Relay) Operate(ctx context.Context, by, controller store.Identity, target, op string, o api.Operate) (store.Task, error) {
	switch {
	case op != api.OpCompact && op != api.OpReset && op != api.OpClear:
		return store.Task{}, api.Errorf(api.CodeBadRequest, "the operations are %s, %s and %s, not %q", api.OpCompact, api.OpReset, api.OpClear, quoted(op))
	case !mesh.ValidTaskID(o.ID):
		return store.Task{}, api.Errorf(api.CodeBadRequest, "%q is not a task id; use letters, digits, '.', '_' and '-', at most 64", quoted(o.ID))
	case !ValidWorkspace(o.Workspace):
		return store.Task{}, api.Errorf(api.CodeBadRequest, "%q cannot name a workspace: visible characters, at most %d bytes", quoted(o.Workspace), api.MaxName)
	}
	targets, err := r.targets(ctx, api.Dispatch{Targets: []api.DispatchTarget{{Name: target}}, Workspace: o.Workspace})
	if err != nil {
		return store.Task{}, err
	}
	if err := r.stillHere(by, controller); err != nil {
		return store.Task{}, err
	}
	tg := targets[0]
	d := operation(controller, tg, op, o, r.clock.Now())
	author, news := Author{Identity: controller}, []draft{d}
	if known, err := r.anyKnown(ctx, news); known || err != nil {
		return one(r.repeated(ctx, author, news, err))
	}
	if tg.rec.Hello.JournalID != "" && !tg.rec.Hello.Sessions {
		return store.Task{}, api.Errorf(api.CodeNotSupported, "the agent of %s has no sessions", tg.id.Name)
	}
	release, err := r.reserve(api.Party{ID: controller.ID, Name: controller.Name}, d.Task.Target)
	if err != nil {
		return store.Task{}, err
	}
	defer release()
	b, err := r.bindingNow(ctx, bindingKey(d.Task))
	if err != nil {
		return store.Task{}, err
	}
	news[0].Task.Lane = laneOf(b)
	if err := r.applicable(news[0].Task, b); err != nil {
		return store.Task{}, err
	}
	made, err := r.create(ctx, news, nil)
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrForgotten) {
		made, err = r.repeated(ctx, author, news, nil)
	}
	return one(made, err)
}

func one(made []store.Task, err error) (store.Task, error) {
	if err != nil {
		return store.Task{}, err
	}
	return made[0], nil
}

// stillHere refuses what comes from or for somebody who left the mesh.
func (r *Relay) stillHere(ids ...store.Identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, who := range ids {
		if r.gone[who.ID] != "" {
			return api.Errorf(api.CodeRevoked, "the credential of %s was revoked", who.Name)
		}
	}
	return nil
}

// operation makes the record of an operation; its lane is found later.
func operation(controller store.Identity, tg target, op string, o api.Operate, now time.Time) draft {
	t := store.Task{
		ID: o.ID, Op: op, Controller: api.Party{ID: controller.ID, Name: controller.Name}, Platform: controller.Platform,
		Target: api.Party{ID: tg.id.ID, Name: tg.id.Name}, Workspace: tg.workspace(o.Workspace), Mode: string(mesh.ModeSession),
		State: api.StateQueued, Since: now, CreatedAt: now, ExpiresAt: now.Add(api.DefaultTTL),
		Attempt: 1, Turn: 1, Kind: firstKind[op],
	}
	t.Hash = hashOf("operation", op, t.Controller.ID, t.Target.ID, o.Workspace)
	t.TurnHash = t.Hash
	return draft{NewTask: store.NewTask{Task: t, Text: []byte(op + " the session")}}
}

// firstKind is the kind of an operation's first turn. A reset has no turn.
var firstKind = map[string]string{api.OpCompact: api.TurnDigest, api.OpClear: api.TurnDelete, api.OpReset: api.OpReset}

// applicable refuses at once what cannot come to anything.
func (r *Relay) applicable(t store.Task, b store.Binding) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	bound := b.Session != "" || t.Op == api.OpReset && b.Rev != 0 // what was bound once may be reset again
	if !bound && !r.anyOpen(t, func(store.Task) bool { return true }) {
		return api.Errorf(api.CodeConflict, "%s has no session at %s; the next dispatch makes one", t.Controller.Name, t.Target.Name)
	}
	if t.Op == api.OpClear {
		if id := r.waitsForAnswer(t, b); id != "" {
			return api.Errorf(api.CodeConflict, "%s", inUse(id))
		}
	}
	return nil
}

func inUse(task string) string {
	return "task " + task + " waits for an answer in that session; answer or cancel it first"
}

// anyOpen reports whether a dispatched task that is open in the lane of t passes fits.
// Called with mu held.
func (r *Relay) anyOpen(t store.Task, fits func(store.Task) bool) bool {
	q := r.queues[t.Target.ID]
	if q == nil {
		return false
	}
	for _, e := range q.tasks {
		if e.task.Op == "" && sameLane(e.task, t) && fits(e.task) {
			return true
		}
	}
	return false
}

// waitsForAnswer names a task whose turn in the bound session ended with a question:
// the answer would find another session. Called with mu held.
func (r *Relay) waitsForAnswer(t store.Task, b store.Binding) (id string) {
	r.anyOpen(t, func(x store.Task) bool {
		if x.State == api.StateQuestion && x.Asking == "" && x.Generation == generationOf(b) {
			id = x.ID
		}
		return id != ""
	})
	return id
}

// sameLane reports whether two tasks of one target wait in the same lane.
func sameLane(a, b store.Task) bool {
	return a.Controller.ID == b.Controller.ID && a.Workspace == b.Workspace && taskLane(a) == taskLane(b)
}

// working reports whether an operation has begun to work.
func working(op store.Task) bool { return op.Journal != "" || op.Handover != nil }

// due reports whether the hub has to go on with an operation: a turn's result is
// stored and nothing was made of it yet.
func due(t store.Task) bool { return t.Op != "" && t.Outcome != nil && !t.State.Settled() }

// sealed reports whether an operation's end is decided already, so that it is too
// late to cancel it.
func sealed(t store.Task) bool {
	return t.Handover != nil && (t.Op == api.OpReset || t.Handover.Ending != nil)
}

// busy reports whether something that comes before an operation is still at work, or
// what it did is not noted in the binding yet. Called with mu held.
func (l *lane) busy(op *entry) bool {
	if l.queue.binding[l.key] > 0 {
		return true
	}
	for _, e := range l.queue.tasks {
		t := e.task
		atWork := t.State == api.StateOffered || t.State == api.StateAccepted || t.State == api.StateRunning || t.Asking != ""
		if atWork && t.Seq < op.task.Seq && sameLane(t, op.task) {
			return true
		}
	}
	return false
}

// queueUp puts an operation into its lane. Called with mu held.
func (r *Relay) queueUp(e *entry) {
	if e.task.Op == "" {
		return
	}
	l := e.queue.lane(laneKey(e.task))
	l.ops = insert(l.ops, e)
	e.queue.ops++
	if due(e.task) {
		r.toDo(e)
	}
}

// moved looks at what a change of a task means for the operations of its lane. Called
// with mu held.
func (r *Relay) moved(e *entry) {
	q := e.queue
	if q.ops == 0 {
		return
	}
	l := q.lanes[laneKey(e.task)]
	switch {
	case e.task.Op == "":
	case e.task.State.Settled():
		l.ops = slices.DeleteFunc(l.ops, func(x *entry) bool { return x == e })
		q.ops--
		r.ended++
		r.offerable(l)
		return
	case due(e.task):
		r.toDo(e)
	}
	if l != nil && len(l.ops) > 0 {
		r.offerable(l)
	}
}

// toDo lists an operation that the relay has to go on with. Called with mu held.
func (r *Relay) toDo(e *entry) {
	if e.toDo {
		return
	}
	e.toDo = true
	r.work = append(r.work, e)
	select {
	case r.due <- struct{}{}:
	default:
	}
}

// goOn goes on with the operations that are listed. What fails, because the disk is
// full, say, is tried again by the next sweep.
func (r *Relay) goOn(ctx context.Context) {
	r.mu.Lock()
	list := r.work
	r.work = nil
	r.mu.Unlock()
	failed, err := each(list, func(e *entry) error { return r.goOnWith(ctx, e) })
	if failed > 0 && ctx.Err() == nil {
		r.log.Warn("operations on sessions could not go on, trying again", "tasks", failed, "err", err)
	}
}

func (r *Relay) goOnWith(ctx context.Context, e *entry) (err error) {
	r.mu.Lock()
	t, open := e.task, r.tasks[e.task.ID] == e
	r.mu.Unlock()
	switch {
	case !open:
	case due(t):
		err = r.advance(ctx, t)
	case t.Op == api.OpReset:
		err = r.reset(ctx, t)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.work = append(r.work, e)
		return err
	}
	e.toDo = false
	if r.tasks[t.ID] == e {
		r.moved(e)
	}
	return nil
}

// stage is what comes next in an operation: its end, or another turn.
type stage struct {
	ending     *api.Outcome
	kind, body string
	handover   store.Handover
	flags      []api.Flag
}

// endsWith is the stage that settles an operation.
func endsWith(o api.Outcome) stage { return stage{ending: &o} }

// take makes it so in a task's record. A cancel or a revocation that was asked for
// meanwhile comes true instead of another turn, unless that takes back what is there.
func (s stage) take(t store.Task, now time.Time) (store.Task, []store.Part, error) {
	t.Flags = mergeFlags(t.Flags, s.flags)
	if s.ending == nil && s.handover.Ending == nil && !t.CancelAt.IsZero() {
		s = endsWith(canceled("", ""))
	}
	if s.ending != nil {
		return settle(t, *s.ending, now), nil, nil
	}
	t.CancelAt, t.ExpireAt = time.Time{}, time.Time{}
	t.Handover = &s.handover
	if t.Outcome != nil {
		t.Turn++
		t.Outcome = nil
	}
	t.Kind, t.TurnHash, t.Received = s.kind, hashOf(s.kind, questionID(t), s.body), false
	t = become(t, api.StateOffered, now)
	return t, []store.Part{{Key: textKey(t), Data: []byte(s.body)}}, nil
}

// takeUp begins with an operation whose turn it is: what it starts from is stored
// with the offer of its first turn.
func (r *Relay) takeUp(c *conn, t store.Task, b store.Binding) (store.Task, error) {
	s, err := r.first(c, t, b)
	if err != nil {
		return t, err
	}
	return r.change(c.ctx, t.ID, func(t store.Task) (store.Task, []store.Part, error) {
		if !needsOffer(t) || t.Journal != "" {
			return t, nil, errNoChange
		}
		if s.ending == nil {
			t.Journal, t.Generation = c.Hello.JournalID, s.handover.Generation
		}
		return s.take(t, r.clock.Now())
	})
}

func (r *Relay) first(c *conn, t store.Task, b store.Binding) (stage, error) {
	h := store.Handover{Generation: generationOf(b), Session: b.Session, Before: b.Tokens}
	switch {
	case !c.Hello.Sessions:
		return endsWith(failed(string(api.CodeNotSupported), "the agent of "+t.Target.Name+" has no sessions")), nil
	case taskLane(t) != laneOf(b):
		return endsWith(failed(api.TaskBindingChanged, "another session was bound by --new before it was this operation's turn")), nil
	case t.Op == api.OpCompact && b.Session == "":
		return endsWith(failed(api.TaskNoSession, "there is no session; the next dispatch makes one")), nil
	case t.Op == api.OpCompact:
		return r.condense(c.ctx, t, b, h)
	case b.Session == "":
		return endsWith(api.Outcome{State: api.StateDone, Summary: "there was no session"}), nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if id := r.waitsForAnswer(t, b); id != "" {
		return endsWith(failed(api.TaskSessionInUse, inUse(id))), nil
	}
	return stage{kind: api.TurnDelete, body: deletion, handover: h}, nil
}

// turnEnded notes what a turn of an operation came to; the relay goes on from there.
func (r *Relay) turnEnded(t store.Task, o api.Outcome, ended time.Time) store.Task {
	t.RanMS += o.RanMS
	if t.StartedAt.IsZero() {
		t.StartedAt = ended.Add(-time.Duration(o.RanMS) * time.Millisecond)
	}
	t.Flags = mergeFlags(t.Flags, slices.DeleteFunc(slices.Clone(o.Flags), ofReply))
	t.Question, t.Asking, t.Answer = nil, "", nil
	o.Reply, o.RanMS, o.Files = "", 0, nil
	t.Outcome = &o
	return become(t, api.StateRunning, ended)
}

// ofReply reports whether a flag speaks of a turn's reply, which is not the summary of
// an operation.
func ofReply(f api.Flag) bool {
	switch f {
	case api.FlagFreeReply, api.FlagUnterminated, api.FlagSummaryTooLong, api.FlagTruncated:
		return true
	}
	return false
}

// advance goes on from the result of an operation's turn.
func (r *Relay) advance(ctx context.Context, t store.Task) error {
	s, err := r.next(ctx, t)
	if err != nil {
		return err
	}
	_, err = r.change(ctx, t.ID, func(now store.Task) (store.Task, []store.Part, error) {
		if !due(now) || now.Triple() != t.Triple() {
			return now, nil, errNoChange
		}
		return s.take(now, r.clock.Now())
	})
	return err
}

// next does what the result of a turn leads to, as often as it is asked, and says
// what comes after it.
func (r *Relay) next(ctx context.Context, t store.Task) (stage, error) {
	switch {
	case t.Handover == nil: // its node refused the offer
		return endsWith(*t.Outcome), nil
	case t.Kind == api.TurnDigest:
		return r.condensed(ctx, t)
	case t.Kind == api.TurnResume:
		return r.handedOver(ctx, t)
	case t.Op == api.OpClear:
		return r.cleared(ctx, t)
	}
	return endsWith(takenBack(*t.Handover, t.Outcome.State == api.StateDone)), nil
}

// reset drops the binding. What it drops is stored first, so that a crash does not
// make it drop the next session too. A lane that --new has left is bound no more.
func (r *Relay) reset(ctx context.Context, t store.Task) error {
	ends := func(o api.Outcome) error {
		_, err := r.change(ctx, t.ID, func(t store.Task) (store.Task, []store.Part, error) {
			if t.State.Settled() {
				return t, nil, errNoChange
			}
			return settle(t, o, r.clock.Now()), nil, nil
		})
		return err
	}
	if t.Handover == nil {
		b, err := r.binding(ctx, bindingKey(t))
		if err != nil {
			return err
		}
		if laneOf(b) != taskLane(t) {
			return ends(api.Outcome{State: api.StateDone, Summary: "another session was bound by --new before it was the reset's turn"})
		}
		t, err = r.change(ctx, t.ID, func(t store.Task) (store.Task, []store.Part, error) {
			if t.State.Settled() || t.Handover != nil {
				return t, nil, errNoChange
			}
			t.Handover = &store.Handover{Generation: generationOf(b), Session: b.Session, Before: b.Tokens}
			return t, nil, nil
		})
		if err != nil || t.State.Settled() {
			return err
		}
	}
	h := t.Handover
	if _, err := r.rewrite(ctx, bindingKey(t), func(b *store.Binding, _ bool) (bool, []api.Fill) {
		if generationOf(*b) != h.Generation {
			return false, nil // done already, or --new did it
		}
		moveOn(b, api.EndedReset, r.clock.Now())
		return true, nil
	}); err != nil {
		return err
	}
	if h.Session == "" {
		return ends(api.Outcome{State: api.StateDone, Summary: "there was no session"})
	}
	return ends(api.Outcome{State: api.StateDone, Summary: "session " + h.Session + " is not bound any more", Session: h.Session})
}

// cleared drops the binding of a session that its node has deleted.
func (r *Relay) cleared(ctx context.Context, t store.Task) (stage, error) {
	h, o := t.Handover, *t.Outcome
	if o.State != api.StateDone {
		return endsWith(unlike(o, api.TaskAgentUnavailable, "the session was not deleted")), nil
	}
	var now string
	_, err := r.rewrite(ctx, bindingKey(t), func(b *store.Binding, _ bool) (bool, []api.Fill) {
		now = ""
		if generationOf(*b) == h.Generation && b.Session == h.Session {
			moveOn(b, api.EndedClear, r.clock.Now())
			return true, nil
		}
		if b.Generation == h.Generation {
			now = b.Session
		}
		i := slices.IndexFunc(b.Former, func(f store.FormerSession) bool { return f.Session == h.Session && f.Why != api.EndedClear })
		if i < 0 {
			return false, nil
		}
		b.Former = slices.Clone(b.Former)
		b.Former[i].Why = api.EndedClear
		return true, nil
	})
	if err != nil {
		return stage{}, err
	}
	if now != "" {
		return endsWith(failed(api.TaskBindingChanged, "session "+h.Session+" is deleted, but session "+now+" had taken its place; clear that one too")), nil
	}
	return endsWith(api.Outcome{State: api.StateDone, Summary: "session " + h.Session + " is deleted", Session: h.Session}), nil
}
