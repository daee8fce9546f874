package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

func TestSendChecksInOrder(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	first := w.send("again")
	first.Hops = ch.MaxHops
	ch.RateLimit, ch.Rate.Count = 1, 1
	ch.Lifecycle, ch.Paused = opencomms.LifecycleSaved, true
	ch.Budgets = opencomms.Budgets{MaxRuntime: 1, MaxDelivered: 1}
	ch.DeliveredTotal = 1
	w.now += second
	w.e.SetStale(w.s, "ses_b")
	caller := "ses_z"
	r := engine.SendRequest{Channel: "nowhere", Type: "system", To: "C", ReplyTo: first.ID}
	steps := []struct {
		code engine.Code
		fix  func()
	}{
		{engine.ChannelMissing, func() { r.Channel = " REVIEW " }},
		{engine.NotMember, func() { caller = "ses_a" }},
		{engine.NotActive, func() { ch.Lifecycle = opencomms.LifecycleActive }},
		{engine.Paused, func() { ch.Paused = false }},
		{engine.RuntimeExhausted, func() { ch.Budgets.MaxRuntime = 0 }},
		{engine.DeliveredExhausted, func() { ch.Budgets.MaxDelivered = 0 }},
		{engine.ContentRequired, func() { r.Content = strings.Repeat("x", 100_001) }},
		{engine.ContentTooLarge, func() { r.Content = "again" }},
		{engine.InvalidMessageType, func() { r.Type = opencomms.TypeReviewResponse }},
		{engine.RecipientUnknown, func() { r.To = "B" }},
		{engine.RecipientStale, func() { w.e.ClearStale(w.s, "ses_b") }},
		{engine.RateLimited, func() { ch.RateLimit = 2 }},
		{engine.Duplicate, func() { r.Content = "not again" }},
		{engine.HopLimit, func() { first.Hops-- }},
	}
	for _, step := range steps {
		_, err := w.e.Send(w.s, as(caller), r)
		w.refused(err, step.code)
		step.fix()
	}
	_, err := w.e.Send(w.s, as(caller), r)
	w.must(err)
}

func TestASendIsQueuedForItsRecipient(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	w.now += 5
	sent, err := w.e.Send(w.s, as("ses_a"), engine.SendRequest{Channel: "review", Content: " hello \n"})
	w.must(err)
	if len(sent.MessageIDs) != 1 || !slices.Equal(sent.Recipients, []string{"ses_b"}) || sent.Status != "pending" {
		t.Fatalf("sent %+v", sent)
	}
	row := w.row(sent.MessageIDs[0])
	want := opencomms.EnvelopeFields{
		ID: row.ID, ChannelID: ch.ID, Sender: "ses_a", SenderRole: "A", Recipient: "ses_b", RecipientRole: "B",
		Timestamp: w.now, Type: "manual", Content: " hello \n", Status: "pending", Correlation: row.Correlation,
	}
	if row.EnvelopeFields != want {
		t.Errorf("row %+v, not %+v", row.EnvelopeFields, want)
	}
	if !strings.HasPrefix(row.ID, "ocm_") || !strings.HasPrefix(row.Correlation, "cor_") || len(row.Correlation) != 36 {
		t.Errorf("ids %s, %s", row.ID, row.Correlation)
	}
	if !slices.Equal(w.queue("ses_b"), []string{row.ID}) || !slices.Equal(ch.ProcessedCorrelations, []string{row.Correlation}) {
		t.Errorf("queue %v, begun %v", w.queue("ses_b"), ch.ProcessedCorrelations)
	}
	if at, ok := ch.SeenContent.Get(opencomms.SeenKey("ses_a", " hello \n")); !ok || at != w.now {
		t.Errorf("seen at %d, %v", at, ok)
	}
}

func TestRecipientsAreNeverGuessed(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 3)
	// A role may be spelt like somebody's session id: the session id wins.
	m := pull(3)
	m.Role = "ses_b"
	w.must(join(w, "review", m))
	for _, c := range []struct {
		name, to  string
		broadcast bool
		want      []string
	}{
		{"a role in any case", " b ", false, []string{"ses_b"}},
		{"a session id in any case", "SES_C", false, []string{"ses_c"}},
		{"the session id comes first", "ses_b", false, []string{"ses_b"}},
		{"broadcast wins", "b", true, []string{"ses_b", "ses_c", "ses_d"}},
	} {
		sent, err := w.e.Send(w.s, as("ses_a"), engine.SendRequest{Channel: "review", Content: c.name, To: c.to, Broadcast: c.broadcast})
		w.must(err)
		if !slices.Equal(sent.Recipients, c.want) {
			t.Errorf("%s: %v", c.name, sent.Recipients)
		}
	}
	w.e.SetStale(w.s, "ses_c")
	sent, err := w.e.Send(w.s, as("ses_a"), engine.SendRequest{Channel: "review", Content: "stale ones are left out", Broadcast: true})
	w.must(err)
	if !slices.Equal(sent.Recipients, []string{"ses_b", "ses_d"}) {
		t.Errorf("broadcast to %v", sent.Recipients)
	}
}

