package engine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAnInboxShowsWhatAPullWouldTake(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 3)
	w.channel("other", 2)
	first := w.send("1")
	reply := w.send("2", func(r *engine.SendRequest) { r.ReplyTo, r.Type = first.ID, "review_request" })
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "3"}))
	w.must(sendAs(w, "ses_a", engine.SendRequest{Content: "not for b", To: "C"}))
	w.ready()
	in, err := w.e.Inbox(w.s, as("ses_b"), "review", 0)
	w.must(err)
	if in.Pending != 3 || len(in.Messages) != 3 || in.Messages[2].Channel != "other" || encode(t, w.s) != w.before {
		t.Fatalf("inbox %+v", in)
	}
	want := fmt.Sprintf(`{"message_id":%q,"channel":"review","sender_role":"A","message_type":"review_request","content":"2","timestamp":%d,"reply_to":%q,"hop_count":1,"delivery_status":"pending"}`, reply.ID, reply.Timestamp, first.ID)
	if got := asJSON(t, in.Messages[1]); got != want {
		t.Errorf("%s\nis not\n%s", got, want)
	}
	if got := asJSON(t, in.Messages[0]); !strings.Contains(got, `"reply_to":null`) {
		t.Error(got)
	}
	in, err = w.e.Inbox(w.s, engine.Caller{Operator: true, Session: "ses_b"}, "review", 1)
	w.must(err)
	if in.Pending != 3 || len(in.Messages) != 1 || in.Messages[0].ID != first.ID {
		t.Errorf("inbox %+v", in)
	}
	in, err = w.e.Inbox(w.s, as("ses_a"), "review", 0)
	w.must(err)
	if got := asJSON(t, in); got != `{"pending":0,"messages":[]}` {
		t.Error(got)
	}
}

func TestAHistoryIsOfOneChannelNewestFirst(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	ch.RateLimit = 1000
	w.channel("other", 2)
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "elsewhere"}))
	for i := range 130 {
		w.now++
		w.send(fmt.Sprint(i))
	}
	for limit, want := range map[int]int{0: 20, -1: 20, 1: 1, 100: 100, 1000: 100} {
		h, err := w.e.History(w.s, as("ses_b"), "review", limit)
		w.must(err)
		if len(h.Messages) != want || h.Messages[0].Content != "129" || h.Messages[0].RecipientRole != "B" || h.Messages[0].Channel != "" {
			t.Errorf("limit %d: %d messages", limit, len(h.Messages))
		}
	}
	h, err := w.e.History(w.s, operator, "review", 2)
	w.must(err)
	if h.Messages[1].Content != "128" {
		t.Errorf("the second is %+v", h.Messages[1])
	}
}

func TestAStatusShowsTheCallersChannels(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2, func(r *engine.CreateRequest) { r.Budgets.MaxDelivered = 5 })
	w.channel("other", 3)
	w.e.SetStale(w.s, "ses_b")
	w.e.ClearStale(w.s, "ses_b")
	w.send("1")
	w.now++
	w.send("2")
	w.must(sendAs(w, "ses_a", engine.SendRequest{Channel: "other", Content: "x", Broadcast: true}))
	st, err := w.e.Status(w.s, as("ses_b"), " Review")
	w.must(err)
	if len(st.Channels) != 1 || st.TotalMessages != 4 || st.PendingMessages != 4 {
		t.Fatalf("status %+v", st)
	}
	want := fmt.Sprintf(`{"id":%q,"name":"review","project_id":"proj","worktree":"/home/u/proj","created_at":%d,"paused":false,"max_members":8,`+
		`"budgets":{"max_runtime_ms":null,"max_delivered_messages":5},"delivered_total":0,"members":[`+
		`{"session_id":"ses_a","role":"A","stale":false,"joined_at":%[2]d,"host":"test","surface":"mcp","delivery_mode":"pull","endpoint_capabilities":{"push":false,"pull":true,"resume":false,"queue_while_busy":true,"interrupt":false}},`+
		`{"session_id":"ses_b","role":"B","stale":false,"joined_at":%[2]d,"host":"test","surface":"mcp","delivery_mode":"pull","endpoint_capabilities":{"push":false,"pull":true,"resume":false,"queue_while_busy":true,"interrupt":false}}],`+
		`"queue_lengths":{"ses_a":0,"ses_b":2},"last_message_at":%d}`, ch.ID, w.now-1, w.now)
	if got := asJSON(t, st.Channels[0]); got != want {
		t.Errorf("%s\nis not\n%s", got, want)
	}
	names := func(c engine.Caller, channel string) (out []string) {
		st, err := w.e.Status(w.s, c, channel)
		w.must(err)
		for _, ch := range st.Channels {
			out = append(out, ch.Name)
		}
		return out
	}
	if got := names(as("ses_b"), ""); !slices.Equal(got, []string{"review", "other"}) {
		t.Errorf("of ses_b: %v", got)
	}
	if got := names(as("ses_c"), ""); !slices.Equal(got, []string{"other"}) {
		t.Errorf("of ses_c: %v", got)
	}
	for _, hidden := range []string{"review", "nowhere"} {
		if got := names(as("ses_c"), hidden); got != nil {
			t.Errorf("%s of ses_c: %v", hidden, got)
		}
	}
	if got := names(operator, ""); len(got) != 2 {
		t.Errorf("of the operator: %v", got)
	}
}

func TestTroubleOfOthersIsNotShown(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	w.channel("other", 3)
	for _, message := range []string{"the disk was full", `channel "review" has trouble`, "delivery to ses_b failed", "delivery to ses_c failed"} {
		w.e.RecordError(w.s, message)
	}
	for caller, want := range map[engine.Caller]int{as("ses_a"): 4, as("ses_c"): 3, operator: 4} {
		st, err := w.e.Status(w.s, caller, "")
		w.must(err)
		if len(st.Errors) != want || st.Errors[0] != (engine.ErrorEntry{At: w.now, Message: "the disk was full"}) {
			t.Errorf("%+v sees %+v", caller, st.Errors)
		}
	}
}

func TestAnEmptyStatusHasListsAndNoNulls(t *testing.T) {
	w := newWorld(t)
	st, err := w.e.Status(&opencomms.State{}, operator, "")
	w.must(err)
	if got := asJSON(t, st); got != `{"channels":[],"total_messages":0,"pending_messages":0,"errors":[]}` {
		t.Error(got)
	}
}
