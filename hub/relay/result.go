package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// maxOrdinal is the highest attempt or turn that is believed.
const maxOrdinal = 1 << 20

// Result takes a turn's result from a node: the record is on disk when it
// returns nil, which is the final ACK. An equal repeat is acknowledged again;
// another result for the same triple is CodeResultConflict; one for a triple that
// is over is kept beside the record (semantics 7, 14).
func (r *Relay) Result(ctx context.Context, from store.Identity, res api.Result) error {
	switch {
	case !mesh.ValidTaskID(res.Task):
		return api.Errorf(api.CodeBadRequest, "not a task id")
	case res.Attempt < 1 || res.Turn < 1 || res.Attempt > maxOrdinal || res.Turn > maxOrdinal:
		return api.Errorf(api.CodeBadRequest, "attempt %d turn %d does not exist", res.Attempt, res.Turn)
	case res.JournalID == "" || len(res.JournalID) > maxWord:
		return api.Errorf(api.CodeBadRequest, "a result needs the id of its journal")
	}
	if err := tidy(&res.Outcome); err != nil {
		return err
	}
	t, err := r.current(ctx, res.Task)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return r.adopt(ctx, from, res)
	case err != nil:
		return err
	case t.Target.ID != from.ID:
		return api.Errorf(api.CodeForbidden, "task %s is not addressed to this node", res.Task)
	case t.Journal != "" && t.Journal != res.JournalID:
		return api.Errorf(api.CodeForbidden, "task %s was offered to another journal of this node", res.Task)
	}
	return r.apply(ctx, t, res)
}

// settleByReceipt takes an outcome that came as an answer to a call of ours. What
// makes no sense still ends the task (semantics 14).
func (r *Relay) settleByReceipt(c *conn, rc api.Receipt) error {
	o := *rc.Outcome
	if err := tidy(&o); err != nil {
		r.log.Warn("a node gave an outcome that cannot be taken", "task", rc.Task, "node", c.Identity.Name, "err", err)
		o = failed(api.TaskResultRejected, "the node gave an outcome that the hub cannot take", api.FlagMayHaveRun)
	}
	t, err := r.current(c.ctx, rc.Task)
	if err != nil {
		return err
	}
	err = r.apply(c.ctx, t, api.Result{Triple: rc.Triple, JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch, Outcome: o})
	switch api.ErrorCode(err) {
	case api.CodeResultConflict, api.CodeBadRequest:
		return nil // the first result stands
	}
	return err
}

// reading is what a result is to its task.
type reading int

const (
	readNew    reading = iota // ends the turn that the task is at
	readRepeat                // is stored already
	readLate                  // comes after the end
)

// judge says what a result is to a task, or why it is none.
func (r *Relay) judge(t store.Task, res api.Result, hash string) (reading, error) {
	at, of := t.Triple(), res.Triple
	for _, h := range t.Results {
		switch {
		case h.Attempt != of.Attempt || h.Turn != of.Turn:
		case h.Hash == hash:
			return readRepeat, nil
		case at == of && t.State == api.StateQuestion && !t.CancelAt.IsZero() && res.Outcome.State == api.StateCanceled:
			return readNew, nil // the question was withdrawn
		default:
			return 0, api.Errorf(api.CodeResultConflict, "another result of task %s attempt %d turn %d is stored already", t.ID, of.Attempt, of.Turn)
		}
	}
	older := of.Attempt < at.Attempt || of.Attempt == at.Attempt && of.Turn < at.Turn
	switch {
	case at != of && !older && !r.restored && !slices.Contains(t.Flags, api.FlagRecovered):
		return 0, api.Errorf(api.CodeBadRequest, "attempt %d turn %d of task %s was never offered", of.Attempt, of.Turn, t.ID)
	case t.State.Settled(), older, t.Op != "" && at != of, at == of && t.State == api.StateQuestion && t.Asking == "":
		return readLate, nil
	}
	return readNew, nil
}