func TestTheCopiesOfABroadcastShareTimeAndCorrelation(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	sent, err := w.e.Send(w.s, as("ses_a"), engine.SendRequest{Channel: "review", Content: "x", Broadcast: true})
	w.must(err)
	one, two := w.row(sent.MessageIDs[0]), w.row(sent.MessageIDs[1])
	if one.ID == two.ID || one.Correlation != two.Correlation || one.Timestamp != two.Timestamp || ch.Rate.Count != 1 {
		t.Errorf("%+v\n%+v\nrate %+v", one, two, ch.Rate)
	}
}

func TestContentIsCountedInUTF16Units(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	w.send(strings.Repeat("😀", 50_000))
	w.send(strings.Repeat("é", 100_000))
}

func TestAChainOfRepliesHasFiveMessages(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	last := w.send("0")
	root := last
	for hop := 1; hop <= 4; hop++ {
		sent, err := w.e.Send(w.s, as(last.Recipient), engine.SendRequest{Channel: "review", Content: fmt.Sprint(hop), ReplyTo: last.ID})
		w.must(err)
		row := w.row(sent.MessageIDs[0])
		if row.Hops != hop || row.Correlation != root.Correlation || row.Root != root.ID || row.ReplyTo != last.ID {
			t.Fatalf("hop %d: %+v", hop, row.EnvelopeFields)
		}
		last = row
	}
	_, err := w.e.Send(w.s, as(last.Recipient), engine.SendRequest{Channel: "review", Content: "5", ReplyTo: last.ID})
	w.refused(err, engine.HopLimit)
	if got := w.get("review").ProcessedCorrelations; len(got) != 1 {
		t.Errorf("replies are listed as begun: %v", got)
	}
}

func TestAReplyToWhatNobodyKnowsBeginsAChain(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	row := w.send("x", func(r *engine.SendRequest) { r.ReplyTo = id("ocm_", 9) })
	if row.Hops != 0 || row.Root != "" || row.ReplyTo != id("ocm_", 9) || row.Correlation == "" {
		t.Errorf("%+v", row.EnvelopeFields)
	}
}

func TestAReplyIntoAnotherChannelCountsOnlyForWhoKnowsTheMessage(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	_, err := w.e.Create(w.s, engine.CreateRequest{Channel: "other", ProjectID: project, Worktree: worktree, Member: &engine.NewMember{Session: "ses_x", Role: "X", RolePrompt: "x"}})
	w.must(err)
	m := pull(1)
	w.must(join(w, "other", m))
	secret := w.send("only a and b know this", func(r *engine.SendRequest) { r.To = "B" })

	_, err = w.e.Send(w.s, as("ses_x"), engine.SendRequest{Channel: "other", Content: "from outside", ReplyTo: secret.ID})
	w.must(err)
	outside := w.row(w.queue("ses_b")[1])
	if outside.Correlation == secret.Correlation || outside.Hops != 0 || outside.Root != "" || outside.ReplyTo != secret.ID {
		t.Errorf("an outsider took part in a chain: %+v", outside.EnvelopeFields)
	}
	_, err = w.e.Send(w.s, as("ses_b"), engine.SendRequest{Channel: "other", Content: "from its recipient", ReplyTo: secret.ID})
	w.must(err)
	if row := w.row(w.queue("ses_x")[0]); row.Correlation != secret.Correlation || row.Hops != 1 || row.Root != secret.ID {
		t.Errorf("a bridge between channels begins to count anew: %+v", row.EnvelopeFields)
	}
	// Who received or sent it knows it after leaving, too.
	_, err = w.e.Disconnect(w.s, as("ses_b"), "review")
	w.must(err)
	_, err = w.e.Send(w.s, as("ses_b"), engine.SendRequest{Channel: "other", Content: "from who has left", ReplyTo: secret.ID})
	w.must(err)
	if row := w.row(w.queue("ses_x")[1]); row.Correlation != secret.Correlation {
		t.Errorf("who has left does not know what it got: %+v", row.EnvelopeFields)
	}
}

