package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// digestOf is a digest block as an agent writes it.
func digestOf(task string, gen int, fact, end string) string {
	return fmt.Sprintf("[opencode-mesh-digest v1]\ntask: %s\ngen: %d\nfacts:\n- %s\npending: none\nrefs: none\n%s\n", task, gen, fact, end)
}

const digestEnd = "[/opencode-mesh-digest]"

// handedOver makes a pair whose session was compacted once already.
func handedOver(t *testing.T) (*harness, *living) {
	t.Helper()
	h, beta := talk(t, 1)
	h.operate("alice", "beta", api.OpCompact, "c0")
	beta.settled("c0")
	h.submit("alice", "beta", "between", "x")
	beta.settled("between")
	return h, beta
}

// goesOn checks that a pair is as good as before: the bound session takes a task and
// can be compacted, and no digest was lost.
func goesOn(t *testing.T, h *harness, beta *living) {
	t.Helper()
	beta.script = nil
	h.submit("alice", "beta", "after", "x")
	if got := beta.settled("after"); got.State != api.StateDone || got.Outcome.Session != h.bindingOf("alice", "beta").Session {
		t.Errorf("what comes after it: %+v", got.Outcome)
	}
	had, err := h.relay.Digests(context.Background(), store.BindingKey{Controller: "id_alice", Target: "id_beta"})
	if err != nil {
		t.Fatal(err)
	}
	h.operate("alice", "beta", api.OpCompact, "c9")
	if got := beta.settled("c9"); got.State != api.StateDone || !strings.Contains(got.Outcome.Summary, fmt.Sprintf("digest %d,", len(had)+1)) {
		t.Errorf("the next compaction: %+v %+v", got.Outcome, got.Outcome.Error)
	}
	beta.sound(t, "alice")
}

