package relay_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// permission is what an agent asks leave for, and which what it wants to know.
var permission = &api.Asked{Kind: api.QuestionPermission, Text: "bash: git push", Options: []string{"anything"}}

func which(options ...string) *api.Asked {
	return &api.Asked{Kind: api.QuestionText, Text: "which?", Options: options}
}

// tell sends what an agent asks, or withdraws, in the middle of its turn.
func (n *fakeNode) tell(of api.Triple, question string, asked *api.Asked) error {
	n.mu.Lock()
	epoch := n.epoch
	n.mu.Unlock()
	return n.h.relay.Asked(context.Background(), n.h.ids[n.name], api.Ask{Triple: of, JournalID: n.journal, Epoch: epoch, Question: question, Asked: asked})
}

// mustTell is tell of what the hub has to take.
func (n *fakeNode) mustTell(of api.Triple, question string, asked *api.Asked) {
	n.h.t.Helper()
	if err := n.tell(of, question, asked); err != nil {
		n.h.t.Fatal(err)
	}
}

// told waits for the next answer that the node is given.
func (n *fakeNode) told() api.Reply {
	n.h.t.Helper()
	select {
	case a := <-n.answers:
		return a
	case <-time.After(2 * time.Minute):
		n.h.t.Fatalf("%s was told no answer", n.name)
		return api.Reply{}
	}
}

// untold waits until the hub has nothing more to tell about the task and checks that
// nothing came.
func (n *fakeNode) untold() {
	n.h.t.Helper()
	select {
	case a := <-n.answers:
		n.h.t.Errorf("%s was told %+v", n.name, a)
	default:
	}
}

// run starts a task and returns its offer once it runs.
func (n *fakeNode) run(task string, opts ...func(*api.Dispatch)) api.Offer {
	n.h.t.Helper()
	n.h.submit("alice", n.name, task, "x", opts...)
	o := n.next()
	n.works(o)
	return o
}

// works reports that a turn runs.
func (n *fakeNode) works(o api.Offer) {
	n.h.t.Helper()
	p := api.Progress{Triple: o.Triple, JournalID: n.journal, Epoch: n.epoch, State: api.StateRunning}
	if err := n.h.relay.ProgressFrom(context.Background(), n.h.ids[n.name], p); err != nil {
		n.h.t.Fatal(err)
	}
	n.h.await(o.Task, api.StateRunning)
}

// taken waits until the node's receipt for an answer is noted.
func (h *harness) taken(id string) store.Task {
	h.t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		t, err := h.relay.Task(context.Background(), id)
		switch {
		case err != nil:
			h.t.Fatal(err)
		case t.Answer == nil:
			return t
		case time.Now().After(limit):
			h.t.Fatalf("task %s keeps its answer %+v", id, t.Answer)
		}
	}
}

func (h *harness) answer(id, question, text string) error {
	_, err := h.relay.Answer(context.Background(), id, question, text)
	return err
}

func (h *harness) mustAnswer(id, question, text string) {
	h.t.Helper()
	if err := h.answer(id, question, text); err != nil {
		h.t.Fatal(err)
	}
}

func TestAPermissionWaitsInItsTurnAndIsAnsweredByNameOrNumber(t *testing.T) {
	for answer, want := range map[string]string{
		"once": "once", "2": "always", " Reject ": "reject", "3": "reject",
		"reject not on a Friday\nor ever": "reject not on a Friday\nor ever", "3 \t no": "reject no",
	} {
		t.Run(answer, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			got := h.await(id(1), api.StateQuestion)
			q := got.Question
			if q.Kind != api.QuestionPermission || q.Text != "bash: git push" || !slices.Equal(q.Options, []string{"once", "always", "reject"}) {
				t.Errorf("question %+v", q)
			}
			if !strings.HasPrefix(q.ID, id(1)+".1.1.") || q.ExpiresAt.Sub(q.AskedAt) != api.DefaultQuestionTimeout || got.Asking != "per_1" {
				t.Errorf("question %+v of %q", q, got.Asking)
			}
			for _, bad := range []string{"yes", "4", "0", "once more", "2 please", "rejected"} {
				err := h.answer(id(1), "", bad)
				wantCode(t, err, api.CodeBadRequest)
				if !strings.Contains(err.Error(), "once, always, reject") {
					t.Errorf("the error does not list the options: %v", err)
				}
			}
			h.mustAnswer(id(1), q.ID, answer)
			a := beta.told()
			if a.Text != want || a.Question != "per_1" || a.Triple != o.Triple || a.JournalID != "j1" || a.Epoch != beta.epoch {
				t.Errorf("reply %+v, want %q", a, want)
			}
			if got := h.taken(id(1)); got.State != api.StateRunning || got.Question != nil || got.Asking != "" || got.Turn != 1 {
				t.Errorf("task %+v", got)
			}
			beta.untold()
			if err := beta.settle(o, done("pushed")); err != nil {
				t.Fatal(err)
			}
			h.await(id(1), api.StateDone)
		})
	}
}