// apply stores a result whose sender was checked and whose outcome is tidy.
func (r *Relay) apply(ctx context.Context, t store.Task, res api.Result) error {
	hash := outcomeHash(res.Outcome)
	read, err := r.judge(t, res, hash)
	if err != nil {
		return err
	}
	now := r.clock.Now()
	ended := now.Add(-claimed(res.AgoMS))
	if ended.Before(t.CreatedAt) {
		ended = t.CreatedAt
	}
	first := read == readNew
	bound := make(chan error, 1)
	if s := res.Outcome.Session; s != "" && binds(t, s, first) {
		release := r.noteBinding(t)
		defer release()
		go func() { bound <- r.bind(ctx, t, s, res.Outcome.Tokens, ended, first) }() // in the same commit; awaited below
	} else {
		bound <- nil
	}
	_, err = r.change(ctx, res.Task, func(t store.Task) (_ store.Task, _ []store.Part, err error) {
		if read, err = r.judge(t, res, hash); err != nil {
			return t, nil, err
		}
		if read == readRepeat {
			return t, nil, errNoChange
		}
		t.Results = remember(t.Results, res.Triple, hash)
		if read == readLate {
			o := res.Outcome
			o.Reply = ""
			t.Late = &o
			return t, []store.Part{{Key: lateReply, Data: []byte(res.Outcome.Reply)}}, nil
		}
		t.Attempt, t.Turn = res.Attempt, res.Turn // a restored hub may be behind
		if t.Journal == "" {
			t.Journal = res.JournalID
		}
		t.Received = true
		var parts []store.Part
		if reply := res.Outcome.Reply; reply != "" {
			parts = []store.Part{{Key: store.PartKey{Kind: store.PartReply, Attempt: res.Attempt, Turn: res.Turn}, Data: []byte(reply)}}
		}
		if t.Op != "" {
			return r.turnEnded(t, res.Outcome, ended), parts, nil
		}
		next := r.conclude(t, res.Outcome, ended)
		if option, ok := byPolicy(next); ok {
			var part store.Part
			next = noted(next, noteByPolicy, now)
			next, part = nextTurn(next, api.TurnAnswer, answerTo(next.Question, optionText(option)), now)
			parts = append(parts, part)
		}
		return next, parts, nil
	})
	if bindErr := <-bound; err == nil {
		err = bindErr
	}
	if err == nil && read == readLate {
		r.cfg.Observer.LateResult("after_end")
		r.log.Info("a late result was kept", "task", res.Task, "attempt", res.Attempt, "turn", res.Turn)
	}
	return err
}

// binds reports whether a turn's session is the binding's: of the turns of operations
// only that of the digest is.
func binds(t store.Task, session string, first bool) bool {
	return t.Op == "" || first && t.Kind == api.TurnDigest && t.Handover != nil && session == t.Handover.Session
}

// lateReply is where the reply of a late result is kept: of the newest, so that
// what comes after the end takes bounded room.
var lateReply = store.PartKey{Kind: store.PartLate, Attempt: 1, Turn: 1}

// remember notes which result was stored for a triple.
func remember(list []store.TripleHash, of api.Triple, hash string) []store.TripleHash {
	list = slices.DeleteFunc(slices.Clone(list), func(h store.TripleHash) bool { return h.Attempt == of.Attempt && h.Turn == of.Turn })
	list = append(list, store.TripleHash{Attempt: of.Attempt, Turn: of.Turn, Hash: hash})
	return list[max(0, len(list)-store.MaxResults):]
}

// conclude ends a task's turn: with a question it waits, else it is settled.
func (r *Relay) conclude(t store.Task, o api.Outcome, ended time.Time) store.Task {
	if o.State == api.StateQuestion && t.Kind != api.TurnAssume {
		return r.ask(t, o, ended)
	}
	if o.State == api.StateQuestion {
		// Told to go on by assumption it asked again: what it has is all there is.
		o.State, o.Summary = api.StatePartial, shown.Cut(o.Question.Text, maxRecordSummary)
		o.Question = nil
	}
	if t.Kind == api.TurnAssume {
		t.Flags = mergeFlags(t.Flags, []api.Flag{api.FlagAssumed})
	}
	return settle(t, o, ended)
}

// ask notes that the agent waits for an answer. The lane is free meanwhile.
func (r *Relay) ask(t store.Task, o api.Outcome, ended time.Time) store.Task {
	t.Question = question(questionID(t), o.Question, r.clock.Now(), questionLimit(t))
	t.Asking, t.Answer = "", nil
	o.Reply, o.Question = "", nil
	t.Outcome = &o
	t.RanMS += o.RanMS
	if t.StartedAt.IsZero() {
		t.StartedAt = ended.Add(-time.Duration(o.RanMS) * time.Millisecond)
	}
	t.Flags = mergeFlags(t.Flags, o.Flags)
	return become(t, api.StateQuestion, ended)
}

// ProgressFrom takes a node's word that a turn runs or is held, which is not awaited
// on disk, and what its agent does, of which nothing is stored.
func (r *Relay) ProgressFrom(ctx context.Context, from store.Identity, p api.Progress) error {
	t, err := r.current(ctx, p.Task)
	if err != nil {
		return api.Errorf(api.CodeUnknownTask, "that task is not known here")
	}
	if t.Target.ID != from.ID || t.Journal != p.JournalID {
		return api.Errorf(api.CodeForbidden, "task %s is not this node's", t.ID)
	}
	if p.State != api.StateRunning && p.State != api.StateHeld && p.State != api.StateAccepted {
		return nil
	}
	news := r.does(p.Triple, tidyActivity(p.Activity))
	published := r.note(ctx, p.Task, func(t store.Task) (store.Task, error) {
		switch {
		case t.State.Settled() || t.Triple() != p.Triple || t.State == api.StateQuestion || due(t):
			return t, errNoChange
		case t.Received && t.State == p.State:
			return t, errNoChange // nothing new
		}
		now := r.clock.Now()
		if p.State == api.StateRunning && t.StartedAt.IsZero() {
			t.StartedAt = now.Add(-claimed(p.RanMS))
		}
		return received(t, p.State, now), nil
	})
	if news && !published {
		r.tellDoing(p.Task)
	}
	return nil
}
