package mcp_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// allTools are the tools with their required arguments (§6, and opencomms_timer), and
// those for peers.
var allTools = map[string][]string{
	"opencomms_create":         {"channel", "role", "role_prompt"},
	"opencomms_join":           {"channel", "role", "role_prompt"},
	"opencomms_send":           {"channel", "content"},
	"opencomms_inbox":          {"channel"},
	"opencomms_pull":           {"channel"},
	"opencomms_status":         nil,
	"opencomms_history":        {"channel"},
	"opencomms_pause":          {"channel"},
	"opencomms_resume":         {"channel"},
	"opencomms_disconnect":     {"channel"},
	"opencomms_update_role":    {"channel", "role_prompt"},
	"opencomms_kick":           {"channel"},
	"opencomms_timer":          {"channel", "action"},
	"opencomms_save_session":   {"channel"},
	"opencomms_resume_session": {"channel"},
	"opencomms_delete_session": {"channel", "confirm"},
	"opencomms_archive":        nil,
	"list_agents":              nil,
	"send_message":             {"to", "message"},
	"peer_message_status":      {"message_id"},
	"read_messages":            nil,
}

func TestEveryToolIsListedWithWhatItNeedsAndKickForOperatorsOnly(t *testing.T) {
	dir := project(t, "sess_a")
	for _, admin := range []bool{false, true} {
		var flags []string
		if admin {
			flags = append(flags, "--admin")
		}
		s := as(t, dir, "sess_a", flags...)
		s.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		var answer struct {
			Result struct {
				Tools []struct {
					Name        string
					Description string
					InputSchema struct {
						Type       string
						Required   []string
						Properties map[string]struct{ Type string }
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(s.line()), &answer); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, tool := range answer.Result.Tools {
			seen[tool.Name] = true
			required, known := allTools[tool.Name]
			if !known || tool.Description == "" || tool.InputSchema.Type != "object" || !slices.Equal(tool.InputSchema.Required, required) {
				t.Errorf("%+v, want %v required", tool, required)
			}
		}
		for name := range allTools {
			if seen[name] != (admin || name != "opencomms_kick") {
				t.Errorf("admin %v: %s is listed: %v", admin, name, seen[name])
			}
		}
		if !admin {
			s.fails("kick", args{"channel": "review", "target_role": "Reviewer"}, -32602)
		}
		if code := s.end(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestTwoMembersTalkThroughEveryTool(t *testing.T) {
	dir := project(t, "sess_a", "sess_b")
	a := as(t, dir, "sess_a", "--admin", "--host", "claude-code")
	b := as(t, dir, "sess_b")

	created := a.ok("create", args{"channel": " API-Review ", "role": "Builder", "role_prompt": "Build it.", "max_members": 3, "budget_messages": 50},
		"channel_id", "name", "role", "session_id")
	if created["name"] != "api-review" || created["role"] != "Builder" || created["session_id"] != "sess_a" {
		t.Errorf("%v", created)
	}
	a.refused("create", args{"channel": "api-review", "role": "Builder", "role_prompt": "Build it."}, "channel_exists")
	if joined := b.ok("join", args{"channel": "api-review", "role": "Reviewer", "role_prompt": "Review it."},
		"channel_id", "role", "session_id", "parent_channel_id"); joined["channel_id"] != created["channel_id"] || joined["parent_channel_id"] != nil {
		t.Errorf("%v", joined)
	}

	// A question and its answer.
	sent := a.ok("send", args{"channel": "api-review", "content": "Please review store.go", "type": "review_request", "session_description": "The store"},
		"message_ids", "recipients", "delivery_status", "session_description")
	ids, _ := sent["message_ids"].([]any)
	if len(ids) != 1 || sent["delivery_status"] != "pending" || sent["session_description"] != "The store" || len(sent["recipients"].([]any)) != 1 {
		t.Fatalf("%v", sent)
	}
	in := b.ok("inbox", args{"channel": "api-review"}, "pending", "messages", "untrusted_notice")
	waiting := list(t, in, "messages")
	if in["pending"] != 1.0 || len(waiting) != 1 || waiting[0]["message_id"] != ids[0] || waiting[0]["sender_role"] != "Builder" ||
		waiting[0]["message_type"] != "review_request" || waiting[0]["hop_count"] != 0.0 || waiting[0]["reply_to"] != nil || waiting[0]["delivery_status"] != "pending" {
		t.Fatalf("%v", in)
	}
	got := b.ok("pull", args{"channel": "api-review"}, "messages", "untrusted_notice", "message_ids")
	if m := list(t, got, "messages"); len(m) != 1 || m[0]["channel"] != "api-review" || m[0]["message_id"] != ids[0] || !strings.Contains(m[0]["framed"].(string), "Please review store.go") {
		t.Fatalf("%v", got)
	}
	if again := b.call("pull", args{"channel": "api-review"}); !again.OK || len(list(t, again.Data, "messages")) != 0 || again.Data["message_ids"] != nil {
		t.Errorf("%v", again)
	}
	b.ok("send", args{"channel": "api-review", "content": "Two nits", "type": "review_response", "reply_to": ids[0], "to": "builder"},
		"message_ids", "recipients", "delivery_status")
	if m := a.pulled(1); !strings.Contains(m[0]["framed"].(string), "Two nits") {
		t.Fatalf("%v", m)
	}
	h := list(t, a.ok("history", args{"channel": "api-review", "limit": 10}, "messages", "untrusted_notice"), "messages")
	if len(h) != 2 || !strings.Contains(h[0]["content"].(string), "Two nits") || h[0]["recipient_role"] != "Builder" ||
		h[0]["reply_to"] != ids[0] || h[0]["hop_count"] != 1.0 || h[1]["delivery_status"] != "delivered" {
		t.Fatalf("%v", h)
	}

	status := a.ok("status", args{}, "channels", "total_messages", "pending_messages", "errors")
	channels := list(t, status, "channels")
	if len(channels) != 1 || status["total_messages"] != 2.0 || status["pending_messages"] != 0.0 {
		t.Fatalf("%v", status)
	}
	for _, key := range []string{"id", "name", "project_id", "worktree", "created_at", "paused", "max_members", "budgets", "delivered_total", "members", "queue_lengths", "last_message_at"} {
		if _, ok := channels[0][key]; !ok {
			t.Errorf("%s is missing in %v", key, channels[0])
		}
	}
	if channels[0]["max_members"] != 3.0 || channels[0]["budgets"].(map[string]any)["max_delivered_messages"] != 50.0 || channels[0]["project_id"] != "local-project" {
		t.Errorf("%v", channels[0])
	}
	members := list(t, channels[0], "members")
	if members[0]["host"] != "claude-code" || members[1]["host"] != "codex" || members[1]["surface"] != "mcp" || members[1]["delivery_mode"] != "pull" {
		t.Errorf("%v", members)
	}

	// Pause, roles, the clock.
	a.ok("pause", args{"channel": "api-review"})
	b.refused("send", args{"channel": "api-review", "content": "while paused"}, "paused")
	b.ok("resume", args{"channel": "api-review"})
	b.ok("update_role", args{"channel": "api-review", "role_prompt": "Review twice."})
	if !strings.Contains(read(t, dir, "state.json"), "Review twice.") {
		t.Error("the role prompt is not in the file")
	}
	if clock := a.call("timer", args{"channel": "api-review", "action": "status"}); !clock.OK || clock.Data["elapsed_ms_by_member"] == nil {
		t.Errorf("%v", clock)
	}

	// An archive, and what continues it. Both are in no channel in between.
	saved := a.ok("save_session", args{"channel": "api-review", "summary": "Reviewed"}, "archive_id", "message_count")
	if saved["archive_id"] != created["channel_id"] || saved["message_count"] != 2.0 {
		t.Errorf("%v", saved)
	}
	a.refused("send", args{"channel": "api-review", "content": "too late"}, "unknown_identity")
	if archives := list(t, b.ok("archive", args{}, "archives"), "archives"); len(archives) != 1 || archives[0]["name"] != "api-review" || archives[0]["summary"] != "Reviewed" {
		t.Errorf("%v", archives)
	}
	if about := b.ok("archive", args{"mode": "summary", "channel": "api-review"}, "compact_context", "archive_id", "untrusted_notice"); about["archive_id"] != created["channel_id"] {
		t.Errorf("%v", about)
	}
	if m := list(t, b.ok("archive", args{"mode": "messages", "channel": "api-review"}, "messages", "untrusted_notice"), "messages"); len(m) != 2 || !strings.Contains(m[0]["content"].(string), "Two nits") {
		t.Errorf("%v", m)
	}
	b.refused("archive", args{"mode": "nonsense"}, "invalid_argument")
	again := b.ok("resume_session", args{"channel": "api-review", "new_name": "second"}, "channel_id", "name", "parent_channel_id", "members", "archive_name")
	if again["name"] != "second" || again["parent_channel_id"] != created["channel_id"] || again["archive_name"] != "api-review" {
		t.Errorf("%v", again)
	}
	b.ok("join", args{"channel": "second", "role": "Reviewer", "role_prompt": "Review it."}, "channel_id", "role", "session_id", "parent_channel_id")
	a.ok("join", args{"channel": "second", "role": "Builder", "role_prompt": "Build it."}, "channel_id", "role", "session_id", "parent_channel_id")

	// Removal: by the first member only.
	a.refused("kick", args{"channel": "second", "target_role": "Reviewer"}, "not_coordinator")
	b2 := as(t, dir, "sess_b", "--admin")
	kicked := b2.ok("kick", args{"channel": "second", "target_session_id": "sess_a"}, "kicked_session_id", "kicked_role", "remaining_session_ids")
	if kicked["kicked_session_id"] != "sess_a" || kicked["kicked_role"] != "Builder" {
		t.Errorf("%v", kicked)
	}
	a.refused("history", args{"channel": "second"}, "unknown_identity")

	// The end of both.
	b.refused("delete_session", args{"channel": "api-review", "confirm": false}, "confirm_required")
	b.refused("delete_session", args{"channel": "api-review", "confirm": "true"}, "confirm_required")
	b.ok("delete_session", args{"channel": "api-review", "confirm": true})
	if archives := list(t, b.ok("archive", args{}, "archives"), "archives"); len(archives) != 0 {
		t.Errorf("%v", archives)
	}
	b.ok("disconnect", args{"channel": "second"})
	if strings.Contains(read(t, dir, "state.json"), `"second"`) {
		t.Error("the channel outlived its last member")
	}
	for _, s := range []*server{a, b, b2} {
		if code := s.end(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestMessagesArriveInTheOrderInWhichTheyWereSentAtOnce(t *testing.T) {
	dir := project(t, "sess_a", "sess_b")
	a, b := as(t, dir, "sess_a"), as(t, dir, "sess_b")
	a.call("create", args{"channel": "c", "role": "A", "role_prompt": "x"})
	b.call("join", args{"channel": "c", "role": "B", "role_prompt": "x"})
	const n = 15
	var frames strings.Builder
	for i := range n {
		frames.WriteString(a.request("send", args{"channel": "c", "content": strings.Repeat("x", i+1)}) + "\n")
	}
	a.send("%s", strings.TrimSuffix(frames.String(), "\n"))
	for range n {
		if m := a.object(); m["error"] != nil {
			t.Fatal(m)
		}
	}
	for i, m := range b.pulled(n) {
		if !strings.Contains(m["framed"].(string), "\n"+strings.Repeat("x", i+1)+"\n") {
			t.Fatalf("message %d is %v", i, m["framed"])
		}
	}
}
