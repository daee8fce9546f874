package relay

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// An agent may ask in the middle of its turn: for leave to do something, or what it
// does not know. The task is in state question then, as after a turn that ended with
// one, but the turn goes on once the answer is there, so its lane stays taken.

// maxAskID bounds an agent's id of what it asks, in bytes.
const maxAskID = 256

// What an agent is told when nobody answered in time: to a question, and to a
// request for leave, which is never taken as given (semantics 8).
const (
	assumption = "No answer came in time. Go on with the most sensible assumption, and name that assumption in the summary of your result block."
	rejection  = "Nobody answered in time, so it is not permitted. Go on without it, and say so in the summary of your result block."
)

// Notes in a task's life about its questions.
const (
	noteByPolicy   = "answered by policy"
	noteUnanswered = "nobody answered in time"
	noteNobody     = "nobody is to be asked here"
	noteReplaced   = "another question took its place"
	noteWithdrawn  = "the question was withdrawn"
)

// permits are the options of every request for leave.
var permits = []string{api.PermitOnce, api.PermitAlways, api.PermitReject}

// Asked takes what an agent asks in the middle of its turn, or that it is withdrawn,
// from the turn's node. It is on disk when nil is returned. A repeat changes nothing;
// a newer question of the turn takes the place of one that is not answered, which is
// asked again afterwards. CodeQuestionGone: nobody will answer, because the turn is
// over or being canceled.
func (r *Relay) Asked(ctx context.Context, from store.Identity, a api.Ask) error {
	if !mesh.ValidTaskID(a.Task) || !shown.IsLine(a.Question, maxAskID) {
		return api.Errorf(api.CodeBadRequest, "a question needs a task and an id of its own of at most %d bytes", maxAskID)
	}
	var later *behind // what is to be asked after this
	_, err := r.change(ctx, a.Task, func(t store.Task) (_ store.Task, _ []store.Part, err error) {
		later = nil
		switch {
		case t.Target.ID != from.ID || t.Journal == "" || t.Journal != a.JournalID:
			return t, nil, api.Errorf(api.CodeForbidden, "task %s is not this node's", a.Task)
		case a.Asked == nil:
			t, err = r.takenBack(t, a)
			return t, nil, err
		case !mayAsk(t, a.Triple):
			return t, nil, api.Errorf(api.CodeQuestionGone, "attempt %d turn %d of task %s is over, or being ended", a.Attempt, a.Turn, t.ID)
		case t.Asking == a.Question || t.Answer != nil && t.Answer.Asking == a.Question || r.waits(a):
			return t, nil, errNoChange
		}
		q := r.questionOf(t, a)
		if r.answering(t) {
			later = &behind{asking: a.Question, q: q, epoch: a.Epoch}
			return t, nil, errNoChange
		}
		if t.Asking != "" {
			later = &behind{asking: t.Asking, q: t.Question} // see heard for its epoch
		}
		return r.asks(t, a.Question, q), nil, nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.CodeUnknownTask, "task %s is not known here", a.Task)
	}
	if err == nil && a.Asked != nil {
		r.heard(a, later)
	}
	return err
}

// mayAsk reports whether a turn of a task can ask something.
func mayAsk(t store.Task, turn api.Triple) bool {
	return !t.State.Settled() && t.Triple() == turn && t.CancelAt.IsZero() && (t.State != api.StateQuestion || t.Asking != "")
}

// questionOf makes the record of what is asked in the middle of a turn.
func (r *Relay) questionOf(t store.Task, a api.Ask) *api.Question {
	asked := tidyQuestion(*a.Asked)
	if asked.Kind == api.QuestionPermission {
		asked.Options = slices.Clone(permits)
	}
	return question(questionID(t)+"."+hashOf(a.Question)[:12], asked, r.clock.Now(), questionLimit(t))
}

// asks lets the turn that runs wait for an answer, or answers it if nobody is needed
// for that.
func (r *Relay) asks(t store.Task, asking string, q *api.Question) store.Task {
	now := r.clock.Now()
	replaces := t.Asking != ""
	t.Question, t.Asking = q, asking
	t = received(t, api.StateRunning, now) // and in question, because it asks
	if text, note, ok := unasked(t); ok {
		if note != noteByPolicy {
			t.Flags = mergeFlags(t.Flags, []api.Flag{unansweredFlag(q)})
		}
		return given(noted(t, note, now), text, now)
	}
	if replaces {
		t = noted(t, noteReplaced, now)
	}
	return t
}

// unasked is the answer to a question that no person needs to answer, and why. A
// permission is never granted so.
func unasked(t store.Task) (text, note string, ok bool) {
	if t.Op != "" { // what the mesh itself asks of a session
		return unanswered(t.Question), noteNobody, true
	}
	if text, ok := byPolicy(t); ok {
		return text, noteByPolicy, true
	}
	if t.Question.Kind == api.QuestionText && slices.Contains(t.Flags, api.FlagAssumed) {
		return assumption, noteUnanswered, true // it is waited for once
	}
	return "", "", false
}

// question makes the record of what an agent asks.
func question(id string, a *api.Asked, now time.Time, limit time.Duration) *api.Question {
	until := now.Add(limit)
	q := &api.Question{ID: id, Kind: a.Kind, Text: a.Text, Options: a.Options, AskedAt: now, ExpiresAt: &until}
	if q.Options == nil {
		q.Options = []string{}
	}
	return q
}

// questionLimit is how long a question of the task waits.
func questionLimit(t store.Task) time.Duration {
	if t.QuestionTimeout == 0 {
		return api.DefaultQuestionTimeout
	}
	return t.QuestionTimeout
}

