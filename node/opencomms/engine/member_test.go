package engine_test

import (
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/opencomms/engine"
)

func TestAnyMemberPausesAndResumes(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	for _, c := range []engine.Caller{as("ses_b"), operator} {
		at := w.now
		changed, err := w.e.Pause(w.s, c, "review")
		w.must(err)
		w.now += second
		again, err := w.e.Pause(w.s, c, "review")
		w.must(err)
		if !changed || again || !ch.Paused || ch.PausedAt != at {
			t.Errorf("%v, again %v, paused %v at %d", changed, again, ch.Paused, ch.PausedAt)
		}
		changed, err = w.e.Resume(w.s, c, "review")
		w.must(err)
		again, err = w.e.Resume(w.s, c, "review")
		w.must(err)
		if !changed || again || ch.Paused || ch.PausedAt != 0 {
			t.Errorf("%v, again %v, paused %v at %d", changed, again, ch.Paused, ch.PausedAt)
		}
	}
}

func TestADisconnectRejectsTheMailOfThatChannelOnly(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 3)
	w.channel("other", 2)
	rejected := w.send("of the channel")
	flying := w.send("under way")
	flying.Status = "in_flight"
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "of another channel"}))
	kept := w.queue("ses_b")[2]
	left, err := w.e.Disconnect(w.s, as("ses_b"), "review")
	w.must(err)
	if left != (engine.Left{Remaining: 2, Rejected: 1}) {
		t.Errorf("left %+v", left)
	}
	if rejected.Status != "rejected" || flying.Status != "in_flight" || w.row(kept).Status != "pending" || !slices.Equal(w.queue("ses_b"), []string{kept}) {
		t.Errorf("%s, %s, %s, queue %v", rejected.Status, flying.Status, w.row(kept).Status, w.queue("ses_b"))
	}
	if engine.Member(ch, "ses_b") != nil || engine.Member(w.get("other"), "ses_b") == nil {
		t.Error("the wrong membership ended")
	}
	if got := w.drain("ses_b"); len(got) != 1 || got[0].ID != kept {
		t.Errorf("drained %v", ids(got))
	}
	_, err = w.e.Disconnect(w.s, as("ses_b"), "other")
	w.must(err)
	if _, ok := w.s.Queues.Get("ses_b"); ok {
		t.Error("its empty queue stays")
	}
}

func TestTheLastMemberTakesTheChannelWithIt(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	row := w.send("x")
	_, err := w.e.Disconnect(w.s, as("ses_a"), "review")
	w.must(err)
	left, err := w.e.Disconnect(w.s, as("ses_b"), "review")
	w.must(err)
	if _, ok := w.s.Channels.Get("review"); ok || !left.ChannelRemoved || left.Rejected != 1 || row.Status != "rejected" {
		t.Errorf("left %+v, the message is %s", left, row.Status)
	}
	if w.row(row.ID) != row {
		t.Error("its messages are gone")
	}
	encode(t, w.s)
}

func TestAKickTellsThoseWhoStay(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 4)
	ch.Rate.Count = 1000
	w.e.SetStale(w.s, "ses_d")
	kicked, err := w.e.Kick(w.s, as("ses_a"), engine.KickRequest{Channel: "review", TargetRole: " b "})
	w.must(err)
	if kicked.SessionID != "ses_b" || kicked.Role != "B" || !slices.Equal(kicked.Remaining, []string{"ses_a", "ses_c"}) {
		t.Errorf("kicked %+v", kicked)
	}
	seen := map[string]bool{}
	for _, session := range []string{"ses_a", "ses_c", "ses_d"} {
		if len(w.queue(session)) != 1 {
			t.Fatalf("%s has %v", session, w.queue(session))
		}
		row := w.row(w.queue(session)[0])
		seen[row.Correlation] = true
		if row.Type != "system" || row.Sender != "ses_a" || row.SenderRole != "A" || row.Status != "pending" || !strings.Contains(row.Content, "B (ses_b)") {
			t.Errorf("%+v", row.EnvelopeFields)
		}
	}
	if len(seen) != 3 || len(w.queue("ses_b")) != 0 || ch.Rate.Count != 1000 {
		t.Errorf("%d correlations, rate %+v", len(seen), ch.Rate)
	}
	w.refused(sendAs(w, "ses_b", engine.SendRequest{Content: "x", To: "A"}), engine.NotMember)
}

func TestTheFirstMemberIsTheOneWhoKicks(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 3)
	_, err := w.e.Disconnect(w.s, as("ses_a"), "review")
	w.must(err)
	_, err = w.e.Kick(w.s, as("ses_c"), engine.KickRequest{Channel: "review", TargetSession: "ses_b"})
	w.refused(err, engine.NotCoordinator)
	// A session that is unknown gives way to a role.
	_, err = w.e.Kick(w.s, as("ses_b"), engine.KickRequest{Channel: "review", TargetSession: "ses_x", TargetRole: "C"})
	w.must(err)
}

func TestAnOperatorRemovesEvenTheLastMember(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	_, err := w.e.Kick(w.s, operator, engine.KickRequest{Channel: "review", TargetSession: " SES_A"})
	w.must(err)
	if row := w.row(w.queue("ses_b")[0]); row.Sender != "operator" || row.SenderRole != "Operator" {
		t.Errorf("%+v", row.EnvelopeFields)
	}
	kicked, err := w.e.Kick(w.s, operator, engine.KickRequest{Channel: "review", TargetRole: "B"})
	w.must(err)
	if len(ch.Members) != 0 || kicked.Remaining == nil {
		t.Errorf("%d members, %+v", len(ch.Members), kicked)
	}
	encode(t, w.s) // empty and active is valid
}

func TestARolePromptIsItsMembersAndTheOperators(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	role, err := w.e.UpdateRole(w.s, as("ses_b"), engine.UpdateRoleRequest{Channel: "review", RolePrompt: "new", Member: "A"})
	w.must(err)
	if role != "B" || ch.Members[1].RolePrompt != "new" || ch.Members[0].RolePrompt == "new" {
		t.Errorf("role %s, prompts %q and %q", role, ch.Members[0].RolePrompt, ch.Members[1].RolePrompt)
	}
	role, err = w.e.UpdateRole(w.s, operator, engine.UpdateRoleRequest{Channel: "review", RolePrompt: "by a person", Member: "a"})
	w.must(err)
	if role != "A" || ch.Members[0].RolePrompt != "by a person" {
		t.Errorf("role %s, prompt %q", role, ch.Members[0].RolePrompt)
	}
}

func TestStaleIsMarkedInEveryChannelAndTakenBack(t *testing.T) {
	w := newWorld(t)
	one, two := w.channel("one", 2), w.channel("two", 3)
	w.channel("three", 1)
	at := w.now
	if n := w.e.SetStale(w.s, "ses_b"); n != 2 {
		t.Errorf("%d marked", n)
	}
	w.now += second
	if n := w.e.SetStale(w.s, "ses_b"); n != 0 || one.Members[1].StaleAt != at || !two.Members[1].Stale {
		t.Errorf("%d marked again at %d", n, one.Members[1].StaleAt)
	}
	if n := w.e.ClearStale(w.s, "ses_b"); n != 2 || one.Members[1].Stale || one.Members[1].StaleAt != 0 {
		t.Errorf("%d cleared", n)
	}
	if n := w.e.ClearStale(w.s, "ses_b"); n != 0 {
		t.Errorf("%d cleared again", n)
	}
}
