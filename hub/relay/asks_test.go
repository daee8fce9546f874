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
	case <-time.After(10 * time.Second):
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
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
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

func TestAnAnswerIsToldUntilTheNodeHasIt(t *testing.T) {
	for name, trouble := range map[string]error{
		"when the tunnel breaks":      errLost,
		"when the node has no room":   api.Errorf(api.CodeNodeFull, "no room"),
		"when the node is not up yet": api.Errorf(api.CodeUnavailable, "not yet"),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			tries := 0
			beta.mu.Lock()
			beta.onAnswer = func(a api.Reply) (api.Receipt, error) {
				if tries++; tries < 3 {
					return api.Receipt{}, trouble
				}
				return api.Receipt{Triple: a.Triple, State: api.StateRunning}, nil
			}
			beta.mu.Unlock()
			h.mustAnswer(id(1), "", "once")
			for range 3 {
				if a := beta.told(); a.Text != "once" {
					t.Errorf("reply %+v", a)
				}
			}
			h.taken(id(1))
			beta.untold()
		})
	}
}

func TestAnAnswerOutlivesTheHubAndTheConnection(t *testing.T) {
	for name, interrupt := range map[string]func(*harness){
		"of a hub that crashes between answer and delivery": func(h *harness) { h.crash() },
		"of a node that comes back":                         func(*harness) {},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			detach := beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			q := h.await(id(1), api.StateQuestion).Question.ID
			detach()
			h.mustAnswer(id(1), q, "always")
			interrupt(h)
			wantCode(t, h.answer(id(1), q, "reject"), api.CodeAlreadyAnswered)
			beta.attach()
			if a := beta.told(); a.Text != "always" || a.Question != "per_1" || a.Triple != o.Triple || a.Epoch != beta.epoch {
				t.Errorf("reply %+v", a)
			}
			if got := h.taken(id(1)); got.State.Settled() {
				t.Errorf("task %+v", got)
			}
			h.crash()
			beta.attach()
			if err := beta.settle(o, done("ok")); err != nil {
				t.Fatal(err)
			}
			h.await(id(1), api.StateDone)
		})
	}
}

func TestAnAgentThatWasStartedAnewGetsTheAnswerWhenItAsksAgain(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	detach()
	h.mustAnswer(id(1), "", "once")
	beta.mu.Lock()
	beta.onAnswer = func(api.Reply) (api.Receipt, error) {
		return api.Receipt{}, api.Errorf(api.CodeQuestionGone, "nothing asks that yet")
	}
	beta.mu.Unlock()
	beta.attach()
	beta.told()
	beta.mu.Lock()
	beta.onAnswer = nil
	beta.mu.Unlock()
	beta.mustTell(o.Triple, "per_1", permission)
	if a := beta.told(); a.Text != "once" {
		t.Errorf("reply %+v", a)
	}
	if got := h.taken(id(1)); got.State != api.StateAccepted || got.Question != nil { // as it said when it came back
		t.Errorf("task %+v", got)
	}
	// From then on the same is a question again: the answer was used up.
	beta.mustTell(o.Triple, "per_1", permission)
	h.await(id(1), api.StateQuestion)
	h.mustAnswer(id(1), "", "reject")
	if a := beta.told(); a.Text != "reject" {
		t.Errorf("reply %+v", a)
	}
}

func TestAnAnswerWaitsBesideANewerQuestion(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	first := h.await(id(1), api.StateQuestion).Question.ID
	detach()
	h.mustAnswer(id(1), first, "always")
	beta.mustTell(o.Triple, "per_2", permission)
	wantCode(t, h.answer(id(1), first, "reject"), api.CodeAlreadyAnswered)
	beta.attach()
	beta.mustTell(o.Triple, "per_2", permission) // as on each connection
	if a := beta.told(); a.Question != "per_1" || a.Text != "always" {
		t.Errorf("reply %+v", a)
	}
	if got := h.await(id(1), api.StateQuestion); got.Asking != "per_2" || got.Answer != nil {
		t.Errorf("task %+v", got)
	}
	h.mustAnswer(id(1), "", "once")
	if a := beta.told(); a.Question != "per_2" || a.Text != "once" {
		t.Errorf("reply %+v", a)
	}
}

