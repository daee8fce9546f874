package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

func ids(rows []*opencomms.Envelope) []string {
	out := make([]string, len(rows))
	for i, row := range rows {
		out[i] = row.ID
	}
	return out
}

// three queues three messages for ses_b and returns their ids.
func three(w *world) []string {
	var out []string
	for i := range 3 {
		out = append(out, w.send(fmt.Sprint("message ", i)).ID)
		w.now++
	}
	return out
}

func TestADrainTakesTheWholeQueueInOrder(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	sent := three(w)
	got := w.drain("ses_b")
	if !slices.Equal(ids(got), sent) {
		t.Fatalf("drained %v, not %v", ids(got), sent)
	}
	for _, row := range got {
		to, _ := w.s.DeliveredTo.Get(row.ID)
		if row.Status != "in_flight" || row.Attempts != 1 || row.DeliveredAt != 0 || row.Method != "" || !slices.Equal(to, []string{"ses_b"}) {
			t.Errorf("%+v, delivered to %v", row.EnvelopeFields, to)
		}
	}
	until, _ := ch.Cooldowns.Get("ses_b")
	if ch.DeliveredTotal != 3 || until != w.now+1000 || len(w.queue("ses_b")) != 0 {
		t.Errorf("total %d, cooldown %d, queue %v", ch.DeliveredTotal, until-w.now, w.queue("ses_b"))
	}
	if _, ok := w.s.Queues.Get("ses_b"); !ok {
		t.Error("the queue's key is gone")
	}
}

func TestARowIsDeliveredUnderItsKeyWhateverIdItHas(t *testing.T) {
	for _, own := range []string{"", "ocm_of_another"} {
		w := newWorld(t)
		w.channel("review", 2)
		row := w.send("1")
		key := row.ID
		row.ID = own
		in, err := w.e.Inbox(w.s, as("ses_b"), "review", 0)
		w.must(err)
		h, err := w.e.History(w.s, operator, "review", 0)
		w.must(err)
		if in.Messages[0].ID != key || h.Messages[0].ID != key {
			t.Errorf("id %q: shown as %q and %q", own, in.Messages[0].ID, h.Messages[0].ID)
		}
		got := w.drain("ses_b")
		if !slices.Equal(ids(got), []string{key}) {
			t.Fatalf("id %q: drained %v, not %s", own, ids(got), key)
		}
		row.ID = own
		if swept := w.e.Sweep(w.s, func(*opencomms.Envelope) bool { return true }); !slices.Equal(swept, []string{key}) || !slices.Equal(w.queue("ses_b"), []string{key}) {
			t.Fatalf("id %q: swept %v, queue %v", own, swept, w.queue("ses_b"))
		}
		w.now += minute
		if n := w.e.Commit(w.s, "ses_b", ids(w.drain("ses_b")), opencomms.ModePull); n != 1 || row.Status != opencomms.StatusDelivered {
			t.Errorf("id %q: %d committed, the row is %s", own, n, row.Status)
		}
	}
}

func TestTheCooldownHoldsUpOnlyWhatComesFirst(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	w.channel("other", 2)
	w.channel("third", 2)
	w.send("1")
	if n := len(w.drain("ses_b")); n != 1 {
		t.Fatalf("%d drained", n)
	}
	w.now += 999
	held := w.send("2")
	if got := w.drain("ses_b"); len(got) != 0 || !slices.Equal(w.queue("ses_b"), []string{held.ID}) {
		t.Fatalf("drained %v in the pause", ids(got))
	}
	// Mail of another channel is not held up. What comes behind it is, if it would
	// overtake.
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "3"}))
	behind := w.send("4")
	got := w.drain("ses_b")
	if len(got) != 1 || got[0].Content != "3" || !slices.Equal(w.queue("ses_b"), []string{held.ID, behind.ID}) {
		t.Fatalf("drained %v, queue %v", ids(got), w.queue("ses_b"))
	}
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "third", Content: "5", To: "B"}))
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "6"}))
	if got := w.drain("ses_b"); len(got) != 2 || got[1].Content != "6" {
		t.Fatalf("the pause holds up what comes behind another: %v", ids(got))
	}
	w.now++
	if got := w.drain("ses_b"); !slices.Equal(ids(got), []string{held.ID, behind.ID}) {
		t.Fatalf("drained %v after the pause", ids(got))
	}
	// A pause that a clock put back made endless is none.
	w.send("7")
	w.now -= 60 * minute
	if got := w.drain("ses_b"); len(got) != 1 {
		t.Fatalf("the clock holds it up")
	}
}

