package relay_test

import (
	"context"
	"strings"
	"testing"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func policy(p string) func(*api.Dispatch) { return func(d *api.Dispatch) { d.AutoAnswer = p } }

// policies are policies and the option that they take of staging, 1 and production.
var policies = map[string]string{
	api.AutoAnswerFirst: "staging",
	api.AutoAnswerNone:  "",
	"":                  "",
	"^prod":             "production",
	"(?i)STAG|PROD":     "staging",
	"t":                 "staging",
	"^1$":               "1", // the option of that text, and not the first
	"canary":            "",
}

func TestAPolicyAnswersAQuestionThatEndedItsTurn(t *testing.T) {
	for p, want := range policies {
		t.Run(p, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			if err := beta.settle(beta.run(id(1), policy(p)), asks("staging", "1", "production", "")); err != nil {
				t.Fatal(err)
			}
			if want == "" {
				h.await(id(1), api.StateQuestion)
				h.mustAnswer(id(1), "", "3")
				want = "production"
			}
			o := beta.next()
			if o.Kind != api.TurnAnswer || o.Turn != 2 || !strings.Contains(o.Text, "(repeated below): "+want+"\n") {
				t.Errorf("offer %+v", o)
			}
			if err := beta.settle(o, done("ok")); err != nil {
				t.Fatal(err)
			}
			wantPolicyNote(t, h.await(id(1), api.StateDone), policies[p] != "")
		})
	}
}

// The text of a new task stays in memory until its receipt is in; the turn that a
// policy opens may come sooner.
func TestAnAnswerByPolicyOvertakesNoTextOfItsTask(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.onOffer = func(o api.Offer) (api.Receipt, error) {
		out := done("ok")
		if o.Turn == 1 {
			out = asks("staging", "production")
		}
		if err := beta.settle(o, out); err != nil {
			t.Error(err)
		}
		return api.Receipt{Triple: o.Triple, State: api.StateAccepted}, nil
	}
	beta.attach()
	h.submit("alice", "beta", id(1), "x", policy(api.AutoAnswerFirst))
	h.await(id(1), api.StateDone)
	beta.next()
	if o := beta.next(); o.Turn != 2 || !strings.Contains(o.Text, "(repeated below): staging\n") {
		t.Errorf("offer %+v", o)
	}
}

func TestAPolicyAnswersAQuestionInATurn(t *testing.T) {
	for p, want := range policies {
		t.Run(p, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1), policy(p))
			beta.mustTell(o.Triple, "que_1", which("staging", "1", "production", ""))
			if want == "" {
				h.await(id(1), api.StateQuestion)
				h.mustAnswer(id(1), "", "3")
				want = "production"
			}
			if a := beta.told(); a.Text != want || a.Question != "que_1" {
				t.Errorf("reply %+v, want %q", a, want)
			}
			if err := beta.settle(o, done("ok")); err != nil {
				t.Fatal(err)
			}
			wantPolicyNote(t, h.await(id(1), api.StateDone), policies[p] != "")
			wantCode(t, h.answer(id(1), "", "1"), api.CodeAlreadyAnswered)
		})
	}
}

// wantPolicyNote checks that a task's life says who answered.
func wantPolicyNote(t *testing.T, task store.Task, by bool) {
	t.Helper()
	n := 0
	for _, s := range task.Life {
		if s.Note == "answered by policy" {
			n++
		}
		if s.Note != "" && s.State != api.StateQuestion {
			t.Errorf("step %+v", s)
		}
	}
	if n > 1 || (n == 1) != by {
		t.Errorf("%d steps say that a policy answered: %+v", n, task.Life)
	}
}

func TestAPolicyTakesNoEmptyOption(t *testing.T) {
	for p, want := range map[string]string{"first": "b", ".*": "b", "^$": ""} {
		h := newHarness(t)
		beta := h.node("beta", "j1")
		beta.attach()
		o := beta.run(id(1), policy(p))
		beta.mustTell(o.Triple, "que_1", which("\x07", "b"))
		if want == "" {
			h.await(id(1), api.StateQuestion)
			continue
		}
		if a := beta.told(); a.Text != want {
			t.Errorf("%s: reply %+v", p, a)
		}
	}
}