func TestAQuestionInATurnIsAnsweredInOwnWordsOrByNumber(t *testing.T) {
	for answer, want := range map[string]string{"2": "production", "neither, use sqlite": "neither, use sqlite", "4": "4"} {
		t.Run(answer, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "que_1", which("staging", "production", "\x1b"))
			wantCode(t, h.answer(id(1), "", "3"), api.CodeBadRequest) // it is empty
			h.mustAnswer(id(1), "", answer)
			if a := beta.told(); a.Text != want || a.Question != "que_1" {
				t.Errorf("reply %+v, want %q", a, want)
			}
		})
	}
}

func TestOfTwoAnswersInATurnTheFirstWins(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	q := h.await(id(1), api.StateQuestion).Question.ID
	errs := make(chan error, 2)
	for _, text := range []string{"once", "reject"} {
		go func() { errs <- h.answer(id(1), q, text) }()
	}
	won, lost := <-errs, <-errs
	if won != nil {
		won, lost = lost, won
	}
	if won != nil {
		t.Fatal(won)
	}
	wantCode(t, lost, api.CodeAlreadyAnswered)
	beta.told()
	h.taken(id(1))
	beta.untold()
	for _, question := range []string{q, ""} { // also when the node has it, and after the end
		wantCode(t, h.answer(id(1), question, "always"), api.CodeAlreadyAnswered)
	}
	if err := beta.settle(o, done("ok")); err != nil {
		t.Fatal(err)
	}
	wantCode(t, h.answer(id(1), q, "always"), api.CodeAlreadyAnswered)
}

func TestAQuestionThatIsGoneIsNotAnswered(t *testing.T) {
	type game struct {
		h    *harness
		beta *fakeNode
		o    api.Offer
	}
	for name, end := range map[string]func(*testing.T, game){
		"because it was withdrawn": func(t *testing.T, g game) {
			g.beta.mustTell(g.o.Triple, "per_1", nil)
			if got := g.h.await(id(1), api.StateRunning); got.Question != nil || got.Asking != "" {
				t.Errorf("task %+v", got)
			}
			g.beta.mustTell(g.o.Triple, "per_1", nil) // a repeat
		},
		"because another took its place": func(t *testing.T, g game) {
			g.beta.mustTell(g.o.Triple, "per_2", permission)
			if got := g.h.await(id(1), api.StateQuestion); got.Asking != "per_2" {
				t.Errorf("it asks %s", got.Asking)
			}
			g.beta.mustTell(g.o.Triple, "per_1", nil) // which changes nothing
		},
		"because the turn ended": func(t *testing.T, g game) {
			if err := g.beta.settle(g.o, done("gave up asking")); err != nil {
				t.Fatal(err)
			}
			if got := g.h.await(id(1), api.StateDone); got.Question != nil || got.Asking != "" || got.Late != nil {
				t.Errorf("task %+v", got)
			}
			wantCode(t, g.h.answer(id(1), "", "once"), api.CodeQuestionGone)
		},
		"because its deadline came": func(t *testing.T, g game) {
			if err := g.beta.settle(g.o, api.Outcome{State: api.StateFailed, Error: &api.TaskError{Code: api.TaskDeadline}}); err != nil {
				t.Fatal(err)
			}
			g.h.await(id(1), api.StateFailed)
		},
		"because the node lost it": func(t *testing.T, g game) {
			g.beta.attach()
			again := g.h.node("beta", "j1")
			again.attach()
			if got := g.h.await(id(1), api.StateFailed); got.Outcome.Error.Code != api.TaskJournalLost {
				t.Errorf("outcome %+v", got.Outcome)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			q := h.await(id(1), api.StateQuestion).Question.ID
			end(t, game{h, beta, o})
			wantCode(t, h.answer(id(1), q, "once"), api.CodeQuestionGone)
			beta.untold()
		})
	}
}

