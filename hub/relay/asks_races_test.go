package relay_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

// TestAllThatMayBecomeOfAQuestionAtOnce lets a person, the time-out, the node's
// withdrawal and the turn's result meet, over reconnects. Whatever comes first, one
// answer at most reaches the node and the task settles.
func TestAllThatMayBecomeOfAQuestionAtOnce(t *testing.T) {
	h := newHarness(t)
	beta := h.node("beta", "j1")
	detach := beta.attach()
	const n = 30
	var offers []api.Offer
	var questions []string
	for i := range n {
		o := beta.run(id(i), asNew)
		beta.mustTell(o.Triple, "per_1", permission)
		offers = append(offers, o)
		questions = append(questions, h.await(id(i), api.StateQuestion).Question.ID)
	}
	h.clock.forward(api.DefaultQuestionTimeout + time.Second)
	var mu sync.Mutex
	granted := map[string]bool{}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			switch err := h.answer(id(i), questions[i], "once"); api.ErrorCode(err) {
			case "":
				mu.Lock()
				defer mu.Unlock()
				granted[id(i)] = true
			case api.CodeAlreadyAnswered, api.CodeQuestionGone:
			default:
				t.Error(err)
			}
		})
		if i%3 == 0 {
			wg.Go(func() { beta.mustTell(offers[i].Triple, "per_1", nil) })
		}
		if i%5 == 0 {
			wg.Go(func() {
				if err := beta.settle(offers[i], done("meanwhile")); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Go(func() { h.relay.Sweep(context.Background()) })
	wg.Go(func() {
		detach()
		for _, o := range offers {
			beta.mu.Lock()
			if rc := beta.known[o.Triple]; rc.Outcome == nil {
				beta.known[o.Triple] = api.Receipt{Triple: o.Triple, State: api.StateRunning}
			}
			beta.mu.Unlock()
		}
		beta.attach()
	})
	wg.Wait()
	for i, o := range offers {
		if !h.taken(id(i)).State.Settled() {
			if err := beta.settle(o, done("after it")); err != nil {
				t.Error(err)
			}
		}
		if got := h.await(id(i), api.StateDone); got.Question != nil || got.Asking != "" || got.Answer != nil || got.Turn != 1 || got.Late != nil {
			t.Errorf("task %+v", got)
		}
	}
	texts := map[string][]string{} // that the node was told, which may be the same twice
	for len(beta.answers) > 0 {
		a := <-beta.answers
		if !slices.Contains(texts[a.Task], a.Text) {
			texts[a.Task] = append(texts[a.Task], a.Text)
		}
	}
	for task, list := range texts {
		if len(list) != 1 || (list[0] == "once") != granted[task] {
			t.Errorf("%s was told %q, granted is %v", task, list, granted[task])
		}
	}
}
