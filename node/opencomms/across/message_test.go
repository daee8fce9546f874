package across

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

// told checks that the sender of a message got exactly one notice about it, which says
// why, and that the state stands in the status.
func told(t *testing.T, s *side, role, id, state, reason string) {
	t.Helper()
	var about []string
	for _, text := range s.notices(role) {
		if strings.Contains(text, id) {
			about = append(about, text)
		}
	}
	if len(about) != 1 || !strings.Contains(about[0], reason) {
		t.Errorf("%s was told %q, not once that %s", role, about, reason)
	}
	if got := s.sent(id); state != "" && (got.State != state || !strings.Contains(got.Reason, reason)) {
		t.Errorf("the state is %+v, not %s: %s", got, state, reason)
	}
}

func TestWhatThePauseOfTheOtherSideHoldsUpWaitsInItsOrder(t *testing.T) {
	w, alpha, beta := pair(t)
	beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = true })
	one, two := alpha.say("Builder", "Reviewer-beta", "one"), alpha.say("Builder", "Reviewer-beta", "two")
	w.settle()
	if beta.row(one) != nil || beta.row(two) != nil {
		t.Fatal("a paused channel took a message")
	}
	if l := beta.status().Links[0]; l.Incoming != 2 || l.WaitsFor != string(engine.Paused) {
		t.Errorf("the status says %+v", l)
	}
	if got := alpha.sent(one).State; got != stateArrived {
		t.Errorf("the sender sees %q", got)
	}
	beta.crash()
	beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = false })
	w.settle()
	if got := beta.pull("Reviewer"); !slices.Equal(got, []string{one, two}) {
		t.Errorf("pulled %v", got)
	}
	if l := beta.status().Links[0]; l.WaitsFor != "" {
		t.Errorf("the status says %+v", l)
	}
}

func TestAPausedChannelKeepsItsMail(t *testing.T) {
	w, alpha, beta := pair(t)
	id := alpha.say("Builder", "Reviewer-beta", "one")
	alpha.change(func(s *ocm.State) { engine.Find(s, "review").Paused = true })
	w.settle()
	if row := alpha.row(id); row.Status != ocm.StatusPending || beta.row(id) != nil {
		t.Fatalf("it is %s", row.Status)
	}
	alpha.change(func(s *ocm.State) { engine.Find(s, "review").Paused = false })
	w.settle()
	if beta.row(id) == nil {
		t.Error("it did not arrive")
	}
}

func TestRateOfTheOtherSideAndOfTheLinkWait(t *testing.T) {
	w, alpha, beta := pair(t)
	beta.change(func(s *ocm.State) { engine.Find(s, "review").RateLimit = 2 })
	for i := range 3 {
		alpha.say("Builder", "Reviewer-beta", fmt.Sprint("first ", i))
	}
	w.settle()
	if n := beta.state().Messages.Len(); n != 2 {
		t.Fatalf("%d messages passed a rate of 2", n)
	}
	if l := beta.status().Links[0]; l.WaitsFor != string(engine.RateLimited) {
		t.Errorf("the status says %+v", l)
	}
	w.pass(61 * time.Second)
	w.settle()
	if n := beta.state().Messages.Len(); n != 3 {
		t.Fatalf("%d messages after a minute", n)
	}
	beta.change(func(s *ocm.State) { engine.Find(s, "review").RateLimit = 1000 })
	w.pass(61 * time.Second)
	for i := range LinkRate + 5 {
		alpha.say("Builder", "Reviewer-beta", fmt.Sprint("second ", i))
	}
	w.settle()
	if n := beta.state().Messages.Len(); n != 3+LinkRate {
		t.Fatalf("%d messages passed the rate of the link", n-3)
	}
	if l := beta.status().Links[0]; l.WaitsFor != waitRate || l.Incoming != 5 {
		t.Errorf("the status says %+v", l)
	}
	w.pass(61 * time.Second)
	w.settle()
	if n := beta.state().Messages.Len(); n != 3+LinkRate+5 {
		t.Errorf("%d messages in the end", n)
	}
}

func TestAPauseThatIsLongerThanMailMayTakeIsToldToTheSender(t *testing.T) {
	w, alpha, beta := pair(t)
	beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = true })
	old := alpha.say("Builder", "Reviewer-beta", "old")
	w.settle()
	w.pass(api.MailAge - time.Hour)
	young := alpha.say("Builder", "Reviewer-beta", "young")
	w.settle()
	if l := beta.status().Links[0]; l.Incoming != 2 || l.WaitsFor != string(engine.Paused) {
		t.Fatalf("the status says %+v", l)
	}
	w.pass(2 * time.Hour)
	w.settle()
	told(t, alpha, "Builder", old, stateRefused, "its channel paused, for too long")
	if l := beta.status().Links[0]; l.Incoming != 1 {
		t.Errorf("the status says %+v", l)
	}
	beta.change(func(s *ocm.State) { engine.Find(s, "review").Paused = false })
	w.settle()
	if got := beta.pull("Reviewer"); !slices.Equal(got, []string{young}) {
		t.Errorf("pulled %v", got)
	}
}

