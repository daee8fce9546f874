package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// maxRecordSummary bounds the summary inside a record; the whole of a longer one
// is in the reply, which is kept apart.
const maxRecordSummary = 8 << 10

// failed makes the outcome of a task that the mesh ended.
func failed(code, message string, flags ...api.Flag) api.Outcome {
	return api.Outcome{State: api.StateFailed, Flags: flags, Error: &api.TaskError{Code: code, Message: message}}
}

// canceled makes the outcome of a task that never ran.
func canceled(code, message string) api.Outcome {
	o := api.Outcome{State: api.StateCanceled}
	if code != "" {
		o.Error = &api.TaskError{Code: code, Message: message}
	}
	return o
}

// settle ends a task.
func settle(t store.Task, o api.Outcome, now time.Time) store.Task {
	o.Reply = ""
	t.Outcome = &o
	t.Question = nil
	t.Progress = ""
	t.EndedAt = now
	t.RanMS += o.RanMS
	if t.StartedAt.IsZero() && o.RanMS > 0 {
		t.StartedAt = now.Add(-time.Duration(o.RanMS) * time.Millisecond)
	}
	t.Flags = mergeFlags(t.Flags, o.Flags)
	t.CancelAt, t.ExpireAt = time.Time{}, time.Time{}
	return become(t, o.State, now)
}

func mergeFlags(a, b []api.Flag) []api.Flag {
	out := slices.Clone(a)
	for _, f := range b {
		if !slices.Contains(out, f) && len(out) < api.MaxFlags {
			out = append(out, f)
		}
	}
	return out
}

// Result takes a turn's result from a node: the record is on disk when it
// returns nil, which is the final ACK. An equal repeat is acknowledged again;
// another result for the same triple is CodeResultConflict; one for a triple that
// is over is kept beside the record (semantics 7, 14).
func (r *Relay) Result(ctx context.Context, from store.Identity, res api.Result) error {
	if err := checkOutcome(&res.Outcome); err != nil {
		return err
	}
	t, _, err := r.current(ctx, res.Task)
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
	return r.apply(ctx, res)
}

// settleByReceipt takes an outcome that came as an answer to a call of ours.
func (r *Relay) settleByReceipt(ctx context.Context, c *conn, rc api.Receipt) error {
	if err := checkOutcome(rc.Outcome); err != nil {
		return err
	}
	err := r.apply(ctx, api.Result{Triple: rc.Triple, JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch, Outcome: *rc.Outcome})
	var refusal *api.Error
	if errors.As(err, &refusal) && refusal.Code == api.CodeResultConflict {
		return nil // the first result stands
	}
	return err
}

// apply stores a result whose sender was checked.
func (r *Relay) apply(ctx context.Context, res api.Result) error {
	hash := outcomeHash(res.Outcome)
	var late bool
	bound := make(chan error, 1)
	bound <- nil
	t, _, err := r.current(ctx, res.Task)
	if err != nil {
		return err
	}
	if s := res.Outcome.Session; s != "" {
		<-bound
		go func() { bound <- r.bind(ctx, t, s, res.Outcome.Tokens) }() // same group commit; awaited below
	}
	_, err = r.change(ctx, res.Task, func(t store.Task) (store.Task, []store.Part, error) {
		late = false
		for _, h := range t.Results {
			if h.Attempt == res.Attempt && h.Turn == res.Turn {
				if h.Hash != hash {
					return t, nil, api.Errorf(api.CodeResultConflict, "another result of task %s attempt %d turn %d is stored already", t.ID, res.Attempt, res.Turn)
				}
				return t, nil, errNoChange
			}
		}
		now := r.clock.Now()
		ended := now.Add(-time.Duration(max(res.AgoMS, 0)) * time.Millisecond)
		if ended.Before(t.CreatedAt) {
			ended = t.CreatedAt
		}
		t.Results = append(slices.Clone(t.Results), store.TripleHash{Attempt: res.Attempt, Turn: res.Turn, Hash: hash})
		if len(t.Results) > store.MaxResults {
			t.Results = t.Results[len(t.Results)-store.MaxResults:]
		}
		older := res.Attempt < t.Attempt || res.Attempt == t.Attempt && res.Turn < t.Turn
		if t.State.Settled() || older || t.State == api.StateQuestion && res.Attempt == t.Attempt && res.Turn == t.Turn {
			late = true
			o := res.Outcome
			o.Reply = ""
			t.Late = &o
			return t, partReply(store.PartKey{Kind: store.PartLate, Attempt: res.Attempt, Turn: res.Turn}, res.Outcome.Reply), nil
		}
		t.Attempt, t.Turn = res.Attempt, res.Turn // a restored hub may be behind
		if t.Journal == "" {
			t.Journal = res.JournalID
		}
		t.Received = true
		parts := partReply(store.PartKey{Kind: store.PartReply, Attempt: res.Attempt, Turn: res.Turn}, res.Outcome.Reply)
		if res.Outcome.State == api.StateQuestion && t.Kind != api.TurnAssume {
			return r.ask(t, res.Outcome, ended), parts, nil
		}
		o := res.Outcome
		if o.State == api.StateQuestion {
			// Told to go on by assumption it asked again: what it has is all there is.
			o.State, o.Summary = api.StatePartial, o.Question.Text
			o.Question = nil
		}
		if t.Kind == api.TurnAssume {
			t.Flags = mergeFlags(t.Flags, []api.Flag{api.FlagAssumed})
		}
		return settle(t, o, ended), parts, nil
	})
	if bindErr := <-bound; err == nil {
		err = bindErr
	}
	if err == nil && late {
		r.cfg.Observer.LateResult("after_end")
		r.log.Info("a late result was kept", "task", res.Task, "attempt", res.Attempt, "turn", res.Turn)
	}
	return err
}