func TestTheRateIsThatOfAFixedWindowForAllTogether(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	begin := w.now
	for i := range 20 {
		_, err := w.e.Send(w.s, as([]string{"ses_a", "ses_b"}[i%2]), engine.SendRequest{Channel: "review", Content: fmt.Sprint(i), Broadcast: true})
		w.must(err)
	}
	_, err := w.e.Send(w.s, as("ses_c"), engine.SendRequest{Channel: "review", Content: "21", To: "A"})
	w.refused(err, engine.RateLimited)
	if ch.Rate != (opencomms.Rate{WindowStart: begin, Count: 20}) {
		t.Errorf("a refused send was counted: %+v", ch.Rate)
	}
	w.now = begin + minute
	_, err = w.e.Send(w.s, as("ses_c"), engine.SendRequest{Channel: "review", Content: "21", To: "A"})
	w.refused(err, engine.RateLimited)
	w.now++
	w.must(sendAs(w, "ses_c", engine.SendRequest{Content: "21", To: "A"}))
	if ch.Rate != (opencomms.Rate{WindowStart: w.now, Count: 1}) {
		t.Errorf("the next window is %+v", ch.Rate)
	}
	// A clock that is put back does not close the channel until it has caught up.
	ch.Rate.Count = 20
	w.now -= 60 * minute
	w.must(sendAs(w, "ses_c", engine.SendRequest{Content: "22", To: "A"}))
}

func TestAChannelWithoutNumbersHasTheDefaults(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	ch.RateLimit, ch.MaxHops = 0, 0
	for i := range 20 {
		w.send(fmt.Sprint(i))
	}
	w.refused(send(w, "review", "x"), engine.RateLimited)
	w.now += 2 * minute
	w.row(w.queue("ses_b")[0]).Hops = 4
	w.refused(sendAs(w, "ses_b", engine.SendRequest{Content: "x", ReplyTo: w.queue("ses_b")[0]}), engine.HopLimit)
}

func TestTheSameContentIsRefusedForFiveMinutes(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	w.channel("other", 2)
	w.send("same")
	w.now += 5*minute - 1
	for _, again := range []engine.SendRequest{
		{Content: "same", To: "B"},
		{Content: "same", To: "C"},
		{Content: "same", To: "C", Type: "review_request"},
	} {
		w.refused(sendAs(w, "ses_a", again), engine.Duplicate)
	}
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "same ", To: "B"})) // not the exact content
	w.must(sendAs(w, "ses_b", engine.SendRequest{Content: "same", To: "C"}))  // another sender
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "same"}))
	w.now++
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "fresh", To: "B"})) // sweeps
	if _, ok := ch.SeenContent.Get(opencomms.SeenKey("ses_a", "same")); ok {
		t.Error("what is older than the window was not swept")
	}
	if n := ch.SeenContent.Len(); n != 3 {
		t.Errorf("%d contents are remembered", n)
	}
	again := w.now
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "same", To: "B"}))
	w.now = again + 5*minute
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "same", To: "B"}))
}

func TestARefusedSendDoesNotCountAsSeen(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	row := w.send("first")
	row.Hops = 4
	w.refused(sendAs(w, "ses_b", engine.SendRequest{Content: "x", ReplyTo: row.ID}), engine.HopLimit)
	w.must(sendAs(w, "ses_b", engine.SendRequest{Content: "x"}))
}

func TestTheBudgetOfTimeEndsAfterItsLastMillisecond(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2, func(r *engine.CreateRequest) { r.Budgets.MaxRuntime = minute })
	w.now += minute
	w.send("in time")
	w.now++
	w.refused(send(w, "review", "late"), engine.RuntimeExhausted)
}

func TestTheDescriptionIsTakenOnce(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	w.send("0", func(r *engine.SendRequest) { r.Description = " \n" })
	sent, err := w.e.Send(w.s, as("ses_a"), engine.SendRequest{Channel: "review", Content: "1", Description: " Review\x1b[31m  the\n" + strings.Repeat("é", 200)})
	w.must(err)
	if !strings.HasPrefix(ch.Description, "Review the éé") || opencomms.Length(ch.Description) != 140 || sent.Description != ch.Description {
		t.Errorf("%q (%d), answered %q", ch.Description, opencomms.Length(ch.Description), sent.Description)
	}
	before := ch.Description
	sent, err = w.e.Send(w.s, as("ses_b"), engine.SendRequest{Channel: "review", Content: "2", Description: "another"})
	w.must(err)
	if ch.Description != before || sent.Description != "" {
		t.Errorf("it was replaced by %q, answered %q", ch.Description, sent.Description)
	}
}

func TestCorrelationsAreKeptUpTo500(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2, func(r *engine.CreateRequest) { r.RateLimit = 1000 })
	first := w.send("first")
	for i := range 500 {
		w.send(fmt.Sprint(i))
	}
	if n := len(ch.ProcessedCorrelations); n != 500 || slices.Contains(ch.ProcessedCorrelations, first.Correlation) {
		t.Errorf("%d are kept", n)
	}
}