func TestACompactionThatFailsLeavesTheBindingAsItWas(t *testing.T) {
	fails := func(code string, o api.Outcome) api.Outcome {
		o.State, o.Error = api.StateFailed, &api.TaskError{Code: code, Message: "because"}
		return o
	}
	inOld := func(o api.Offer, out api.Outcome) api.Outcome { out.Session = o.Binding.Session; return out }
	replies := func(text func(o api.Offer) string) func(*living, api.Offer) api.Outcome {
		return func(_ *living, o api.Offer) api.Outcome {
			return inOld(o, api.Outcome{State: api.StateDone, Reply: text(o)})
		}
	}
	for _, c := range []struct {
		name, kind, code string
		state            api.State // "" is failed
		says             string
		digests          int // that are stored afterwards
		out              func(n *living, o api.Offer) api.Outcome
	}{
		{name: "the agent fails at the digest", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "cannot", digests: 1,
			out: func(_ *living, o api.Offer) api.Outcome {
				return inOld(o, api.Outcome{State: api.StateFailed, Summary: "cannot"})
			}},
		{name: "the agent does part of it", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "partial", digests: 1,
			out: func(_ *living, o api.Offer) api.Outcome { return inOld(o, api.Outcome{State: api.StatePartial}) }},
		{name: "the agent asks instead", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "which?", digests: 1,
			out: func(_ *living, o api.Offer) api.Outcome { return inOld(o, asks()) }},
		{name: "the node fails at the digest", kind: api.TurnDigest, code: api.TaskAgentUnavailable, says: "because", digests: 1,
			out: func(_ *living, o api.Offer) api.Outcome {
				return inOld(o, fails(api.TaskAgentUnavailable, api.Outcome{}))
			}},
		{name: "the deadline ends the digest", kind: api.TurnDigest, code: api.TaskDeadline, says: "because", digests: 1,
			out: func(_ *living, o api.Offer) api.Outcome { return inOld(o, fails(api.TaskDeadline, api.Outcome{})) }},
		{name: "the node refuses the digest", kind: api.TurnDigest, code: api.TaskRefused, state: api.StateRefused, says: "because", digests: 1,
			out: func(*living, api.Offer) api.Outcome {
				o := fails(api.TaskRefused, api.Outcome{})
				o.State = api.StateRefused
				return o
			}},
		{name: "there is no digest in the reply", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "no digest block", digests: 1,
			out: replies(func(api.Offer) string { return "here you are" })},
		{name: "the digest is the request given back", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "empty", digests: 1,
			out: replies(func(o api.Offer) string { _, body, _ := strings.Cut(o.Text, "---\n"); return body })},
		{name: "the digest is of another generation", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "generation 1", digests: 1,
			out: replies(func(o api.Offer) string { return digestOf(o.Task, 1, "x", digestEnd) })},
		{name: "the digest is of another task", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "another task", digests: 1,
			out: replies(func(api.Offer) string { return digestOf("c0", 2, "x", digestEnd) })},
		{name: "the digest does not end", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "closing tag", digests: 1,
			out: replies(func(o api.Offer) string { return digestOf(o.Task, 2, "x", "") })},
		{name: "the digest is too large", kind: api.TurnDigest, code: api.TaskMalformedDigest, says: "larger than", digests: 1,
			out: replies(func(o api.Offer) string {
				return digestOf(o.Task, 2, strings.Repeat("x", api.MaxDigest), digestEnd)
			})},
		{name: "the session is gone", kind: api.TurnDigest, code: api.TaskSessionGone, says: "gone", digests: 1,
			out: func(*living, api.Offer) api.Outcome { return fails(api.TaskSessionGone, api.Outcome{Summary: "gone"}) }},
		{name: "the digest comes from another session", kind: api.TurnDigest, code: api.TaskSessionGone, says: "gone", digests: 1,
			out: func(_ *living, o api.Offer) api.Outcome {
				return api.Outcome{State: api.StateDone, Session: "ses_other", Reply: digestOf(o.Task, 2, "x", digestEnd)}
			}},
		{name: "the new session fails", kind: api.TurnResume, code: api.TaskNotAcknowledged, says: "cannot", digests: 2,
			out: func(n *living, o api.Offer) api.Outcome {
				s, _, _ := n.enter(o)
				return n.in(s, api.Outcome{State: api.StateFailed, Summary: "cannot"})
			}},
		{name: "the new session asks instead", kind: api.TurnResume, code: api.TaskNotAcknowledged, says: "which?", digests: 2,
			out: func(n *living, o api.Offer) api.Outcome {
				s, _, _ := n.enter(o)
				return n.in(s, asks())
			}},
		{name: "the new session does not get that far", kind: api.TurnResume, code: api.TaskDeadline, says: "because", digests: 2,
			out: func(n *living, o api.Offer) api.Outcome {
				s, _, _ := n.enter(o)
				return n.in(s, fails(api.TaskDeadline, api.Outcome{}))
			}},
		{name: "the new session goes at once", kind: api.TurnResume, code: api.TaskNotAcknowledged, says: "because", digests: 2,
			out: func(n *living, o api.Offer) api.Outcome {
				s, _, _ := n.enter(o)
				return n.in(s, fails(api.TaskInterrupted, api.Outcome{}))
			}},
		{name: "no new session is made", kind: api.TurnResume, code: api.TaskAgentUnavailable, says: "because", digests: 2,
			out: func(*living, api.Offer) api.Outcome { return fails(api.TaskAgentUnavailable, api.Outcome{}) }},
		{name: "the node names no new session", kind: api.TurnResume, code: api.TaskNotAcknowledged, says: "did not acknowledge", digests: 2,
			out: func(*living, api.Offer) api.Outcome { return done("") }},
		{name: "the node names the old session as the new one", kind: api.TurnResume, code: api.TaskNotAcknowledged, says: "did not acknowledge", digests: 2,
			out: func(n *living, _ api.Offer) api.Outcome {
				o := done("")
				o.Session = n.h.bindingOf("alice", "beta").Session
				return o
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, beta := handedOver(t)
			was := h.bindingOf("alice", "beta")
			beta.script = func(o api.Offer) *api.Outcome {
				if o.Kind != c.kind {
					return nil
				}
				out := c.out(beta, o)
				return &out
			}
			h.operate("alice", "beta", api.OpCompact, "c1")
			h.submit("alice", "beta", "behind", "x")
			got := beta.settled("c1")
			if c.state == "" {
				c.state = api.StateFailed
			}
			if got.State != c.state || got.Outcome.Error == nil || got.Outcome.Error.Code != c.code ||
				!strings.Contains(got.Outcome.Error.Message+got.Outcome.Summary, c.says) {
				t.Errorf("outcome %+v, error %+v", got.Outcome, got.Outcome.Error)
			}
			if got := beta.settled("behind"); got.Outcome.Session != was.Session || len(got.Flags) > 0 {
				t.Errorf("what comes behind it ran in %s, flags %v", got.Outcome.Session, got.Flags)
			}
			b := beta.sound(t, "alice")
			if b.Generation != was.Generation || b.Session != was.Session || len(b.Former) != len(was.Former) {
				t.Errorf("the binding is %+v and was %+v", b, was)
			}
			list, err := h.relay.Digests(context.Background(), b.BindingKey)
			if err != nil || len(list) != c.digests {
				t.Errorf("%d digests, %v", len(list), err)
			}
			goesOn(t, h, beta)
		})
	}
}