func TestAPausedChannelKeepsItsMailAndJudgesItsAgeAfterwards(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	ch.Members[1].Policy = &opencomms.StalePolicy{Mode: "window", Window: 5 * minute}
	row := w.send("x")
	pause(w)
	w.now += 5*minute + 1
	if got := w.drain("ses_b"); len(got) != 0 || row.Status != "pending" || len(w.queue("ses_b")) != 1 {
		t.Fatalf("drained %v, status %s", ids(got), row.Status)
	}
	changed, err := w.e.Resume(w.s, as("ses_b"), "review")
	w.must(err)
	if got := w.drain("ses_b"); !changed || len(got) != 0 || row.Status != "stale" || len(w.queue("ses_b")) != 0 {
		t.Fatalf("drained %v, status %s", ids(got), row.Status)
	}
}

func TestTheStalePolicyIsTheMembersAndElseTheChannels(t *testing.T) {
	window := func(ms int64) *opencomms.StalePolicy { return &opencomms.StalePolicy{Mode: "window", Window: ms} }
	for _, c := range []struct {
		name   string
		policy *opencomms.StalePolicy
		age    int64
		want   string
	}{
		{"just within", window(2 * minute), 2 * minute, "in_flight"},
		{"a moment too late", window(2 * minute), 2*minute + 1, "stale"},
		{"none", &opencomms.StalePolicy{Mode: "none"}, 1000 * minute, "in_flight"},
		{"no policy, within", nil, 5 * minute, "in_flight"},
		{"no policy, late", nil, 5*minute + 1, "stale"},
		{"a policy without a window", window(0), 5*minute + 1, "stale"},
		{"a mode that is unknown", &opencomms.StalePolicy{Mode: "moon"}, 1000 * minute, "in_flight"},
	} {
		w := newWorld(t)
		w.channel("review", 2).Members[1].Policy = c.policy
		row := w.send("x")
		w.now += c.age
		w.drain("ses_b")
		if row.Status != c.want {
			t.Errorf("%s: %s, not %s", c.name, row.Status, c.want)
		}
	}
}

func TestADrainEndsWhatCannotBeDelivered(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	w.channel("gone", 3)
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "gone", Content: "of a channel that is gone", To: "C"}))
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "of one that it left", To: "C"}))
	w.s.Channels.Delete("gone")
	ch.Members = ch.Members[:2]
	queued := slices.Clone(w.queue("ses_c"))
	w.s.Queues.Set("ses_c", append(queued, id("ocm_", 404), w.send("for another").ID))
	if got := w.drain("ses_c"); len(got) != 0 || len(w.queue("ses_c")) != 0 {
		t.Fatalf("drained %v, queue %v", ids(got), w.queue("ses_c"))
	}
	for _, msg := range queued {
		if row := w.row(msg); row.Status != "rejected" {
			t.Errorf("%s is %s", row.Content, row.Status)
		}
	}
	if row := w.row(w.queue("ses_b")[0]); row.Status != "pending" {
		t.Errorf("the row of another recipient is %s", row.Status)
	}
}