func TestAnAnswerToWhatWasWithdrawnIsNotTold(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	detach()
	h.mustAnswer(id(1), "", "once")
	beta.mustTell(o.Triple, "per_1", nil)
	h.taken(id(1))
	beta.attach()
	beta.quiet()
	beta.untold()
}

func TestAReceiptThatComesLateTakesTheNextAnswerNotAway(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	called, goOn := make(chan struct{}), make(chan struct{})
	beta.mu.Lock()
	beta.onAnswer = func(a api.Reply) (api.Receipt, error) {
		if a.Question == "per_1" {
			close(called)
			<-goOn
		}
		return api.Receipt{Triple: a.Triple, State: api.StateRunning}, nil
	}
	beta.mu.Unlock()
	h.mustAnswer(id(1), "", "once")
	<-called
	beta.mustTell(o.Triple, "per_1", nil)
	beta.mustTell(o.Triple, "per_2", permission)
	h.mustAnswer(id(1), "", "always")
	close(goOn)
	for _, want := range []string{"per_1", "per_2"} {
		if a := beta.told(); a.Question != want {
			t.Errorf("reply %+v, want one to %s", a, want)
		}
	}
	h.taken(id(1))
}

func TestAnAnswerGoesToNoOtherJournal(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	detach()
	h.mustAnswer(id(1), "", "once")
	other := h.node("beta", "j2")
	other.attach()
	h.await(id(1), api.StateUnknown)
	other.quiet()
	other.untold()
}

func TestAReceiptThatTellsTheEndEndsTheTask(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	beta.mu.Lock()
	beta.onAnswer = func(a api.Reply) (api.Receipt, error) {
		out := done("it was over")
		return api.Receipt{State: out.State, Outcome: &out}, nil
	}
	beta.mu.Unlock()
	h.mustAnswer(id(1), "", "once")
	if got := h.await(id(1), api.StateDone); got.Answer != nil || got.Outcome.Summary != "it was over" {
		t.Errorf("task %+v", got)
	}
}

func TestACancelEndsATurnThatAsks(t *testing.T) {
	for name, first := range map[string]bool{"while it waits": false, "after the answer": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.withdraw = running
			detach := beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			detach()
			if first {
				h.mustAnswer(id(1), "", "once")
			}
			cancel(t, h, id(1))
			if !first {
				wantCode(t, h.answer(id(1), "", "once"), api.CodeQuestionGone)
			}
			wantCode(t, beta.tell(o.Triple, "per_2", permission), api.CodeQuestionGone)
			beta.attach()
			beta.await(func() bool { return len(beta.withdrawn) == 1 })
			h.clock.forward(api.DefaultQuestionTimeout + time.Second)
			h.relay.Sweep(context.Background()) // nobody goes on by assumption any more
			if err := beta.settle(o, api.Outcome{State: api.StateCanceled}); err != nil {
				t.Fatal(err)
			}
			if got := h.await(id(1), api.StateCanceled); got.Question != nil || got.Answer != nil || got.Late != nil {
				t.Errorf("task %+v", got)
			}
			beta.untold()
		})
	}
}

