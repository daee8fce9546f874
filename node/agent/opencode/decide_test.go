package opencode_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node/agent"
)

func TestAPromptKeepsTheIDAndTheMarksThatItIsGiven(t *testing.T) {
	f, a, s := visited(t)
	v := enter(t, a, s.ID)
	defer v.Leave()
	p := agent.Prompt{Message: "msg_ba54a7cfa64a5b13c954b018bd", Text: "hello", Synthetic: true, Metadata: map[string]any{"from": "afar"}}
	if err := v.Prompt(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	got := f.prompts[0]
	f.mu.Unlock()
	if got.MessageID != p.Message || !got.Parts[0].Synthetic || !reflect.DeepEqual(got.Parts[0].Metadata, p.Metadata) || got.Parts[0].ID == "" {
		t.Errorf("%+v", got)
	}
	for message, want := range map[string]bool{p.Message: true, "msg_other": false} {
		if stored, err := v.Stored(t.Context(), agent.Prompt{Message: message}); err != nil || stored != want {
			t.Errorf("%s: stored %v, %v", message, stored, err)
		}
	}
	if err := v.Finish(t.Context(), p, false); err != nil {
		t.Error(err)
	}
}

// deciding collects what a visitor is asked to decide.
type deciding struct {
	mu   sync.Mutex
	seen map[string]agent.Request
	// say is what is decided, by the id of a request; the rest is left.
	say map[string]agent.Verdict
	// patience is how often a request is left before say counts.
	patience int
	times    map[string]int
}

func (d *deciding) decide(q agent.Request) (agent.Verdict, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == nil {
		d.seen, d.times = map[string]agent.Request{}, map[string]int{}
	}
	d.seen[q.ID] = q
	if d.times[q.ID]++; d.times[q.ID] <= d.patience {
		return agent.Leave, ""
	}
	return d.say[q.ID], "not here"
}

func TestWhoeverPromptsDecidesWhatTheTurnAsks(t *testing.T) {
	const message = "msg_ba54a7cfa64a5b13c954b018bd"
	call := func(id, of string, more map[string]any) map[string]any {
		ask := permission(id, "bash", "rm x")
		ask["tool"] = map[string]any{"messageID": of, "callID": "c"}
		for k, v := range more {
			ask[k] = v
		}
		return ask
	}
	for name, c := range map[string]struct {
		asks     func(step, other string) []map[string]any
		say      map[string]agent.Verdict
		patience int
		origin   map[string]agent.Origin
		replies  []string
	}{
		"allowed, once": {
			asks:    func(step, _ string) []map[string]any { return []map[string]any{call("per_1", step, nil)} },
			say:     map[string]agent.Verdict{"per_1": agent.Allow},
			origin:  map[string]agent.Origin{"per_1": agent.OriginPrompt},
			replies: []string{`permission per_1: {"reply":"once"}`},
		},
		"left for a while, then rejected": {
			asks:     func(step, _ string) []map[string]any { return []map[string]any{call("per_1", step, nil)} },
			say:      map[string]agent.Verdict{"per_1": agent.Reject},
			patience: 3,
			origin:   map[string]agent.Origin{"per_1": agent.OriginPrompt},
			replies:  []string{`permission per_1: {"message":"not here","reply":"reject"}`},
		},
		"a person's turn, a sub-agent's, and a call that says nothing": {
			asks: func(step, other string) []map[string]any {
				return []map[string]any{call("per_2", other, nil), call("per_3", step, map[string]any{"sessionID": "ses_sub"}),
					permission("per_4", "bash", "x"), call("per_1", step, nil)}
			},
			say: map[string]agent.Verdict{"per_1": agent.Allow, "per_2": agent.Allow, "per_3": agent.Allow, "per_4": agent.Allow},
			origin: map[string]agent.Origin{"per_1": agent.OriginPrompt, "per_2": agent.OriginOther, "per_3": agent.OriginUnknown,
				"per_4": agent.OriginUnknown},
			replies: []string{"permission per_2", "permission per_3", "permission per_4", "permission per_1"},
		},
		"a rejection waits for what is left in its session, which it would take along": {
			asks: func(step, _ string) []map[string]any {
				return []map[string]any{call("per_1", step, nil), call("per_2", step, nil)}
			},
			say:      map[string]agent.Verdict{"per_1": agent.Reject, "per_2": agent.Allow},
			patience: 2,
			origin:   map[string]agent.Origin{"per_1": agent.OriginPrompt, "per_2": agent.OriginPrompt},
			replies:  []string{`permission per_2: {"reply":"once"}`, `permission per_1: {"message":"not here","reply":"reject"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, a, s := visited(t)
			f.locked(func() { f.add(&fakeSession{ID: "ses_sub", Dir: s.Dir, Parent: s.ID}) })
			f.onPrompt = func(f *fakeServer, p fakePrompt) {
				if len(f.prompts) > 1 {
					f.finish(p, "went on")
					return
				}
				f.work(p)
				step := f.step(p, "calls", nil)
				f.say(s.ID, "msg_person", "me too")
				other := f.step(fakePrompt{Session: s.ID, MessageID: "msg_person"}, "calls", nil)
				for _, ask := range c.asks(step.Info["id"].(string), other.Info["id"].(string)) {
					if ask["sessionID"] == nil {
						ask["sessionID"] = s.ID
					}
					f.asks["permission"] = append(f.asks["permission"], ask)
				}
			}
			v := enter(t, a, s.ID)
			defer v.Leave()
			d := &deciding{say: c.say, patience: c.patience}
			p := agent.Prompt{Message: message, Text: "hello", Decide: d.decide}
			if err := v.Prompt(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if err := v.Finish(t.Context(), p, false); err != nil {
				t.Fatal(err)
			}
			wantReplies(t, f, c.replies...)
			for id, want := range c.origin {
				if q := d.seen[id]; q.Origin != want || q.Since.IsZero() || q.Permission != "bash" {
					t.Errorf("%+v, want origin %v", q, want)
				}
			}
		})
	}
}

func TestAQuestionThatNobodyMayAnswerIsDeclined(t *testing.T) {
	f, a, s := visited(t)
	f.onPrompt = askings("question", map[string]any{"id": "que_1", "questions": []any{map[string]any{"question": "Which?"}}})
	v := enter(t, a, s.ID)
	defer v.Leave()
	d := &deciding{say: map[string]agent.Verdict{"que_1": agent.Reject}, patience: 1}
	p := agent.Prompt{Key: "k", Text: "hello", Decide: d.decide}
	if err := v.Prompt(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := v.Finish(t.Context(), p, false); err != nil {
		t.Fatal(err)
	}
	wantReplies(t, f, `question que_1: {"answers":[["not here"]]}`)
	if !d.seen["que_1"].Question {
		t.Errorf("%+v", d.seen)
	}
}

func TestAVisitOfASubAgentsSessionKeepsThoseThatItWorksFor(t *testing.T) {
	f, a, s := visited(t)
	var sub *fakeSession
	f.locked(func() {
		mid := f.add(&fakeSession{Dir: s.Dir, Parent: s.ID})
		sub = f.add(&fakeSession{Dir: s.Dir, Parent: mid.ID})
		f.busy[s.ID] = map[string]any{"type": "busy"}
	})
	v := enter(t, a, sub.ID)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Visit(ctx, s.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a visit of the session above: %v", err)
	}
	idle := make(chan error, 1)
	go func() { idle <- v.Idle(t.Context()) }()
	f.awaitPolls(3)
	select {
	case err := <-idle:
		t.Fatalf("idle while the session above works: %v", err)
	default:
	}
	f.locked(func() { f.idle(s.ID) })
	if err := <-idle; err != nil {
		t.Error(err)
	}
	v.Leave()
	enter(t, a, s.ID).Leave()
	if f.mu.Lock(); slices.ContainsFunc(f.prompts, func(p fakePrompt) bool { return strings.Contains(p.Session, "ses") }) {
		t.Error("prompted")
	}
	f.mu.Unlock()
}
