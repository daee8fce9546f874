package opencode_test

import (
	"context"
	"strings"
	"testing"

	"opencode-mesh/node/agent"
	"opencode-mesh/test/stubllm"
)

// TestTheRealServerTakesUpAPushedTurnThatItsEndCutOff lets a node that supervises its
// server stop in the middle of a pushed turn.
func TestTheRealServerTakesUpAPushedTurnThatItsEndCutOff(t *testing.T) {
	needProc(t)
	r := newReal(t)
	a := start(t, r.cfg)
	turn := r.turn(t, "alpha-1-first", "hello")
	session := run(t, a, turn, newRecords()).Session
	if got, err := a.Hosted(t.Context(), session); err != nil || got.Parent != "" || got.Dir != r.cfg.Workspaces[0].Dir {
		t.Fatalf("%+v, %v", got, err)
	}
	if name, err := a.Plugin(t.Context(), r.cfg.Workspaces[0].Dir, []string{"opencomms"}); err != nil || name != "" {
		t.Errorf("plugin %q, %v", name, err)
	}

	v, err := a.Visit(t.Context(), session)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Prompt(t.Context(), agent.Prompt{Key: "k", Text: "mail GATE:cut"}); err != nil {
		t.Fatal(err)
	}
	r.arrived(t, "mail GATE:cut")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Finish(ctx, agent.Prompt{Key: "k"}, false); err == nil {
		t.Error("a turn that runs has finished")
	}
	v.Leave()
	stop(t, a)
	r.model.Open("cut")

	a = start(t, r.cfg)
	eventually(t, "the server is there", func() bool { _, _, _, ok := a.Server(); return ok })
	v = enter(t, a, session)
	defer v.Leave()
	if stored, err := v.Stored(t.Context(), agent.Prompt{Key: "k"}); err != nil || !stored {
		t.Fatalf("stored %v, %v", stored, err)
	}
	before := len(r.model.Requests())
	if err := v.Finish(t.Context(), agent.Prompt{Key: "k"}, true); err != nil {
		t.Fatal(err)
	}
	n := r.model.Count(func(q stubllm.Request) bool { return strings.Contains(q.User, "mail GATE:cut") })
	if n != 2 || len(r.model.Requests()) != before+1 {
		t.Errorf("the model was asked %d times", n)
	}
	if err := v.Finish(t.Context(), agent.Prompt{Key: "k"}, true); err != nil || len(r.model.Requests()) != before+1 {
		t.Errorf("again: %v, %d requests", err, len(r.model.Requests())-before)
	}
}