func TestWhatTheOtherSideRefusesForGoodIsToldToTheSender(t *testing.T) {
	for name, c := range map[string]struct {
		before func(beta *side)
		reason string
	}{
		"duplicate": {func(beta *side) {
			beta.change(func(s *ocm.State) {
				ch := engine.Find(s, "review")
				for _, m := range ch.Members {
					if m.Host == Host {
						ch.SeenContent.Set(ocm.SeenKey(m.SessionID, "hello"), beta.w.now.Load())
					}
				}
			})
		}, "the same was sent"},
		"the messages are used up": {func(beta *side) {
			beta.change(func(s *ocm.State) {
				ch := engine.Find(s, "review")
				ch.Budgets.MaxDelivered, ch.DeliveredTotal = 1, 1
			})
		}, "used up its messages"},
		"the time is used up": {func(beta *side) {
			beta.change(func(s *ocm.State) { engine.Find(s, "review").Budgets.MaxRuntime = 1 })
			beta.w.pass(time.Minute)
		}, "used up its time"},
		"stale": {func(beta *side) {
			beta.change(func(s *ocm.State) { engine.Find(s, "review").Members[0].Stale = true })
		}, "session is gone"},
		"the sender was kicked": {func(beta *side) {
			if _, err := beta.project.Kick(context.Background(), engine.Caller{Operator: true}, engine.KickRequest{Channel: "review", TargetRole: "Builder-alpha"}); err != nil {
				beta.t.Fatalf("%v", err)
			}
		}, "removed from the channel on the other machine"},
		"the channel is gone": {func(beta *side) {
			if _, err := beta.project.DeleteSession(context.Background(), engine.Caller{Operator: true}, "review", true); err != nil {
				beta.t.Fatalf("%v", err)
			}
		}, "the channel is gone on the other machine"},
		"the channel is another one": {func(beta *side) {
			beta.change(func(s *ocm.State) { engine.Find(s, "review").ID = ocm.NewID(ocm.PrefixChannel) })
		}, "the channel is gone on the other machine"},
		"another message has the id": {func(beta *side) {
			beta.change(func(s *ocm.State) {
				for id := range beta.w.sides["alpha"].state().Messages.All() {
					row := &ocm.Envelope{EnvelopeFields: ocm.EnvelopeFields{ID: id, ChannelID: engine.Find(s, "review").ID, Timestamp: 1}}
					s.Messages.Set(id, row)
				}
			})
		}, "another message of that id"},
	} {
		t.Run(name, func(t *testing.T) {
			w, alpha, beta := pair(t)
			beta.disconnect() // the message is on its way before it happens
			id := alpha.say("Builder", "Reviewer-beta", "hello")
			w.settle()
			c.before(beta)
			beta.connect()
			w.settle()
			told(t, alpha, "Builder", id, stateRefused, c.reason)
		})
	}
}

func TestHopLimitsOfBothSidesHold(t *testing.T) {
	w, alpha, beta := pair(t)
	beta.change(func(s *ocm.State) { engine.Find(s, "review").MaxHops = 1 })
	a := alpha.say("Builder", "Reviewer-beta", "0")
	w.settle()
	b := beta.say("Reviewer", "Builder-alpha", "1", a)
	w.settle()
	c := alpha.say("Builder", "Reviewer-beta", "2", b)
	w.settle()
	if beta.row(c) != nil {
		t.Error("beta took a second hop")
	}
	told(t, alpha, "Builder", c, stateRefused, "chain of replies")
}

func TestTheJournalKeepsChainsThatTheFilesForget(t *testing.T) {
	w, alpha, beta := pair(t)
	forget := func() {
		for _, s := range w.sides {
			s.change(func(st *ocm.State) {
				for id := range st.Messages.All() {
					st.Messages.Delete(id)
					st.DeliveredTo.Delete(id)
				}
				for session := range st.Queues.All() {
					st.Queues.Set(session, nil)
				}
			})
		}
	}
	root := alpha.say("Builder", "Reviewer-beta", "0")
	correlation := alpha.row(root).Correlation
	w.settle()
	last, s, other := root, beta, alpha
	from, to := "Reviewer", "Builder-alpha"
	for hop := 1; hop <= ocm.DefaultHops; hop++ {
		forget()
		last = s.say(from, to, fmt.Sprint(hop), last)
		w.settle()
		row := other.row(last)
		if row == nil || row.Hops != hop || row.Root != root || row.Correlation != correlation {
			t.Fatalf("hop %d arrived as %+v", hop, row)
		}
		s, other = other, s
		if s == beta {
			from, to = "Reviewer", "Builder-alpha"
		} else {
			from, to = "Builder", "Reviewer-beta"
		}
	}
	forget()
	role, _, _ := strings.Cut(from, "-")
	over := s.say(from, to, "too far", last)
	w.settle()
	if other.row(over) != nil {
		t.Error("the chain went on")
	}
	told(t, s, role, over, stateRefused, "chain of replies")
}

