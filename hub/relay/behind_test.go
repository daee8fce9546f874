package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
)

// asked waits until the task asks something that is not among what it asked before.
func (h *harness) asked(id string, before ...string) string {
	h.t.Helper()
	for {
		t := h.await(id, api.StateQuestion)
		if !slices.Contains(before, t.Asking) {
			return t.Asking
		}
	}
}

// quiet returns when the hub has done what was urgent: that comes before an offer.
func (n *fakeNode) quiet() {
	n.h.t.Helper()
	n.h.submit("bob", n.name, fmt.Sprint("quiet-", n.h.disk.commits.Load()), "x", asNew)
	n.next()
}

// askAll lets a turn ask leave for several things at once.
func (n *fakeNode) askAll(o api.Offer, ids ...string) {
	n.h.t.Helper()
	for _, q := range ids {
		n.mustTell(o.Triple, q, &api.Asked{Kind: api.QuestionPermission, Text: "leave for " + q})
	}
}

// answerAll answers one question after the other, each with words of its own, and
// returns what the node was told by the agent's ids.
func (n *fakeNode) answerAll(task string, count int) map[string]string {
	n.h.t.Helper()
	got := map[string]string{}
	var seen []string
	for range count {
		asking := n.h.asked(task, seen...)
		seen = append(seen, asking)
		if q := n.h.await(task, api.StateQuestion).Question; q.Text != "leave for "+asking {
			n.h.t.Errorf("it asks %q under %s", q.Text, asking)
		}
		n.h.mustAnswer(task, "", "reject no to "+asking)
		a := n.told()
		got[a.Question] = a.Text
	}
	for q, text := range got {
		if text != "reject no to "+q {
			n.h.t.Errorf("to %s it was told %q", q, text)
		}
	}
	return got
}

func TestWhatATurnAsksAtOnceIsAskedOneAfterTheOther(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.askAll(o, "per_1", "per_2", "per_3")
	if q := h.asked(id(1)); q != "per_3" {
		t.Errorf("the newest is not asked but %s", q)
	}
	beta.askAll(o, "per_1", "per_3", "per_2") // repeats move nothing
	if q := h.asked(id(1)); q != "per_3" {
		t.Errorf("after a repeat it asks %s", q)
	}
	if got := beta.answerAll(id(1), 3); len(got) != 3 {
		t.Errorf("told %v", got)
	}
	if got := h.taken(id(1)); got.State != api.StateRunning {
		t.Errorf("state %s", got.State)
	}
	beta.untold()
}

func TestWhatIsAskedAgainHasTheTimeThatItHad(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.askAll(o, "per_1")
	first := h.await(id(1), api.StateQuestion).Question
	h.clock.forward(api.DefaultQuestionTimeout / 2)
	beta.askAll(o, "per_2")
	h.mustAnswer(id(1), "", "once")
	beta.told()
	h.asked(id(1), "per_2")
	if q := h.await(id(1), api.StateQuestion).Question; q.ID != first.ID || !q.ExpiresAt.Equal(*first.ExpiresAt) {
		t.Errorf("question %+v, was %+v", q, first)
	}
	h.mustAnswer(id(1), first.ID, "always")
	if a := beta.told(); a.Question != "per_1" || a.Text != "always" {
		t.Errorf("reply %+v", a)
	}
}

func TestAWithdrawnQuestionIsNotAskedAfterAnother(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	beta.askAll(o, "per_1", "per_2", "per_3")
	beta.mustTell(o.Triple, "per_2", nil) // one that waits
	beta.mustTell(o.Triple, "per_3", nil) // the one that is asked: the next is
	if q := h.asked(id(1)); q != "per_1" {
		t.Errorf("it asks %s", q)
	}
	h.mustAnswer(id(1), "", "once")
	beta.told()
	h.taken(id(1))
	beta.quiet()
	if got := h.await(id(1), api.StateRunning, api.StateQuestion); got.State != api.StateRunning {
		t.Errorf("it asks %s", got.Asking)
	}
}

func TestWhatWaitsIsToldAnewOnEachConnection(t *testing.T) {
	for name, c := range map[string]struct {
		crash  bool
		retold []string
	}{
		"by the same process":            {false, []string{"per_2", "per_1", "per_3"}},
		"to a hub that was started anew": {true, []string{"per_1", "per_2", "per_3"}},
		"by a process that asks one":     {false, []string{"per_3"}},
		"by a process that asks another": {false, []string{"per_4"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			detach := beta.attach()
			o := beta.run(id(1))
			beta.askAll(o, "per_1", "per_2", "per_3")
			detach()
			if c.crash {
				h.crash()
			}
			beta.mu.Lock()
			beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
			beta.mu.Unlock()
			beta.attach()
			beta.askAll(o, c.retold...)
			got := beta.answerAll(id(1), len(c.retold))
			for _, q := range c.retold {
				if got[q] == "" {
					t.Errorf("%s was not answered: %v", q, got)
				}
			}
			h.taken(id(1))
			beta.quiet()
			if got := h.await(id(1), api.StateRunning, api.StateQuestion); got.State != api.StateRunning {
				t.Errorf("it asks %s, which nobody asks", got.Asking)
			}
		})
	}
}

