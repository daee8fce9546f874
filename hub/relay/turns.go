package relay

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// questionID names the question that a turn ended with.
func questionID(t store.Task) string {
	return t.ID + "." + strconv.Itoa(t.Attempt) + "." + strconv.Itoa(t.Turn)
}

// Cancel asks for the end of a task. Once it was offered its node decides, so the
// returned record may still be running; a settled one is CodeAlreadySettled
// (semantics 7).
func (r *Relay) Cancel(ctx context.Context, id string) (store.Task, error) {
	return r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		if t.State.Settled() {
			return t, nil, alreadySettled(t)
		}
		return ending(t, api.WithdrawCancel, canceled("", ""), r.clock.Now())
	})
}

func alreadySettled(t store.Task) error {
	return api.Errorf(api.CodeAlreadySettled, "task %s is %s already", t.ID, t.State)
}

// ending ends an open task: at once if it was never offered, else its node is
// asked.
func ending(t store.Task, reason string, never api.Outcome, now time.Time) (store.Task, []store.Part, error) {
	switch {
	case sealed(t):
		return t, nil, errNoChange
	case t.Journal == "":
		return settle(t, never, now), nil, nil
	case !t.CancelAt.IsZero():
		return t, nil, errNoChange
	}
	t.CancelAt, t.CancelReason = now, reason
	return t, nil, nil
}

// Answer gives an answer to the question that a task waits for: a new turn of the
// same task in the same session, or what the turn that asked goes on with. The first
// answer wins (semantics 1); the number of an option stands for the option.
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
		case t.State != api.StateQuestion && t.Asking == "":
			return t, nil, nothingAsked(t)
		case question != "" && question != q.ID:
			return t, nil, anotherAsked(t, question)
		case !t.CancelAt.IsZero():
			return t, nil, api.Errorf(api.CodeQuestionGone, "task %s is being canceled", t.ID)
		case t.Asking != "":
			words, err := answerFor(q, text)
			if err != nil {
				return t, nil, err
			}
			return given(t, words, r.clock.Now()), nil, nil
		}
		words := text
		if i, ok := optionNumber(q, text); ok {
			words = optionText(q.Options[i])
		}
		next, part := nextTurn(t, api.TurnAnswer, answerTo(q, words), r.clock.Now())
		return next, []store.Part{part}, nil
	})
}

// optionText is an option as it goes back to the agent that offered it.
func optionText(option string) string {
	words, _ := mesh.Defuse(option)
	return words
}

// answerTo writes the text of an answer: the controller's words, or the option that
// it chose. The question is the agent's own and comes along as data, so that what
// somebody made it ask is never instruction (semantics 17).
func answerTo(q *api.Question, words string) string {
	framed, _ := mesh.Frame(mesh.NewNonce(), "your question", q.Text)
	return "Answer to your question (repeated below): " + words + "\n\n" + strings.TrimSuffix(framed, "\n")
}

// nextTurn opens the next turn of an attempt with its own text.
func nextTurn(t store.Task, kind, body string, now time.Time) (store.Task, store.Part) {
	t.Turn++
	t.Kind, t.TurnHash = kind, hashOf(kind, questionID(t), body)
	t.Question, t.Asking, t.Answer, t.Received = nil, "", nil, false
	t = become(t, api.StateOffered, now)
	return t, store.Part{Key: textKey(t), Data: []byte(body)}
}

// Retry starts a new attempt of a settled task under the same id (semantics 1). It
// counts for its controller's limits like a dispatch.
func (r *Relay) Retry(ctx context.Context, id string) (store.Task, error) {
	t, err := r.current(ctx, id)
	if err != nil {
		return t, err
	}
	if err := mayRetry(t); err != nil {
		return t, err
	}
	target, err := r.st.Identity(ctx, t.Target.ID)
	if err == nil && !target.Live() || errors.Is(err, store.ErrNotFound) {
		return t, api.Errorf(api.CodeUnknownTarget, "%s has left the mesh; dispatch the task anew", t.Target.Name)
	}
	if err != nil {
		return t, err
	}
	release, err := r.reserve(t.Controller, t.Target)
	if err != nil {
		return t, err
	}
	defer release()
	b, err := r.binding(ctx, bindingKey(t))
	if err != nil {
		return t, err
	}
	return r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		if err := mayRetry(t); err != nil {
			return t, nil, err
		}
		if taskLane(t) > 0 { // it enters the lane that is bound now
			t.Lane, t.Generation = laneOf(b), 0
		}
		now := r.clock.Now()
		t.ExpiresAt = now.Add(max(t.ExpiresAt.Sub(begun(t)), time.Minute))
		t.Attempt, t.Turn, t.Kind, t.TurnHash = t.Attempt+1, 1, api.TurnTask, t.Hash
		t.StartedAt, t.EndedAt, t.RanMS = time.Time{}, time.Time{}, 0
		t.Journal, t.Received, t.Outcome, t.Question, t.Flags = "", false, nil, nil, nil
		t.CancelReason = ""
		return become(t, api.StateQueued, now), nil, nil
	})
}

func mayRetry(t store.Task) error {
	if t.Op != "" {
		return api.Errorf(api.CodeConflict, "task %s is an operation on a session; run meshctl session %s again", t.ID, t.Op)
	}
	if !t.State.Settled() {
		return api.Errorf(api.CodeNotSettled, "task %s is %s; only a settled task can be retried", t.ID, t.State)
	}
	return nil
}

// begun is when the current attempt was made, by the hub's clock: its age is
// counted from there. A life that was cut gives the oldest step that it has.
func begun(t store.Task) time.Time {
	for _, s := range t.Life {
		if s.Attempt == t.Attempt && t.Attempt > 1 {
			return s.At
		}
	}
	return t.CreatedAt
}

// Abandon settles a task that an operator gives up: failed/node_lost. What its
// node still does and reports is kept as a late result (semantics 8).
func (r *Relay) Abandon(ctx context.Context, id string) (store.Task, error) {
	return r.change(ctx, id, func(t store.Task) (store.Task, []store.Part, error) {
		if t.State.Settled() {
			return t, nil, alreadySettled(t)
		}
		o := failed(api.TaskNodeLost, "given up by an operator")
		if t.Journal != "" {
			o.Flags = []api.Flag{api.FlagMayHaveRun}
		}
		return settle(t, o, r.clock.Now()), nil, nil
	})
}