func TestWhatHasEndedIsNeverDeliveredAgain(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	for _, status := range []string{"in_flight", "delivered", "failed", "rejected", "stale"} {
		w.send(status).Status = status
	}
	later := w.send("of a later version")
	later.Status = "embargoed"
	if got := w.drain("ses_b"); len(got) != 0 || !slices.Equal(w.queue("ses_b"), []string{later.ID}) || later.Status != "embargoed" {
		t.Errorf("drained %v, queue %v", ids(got), w.queue("ses_b"))
	}
}

func TestADrainStopsAtTheBudget(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	sent := three(w)
	ch.Budgets.MaxDelivered = 2
	if got := w.drain("ses_b"); !slices.Equal(ids(got), sent[:2]) || !slices.Equal(w.queue("ses_b"), sent[2:]) || w.row(sent[2]).Status != "pending" {
		t.Errorf("drained %v, queue %v", ids(got), w.queue("ses_b"))
	}
}

func TestADrainTakesOnlyWhatItsCallerWants(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	sent := three(w)
	got := w.e.Drain(w.s, "ses_b", engine.DrainOptions{Only: func(row *opencomms.Envelope) bool { return row.ID == sent[1] }})
	if !slices.Equal(ids(got), sent[1:2]) || !slices.Equal(w.queue("ses_b"), []string{sent[0], sent[2]}) {
		t.Errorf("drained %v, queue %v", ids(got), w.queue("ses_b"))
	}
}

func TestADrainOfNobodyChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	w.ready()
	if got := w.drain("ses_nobody"); got != nil || encode(t, w.s) != w.before {
		t.Errorf("drained %v", got)
	}
}

func TestOnlyWhatIsInFlightIsCommitted(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 3)
	sent := three(w)
	w.drain("ses_b")
	w.now += second
	pending := w.send("pending")
	w.row(sent[2]).Status = "failed"
	if n := w.e.Commit(w.s, "ses_c", sent, "push"); n != 0 {
		t.Errorf("%d of another recipient", n)
	}
	if n := w.e.Commit(w.s, "ses_b", append(sent, pending.ID, id("ocm_", 404)), "push"); n != 2 {
		t.Errorf("%d committed", n)
	}
	if row := w.row(sent[0]); row.Status != "delivered" || row.DeliveredAt != w.now || row.Method != "push" {
		t.Errorf("%+v", row.EnvelopeFields)
	}
	at := w.now
	w.now += second
	if n := w.e.Commit(w.s, "ses_b", sent[:1], "pull"); n != 0 || w.row(sent[0]).DeliveredAt != at || w.row(sent[0]).Method != "push" {
		t.Errorf("it was committed again: %+v", w.row(sent[0]).EnvelopeFields)
	}
	if w.row(sent[2]).Status != "failed" || pending.Status != "pending" {
		t.Errorf("%s, %s", w.row(sent[2]).Status, pending.Status)
	}
}

func TestAFailedDeliveryGoesBackToTheHeadOfItsQueue(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	sent := three(w)
	w.drain("ses_b")
	later := w.send("later")
	if back := w.e.Requeue(w.s, "ses_b", sent); !slices.Equal(back, sent) {
		t.Errorf("back are %v", back)
	}
	if want := append(slices.Clone(sent), later.ID); !slices.Equal(w.queue("ses_b"), want) {
		t.Errorf("queue %v, not %v", w.queue("ses_b"), want)
	}
	row := w.row(sent[0])
	to, _ := w.s.DeliveredTo.Get(row.ID)
	if row.Status != "pending" || row.Attempts != 1 || ch.DeliveredTotal != 3 || !slices.Equal(to, []string{"ses_b"}) {
		t.Errorf("%+v, total %d, delivered to %v", row.EnvelopeFields, ch.DeliveredTotal, to)
	}
	w.e.Requeue(w.s, "ses_b", sent)
	if n := len(w.queue("ses_b")); n != 4 {
		t.Errorf("they are queued twice: %d", n)
	}
}