func TestOnlyTheTurnsOwnNodeAndJournalMayAsk(t *testing.T) {
	h := newHarness(t)
	beta, alpha, copied := h.node("beta", "j1"), h.node("alpha", "j1"), h.node("beta", "j2")
	beta.attach()
	o := beta.run(id(1))
	of := func(task string, attempt, turn int) api.Triple {
		return api.Triple{Task: task, Attempt: attempt, Turn: turn}
	}
	wantCode(t, alpha.tell(o.Triple, "per_1", permission), api.CodeForbidden)
	wantCode(t, copied.tell(o.Triple, "per_1", permission), api.CodeForbidden)
	wantCode(t, copied.tell(o.Triple, "per_1", nil), api.CodeForbidden)
	wantCode(t, beta.tell(of("no-such-task", 1, 1), "per_1", permission), api.CodeUnknownTask)
	wantCode(t, beta.tell(of("not an id", 1, 1), "per_1", permission), api.CodeBadRequest)
	for _, question := range []string{"", "two\nlines", strings.Repeat("q", 300)} {
		wantCode(t, beta.tell(o.Triple, question, permission), api.CodeBadRequest)
	}
	wantCode(t, beta.tell(of(id(1), 1, 2), "per_1", permission), api.CodeQuestionGone)
	wantCode(t, beta.tell(of(id(1), 2, 1), "per_1", permission), api.CodeQuestionGone)
	if s := h.state(id(1)); s != api.StateRunning {
		t.Errorf("state %s", s)
	}
	h.submit("alice", "alpha", id(2), "never offered")
	wantCode(t, alpha.tell(of(id(2), 1, 1), "per_1", permission), api.CodeForbidden)

	if err := beta.settle(o, asks("a", "b")); err != nil { // the turn ends with a question of its own
		t.Fatal(err)
	}
	wantCode(t, beta.tell(o.Triple, "per_1", permission), api.CodeQuestionGone)
	if got := h.await(id(1), api.StateQuestion); got.Asking != "" || got.Question.Kind != api.QuestionText {
		t.Errorf("task %+v", got)
	}
	cancel(t, h, id(1))
	h.await(id(1), api.StateCanceled)
	wantCode(t, beta.tell(o.Triple, "per_1", permission), api.CodeQuestionGone)
}

func TestWhatANodeAsksIsBoundedAndCleaned(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	options := make([]string, 1000)
	for i := range options {
		options[i] = evil(4096)
	}
	for i, kind := range []string{api.QuestionPermission, evil(100)} {
		beta.mustTell(o.Triple, string(rune('a'+i)), &api.Asked{Kind: kind, Text: "may I?\n" + evil(1<<20), Options: options})
		got := h.await(id(1), api.StateQuestion)
		wantSmall(t, h.relay.Live(got), 128<<10)
		if !strings.HasPrefix(got.Question.Text, "may I?\n") {
			t.Errorf("question %.60q", got.Question.Text)
		}
	}
	for i := range 200 { // one open question, whatever is asked
		beta.mustTell(o.Triple, "more-"+id(i), which("a"))
	}
	if got := h.await(id(1), api.StateQuestion); got.Asking != "more-"+id(199) || len(got.Life) > store.MaxLife {
		t.Errorf("it asks %s after %d steps", got.Asking, len(got.Life))
	}
}

func TestARepeatOfAQuestionIsNoChange(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	first := h.await(id(1), api.StateQuestion)
	beta.mustTell(o.Triple, "per_1", which("something", "else"))
	if got := h.await(id(1), api.StateQuestion); got.Rev != first.Rev {
		t.Errorf("it was written again: %+v", got.Question)
	}
}
