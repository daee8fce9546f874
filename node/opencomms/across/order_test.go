package across

import (
	"context"
	"slices"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

func TestWhoLeavesAfterSendingStillSpeaks(t *testing.T) {
	w, alpha, beta := pair(t)
	alpha.join("review", "Tester")
	w.settle()
	beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = true })
	id := alpha.say("Tester", "Reviewer-beta", "hello")
	w.settle()
	if _, err := alpha.project.Disconnect(t.Context(), engine.Caller{Session: alpha.session("Tester")}, "review"); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if got := beta.roles("review"); !slices.Contains(got, "Tester-alpha") {
		t.Fatalf("beta's channel has %v while a message waits", got)
	}
	beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = false })
	w.settle()
	if row := beta.row(id); row == nil || row.SenderRole != "Tester-alpha" {
		t.Errorf("beta has %+v", row)
	}
	if got := beta.roles("review"); slices.Contains(got, "Tester-alpha") {
		t.Errorf("beta's channel has %v", got)
	}
}

func TestWhoLeavesBeforeAMessageWasTakenOutStillSpeaks(t *testing.T) {
	for name, before := range map[string]func(s *side){
		"in the file":    func(*side) {},
		"in the journal": func(s *side) { s.step(s.worker.takeOut) },
	} {
		t.Run(name, func(t *testing.T) {
			w, alpha, beta := pair(t)
			alpha.join("review", "Tester")
			w.settle()
			id := alpha.say("Tester", "Reviewer-beta", "hello")
			before(alpha)
			if _, err := alpha.project.Disconnect(t.Context(), engine.Caller{Session: alpha.session("Tester")}, "review"); err != nil {
				t.Fatal(err)
			}
			w.settle()
			if row := beta.row(id); row == nil || row.SenderRole != "Tester-alpha" {
				t.Errorf("beta has %+v, alpha says %+v", row, alpha.sent(id))
			}
			if got := beta.roles("review"); slices.Contains(got, "Tester-alpha") {
				t.Errorf("beta's channel has %v", got)
			}
		})
	}
}

// step makes one step of a pass on the link of a side.
func (s *side) step(do func(context.Context, *link, *ocm.State) error) {
	s.t.Helper()
	all, err := s.across.links(func(*link) bool { return true })
	if err == nil {
		err = do(context.Background(), all[0], s.state())
	}
	if err != nil {
		s.t.Fatalf("%v", err)
	}
}

func TestAMessageWaitsUntilTheOtherSideWasToldOfItsSender(t *testing.T) {
	w, alpha, beta := pair(t)
	alpha.join("review", "Tester")
	id := alpha.say("Tester", "Reviewer-beta", "hello")
	alpha.step(alpha.worker.takeOut)
	if row := alpha.row(id); row.Status != ocm.StatusPending {
		t.Fatalf("it is %s before its sender is known over there", row.Status)
	}
	w.settle()
	if beta.row(id) == nil {
		t.Errorf("it is %+v", alpha.sent(id))
	}
}

func TestWhatWasTakenOutGoesBeforeTheEndOfTheLink(t *testing.T) {
	w, alpha, beta := pair(t)
	id := alpha.say("Builder", "Reviewer-beta", "hello")
	alpha.step(alpha.worker.takeOut)
	if row := alpha.row(id); row.Status != ocm.StatusDelivered {
		t.Fatalf("it is %s", row.Status)
	}
	beta.disconnect()
	alpha.unlink("review", "beta")
	w.settle()
	w.post.mu.Lock()
	var kinds []string
	for _, m := range w.post.queue {
		kinds = append(kinds, m.Kind)
	}
	w.post.mu.Unlock()
	if !slices.Equal(kinds, []string{kindMessage, kindRoster}) {
		t.Errorf("on the way are %v", kinds)
	}
	beta.connect()
	w.settle()
	if beta.row(id) == nil {
		t.Errorf("it did not arrive; the sender was told %q", alpha.notices("Builder"))
	}
}
