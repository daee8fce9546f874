package relay_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func recovered(n int, change ...func(*api.Result)) api.Result {
	env := mesh.Envelope{From: "alice", Task: id(n), Mode: mesh.ModeSession, Reply: mesh.ReplyResultBlock, Body: "the text"}
	text, err := env.Format()
	if err != nil {
		panic(err)
	}
	r := api.Result{
		Triple: api.Triple{Task: id(n), Attempt: 1, Turn: 1}, JournalID: "j1", Epoch: 1, Outcome: done("ok"),
		Recover: &api.Recover{Controller: api.Party{ID: "id_alice", Name: "alice"}, Hash: "h", Mode: "session", Text: text},
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func TestWhatIsAdoptedIsCheckedLikeEverythingElse(t *testing.T) {
	h := newHarness(t)
	for name, change := range map[string]func(*api.Result){
		"no task id":            func(r *api.Result) { r.Task = "../../etc" },
		"attempt 0":             func(r *api.Result) { r.Attempt = 0 },
		"endless turns":         func(r *api.Result) { r.Turn = math.MaxInt },
		"no controller":         func(r *api.Result) { r.Recover.Controller = api.Party{} },
		"a name that is none":   func(r *api.Result) { r.Recover.Controller = api.Party{ID: "id_gone", Name: "\x1b[2J"} },
		"an id that is none":    func(r *api.Result) { r.Recover.Controller = api.Party{ID: evil(1000), Name: "gone"} },
		"an endless text":       func(r *api.Result) { r.Recover.Text = strings.Repeat("x", 2<<20) },
		"a mode that is none":   func(r *api.Result) { r.Recover.Mode = evil(10) },
		"an endless workspace":  func(r *api.Result) { r.Recover.Workspace = strings.Repeat("w", 1000) },
		"a hash that is none":   func(r *api.Result) { r.Recover.Hash = evil(10) },
		"a journal that is not": func(r *api.Result) { r.JournalID = "" },
	} {
		t.Run(name, func(t *testing.T) {
			err := h.relay.Result(context.Background(), h.ids["beta"], recovered(1, change))
			if code := api.ErrorCode(err); code.Status() < 400 || code.Status() > 499 {
				t.Errorf("got %v", err)
			}
		})
	}
	if n := h.relay.Open(); n != 0 {
		t.Errorf("%d tasks are open", n)
	}
}

func TestAnAdoptedTaskHasItsControllersNameATimeAndItsText(t *testing.T) {
	h := newHarness(t)
	r := recovered(1, func(r *api.Result) {
		r.Attempt, r.Turn = 2, 3
		r.Recover.Controller.Name = "somebody-else"
		r.Recover.CreatedMS = math.MaxInt64
	})
	if err := h.relay.Result(context.Background(), h.ids["beta"], r); err != nil {
		t.Fatal(err)
	}
	got := h.await(id(1), api.StateDone)
	if got.Controller.Name != "alice" || got.CreatedAt.After(h.clock.Now()) || got.Attempt != 2 || got.Turn != 3 {
		t.Errorf("task %+v", got)
	}
	v, err := h.relay.Detail(context.Background(), got)
	if err != nil || v.Text != "the text" {
		t.Errorf("text %q, %v", v.Text, err)
	}
	if _, err := h.relay.Retry(context.Background(), id(1)); err != nil {
		t.Fatal(err)
	}
	beta := h.node("beta", "j1")
	beta.attach()
	env, err := mesh.ParseEnvelope(beta.next().Text)
	if err != nil || env.Body != "the text" {
		t.Errorf("the retry's envelope: %+v, %v", env, err)
	}
}