func TestAPolicyAnswersBesideAPermissionThatWaits(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1), policy("first"))
	beta.askAll(o, "per_1")
	beta.mustTell(o.Triple, "que_1", which("a", "b"))
	if a := beta.told(); a.Question != "que_1" || a.Text != "a" {
		t.Errorf("reply %+v", a)
	}
	if got := beta.answerAll(id(1), 1); got["per_1"] == "" {
		t.Errorf("told %v", got)
	}
}

func TestQuestionsThatWaitAreBoundedAndEndWithTheirTurn(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1))
	for i := range 100 {
		beta.askAll(o, fmt.Sprint("per_", i))
	}
	got := beta.answerAll(id(1), 1+16)
	if got["per_99"] == "" || got["per_83"] == "" || len(got) != 17 {
		t.Errorf("told %v", got)
	}
	h.taken(id(1))
	beta.quiet()
	if got := h.await(id(1), api.StateRunning, api.StateQuestion); got.State != api.StateRunning {
		t.Errorf("it asks %s", got.Asking)
	}
	beta.askAll(o, "per_100", "per_101")
	if err := beta.settle(o, asks("a")); err != nil {
		t.Fatal(err)
	}
	h.mustAnswer(id(1), "", "1")
	if o = beta.next(); !strings.Contains(o.Text, "Answer to your question") {
		t.Errorf("offer %+v", o)
	}
	beta.works(o)
	beta.untold()
	if n := h.relay.Behind("id_beta"); n != 0 {
		t.Errorf("%d questions wait", n)
	}
}

func TestTheQuestionsThatWaitOfOneNodeAreBounded(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	var offers []api.Offer
	for i := range 512/16 + 2 {
		o := beta.run(id(i), asNew)
		offers = append(offers, o)
		for q := range 20 {
			beta.askAll(o, fmt.Sprint("per_", q))
		}
	}
	if n := h.relay.Behind("id_beta"); n != 512 {
		t.Errorf("%d questions wait", n)
	}
	for _, o := range offers {
		if err := beta.settle(o, done("ok")); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.relay.Behind("id_beta"); n != 0 {
		t.Errorf("%d questions wait after the end", n)
	}
}

func TestAnAnswerIsNotDisplacedByTheNext(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1), policy("first"))
	beta.askAll(o, "per_1")
	beta.mu.Lock()
	beta.onAnswer = func(api.Reply) (api.Receipt, error) {
		return api.Receipt{}, api.Errorf(api.CodeUnavailable, "not yet")
	}
	beta.mu.Unlock()
	h.mustAnswer(id(1), "", "once")
	beta.told()
	beta.mustTell(o.Triple, "que_1", which("a")) // which is answered at once, as soon as it is its turn
	if got, _ := h.relay.Task(t.Context(), id(1)); got.Answer == nil || got.Answer.Asking != "per_1" {
		t.Errorf("task %+v", got)
	}
	beta.mu.Lock()
	beta.onAnswer = nil
	beta.mu.Unlock()
	var asked []string
	for !slices.Contains(asked, "que_1") {
		asked = append(asked, beta.told().Question)
	}
	if i := slices.Index(asked, "que_1"); i == 0 || asked[i-1] != "per_1" {
		t.Errorf("told %v", asked)
	}
	if got := h.taken(id(1)); got.State != api.StateRunning {
		t.Errorf("state %s", got.State)
	}
}

func TestWhatWaitedForAnAnswerGivesWayLikeAnyOther(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	o := beta.run(id(1))
	beta.askAll(o, "per_0")
	detach()
	h.mustAnswer(id(1), "", "once")
	goOn := make(chan struct{})
	beta.mu.Lock()
	beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
	beta.onAnswer = func(a api.Reply) (api.Receipt, error) {
		<-goOn
		return api.Receipt{Triple: a.Triple, State: api.StateRunning}, nil
	}
	beta.mu.Unlock()
	beta.attach()
	beta.askAll(o, "per_1") // behind the answer that is on its way
	close(goOn)
	if a := beta.told(); a.Question != "per_0" {
		t.Errorf("reply %+v", a)
	}
	h.asked(id(1))
	beta.askAll(o, "per_2")
	if got := beta.answerAll(id(1), 2); got["per_1"] == "" || got["per_2"] == "" {
		t.Errorf("told %v", got)
	}
}