func TestASessionThatCannotBeTakenBackIsNamed(t *testing.T) {
	h, beta := handedOver(t)
	beta.script = func(o api.Offer) *api.Outcome {
		switch o.Kind {
		case api.TurnResume:
			s, _, _ := beta.enter(o)
			out := beta.in(s, api.Outcome{State: api.StateFailed, Summary: "cannot"})
			return &out
		case api.TurnDelete:
			return &api.Outcome{State: api.StateFailed, Error: &api.TaskError{Code: api.TaskAgentUnavailable}}
		}
		return nil
	}
	h.operate("alice", "beta", api.OpCompact, "c1")
	got := beta.settled("c1")
	fresh := beta.turns[api.Triple{Task: "c1", Attempt: 1, Turn: 3}].offer.Binding
	if e := got.Outcome.Error; e == nil || e.Code != api.TaskNotAcknowledged || !strings.Contains(e.Message, "session "+fresh.Session) || fresh.Compaction != "c1" {
		t.Errorf("outcome %+v %+v, deleted was to be %+v", got.Outcome, e, fresh)
	}
	goesOn(t, h, beta) // the next compaction's node finds and deletes it
}

func TestACompactionThatNewOvertakesChangesNothing(t *testing.T) {
	h, beta := handedOver(t)
	beta.script = func(o api.Offer) *api.Outcome {
		if o.Kind == api.TurnResume {
			h.submit("alice", "beta", "new", "x", asNew)
		}
		return nil
	}
	h.operate("alice", "beta", api.OpCompact, "c1")
	got := beta.settled("c1")
	if e := got.Outcome.Error; e == nil || e.Code != api.TaskBindingChanged || got.Turn != 3 {
		t.Errorf("%+v %+v, turn %d", got.Outcome, e, got.Turn)
	}
	opened := beta.settled("new")
	if b := beta.sound(t, "alice"); b.Generation != opened.Generation || b.Session != opened.Outcome.Session {
		t.Errorf("binding %+v", b)
	}
	goesOn(t, h, beta)
}