func TestTheFifthFailureIsTheLast(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	row := w.send("x")
	for attempt := 1; attempt <= 5; attempt++ {
		if got := w.drain("ses_b"); len(got) != 1 || row.Attempts != attempt {
			t.Fatalf("attempt %d: drained %v, %d attempts", attempt, ids(got), row.Attempts)
		}
		back := w.e.Requeue(w.s, "ses_b", []string{row.ID})
		if ended := row.Status == "failed"; ended != (attempt == 5) || len(back) == 0 != ended {
			t.Fatalf("attempt %d: %s, back %v", attempt, row.Status, back)
		}
		w.now += 2 * second
	}
	if len(w.queue("ses_b")) != 0 || row.DeliveredAt != 0 {
		t.Errorf("queue %v, %+v", w.queue("ses_b"), row.EnvelopeFields)
	}
}

func TestWhatIsCommittedIsNeverPutBack(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	row := w.send("x")
	w.drain("ses_b")
	w.e.Commit(w.s, "ses_b", []string{row.ID}, "push")
	if back := w.e.Requeue(w.s, "ses_b", []string{row.ID}); back != nil {
		t.Errorf("put back %v", back)
	}
	if swept := w.e.Sweep(w.s, all); swept != nil || row.Status != "delivered" || len(w.queue("ses_b")) != 0 {
		t.Errorf("swept %v, %s", swept, row.Status)
	}
}

func all(*opencomms.Envelope) bool { return true }

func TestNobodyPutsBackWhatIsForAnother(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 3)
	row := w.send("x")
	w.drain("ses_b")
	if back := w.e.Requeue(w.s, "ses_c", []string{row.ID}); back != nil || row.Status != "in_flight" || len(w.queue("ses_c")) != 0 {
		t.Errorf("put back %v, %s", back, row.Status)
	}
}

func TestASweepRestoresTheOrderOfEveryQueue(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 3)
	sent := three(w)
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "for c", To: "C"}))
	forC := w.queue("ses_c")[0]
	w.drain("ses_b")
	w.drain("ses_c")
	later := w.send("later")
	// As a file whose rows do not stand in the order of their times.
	first := w.row(sent[0])
	w.s.Messages.Delete(first.ID)
	w.s.Messages.Set(first.ID, first)

	swept := w.e.Sweep(w.s, func(row *opencomms.Envelope) bool { return row.Recipient == "ses_b" })
	if !slices.Equal(swept, sent) || !slices.Equal(w.queue("ses_b"), append(slices.Clone(sent), later.ID)) {
		t.Errorf("swept %v, queue %v", swept, w.queue("ses_b"))
	}
	if row := w.row(forC); row.Status != "in_flight" || first.Status != "pending" || first.Attempts != 1 {
		t.Errorf("%s, %s", row.Status, first.Status)
	}
	if swept := w.e.Sweep(w.s, all); !slices.Equal(swept, []string{forC}) {
		t.Errorf("swept %v", swept)
	}
}

func TestWhatComesBackForWhoHasLeftIsRejected(t *testing.T) {
	for name, back := range map[string]func(w *world, id string){
		"requeue": func(w *world, id string) { w.e.Requeue(w.s, "ses_b", []string{id}) },
		"sweep":   func(w *world, id string) { w.e.Sweep(w.s, all) },
	} {
		w := newWorld(t)
		w.channel("review", 3)
		row := w.send("x")
		w.drain("ses_b")
		_, err := w.e.Disconnect(w.s, as("ses_b"), "review")
		w.must(err)
		if row.Status != "in_flight" {
			t.Fatalf("%s: it is %s while its delivery goes on", name, row.Status)
		}
		back(w, row.ID)
		if row.Status != "rejected" || len(w.queue("ses_b")) != 0 {
			t.Errorf("%s: %s, queue %v", name, row.Status, w.queue("ses_b"))
		}
	}
}

