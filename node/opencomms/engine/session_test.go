package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

func TestASavedChannelMovesIntoItsArchive(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2, func(r *engine.CreateRequest) { r.Budgets.MaxDelivered = 50 })
	ch.Description, ch.ParentID = "Review it", id("chn_", 3)
	other := w.channel("other", 2)
	created := w.now
	sent := three(w)
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "stays"}))
	w.drain("ses_b")
	w.now += second
	waits := w.send(strings.Repeat("é", 500))
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "waits"}))

	a, err := w.e.SaveSession(w.s, as("ses_b"), engine.SaveRequest{Channel: "Review", Summary: " " + strings.Repeat("s", 2001)})
	w.must(err)
	if a.ChannelID != ch.ID || a.Name != "review" || a.ParentID != id("chn_", 3) || a.Description != "Review it" || a.Summary != strings.Repeat("s", 2000) ||
		a.Budgets.MaxDelivered != 50 || a.CreatedAt != created || a.SavedAt != w.now || a.SavedBy != "ses_b" || a.SavedByRole != "B" || len(a.Members) != 2 || a.FinalNote != strings.Repeat("é", 400) {
		t.Errorf("archive %+v", a)
	}
	if !slices.Equal(ids(a.Messages), append(sent, waits.ID)) {
		t.Errorf("messages %v", ids(a.Messages))
	}
	if _, ok := w.s.Channels.Get("review"); ok || w.s.Messages.Len() != 2 || len(w.queue("ses_b")) != 1 || w.s.DeliveredTo.Len() != 1 {
		t.Errorf("%d messages, queue %v, %d delivered", w.s.Messages.Len(), w.queue("ses_b"), w.s.DeliveredTo.Len())
	}
	if row := w.row(w.queue("ses_b")[0]); row.ChannelID != other.ID {
		t.Errorf("queued is %+v", row.EnvelopeFields)
	}
	if data, err := a.Encode(); err != nil || !strings.Contains(string(data), `"message_count": 4`) {
		t.Errorf("%v\n%s", err, data)
	}
}

func TestAnArchiveHasASummaryInAnyCase(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 1).Description = "Review it"
	a, err := w.e.SaveSession(w.s, operator, engine.SaveRequest{Channel: "review", Summary: " \n"})
	w.must(err)
	if !strings.Contains(a.Summary, "Review it") || a.SavedBy != "" || a.SavedByRole != "" || a.FinalNote != "" {
		t.Errorf("archive %+v", a)
	}
}

func TestAResumedChannelIsNewAndEmpty(t *testing.T) {
	w := newWorld(t)
	a := &opencomms.Archive{
		ChannelID: id("chn_", 3), Name: "review", Description: "Review it", Budgets: opencomms.Budgets{MaxRuntime: 5, MaxDelivered: 9},
		Members: []*opencomms.Member{{SessionID: "ses_a"}},
	}
	for i, want := range []string{"review", "review-r2", "review-r3", "review-r4", "review-r5", "review-r6", "review-r7", "review-r8", "review-r9"} {
		got, err := w.e.ResumeSession(w.s, as("ses_a"), a, engine.ResumeSessionRequest{ProjectID: project, Worktree: worktree})
		w.must(err)
		ch := w.get(want)
		if got.Name != want || got.ChannelID != ch.ID || got.ParentID != a.ChannelID || got.Members == nil || len(got.Members) != 0 || got.ArchiveName != "review" {
			t.Errorf("%d: %+v", i, got)
		}
		if len(ch.Members) != 0 || ch.ParentID != a.ChannelID || ch.ID == a.ChannelID || ch.Description != "Review it" || ch.Budgets != (opencomms.Budgets{MaxRuntime: minute, MaxDelivered: 9}) || ch.DeliveredTotal != 0 || ch.RateLimit != 20 {
			t.Errorf("%d: %+v", i, ch)
		}
	}
	_, err := w.e.ResumeSession(w.s, as("ses_a"), a, engine.ResumeSessionRequest{ProjectID: project, Worktree: worktree})
	w.refused(err, engine.NamesExhausted)
	got, err := w.e.ResumeSession(w.s, as("ses_a"), a, engine.ResumeSessionRequest{NewName: " Next ", ProjectID: project, Worktree: worktree})
	w.must(err)
	if got.Name != "next" {
		t.Errorf("named %s", got.Name)
	}
	encode(t, w.s)
	long := strings.Repeat("a", 62)
	for _, code := range []engine.Code{"", engine.NameTooLong} {
		_, err = w.e.ResumeSession(w.s, operator, a, engine.ResumeSessionRequest{NewName: long, ProjectID: project, Worktree: worktree})
		w.refused(err, code)
	}
}

func TestADeletedChannelLeavesNothingButOtherMail(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	w.channel("other", 2)
	for i := range 3 {
		w.send(fmt.Sprint(i))
		w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: fmt.Sprint(i)}))
	}
	got, err := w.e.DeleteSession(w.s, as("ses_b"), "review", true)
	w.must(err)
	if got != ch.ID || w.s.Channels.Len() != 1 || w.s.Messages.Len() != 3 || len(w.queue("ses_b")) != 3 {
		t.Errorf("%s, %d channels, %d messages, queue %v", got, w.s.Channels.Len(), w.s.Messages.Len(), w.queue("ses_b"))
	}
}