// TestACompactionSurvivesWhateverHappensAtWhateverStep lets every commit of a
// compaction be the last one before something happens.
func TestACompactionSurvivesWhateverHappensAtWhateverStep(t *testing.T) {
	restart := func(h *harness, beta *living) {
		beta.leave()
		h.disk.full.Store(false)
		h.crash()
	}
	for _, c := range []struct {
		name   string
		happen func(t *testing.T, h *harness, beta *living)
		may    []api.State // besides done
	}{
		{"the hub crashes", func(_ *testing.T, h *harness, beta *living) {
			restart(h, beta)
			beta.attach()
		}, nil},
		{"the disk is full for a while", func(_ *testing.T, h *harness, _ *living) {
			h.free()
		}, nil},
		{"the node is away until it is unknown", func(_ *testing.T, h *harness, beta *living) {
			h.free()
			beta.leave()
			h.sweep(2 * time.Minute)
			beta.attach()
		}, nil},
		{"the hub crashes and the node is away until it is unknown", func(_ *testing.T, h *harness, beta *living) {
			restart(h, beta)
			h.sweep(2 * time.Minute)
			beta.attach()
		}, nil},
		{"the node loses its journal", func(_ *testing.T, h *harness, beta *living) {
			h.free()
			beta.lose()
			beta.attach()
		}, []api.State{api.StateFailed}},
		{"the hub crashes and the node loses its journal", func(_ *testing.T, h *harness, beta *living) {
			restart(h, beta)
			beta.lose()
			beta.attach()
		}, []api.State{api.StateFailed}},
		{"the hub crashes and the session is deleted", func(_ *testing.T, h *harness, beta *living) {
			restart(h, beta)
			if b := h.bindingOf("alice", "beta"); b.Session != "" {
				beta.vanish(b.Session)
			}
			beta.attach()
		}, []api.State{api.StateFailed}},
		{"the hub crashes and it is canceled", func(t *testing.T, h *harness, beta *living) {
			restart(h, beta)
			_, _ = h.relay.Cancel(context.Background(), "c1")
			beta.attach()
		}, []api.State{api.StateCanceled}},
		{"it is canceled", func(_ *testing.T, h *harness, _ *living) {
			h.free()
			_, _ = h.relay.Cancel(context.Background(), "c1")
		}, []api.State{api.StateCanceled}},
		{"the hub crashes and its time is over", func(_ *testing.T, h *harness, beta *living) {
			restart(h, beta)
			h.sweep(api.DefaultTTL + time.Hour)
			beta.attach()
			h.sweep(0)
		}, []api.State{api.StateExpired, api.StateCanceled}},
		{"the hub crashes and --new binds another", func(t *testing.T, h *harness, beta *living) {
			restart(h, beta)
			h.submit("alice", "beta", "new", "x", asNew)
			beta.attach()
		}, []api.State{api.StateFailed}},
		{"--new binds another", func(t *testing.T, h *harness, beta *living) {
			h.free()
			h.submit("alice", "beta", "new", "x", asNew)
		}, []api.State{api.StateFailed}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			steps := 0
			for ; ; steps++ {
				if !t.Run(fmt.Sprintf("after commit %d", steps), func(t *testing.T) {
					h, beta := handedOver(t)
					h.disk.room.Store(int64(steps) + 1)
					create := func() error {
						_, err := h.relay.Operate(context.Background(), h.ids["alice"], h.ids["alice"], "beta", api.OpCompact, api.Operate{ID: "c1"})
						return err
					}
					made := create() == nil
					beta.until("it ends or a commit fails", func() bool {
						return h.disk.full.Load() && h.store.Writable() != nil || made && h.state("c1").Settled() && !h.disk.full.Load()
					})
					if !h.disk.full.Load() {
						h.disk.room.Store(0)
						steps = -steps - 2 // all were seen
						return
					}
					c.happen(t, h, beta)
					if err := create(); err != nil && !made { // the client repeats it
						wantCode(t, err, api.CodeConflict) // after --new there is nothing to compact
						goesOn(t, h, beta)
						return
					}
					beta.until("it settles", func() bool {
						h.relay.Sweep(context.Background()) // which tries what failed again
						return h.state("c1").Settled()
					})
					got := h.agree("c1")
					if got.State != api.StateDone && !slices.Contains(c.may, got.State) {
						t.Errorf("%+v %+v", got.Outcome, got.Outcome.Error)
					}
					if strings.Contains(c.name, "--new") {
						if b, opened := h.bindingOf("alice", "beta"), beta.settled("new"); b.Lane != opened.Lane || made && b.Generation != opened.Generation {
							t.Errorf("--new made generation %d of lane %d, and %d of %d is bound", opened.Generation, opened.Lane, b.Generation, b.Lane)
						}
					}
					goesOn(t, h, beta)
				}) {
					return
				}
				if steps < 0 {
					break
				}
			}
			if n := -steps - 1; n < 5 {
				t.Errorf("a compaction takes %d commits only", n)
			}
		})
	}
}
