package relay_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// TestWhoSawATaskEndSeesItsSession holds back what a result says of its binding: the
// task's end may be on disk, and seen, before that.
func TestWhoSawATaskEndSeesItsSession(t *testing.T) {
	key := store.BindingKey{Controller: "id_alice", Target: "id_beta"}
	for what, ask := range map[string]func(context.Context, *harness) bool{
		"asking for one session": func(ctx context.Context, h *harness) bool {
			s, err := h.relay.Session(ctx, key)
			return err == nil && s.Session != nil && len(s.Fills) == 1
		},
		"listing sessions": func(ctx context.Context, h *harness) bool {
			list, err := h.relay.Sessions(ctx, "", "id_beta", 0)
			return err == nil && len(list) == 1 && list[0].Session != nil
		},
		"an operation": func(ctx context.Context, h *harness) bool {
			_, err := h.relay.Operate(ctx, h.ids["alice"], h.ids["alice"], "beta", api.OpClear, api.Operate{ID: "clear"})
			return err == nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHarness(t)
			held := make(chan struct{})
			let := sync.OnceFunc(func() { close(held) })
			h.gate.bound = func(before bool) {
				if before {
					<-held
				}
			}
			beta := h.living("beta")
			beta.attach()
			t.Cleanup(beta.leave)
			h.submit("alice", "beta", id(0), "x")
			var node sync.WaitGroup
			node.Go(func() { beta.until("its end is seen", func() bool { return h.state(id(0)).Settled() }) })
			t.Cleanup(func() { let(); node.Wait() })
			h.await(id(0), api.StateDone)
			answered := make(chan bool, 1)
			go func() { answered <- ask(t.Context(), h) }()
			select {
			case ok := <-answered:
				t.Fatalf("answered before the session was on disk: %v", ok)
			case <-time.After(20 * time.Millisecond): // it waits
			}
			let()
			if !<-answered {
				t.Error("the session is not there")
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := h.relay.Session(ended, key); err == nil {
				t.Error("the end of its context is no end")
			}
		})
	}
}
