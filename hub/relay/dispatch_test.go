package relay_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
)

func TestADispatchThatIsRefusedOpensNoNewLane(t *testing.T) {
	for name, spoil := range map[string]func(h *harness){
		"because the controller is too fast": func(h *harness) { h.relay.Spend("id_alice", 2*api.MaxTargets-1) },
		"because the id is somebody else's":  func(h *harness) { h.submit("bob", "beta", "wanted", "x") },
		"because the id was used otherwise":  func(h *harness) { h.submit("alice", "beta", "wanted", "y") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.submit("alice", "beta", id(1), "x", asNew)
			was := h.binding()
			spoil(h)
			if _, err := h.trySubmit("alice", "beta", "wanted", "x", asNew); err == nil {
				t.Fatal("it was not refused")
			}
			if b := h.binding(); b.Generation != was.Generation {
				t.Errorf("the generation went from %d to %d", was.Generation, b.Generation)
			}
		})
	}
}

func TestAForgottenIDOfSomebodyElseTellsNothing(t *testing.T) {
	h := newHarness(t, func(c *relay.Config) { c.KeepSettled = time.Hour })
	h.submit("alice", "beta", id(1), "x")
	cancel(t, h, id(1))
	h.clock.forward(2 * time.Hour)
	if err := h.relay.Prune(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err := h.trySubmit("bob", "beta", id(1), "x")
	wantCode(t, err, api.CodeTaskConflict)
	_, err = h.trySubmit("alice", "beta", id(1), "x")
	wantCode(t, err, api.CodeTaskForgotten)
}

func TestDispatchesUnderWayCountForTheLimits(t *testing.T) {
	h := newHarness(t)
	under := func(n int, target string) (release func()) {
		t.Helper()
		release, err := h.relay.Reserve("id_alice", n, target)
		if err != nil {
			t.Fatal(err)
		}
		h.clock.forward(10 * time.Second) // the rate is not what is looked at here
		return release
	}
	first, second := under(api.MaxOpenPerTarget, "id_alpha"), under(api.MaxOpenPerController-api.MaxOpenPerTarget, "id_gamma")
	_, err := h.trySubmit("alice", "beta", id(1), "x")
	wantCode(t, err, api.CodeQueueFull)
	_, err = h.trySubmit("bob", "alpha", id(2), "x")
	wantCode(t, err, api.CodeQueueFull)
	if _, err := h.trySubmit("bob", "beta", id(3), "x"); err != nil {
		t.Errorf("another controller, another target: %v", err)
	}
	first()
	second()
	h.submit("alice", "beta", id(1), "x")
	h.submit("bob", "alpha", id(2), "x")
}

func TestARetryKeepsToTheLimits(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "x")
	cancel(t, h, id(1))
	h.relay.Spend("id_alice", 2*api.MaxTargets-1)
	_, err := h.relay.Retry(context.Background(), id(1))
	wantCode(t, err, api.CodeRateLimited)
}

func TestARetryHasTheTimeAndTheAgeOfAFreshTask(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	h.submit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.TTLMS = time.Hour.Milliseconds() })
	for range 3 {
		o := beta.next()
		if made := time.UnixMilli(o.CreatedMS); !made.Equal(h.clock.Now()) {
			t.Errorf("the offer says that it was made %s, at %s", made, h.clock.Now())
		}
		if ttl := time.Duration(o.TTLMS) * time.Millisecond; ttl != time.Hour {
			t.Errorf("ttl %s", ttl)
		}
		if err := beta.settle(o, api.Outcome{State: api.StateFailed}); err != nil {
			t.Fatal(err)
		}
		h.await(id(1), api.StateFailed)
		h.clock.forward(48 * time.Hour)
		if _, err := h.relay.Retry(context.Background(), id(1)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARetryForANodeThatLeftIsRefused(t *testing.T) {
	h := newHarness(t)
	h.submit("alice", "beta", id(1), "x")
	cancel(t, h, id(1))
	h.retire("beta")
	_, err := h.relay.Retry(context.Background(), id(1))
	wantCode(t, err, api.CodeUnknownTarget)
}

func TestAWorkspaceHasAName(t *testing.T) {
	h := newHarness(t)
	for _, ws := range []string{"a\x00b", "a\nb", "\x1b[2J", "a\u202eb"} {
		_, err := h.trySubmit("alice", "beta", id(1), "x", func(d *api.Dispatch) { d.Workspace = ws })
		wantCode(t, err, api.CodeBadRequest)
	}
}

func TestErrorsRepeatLittleOfWhatTheyRefuse(t *testing.T) {
	h := newHarness(t)
	long := strings.Repeat("x", 1<<20)
	for name, d := range map[string]api.Dispatch{
		"target":      {Text: "x", Targets: []api.DispatchTarget{{Name: long, ID: id(1)}}},
		"task id":     {Text: "x", Targets: []api.DispatchTarget{{Name: "beta", ID: long}}},
		"mode":        {Text: "x", Mode: long, Targets: []api.DispatchTarget{{Name: "beta", ID: id(1)}}},
		"named twice": {Text: "x", Targets: []api.DispatchTarget{{Name: long, ID: id(1)}, {Name: long, ID: id(2)}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.relay.Submit(context.Background(), h.by("alice"), d)
			if err == nil || len(err.Error()) > 1024 {
				t.Errorf("%.100v (%d bytes)", err, len(fmt.Sprint(err)))
			}
		})
	}
}

func TestManyNewSessionsAtOnceAreAllOpened(t *testing.T) {
	h := newHarness(t)
	const n = 100
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := h.trySubmit("alice", "beta", id(i), "x", asNew)
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	seen := map[uint64]bool{}
	for i := range n {
		got, err := h.relay.Task(context.Background(), id(i))
		if err != nil || seen[got.Lane] {
			t.Errorf("lane %d, %v", got.Lane, err)
		}
		seen[got.Lane] = true
	}
}

func TestTheDetailsHaveTheEnvelopeThatTheNodeGot(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	beta.attach()
	const text = "first line\n---\nnot the end of the header"
	h.submit("alice", "beta", id(1), text)
	o := beta.next()
	got, err := h.relay.Task(context.Background(), id(1))
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.relay.Detail(context.Background(), got)
	if err != nil {
		t.Fatal(err)
	}
	if v.Header+v.Text != o.Text || !strings.HasSuffix(v.Header, "\n---\n") || v.Text != text {
		t.Errorf("details\n%q\n%q\noffered\n%q", v.Header, v.Text, o.Text)
	}
}