func partReply(key store.PartKey, reply string) []store.Part {
	if reply == "" {
		return nil
	}
	return []store.Part{{Key: key, Data: []byte(reply)}}
}

// ask notes that the agent waits for an answer. The lane is free meanwhile.
func (r *Relay) ask(t store.Task, o api.Outcome, now time.Time) store.Task {
	limit := t.QuestionTimeout
	if limit == 0 {
		limit = api.DefaultQuestionTimeout
	}
	asked := r.clock.Now()
	until := asked.Add(limit)
	q := &api.Question{ID: questionID(t), Kind: o.Question.Kind, Text: o.Question.Text, Options: o.Question.Options, AskedAt: asked, ExpiresAt: &until}
	if q.Options == nil {
		q.Options = []string{}
	}
	o.Reply = ""
	t.Outcome, t.Question = &o, q
	t.RanMS += o.RanMS
	if t.StartedAt.IsZero() {
		t.StartedAt = now.Add(-time.Duration(o.RanMS) * time.Millisecond)
	}
	t.Flags = mergeFlags(t.Flags, o.Flags)
	return become(t, api.StateQuestion, now)
}

// checkOutcome refuses what a node must not send and bounds what it may.
func checkOutcome(o *api.Outcome) error {
	switch {
	case !o.State.Settled() && o.State != api.StateQuestion:
		return api.Errorf(api.CodeBadRequest, "%q is not an outcome", o.State)
	case o.State == api.StateQuestion && (o.Question == nil || o.Question.Text == ""):
		return api.Errorf(api.CodeBadRequest, "a question without text")
	case len(o.Reply) > api.MaxReply:
		return api.Errorf(api.CodeTooLarge, "the reply is larger than %d bytes", api.MaxReply)
	case len(o.Artifacts) > api.MaxArtifacts || len(o.Flags) > api.MaxFlags:
		return api.Errorf(api.CodeTooLarge, "more than %d artifacts or %d flags", api.MaxArtifacts, api.MaxFlags)
	}
	o.RanMS = max(o.RanMS, 0)
	if len(o.Summary) > maxRecordSummary {
		o.Summary = cutBytes(o.Summary, maxRecordSummary)
		o.Flags = mergeFlags(o.Flags, []api.Flag{api.FlagSummaryTooLong})
	}
	return nil
}

// cutBytes cuts s to at most n bytes on a character boundary.
func cutBytes(s string, n int) string {
	for n > 0 && n < len(s) && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:min(n, len(s))]
}

func outcomeHash(o api.Outcome) string {
	b, err := json.Marshal(o)
	if err != nil { // our own type always marshals
		return ""
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}

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
	rec := res.Recover
	now := r.clock.Now()
	t := store.Task{
		ID: res.Task, Hash: rec.Hash, Controller: rec.Controller, Target: api.Party{ID: from.ID, Name: from.Name},
		Mode: rec.Mode, Workspace: rec.Workspace, Attempt: res.Attempt, Turn: res.Turn, Kind: api.TurnTask, TurnHash: rec.Hash,
		State: api.StateAccepted, Since: now, CreatedAt: time.UnixMilli(rec.CreatedMS).UTC(), ExpiresAt: now.Add(api.DefaultTTL),
		Journal: res.JournalID, Received: true, Flags: []api.Flag{api.FlagRecovered},
	}
	if res.Turn > 1 {
		t.Kind = api.TurnAnswer
	}
	made, err := r.st.CreateTasks(ctx, []store.NewTask{{Task: t, Text: []byte(rec.Text)}})
	if err != nil && !errors.Is(err, store.ErrExists) {
		return err
	}
	if err == nil {
		r.mu.Lock()
		r.add(made[0], nil)
		r.mu.Unlock()
		r.log.Info("adopted a task that this hub did not know", "task", res.Task, "node", from.Name)
	}
	return r.apply(ctx, res)
}

// ProgressFrom takes a node's word that a turn runs or is held, with a note for
// people. Best effort: it is not awaited on disk.
func (r *Relay) ProgressFrom(ctx context.Context, from store.Identity, p api.Progress) error {
	t, e, err := r.current(ctx, p.Task)
	if err != nil {
		return api.Errorf(api.CodeUnknownTask, "task %s is not known here", p.Task)
	}
	if t.Target.ID != from.ID || t.Journal != p.JournalID {
		return api.Errorf(api.CodeForbidden, "task %s is not this node's", p.Task)
	}
	if e == nil || p.State != api.StateRunning && p.State != api.StateHeld && p.State != api.StateAccepted {
		return nil
	}
	r.note(ctx, p.Task, func(t store.Task) (store.Task, error) {
		if t.State.Settled() || t.Triple() != p.Triple || t.State == api.StateQuestion {
			return t, errNoChange
		}
		now := r.clock.Now()
		if p.State == api.StateRunning && t.StartedAt.IsZero() {
			t.StartedAt = now.Add(-time.Duration(max(p.RanMS, 0)) * time.Millisecond)
		}
		t.Progress = cutBytes(p.Note, api.MaxSummary)
		return received(t, p.State, now), nil
	})
	return nil
}