func TestAPermissionThatNobodyAnswersIsRejected(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1), func(d *api.Dispatch) { d.QuestionTimeoutMS, d.AutoAnswer = 60_000, api.AutoAnswerFirst })
	if o.QuestionMS != 60_000 {
		t.Errorf("the node is told %d ms", o.QuestionMS)
	}
	for i := range 2 {
		beta.mustTell(o.Triple, id(i), permission)
		q := h.await(id(1), api.StateQuestion).Question.ID
		h.clock.forward(59 * time.Second)
		h.relay.Sweep(context.Background())
		if s := h.state(id(1)); s != api.StateQuestion {
			t.Fatalf("state %s before the time is over", s)
		}
		h.clock.forward(2 * time.Second)
		h.clock.expires(false) // the hub has just started, say
		h.relay.Sweep(context.Background())
		if s := h.state(id(1)); s != api.StateQuestion {
			t.Fatalf("state %s while nothing expires", s)
		}
		h.clock.expires(true)
		h.relay.Sweep(context.Background())
		if a := beta.told(); a.Question != id(i) || !strings.HasPrefix(a.Text, "reject Nobody answered") {
			t.Errorf("reply %+v", a)
		}
		wantCode(t, h.answer(id(1), q, "once"), api.CodeAlreadyAnswered)
	}
	got := h.taken(id(1))
	if !slices.Equal(got.Flags, []api.Flag{api.FlagPermissionRejected}) || got.Turn != 1 || got.State != api.StateRunning {
		t.Errorf("task %+v", got)
	}
	if last := got.Life[len(got.Life)-1]; last.Note != "nobody answered in time" {
		t.Errorf("life %+v", got.Life)
	}
}

func TestAQuestionInATurnIsWaitedForOnce(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "que_1", which("a", "b"))
	h.clock.forward(api.DefaultQuestionTimeout + time.Second)
	h.relay.Sweep(context.Background())
	if a := beta.told(); !strings.Contains(a.Text, "most sensible assumption") {
		t.Errorf("reply %+v", a)
	}
	if got := h.taken(id(1)); !slices.Equal(got.Flags, []api.Flag{api.FlagAssumed}) {
		t.Errorf("flags %v", got.Flags)
	}
	beta.mustTell(o.Triple, "que_2", which("c"))
	if a := beta.told(); a.Question != "que_2" || !strings.Contains(a.Text, "most sensible assumption") {
		t.Errorf("reply %+v", a)
	}
	beta.mustTell(o.Triple, "per_1", permission) // which a person may still grant
	h.await(id(1), api.StateQuestion)
	if err := beta.settle(o, done("assumed a")); err != nil {
		t.Fatal(err)
	}
	if got := h.await(id(1), api.StateDone); !slices.Contains(got.Flags, api.FlagAssumed) {
		t.Errorf("flags %v", got.Flags)
	}
}

func TestAPermissionThatEndedItsTurnIsRejectedToo(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1), func(d *api.Dispatch) { d.AutoAnswer = api.AutoAnswerFirst })
	if err := beta.settle(o, api.Outcome{State: api.StateQuestion, Question: permission}); err != nil {
		t.Fatal(err)
	}
	h.await(id(1), api.StateQuestion)
	h.clock.forward(api.DefaultQuestionTimeout + time.Second)
	h.relay.Sweep(context.Background())
	o = beta.next()
	if o.Kind != api.TurnAssume || !strings.Contains(o.Text, "not permitted") || strings.Contains(o.Text, "sensible assumption") {
		t.Errorf("offer %+v", o)
	}
	if got := h.await(id(1), api.StateAccepted); !slices.Contains(got.Flags, api.FlagPermissionRejected) {
		t.Errorf("flags %v", got.Flags)
	}
}

