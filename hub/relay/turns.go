package relay

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// questionID names the question that a turn ended with.
func questionID(t store.Task) string {
	return t.ID + "." + strconv.Itoa(t.Attempt) + "." + strconv.Itoa(t.Turn)
}

// assumption is what an agent is told when nobody answered in time.
const assumption = "No answer came in time. Go on with the most sensible assumption, and name that assumption in the summary of your result block."

// Cancel asks for the end of a task. Once it was offered its node decides, so the
// returned record may still be running; a settled one is CodeAlreadySettled
// (semantics 7).
func (r *Relay) Cancel(ctx context.Context, id string) (store.Task, error) {
	return r.end(ctx, id, api.WithdrawCancel, canceled("", ""))
}

func (r *Relay) end(ctx context.Context, id, reason string, never api.Outcome) (store.Task, error) {
	return r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		now := r.clock.Now()
		switch {
		case t.State.Settled():
			return t, nil, api.Errorf(api.CodeAlreadySettled, "task %s is %s already", t.ID, t.State)
		case t.Journal == "":
			return settle(t, never, now), nil, nil
		case !t.CancelAt.IsZero():
			return t, nil, errNoChange
		}
		t.CancelAt, t.CancelReason = now, reason
		return t, nil, nil
	})
}

// Answer gives an answer to the question that a task waits for: a new turn of the
// same task in the same session. The first answer wins (semantics 1); the number
// of an option stands for the option.
func (r *Relay) Answer(ctx context.Context, id, question, text string) (store.Task, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return store.Task{}, api.Errorf(api.CodeBadRequest, "the answer is empty")
	}
	if len(text) > api.MaxAnswer {
		return store.Task{}, api.Errorf(api.CodeTooLarge, "the answer is larger than %d bytes; put it into a file of the workspace and name the file", api.MaxAnswer)
	}
	return r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		q := t.Question
		switch {
		case t.State != api.StateQuestion && (question != "" || len(t.Results) > 0):
			return t, nil, api.Errorf(api.CodeAlreadyAnswered, "task %s waits for no answer, it is %s", t.ID, t.State)
		case t.State != api.StateQuestion:
			return t, nil, api.Errorf(api.CodeQuestionGone, "task %s has asked nothing, it is %s", t.ID, t.State)
		case question != "" && question != q.ID:
			return t, nil, api.Errorf(api.CodeAlreadyAnswered, "that question was answered already")
		case !t.CancelAt.IsZero():
			return t, nil, api.Errorf(api.CodeQuestionGone, "task %s is being canceled", t.ID)
		}
		words := text
		if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= len(q.Options) {
			words = q.Options[n-1]
		}
		body := "Answer to your question (" + q.Text + "): " + words
		next, part := nextTurn(t, api.TurnAnswer, body, r.clock.Now())
		return next, []store.Part{part}, nil
	})
}

// nextTurn opens the next turn of an attempt with its own text.
func nextTurn(t store.Task, kind, body string, now time.Time) (store.Task, store.Part) {
	t.Turn++
	t.Kind, t.TurnHash = kind, hashOf(kind, questionID(t), body)
	t.Question, t.Received = nil, false
	t = become(t, api.StateOffered, now)
	return t, store.Part{Key: textKey(t), Data: []byte(body)}
}

// Retry starts a new attempt of a settled task under the same id (semantics 1).
func (r *Relay) Retry(ctx context.Context, id string) (store.Task, error) {
	return r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		if !t.State.Settled() {
			return t, nil, api.Errorf(api.CodeNotSettled, "task %s is %s; only a settled task can be retried", t.ID, t.State)
		}
		target, err := r.st.Identity(ctx, t.Target.ID)
		if err == nil && !target.Live() || errors.Is(err, store.ErrNotFound) {
			return t, nil, api.Errorf(api.CodeUnknownTarget, "%s has left the mesh; dispatch the task anew", t.Target.Name)
		}
		if err != nil {
			return t, nil, err
		}
		now := r.clock.Now()
		t.Attempt, t.Turn, t.Kind, t.TurnHash = t.Attempt+1, 1, api.TurnTask, t.Hash
		t.ExpiresAt = now.Add(max(t.ExpiresAt.Sub(t.CreatedAt), time.Minute))
		t.StartedAt, t.EndedAt, t.RanMS = time.Time{}, time.Time{}, 0
		t.Journal, t.Received, t.Outcome, t.Question, t.Flags, t.Progress = "", false, nil, nil, nil, ""
		t.CancelReason = ""
		return become(t, api.StateQueued, now), nil, nil
	})
}

// Abandon settles a task that an operator gives up: failed/node_lost. What its
// node still does and reports is kept as a late result (semantics 8).
func (r *Relay) Abandon(ctx context.Context, id string) (store.Task, error) {
	return r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		if t.State.Settled() {
			return t, nil, api.Errorf(api.CodeAlreadySettled, "task %s is %s already", t.ID, t.State)
		}
		o := failed(api.TaskNodeLost, "given up by an operator")
		if t.Journal != "" {
			o.Flags = []api.Flag{api.FlagMayHaveRun}
		}
		return settle(t, o, r.clock.Now()), nil, nil
	})
}

// RevokeTarget settles what is open for a node that is revoked or replaced
// (semantics 9, 15); code is api.TaskTargetRevoked or api.TaskTargetReplaced.
func (r *Relay) RevokeTarget(ctx context.Context, identity, code string) error {
	for _, t := range r.open(identity, func(store.Task) bool { return true }) {
		_, err := r.change(ctx, t.ID, func(t store.Task) (store.Task, []store.Part, error) {
			const why = "the target has left the mesh"
			switch {
			case t.State.Settled():
				return t, nil, errNoChange
			case t.Journal == "":
				return settle(t, canceled(code, why), r.clock.Now()), nil, nil
			}
			return settle(t, failed(code, why, api.FlagMayHaveRun), r.clock.Now()), nil, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// RevokeController cancels the open tasks of a controller and those dispatched
// from inside them (semantics 15).
func (r *Relay) RevokeController(ctx context.Context, identity string) error {
	r.mu.Lock()
	doomed := map[string]bool{}
	for _, e := range r.tasks {
		if e.task.Controller.ID == identity {
			doomed[e.task.ID] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for id, e := range r.tasks {
			if !doomed[id] && doomed[e.task.Parent] {
				doomed[id], grew = true, true
			}
		}
	}
	r.mu.Unlock()
	for id := range doomed {
		_, err := r.end(ctx, id, api.WithdrawRevoke, canceled(api.TaskControllerGone, "the controller has left the mesh"))
		if err != nil && api.ErrorCode(err) != api.CodeAlreadySettled {
			return err
		}
	}
	return nil
}