func TestWhoWaitsForAQuestionDoesNotSeeThoseThatAPolicyAnswers(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	o := beta.run(id(1), policy("first"))
	waited := make(chan store.Task, 1)
	go func() {
		got, _ := h.relay.Wait(context.Background(), id(1), true)
		waited <- got
	}()
	beta.mustTell(o.Triple, "que_1", which("a"))
	beta.told()
	if err := beta.settle(o, asks("a")); err != nil {
		t.Fatal(err)
	}
	if err := beta.settle(beta.next(), done("ok")); err != nil {
		t.Fatal(err)
	}
	if got := <-waited; got.State != api.StateDone {
		t.Errorf("the wait ended in %s", got.State)
	}
}

func TestAPolicyNeverGrantsAPermission(t *testing.T) {
	for _, p := range []string{"first", "once|always", ".*"} {
		h := newHarness(t)
		beta := h.node("beta", "j1")
		beta.attach()
		o := beta.run(id(1), policy(p))
		beta.mustTell(o.Triple, "per_1", permission)
		if got := h.await(id(1), api.StateQuestion); got.Answer != nil {
			t.Errorf("%s: answered %+v", p, got.Answer)
		}
		beta.untold()
		if err := beta.settle(o, done("did without")); err != nil {
			t.Fatal(err)
		}
		h.submit("alice", "beta", id(2), "x", policy(p))
		if err := beta.settle(beta.next(), api.Outcome{State: api.StateQuestion, Question: permission}); err != nil {
			t.Fatal(err)
		}
		h.await(id(2), api.StateQuestion)
	}
}

func TestAnAgentThatAsksInALoopWaitsForAPersonInTheEnd(t *testing.T) {
	for name, loop := range map[string]func(*fakeNode, api.Offer, int) api.Offer{
		"after its turns": func(n *fakeNode, o api.Offer, _ int) api.Offer {
			if err := n.settle(o, asks("again")); err != nil {
				n.h.t.Fatal(err)
			}
			return n.next()
		},
		"in its turn": func(n *fakeNode, o api.Offer, i int) api.Offer {
			n.mustTell(o.Triple, id(i), which("again"))
			n.told()
			return o
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			beta := h.node("beta", "j1")
			beta.attach()
			o := beta.run(id(1), policy("first"))
			for i := range relay.MaxAutoAnswers {
				o = loop(beta, o, i)
				beta.works(o)
			}
			beta.mustTell(o.Triple, "one more", which("again"))
			h.await(id(1), api.StateQuestion)
			if err := beta.settle(o, done("enough")); err != nil {
				t.Fatal(err)
			}
			if _, err := h.relay.Retry(context.Background(), id(1)); err != nil {
				t.Fatal(err)
			}
			o = beta.next()
			beta.mustTell(o.Triple, "anew", which("again")) // another attempt counts anew
			if a := beta.told(); a.Text != "again" || a.Attempt != 2 {
				t.Errorf("reply %+v", a)
			}
		})
	}
}

func TestAPolicyThatCannotBeFollowedIsRefused(t *testing.T) {
	h := newHarness(t)
	for p, says := range map[string]string{
		"prod(":                                  "missing closing ): `prod(`",
		"[z-a]":                                  "invalid character class range: `z-a`",
		strings.Repeat("x", 257):                 "longer than 256 bytes",
		"(" + strings.Repeat("x{100}", 40) + ")": "repeats too much",
		"x{1001}":                                "invalid repeat count",
	} {
		_, err := h.trySubmit("alice", "beta", id(1), "x", policy(p))
		wantCode(t, err, api.CodeBadRequest)
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v does not say %q", p, err, says)
		}
	}
	h.submit("alice", "beta", id(1), "x", policy(strings.Repeat("x", api.MaxAutoAnswer)))
}