func TestAQuestionOfAnAbsentNodeIsUnknownAndStillAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		away func(*harness)
		told string
	}{
		"by a person":   {func(h *harness) { h.mustAnswer(id(1), "", "always") }, "always"},
		"by nobody yet": {func(*harness) {}, ""},
		"by its time-out": {func(h *harness) {
			h.clock.forward(api.DefaultQuestionTimeout)
			h.relay.Sweep(context.Background())
		}, "reject "},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			detach := beta.attach()
			o := beta.run(id(1))
			beta.mustTell(o.Triple, "per_1", permission)
			beta.mu.Lock()
			beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
			beta.mu.Unlock()
			detach()
			h.clock.forward(time.Minute)
			h.relay.Sweep(context.Background())
			if s := h.state(id(1)); s != api.StateUnknown {
				t.Fatalf("state %s", s)
			}
			c.away(h)
			if s := h.state(id(1)); s != api.StateUnknown {
				t.Errorf("state %s while its node is away", s)
			}
			h.crash()
			beta.attach()
			if c.told == "" {
				if got := h.await(id(1), api.StateQuestion); got.Asking != "per_1" || got.Question == nil {
					t.Errorf("task %+v", got)
				}
				h.mustAnswer(id(1), "", "once")
				c.told = "once"
			}
			if a := beta.told(); !strings.HasPrefix(a.Text, c.told) {
				t.Errorf("reply %+v, want %q", a, c.told)
			}
			if got := h.taken(id(1)); got.State != api.StateRunning {
				t.Errorf("state %s", got.State)
			}
		})
	}
}

func TestAnUnknownTaskWhoseTurnAskedSettlesWhenItsNodeReturns(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	q := h.await(id(1), api.StateQuestion).Question.ID
	detach()
	h.clock.forward(time.Minute)
	h.relay.Sweep(context.Background())
	h.await(id(1), api.StateUnknown)
	out := api.Outcome{State: api.StateFailed, Error: &api.TaskError{Code: api.TaskDeadline}}
	beta.mu.Lock()
	beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: out.State, Outcome: &out}
	beta.mu.Unlock()
	beta.attach()
	if got := h.await(id(1), api.StateFailed); got.Question != nil || got.Asking != "" || got.Late != nil {
		t.Errorf("task %+v", got)
	}
	wantCode(t, h.answer(id(1), q, "once"), api.CodeQuestionGone)
}

func TestAQuestionTellsThatItsTurnRuns(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = 60_000 })
	o := beta.next()
	beta.mustTell(o.Triple, "per_1", permission) // before any progress, or even the receipt
	got := h.await(id(1), api.StateQuestion)
	if !got.Received || got.StartedAt.IsZero() {
		t.Errorf("task %+v", got)
	}
	h.clock.forward(2 * time.Minute)
	h.relay.Sweep(context.Background())
	if got := h.await(id(1), api.StateQuestion); !got.ExpireAt.IsZero() {
		t.Error("it is asked to expire")
	}
	h.mustAnswer(id(1), "", "once")
	beta.told()
	h.taken(id(1))
	if n := beta.count(id(1)); n != 1 {
		t.Errorf("it was offered %d times", n)
	}
}

func TestATaskThatAsksInItsTurnRunsForItsLineage(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.mustTell(o.Triple, "per_1", permission)
	if got := h.submit("beta", "alpha", id(2), "from inside"); got.Parent != id(1) {
		t.Errorf("parent %q", got.Parent)
	}
}

func TestNobodyIsAskedInTheMiddleOfAnOperation(t *testing.T) {
	h := newHarness(t)
	at := h.clock.Now()
	task := store.Task{
		ID: id(1), Controller: api.Party{ID: "id_alice", Name: "alice"}, Target: api.Party{ID: "id_beta", Name: "beta"},
		Op: api.OpCompact, Kind: api.TurnDigest, Mode: "session", Attempt: 1, Turn: 1, Generation: 1, Lane: 1,
		State: api.StateRunning, Since: at, CreatedAt: at, ExpiresAt: at.Add(time.Hour), StartedAt: at, Journal: "j1", Received: true,
	}
	if _, err := h.store.CreateTasks(context.Background(), []store.NewTask{{Task: task, Text: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	h.crash()
	beta := h.node("beta", "j1")
	beta.known[task.Triple()] = api.Receipt{Triple: task.Triple(), State: api.StateRunning}
	beta.attach()
	beta.mustTell(task.Triple(), "per_1", permission)
	if a := beta.told(); !strings.HasPrefix(a.Text, "reject ") {
		t.Errorf("reply %+v", a)
	}
	if got := h.taken(id(1)); got.State != api.StateRunning {
		t.Errorf("state %s", got.State)
	}
}