func TestCopiesOfABroadcastCountAsOne(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha", "beta")
	t.Cleanup(w.close)
	alpha, beta := w.sides["alpha"], w.sides["beta"]
	alpha.create("review", engine.CreateRequest{}, "Builder")
	beta.create("review", engine.CreateRequest{RateLimit: 1}, "Reviewer", "Tester", "Writer")
	alpha.link("review", "beta")
	beta.link("review", "alpha")
	w.settle()
	ids, err := alpha.send(engine.SendRequest{Broadcast: true, Content: "all"}, "Builder")
	if err != nil || len(ids) != 3 {
		t.Fatal(ids, err)
	}
	w.settle()
	for _, id := range ids {
		row := beta.row(id)
		if row == nil {
			t.Fatalf("%s is %+v", id, alpha.sent(id))
		}
	}
	if ch := engine.Find(beta.state(), "review"); ch.Rate.Count != 1 {
		t.Errorf("they count as %d", ch.Rate.Count)
	}
}

func TestTheSecondReceiptTellsHowTheRowEnded(t *testing.T) {
	for _, state := range []string{ocm.StatusDelivered, ocm.StatusFailed, ocm.StatusStale, ocm.StatusRejected, stateUnknown} {
		t.Run(state, func(t *testing.T) {
			w, alpha, beta := pair(t)
			id := alpha.say("Builder", "Reviewer-beta", "one")
			w.settle()
			if got := alpha.sent(id).State; got != stateQueued {
				t.Fatalf("it is %q", got)
			}
			beta.change(func(s *ocm.State) {
				if state == stateUnknown {
					s.Messages.Delete(id)
					s.Queues.Set(beta.session("Reviewer"), nil)
					return
				}
				row, _ := s.Messages.Get(id)
				row.Status = state
			})
			w.settle()
			if got := alpha.sent(id).State; got != state {
				t.Errorf("it is %q", got)
			}
			if got := alpha.notices("Builder"); len(got) > 0 {
				t.Errorf("the sender was told %q", got)
			}
		})
	}
}