func TestAnOperatorSendsToOneMember(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	sent, err := w.e.Send(w.s, operator, engine.SendRequest{Channel: "review", Content: "x", To: "a", Type: "review_request"})
	w.must(err)
	if row := w.row(sent.MessageIDs[0]); row.Sender != "operator" || row.SenderRole != "Operator" || row.Recipient != "ses_a" {
		t.Errorf("%+v", row.EnvelopeFields)
	}
	w.refused(func() error {
		_, err := w.e.Send(w.s, operator, engine.SendRequest{Channel: "review", Content: "x", To: "b"})
		return err
	}(), engine.Duplicate)
}

func TestARelayedMessageKeepsItsIdsAndTheLargerHop(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	ch.MaxHops = 10
	parent := w.send("parent")
	parent.Hops = 5
	for n, c := range []struct{ given, want int }{{3, 6}, {8, 8}, {-4, 6}} {
		w.now += second
		row, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) {
			r.ID, r.Hops, r.ReplyTo, r.Root = id("ocm_", n+1), c.given, parent.ID, id("ocm_", 77)
			r.Content = fmt.Sprint(n)
			r.Type = opencomms.TypeReviewResponse
		}))
		w.must(err)
		want := opencomms.EnvelopeFields{
			ID: id("ocm_", n+1), ChannelID: ch.ID, Sender: "ses_a", SenderRole: "A", Recipient: "ses_b", RecipientRole: "B",
			Timestamp: w.now, Type: "review_response", Content: fmt.Sprint(n), ReplyTo: parent.ID, Root: id("ocm_", 77),
			Hops: c.want, Status: "pending", Correlation: id("cor_", 1),
		}
		if row.EnvelopeFields != want || w.row(row.ID) != row {
			t.Errorf("%+v, not %+v", row.EnvelopeFields, want)
		}
	}
	row, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) {
		r.ID, r.ReplyTo, r.Correlation, r.Content = id("ocm_", 50), parent.ID, "", "inherits"
	}))
	w.must(err)
	if row.Correlation != parent.Correlation || row.Root != parent.ID {
		t.Errorf("%+v", row.EnvelopeFields)
	}
}

func TestACopyOfARelayedBroadcastIsOneSendWithTheFirst(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	ch.RateLimit = 1
	first, err := w.e.Relay(w.s, relayed())
	w.must(err)
	w.now += 10
	timerBefore := ch.Timer.SegmentStart
	second, err := w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.ID, r.To, r.CopyOf = id("ocm_", 2), "C", first.ID }))
	w.must(err)
	if second.Timestamp != w.now || ch.Rate.Count != 1 || ch.Timer.SegmentStart != timerBefore || len(ch.ProcessedCorrelations) != 1 {
		t.Errorf("%+v, rate %+v, timer %+v", second.EnvelopeFields, ch.Rate, ch.Timer)
	}
	// What only claims to be a copy is judged as everything else.
	for _, claim := range []func(*engine.RelayRequest){
		func(r *engine.RelayRequest) { r.Content = "other" },
		func(r *engine.RelayRequest) { r.CopyOf = id("ocm_", 99) },
		func(r *engine.RelayRequest) { r.From, r.To = "ses_b", "A" },
		func(r *engine.RelayRequest) { r.Correlation = id("cor_", 9) },
	} {
		_, err = w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.ID, r.To, r.CopyOf = id("ocm_", 3), "C", first.ID }, claim))
		w.refused(err, engine.RateLimited)
	}
	// Nobody gets a second copy, neither under another id nor when the first was read.
	w.row(second.ID).Status = "delivered"
	for _, to := range []string{"B", "C"} {
		_, err = w.e.Relay(w.s, relayed(func(r *engine.RelayRequest) { r.ID, r.To, r.CopyOf = id("ocm_", 4), to, first.ID }))
		w.refused(err, engine.Duplicate)
	}
}

func TestANoticeIsASystemRowThatNothingHoldsUp(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	ch.RateLimit, ch.Paused = 1, true
	for range 2 {
		msg, err := w.e.Notice(w.s, "review", "ses_a", "ses_b", "It did not arrive.")
		w.must(err)
		if row := w.row(msg); row.Type != "system" || row.SenderRole != "B" || row.Recipient != "ses_a" || row.Status != "pending" || row.Content != "It did not arrive." {
			t.Errorf("%+v", row.EnvelopeFields)
		}
	}
	if len(w.queue("ses_a")) != 2 || ch.Rate.Count != 0 {
		t.Errorf("queue %v, rate %+v", w.queue("ses_a"), ch.Rate)
	}
	msg, err := w.e.Notice(w.s, "review", "ses_a", "ses_gone", "x")
	w.must(err)
	if row := w.row(msg); row.SenderRole != "Operator" {
		t.Errorf("sender %s", row.SenderRole)
	}
}