// takenBack drops what is withdrawn: the question, or its answer that the node no
// longer wants.
func (r *Relay) takenBack(t store.Task, a api.Ask) (store.Task, error) {
	now := r.clock.Now()
	r.unwait(t.ID, a.Question)
	switch {
	case t.State.Settled() || t.Triple() != a.Triple:
		return t, errNoChange
	case t.Asking == a.Question:
		t.Question, t.Asking = nil, ""
		return noted(received(t, api.StateRunning, now), noteWithdrawn, now), nil
	case t.Answer != nil && t.Answer.Asking == a.Question:
		t.Answer = nil
		return t, nil
	}
	return t, errNoChange
}

// given answers the question of the turn that runs; its node is told (see deliver).
func given(t store.Task, text string, now time.Time) store.Task {
	t.Answer = &store.GivenAnswer{Asking: t.Asking, Text: text}
	t.Question, t.Asking = nil, ""
	if t.State == api.StateQuestion {
		t = become(t, api.StateRunning, now)
	}
	return t
}

// unanswered is what an agent is told instead of an answer, and unansweredFlag what
// the task is marked with then.
func unanswered(q *api.Question) string {
	if q.Kind == api.QuestionPermission {
		return api.PermitReject + " " + rejection
	}
	return assumption
}

func unansweredFlag(q *api.Question) api.Flag {
	if q.Kind == api.QuestionPermission {
		return api.FlagPermissionRejected
	}
	return api.FlagAssumed
}

// answerFor reads a controller's answer to a question of the turn that runs.
func answerFor(q *api.Question, words string) (string, error) {
	if q.Kind == api.QuestionPermission {
		return permit(words)
	}
	i, ok := optionNumber(q, words)
	if !ok {
		return words, nil
	}
	if q.Options[i] == "" {
		return "", api.Errorf(api.CodeBadRequest, "option %s is empty; answer in your own words", words)
	}
	return q.Options[i], nil
}

// permit reads the answer to a request for leave: an option, by name or number, and
// to a rejection perhaps a message for the agent.
func permit(words string) (string, error) {
	first, message := words, ""
	if i := strings.IndexAny(words, " \t\r\n"); i >= 0 {
		first, message = words[:i], strings.TrimSpace(words[i:])
	}
	for i, option := range permits {
		if !strings.EqualFold(first, option) && first != strconv.Itoa(i+1) {
			continue
		}
		switch {
		case message == "":
			return option, nil
		case option == api.PermitReject:
			return option + " " + message, nil
		}
		break // only a rejection is explained
	}
	return "", api.Errorf(api.CodeBadRequest, "answer a request for leave with %s, or with the option's number; %s may be followed by a message for the agent",
		strings.Join(permits, ", "), api.PermitReject)
}

// optionNumber is the index of the option that a number stands for.
func optionNumber(q *api.Question, words string) (int, bool) {
	n, err := strconv.Atoi(words)
	return n - 1, err == nil && n >= 1 && n <= len(q.Options)
}

// nothingAsked says why a task has nothing to answer: its question was answered, it
// is gone, or there was none.
func nothingAsked(t store.Task) error {
	asked, gone := lastQuestion(t)
	switch {
	case !asked:
		return api.Errorf(api.CodeQuestionGone, "task %s has asked nothing, it is %s", t.ID, t.State)
	case gone:
		return api.Errorf(api.CodeQuestionGone, "task %s does not ask that any more, it is %s", t.ID, t.State)
	}
	return api.Errorf(api.CodeAlreadyAnswered, "task %s waits for no answer, it is %s", t.ID, t.State)
}

// lastQuestion reads in a task's life what became of the question that its attempt
// asked last: gone is one that ended without an answer.
func lastQuestion(t store.Task) (asked, gone bool) {
	after := api.Step{State: t.State}
	for _, s := range slices.Backward(t.Life) {
		switch {
		case s.Attempt != t.Attempt:
			return false, false
		case s.State == api.StateQuestion:
			return true, after.State.Settled() || after.Note == noteWithdrawn
		case s.State != api.StateUnknown: // which only means that its node was away
			after = s
		}
	}
	return false, false
}

// anotherAsked says what became of a question that is not the one that a task asks.
func anotherAsked(t store.Task, question string) error {
	if !strings.HasPrefix(question, t.ID+".") {
		return api.Errorf(api.CodeQuestionGone, "task %s never asked %q; it asks %s now", t.ID, quoted(question), t.Question.ID)
	}
	if n := len(t.Life); n > 0 && t.Life[n-1].Note == noteReplaced {
		return api.Errorf(api.CodeQuestionGone, "task %s asks something else now; look at it", t.ID)
	}
	return api.Errorf(api.CodeAlreadyAnswered, "that question was answered already")
}

// timedOut goes on with a task whose question nobody answered in time: an agent that
// waits in its turn is told so, else it gets a turn for it.
func timedOut(t store.Task, now time.Time) (store.Task, []store.Part, error) {
	text := unanswered(t.Question)
	if t.Asking != "" {
		t.Flags = mergeFlags(t.Flags, []api.Flag{unansweredFlag(t.Question)})
		return noted(given(t, text, now), noteUnanswered, now), nil, nil
	}
	if t.Question.Kind == api.QuestionPermission {
		text = rejection
		t.Flags = mergeFlags(t.Flags, []api.Flag{api.FlagPermissionRejected})
	}
	next, part := nextTurn(t, api.TurnAssume, text, now)
	return next, []store.Part{part}, nil
}