func TestWhatWasInAChannelThatEndedOverThereIsToldToItsSender(t *testing.T) {
	for name, end := range map[string]func(s *side) error{
		"deleted": func(s *side) error {
			_, err := s.project.DeleteSession(context.Background(), engine.Caller{Operator: true}, "review", true)
			return err
		},
		"saved": func(s *side) error {
			_, err := s.project.SaveSession(context.Background(), engine.Caller{Operator: true}, engine.SaveRequest{Channel: "review"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, alpha, beta := pair(t)
			read := alpha.say("Builder", "Reviewer-beta", "one")
			w.settle()
			beta.pull("Reviewer")
			w.settle()
			id := alpha.say("Builder", "Reviewer-beta", "two")
			w.settle()
			if err := end(beta); err != nil {
				t.Fatal(err)
			}
			w.settle()
			told(t, alpha, "Builder", id, ocm.StatusRejected, "saved or deleted")
			if got := alpha.sent(read).State; got != ocm.StatusDelivered {
				t.Errorf("what was read before is %q", got)
			}
		})
	}
}

func TestMailThatComesBackIsToldToTheSender(t *testing.T) {
	for code, c := range map[string]struct {
		may    bool
		reason string
	}{
		string(api.CodeUnknownTarget): {false, "no node of that name"},
		api.MailExpired:               {true, "for too long; it may have arrived"},
		api.MailTargetRevoked:         {false, "removed from the mesh"},
		string(api.CodeNotSupported):  {false, "no OpenComms across machines"},
		string(api.CodeRefused):       {false, "not linked on the other machine"},
		"<b>made up</b>":              {false, "the other machine did not take it"},
	} {
		t.Run(code, func(t *testing.T) {
			w, alpha, beta := pair(t)
			beta.disconnect()
			id := alpha.say("Builder", "Reviewer-beta", "one")
			w.settle()
			w.post.mu.Lock()
			for _, m := range w.post.queue {
				w.post.receipts = append(w.post.receipts, receiptFor{m.From, api.MailReceipt{ID: m.ID, State: api.MailReturned, Code: code, Message: "<b>text of others</b>", MayHaveArrived: c.may}})
			}
			w.post.queue = nil
			w.post.mu.Unlock()
			w.settle()
			told(t, alpha, "Builder", id, stateReturned, c.reason)
			if text := strings.Join(alpha.notices("Builder"), ""); strings.Contains(text, "<b>") {
				t.Errorf("text of others stands in %q", text)
			}
		})
	}
}

func TestNoMoreThanTheDepthOfALinkLeavesTheFile(t *testing.T) {
	w, alpha, beta := pair(t)
	proxy := engine.Find(alpha.state(), "review").Members[1].SessionID
	const more = 3
	var ids []string
	alpha.change(func(s *ocm.State) {
		ch := engine.Find(s, "review")
		for i := range MaxLinkDepth + more {
			id := ocm.NewID(ocm.PrefixMessage)
			ids = append(ids, id)
			s.Messages.Set(id, &ocm.Envelope{EnvelopeFields: ocm.EnvelopeFields{
				ID: id, ChannelID: ch.ID, Sender: alpha.session("Builder"), SenderRole: "Builder", Recipient: proxy, RecipientRole: "Reviewer-beta",
				Timestamp: w.now.Load() + int64(i), Type: ocm.TypeManual, Content: fmt.Sprint(i), Status: ocm.StatusPending, Correlation: ocm.NewID(ocm.PrefixCorrelation),
			}})
		}
		s.Queues.Set(proxy, ids)
	})
	w.settle()
	queue, _ := alpha.state().Queues.Get(proxy)
	if !slices.Equal(queue, ids[MaxLinkDepth:]) {
		t.Fatalf("%d wait in the file", len(queue))
	}
	if l := alpha.status().Links[0]; l.Under != MaxLinkDepth {
		t.Errorf("the status says %+v", l)
	}
	// Those that end make room.
	w.settle()
	if n := len(beta.pull("Reviewer")); n != LinkRate {
		t.Fatalf("%d arrived", n)
	}
	w.settle()
	if queue, _ := alpha.state().Queues.Get(proxy); len(queue) != 0 {
		t.Errorf("%d still wait in the file", len(queue))
	}
}

func TestAMessageUnderAnotherMailIsTheSame(t *testing.T) {
	w, alpha, beta := pair(t)
	id := alpha.say("Builder", "Reviewer-beta", "one")
	w.settle()
	w.post.mu.Lock()
	var again api.Mail
	for _, m := range w.post.known {
		if m.Kind == kindMessage {
			again = m
		}
	}
	again.ID = mail.NewID()
	w.post.known[again.ID] = again
	w.post.queue = append(w.post.queue, again)
	w.post.mu.Unlock()
	w.pass(10 * time.Minute)
	beta.change(func(s *ocm.State) { // even if the file forgot it, and that it was sent
		s.Messages.Delete(id)
		s.Queues.Set(beta.session("Reviewer"), nil)
	})
	w.settle()
	if beta.row(id) != nil || len(alpha.notices("Builder")) > 0 {
		t.Error("it came twice")
	}
}

func TestWhoIsNotShownCannotSend(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha", "beta")
	t.Cleanup(w.close)
	alpha, beta := w.sides["alpha"], w.sides["beta"]
	alpha.create("review", engine.CreateRequest{}, "Builder", "Tester")
	beta.create("review", engine.CreateRequest{}, "Reviewer")
	alpha.link("review", "beta", "builder")
	beta.link("review", "alpha")
	w.settle()
	if got := beta.roles("review"); !slices.Equal(got, []string{"Reviewer", "Builder-alpha"}) {
		t.Fatalf("beta sees %v", got)
	}
	id := alpha.say("Tester", "Reviewer-beta", "hello")
	w.settle()
	told(t, alpha, "Tester", id, stateRefused, "does not show the sender")
	// The operator is no member: what it is told stands in the list of trouble.
	sent, err := alpha.project.Send(context.Background(), engine.Caller{Operator: true}, engine.SendRequest{Channel: "review", To: "Reviewer-beta", Content: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	if n := len(alpha.state().Errors); n != 1 || !strings.Contains(alpha.state().Errors[0].Message, sent.MessageIDs[0]) {
		t.Errorf("the trouble is %+v", alpha.state().Errors)
	}
}

func TestNoticesStayHere(t *testing.T) {
	w, alpha, beta := pair(t)
	alpha.join("review", "Tester")
	w.settle()
	if _, err := alpha.project.Kick(context.Background(), engine.Caller{Operator: true}, engine.KickRequest{Channel: "review", TargetRole: "Tester"}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	for _, row := range beta.state().Messages.All() {
		t.Errorf("beta has %+v", row)
	}
	if sent, trouble := alpha.status().Messages, alpha.state().Errors; len(sent) > 0 || len(trouble) > 0 {
		t.Errorf("sent was %+v, and the trouble is %+v", sent, trouble)
	}
	for session, queue := range alpha.state().Queues.All() {
		if session != alpha.session("Builder") && len(queue) > 0 {
			t.Errorf("%s has %v", session, queue)
		}
	}
}