func TestPendingAreThoseWithSomethingToDeliver(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 3)
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "1", To: "C"}))
	w.send("2")
	if got := w.e.Pending(w.s); !slices.Equal(got, []string{"ses_c", "ses_b"}) {
		t.Errorf("pending %v", got)
	}
	w.drain("ses_c")
	w.s.Queues.Set("ses_c", []string{id("ocm_", 404)})
	if got := w.e.Pending(w.s); !slices.Equal(got, []string{"ses_b"}) {
		t.Errorf("pending %v", got)
	}
}

func TestTheNewest2000MessagesAreKept(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	ch.RateLimit = 1_000_000
	w.channel("other", 2)
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "the oldest, of another channel"}))
	oldest := w.queue("ses_b")[0]
	w.s.DeliveredTo.Set(oldest, []string{"ses_b"})
	w.now++
	// Of one time, the first in the file goes first.
	for i := range 1999 {
		w.send(fmt.Sprint(i), func(r *engine.SendRequest) { r.To = "C" })
	}
	if n := w.s.Messages.Len(); n != 2000 {
		t.Fatalf("%d messages", n)
	}
	w.send("one more", func(r *engine.SendRequest) { r.To = "C" })
	if _, ok := w.s.Messages.Get(oldest); ok || w.s.Messages.Len() != 2000 || len(w.queue("ses_b")) != 0 || len(w.queue("ses_c")) != 2000 {
		t.Errorf("%d messages, queues of %d and %d", w.s.Messages.Len(), len(w.queue("ses_b")), len(w.queue("ses_c")))
	}
	if _, ok := w.s.DeliveredTo.Get(oldest); ok {
		t.Error("delivered_to still names it")
	}
	for name, add := range map[string]func() error{
		"notice": func() error { _, err := w.e.Notice(w.s, "review", "ses_c", "ses_a", "x"); return err },
		"relay": func() error {
			_, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.To = "ses_c" }))
			return err
		},
		"kick": func() error {
			_, err := w.e.Kick(w.s, as("ses_a"), engine.KickRequest{Channel: "review", TargetRole: "B"})
			return err
		},
	} {
		first := w.queue("ses_c")[0]
		w.must(add())
		if _, ok := w.s.Messages.Get(first); ok || w.s.Messages.Len() != 2000 {
			t.Errorf("%s: %d messages; of those of one time the first goes first: %v", name, w.s.Messages.Len(), !ok)
		}
	}
}

func TestTheOldestByTimeGoesWhereverItStands(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	for i := range 2001 {
		row := &opencomms.Envelope{EnvelopeFields: opencomms.EnvelopeFields{ID: id("ocm_", i), ChannelID: ch.ID, Timestamp: int64(5000 - i), Status: "delivered"}}
		w.s.Messages.Set(row.ID, row)
	}
	w.e.Retain(w.s)
	if _, ok := w.s.Messages.Get(id("ocm_", 2000)); ok || w.s.Messages.Len() != 2000 {
		t.Errorf("%d messages, the oldest is there: %v", w.s.Messages.Len(), ok)
	}
}

func TestADrainForgetsWhatIsTooMuchToo(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	w.send("x")
	for i := range 2000 {
		row := &opencomms.Envelope{EnvelopeFields: opencomms.EnvelopeFields{ID: id("ocm_", i), ChannelID: ch.ID, Timestamp: 1, Status: "delivered"}}
		w.s.Messages.Set(row.ID, row)
	}
	w.drain("ses_b")
	if n := w.s.Messages.Len(); n != 2000 {
		t.Errorf("%d messages", n)
	}
}

func TestTheTroubleListKeepsTheNewest200(t *testing.T) {
	w := newWorld(t)
	for i := range 203 {
		w.e.RecordError(w.s, fmt.Sprint(i))
	}
	if n := len(w.s.Errors); n != 200 || w.s.Errors[0].Message != "3" || w.s.Errors[199].Message != "202" || w.s.Errors[0].At != w.now {
		t.Errorf("%d entries, the first is %+v", n, w.s.Errors[0])
	}
}
