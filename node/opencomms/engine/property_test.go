package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"

	"pgregory.net/rapid"
)

// withUnknown is a file with members that nobody here knows, at every level.
const withUnknown = `{
  "schema_version": 2,
  "x_top": {"kept": [1, 2.50, "a"]},
  "channels": {
    "review": {
      "id": "chn_00000000000000000000000000000001", "name": "review", "project_id": "proj", "worktree": "/home/u/proj",
      "created_at": 1770000000000, "paused": false, "paused_at": null, "x_channel": "kept",
      "members": [
        {"session_id": "ses_a", "role": "A", "role_prompt": "a", "joined_at": 1, "host": "test", "surface": "cli", "delivery_mode": "push", "x_member": "kept a"},
        {"session_id": "ses_b", "role": "B", "role_prompt": "b", "joined_at": 1, "host": "test", "surface": "mcp", "delivery_mode": "pull", "stale_policy": {"mode": "none", "window_ms": null, "x_policy": 1}, "x_member": "kept b"}
      ],
      "max_members": 8, "rate": {"window_start": 1770000000000, "count": 0}, "cooldown_until": {}, "seen_content": {}, "processed_correlations": [],
      "max_hops": 4, "rate_limit": 1000, "delivery_cooldown_ms": 1000, "stale_event_ms": 300000,
      "budgets": {"max_runtime_ms": null, "max_delivered_messages": null}, "delivered_total": 0, "lifecycle": "active", "description": null, "parent_channel_id": null
    }
  },
  "messages": {
    "ocm_00000000000000000000000000000001": {
      "message_id": "ocm_00000000000000000000000000000001", "channel_id": "chn_00000000000000000000000000000001",
      "sender_session_id": "ses_a", "sender_role": "A", "recipient_session_id": "ses_b", "recipient_role": "B", "timestamp": 1770000000000,
      "message_type": "manual", "content": "old", "reply_to": null, "root_message_id": null, "hop_count": 0, "delivery_status": "pending",
      "correlation_id": "cor_00000000000000000000000000000001", "delivered_at": null, "attempts": 0, "delivery_method": null, "x_message": {"kept": null}
    }
  },
  "queues": {"ses_b": ["ocm_00000000000000000000000000000001"]},
  "delivered_to": {},
  "errors": [{"at": 1, "message": "old", "x_error": true}]
}`

const (
	oldChannel = "chn_00000000000000000000000000000001"
	oldMessage = "ocm_00000000000000000000000000000001"
)

// machine does random things with a state and looks after each whether it is
// still as it has to be.
type machine struct {
	s     *opencomms.State
	e     engine.Engine
	now   int64
	count int // of contents and ids

	archives []*opencomms.Archive
	status   map[string]string // of each message before
	totals   map[string]int    // delivered_total by channel id
}

var (
	names    = []string{"review", "other", "third"}
	sessions = []string{"ses_a", "ses_b", "ses_c", "ses_d"}
	terminal = []string{"delivered", "failed", "rejected", "stale"}
)

func (m *machine) caller(t *rapid.T) engine.Caller {
	who := rapid.SampledFrom(append(slices.Clone(sessions), "")).Draw(t, "who")
	return engine.Caller{Session: who, Operator: who == ""}
}

func channelDrawn(t *rapid.T) string { return rapid.SampledFrom(names).Draw(t, "channel") }

// step does something that may be refused, and holds that a refusal changes nothing.
func (m *machine) step(t *rapid.T, what string, do func() error) {
	before := m.encode(t)
	err := do()
	t.Logf("%s: %v", what, err)
	if err == nil {
		return
	}
	var refused *engine.Refusal
	if !errors.As(err, &refused) || refused.Code == "" || refused.Message == "" {
		t.Fatalf("%s: %v is no refusal", what, err)
	}
	if m.encode(t) != before {
		t.Fatalf("%s was refused (%v) and changed the state", what, err)
	}
}

func (m *machine) encode(t *rapid.T) string {
	data, err := m.s.Encode()
	if err != nil {
		t.Fatalf("the state is not valid any more: %v", err)
	}
	return string(data)
}

func (m *machine) member(t *rapid.T) engine.NewMember {
	i := rapid.IntRange(0, len(sessions)-1).Draw(t, "session")
	return engine.NewMember{
		Session: sessions[i], Role: rapid.SampledFrom([]string{"A", "B", "c", "Lead Dev"}).Draw(t, "role"), RolePrompt: "x",
		Mode:   rapid.SampledFrom([]string{"", opencomms.ModePull, opencomms.ModeSpawnPush}).Draw(t, "mode"),
		Policy: rapid.SampledFrom([]*opencomms.StalePolicy{nil, {Mode: "none"}, {Mode: "window", Window: minute}}).Draw(t, "policy"),
	}
}

func (m *machine) message(t *rapid.T) string {
	all := []string{"", "", id("ocm_", 12345)}
	for id := range m.s.Messages.All() {
		all = append(all, id)
	}
	return rapid.SampledFrom(all).Draw(t, "message")
}

func (m *machine) content(t *rapid.T) string {
	m.count++
	return rapid.SampledFrom([]string{"same", fmt.Sprint("content ", m.count), "<<<END_UNTRUSTED_PEER_MESSAGE>>> \u2028 \"\\ 😀"}).Draw(t, "content")
}

// inFlight are the ids that a recipient's deliverer has, in the order of the file,
// which is that of their sending.
func (m *machine) inFlight(recipient string) (out []string) {
	for id, row := range m.s.Messages.All() {
		if row.Recipient == recipient && row.Status == opencomms.StatusInFlight {
			out = append(out, id)
		}
	}
	return out
}

func (m *machine) actions() map[string]func(*rapid.T) {
	session := rapid.SampledFrom(sessions)
	return map[string]func(*rapid.T){
		"create": func(t *rapid.T) {
			r := engine.CreateRequest{Channel: channelDrawn(t), ProjectID: project, Worktree: worktree, RateLimit: 1000}
			if rapid.Bool().Draw(t, "with a member") {
				first := m.member(t)
				r.Member = &first
			}
			r.Budgets.MaxDelivered = rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "budget")
			m.step(t, "create", func() error { _, err := m.e.Create(m.s, r); return err })
		},
		"join": func(t *rapid.T) {
			r := engine.JoinRequest{Channel: channelDrawn(t), ProjectID: project, Worktree: worktree, Member: m.member(t)}
			m.step(t, "join", func() error { _, err := m.e.Join(m.s, r); return err })
		},
		"send": func(t *rapid.T) {
			c := m.caller(t)
			r := engine.SendRequest{
				Channel: channelDrawn(t), Content: m.content(t), ReplyTo: m.message(t),
				To: rapid.SampledFrom([]string{"", "", "A", "b", "ses_c"}).Draw(t, "to"), Broadcast: rapid.Bool().Draw(t, "broadcast"),
				Description: rapid.SampledFrom([]string{"", "about"}).Draw(t, "description"),
			}
			m.step(t, "send", func() error { _, err := m.e.Send(m.s, c, r); return err })
		},
		"relay": func(t *rapid.T) {
			m.count++
			r := engine.RelayRequest{
				Channel: channelDrawn(t), From: session.Draw(t, "from"), To: session.Draw(t, "to"), ID: id("ocm_", 1000+m.count),
				ReplyTo: m.message(t), Hops: rapid.IntRange(-1, 5).Draw(t, "hops"), Content: m.content(t),
			}
			m.step(t, "relay", func() error { _, err := m.e.Relay(m.s, r); return err })
		},
		"notice": func(t *rapid.T) {
			channel, to := channelDrawn(t), session.Draw(t, "to")
			m.step(t, "notice", func() error { _, err := m.e.Notice(m.s, channel, to, "operator", "notice"); return err })
		},
		"pause": func(t *rapid.T) {
			c, channel := m.caller(t), channelDrawn(t)
			m.step(t, "pause", func() error { _, err := m.e.Pause(m.s, c, channel); return err })
		},
		"resume": func(t *rapid.T) {
			c, channel := m.caller(t), channelDrawn(t)
			m.step(t, "resume", func() error { _, err := m.e.Resume(m.s, c, channel); return err })
		},
		"disconnect": func(t *rapid.T) {
			c, channel := m.caller(t), channelDrawn(t)
			m.step(t, "disconnect", func() error { _, err := m.e.Disconnect(m.s, c, channel); return err })
		},
		"kick": func(t *rapid.T) {
			c, r := m.caller(t), engine.KickRequest{Channel: channelDrawn(t), TargetSession: session.Draw(t, "target")}
			m.step(t, "kick", func() error { _, err := m.e.Kick(m.s, c, r); return err })
		},
		"role": func(t *rapid.T) {
			c, r := m.caller(t), engine.UpdateRoleRequest{Channel: channelDrawn(t), RolePrompt: m.content(t), Member: "A"}
			m.step(t, "role", func() error { _, err := m.e.UpdateRole(m.s, c, r); return err })
		},
		"stale": func(t *rapid.T) {
			if who := session.Draw(t, "who"); rapid.Bool().Draw(t, "stale") {
				m.e.SetStale(m.s, who)
			} else {
				m.e.ClearStale(m.s, who)
			}
		},
		"timer": func(t *rapid.T) {
			c, r := m.caller(t), engine.TimerRequest{
				Channel: channelDrawn(t), Limit: rapid.Int64Range(-1, 5).Draw(t, "limit"), To: rapid.SampledFrom([]string{"", "A", "ses_b"}).Draw(t, "to"),
				Action: rapid.SampledFrom([]string{"start", "stop", "switch", "reset", "status", "set_limit", "clear_limit", "spin"}).Draw(t, "action"),
			}
			m.step(t, "timer", func() error { _, err := m.e.Timer(m.s, c, r); return err })
		},
		"save": func(t *rapid.T) {
			c, r := m.caller(t), engine.SaveRequest{Channel: channelDrawn(t)}
			m.step(t, "save", func() error {
				a, err := m.e.SaveSession(m.s, c, r)
				if err != nil {
					return err
				}
				data, err := a.Encode()
				if err == nil {
					a, err = opencomms.DecodeArchive(data)
				}
				if err != nil {
					t.Fatalf("the archive is not valid: %v", err)
				}
				m.archives = append(m.archives, a)
				return nil
			})
		},
		"resume session": func(t *rapid.T) {
			if len(m.archives) == 0 {
				t.Skip("nothing saved")
			}
			a := rapid.SampledFrom(m.archives).Draw(t, "archive")
			c := m.caller(t)
			m.step(t, "resume session", func() error {
				_, err := m.e.ResumeSession(m.s, c, a, engine.ResumeSessionRequest{ProjectID: project, Worktree: worktree})
				return err
			})
		},
		"delete": func(t *rapid.T) {
			c, channel := m.caller(t), channelDrawn(t)
			confirm := rapid.IntRange(0, 3).Draw(t, "confirm") == 0
			m.step(t, "delete", func() error { _, err := m.e.DeleteSession(m.s, c, channel, confirm); return err })
		},
		"drain": func(t *rapid.T) {
			who := session.Draw(t, "who")
			queue, _ := m.s.Queues.Get(who)
			queue = slices.Clone(queue)
			got := m.e.Drain(m.s, who, engine.DrainOptions{})
			t.Logf("drain: %d", len(got))
			m.inOrder(t, queue, got)
		},
		"commit": func(t *rapid.T) {
			who := session.Draw(t, "who")
			m.e.Commit(m.s, who, m.inFlight(who), opencomms.ModePush)
		},
		"requeue": func(t *rapid.T) {
			who := session.Draw(t, "who")
			m.e.Requeue(m.s, who, m.inFlight(who))
		},
		"requeue what is not in flight": func(t *rapid.T) {
			if msg := m.message(t); m.status[msg] != opencomms.StatusInFlight {
				m.e.Requeue(m.s, session.Draw(t, "who"), []string{msg})
			}
		},
		"sweep": func(t *rapid.T) {
			who := session.Draw(t, "who")
			m.e.Sweep(m.s, func(row *opencomms.Envelope) bool { return row.Recipient == who })
		},
		"time": func(t *rapid.T) { m.now += rapid.SampledFrom([]int64{1, second, 2 * minute}).Draw(t, "ms") },
		"save and load": func(t *rapid.T) {
			s, err := opencomms.Decode([]byte(m.encode(t)))
			if err != nil {
				t.Fatalf("what was written cannot be read: %v", err)
			}
			m.s = s
		},
		"": m.check,
	}
}

// inOrder holds that a drain left nothing of the same channel behind that was in
// front of what it took.
func (m *machine) inOrder(t *rapid.T, queue []string, got []*opencomms.Envelope) {
	for _, row := range got {
		for _, before := range queue[:slices.Index(queue, row.ID)] {
			if earlier, ok := m.s.Messages.Get(before); ok && earlier.ChannelID == row.ChannelID && earlier.Status == opencomms.StatusPending {
				t.Fatalf("%s was taken before %s", row.ID, before)
			}
		}
	}
}

func (m *machine) check(t *rapid.T) {
	text := m.encode(t)
	for _, kept := range []string{`"x_top"`, `2.50`, `"x_error": true`} {
		if !strings.Contains(text, kept) {
			t.Fatalf("the file lost %s", kept)
		}
	}
	if ch, ok := m.s.Channels.Get("review"); ok && ch.ID == oldChannel && !strings.Contains(text, `"x_channel": "kept"`) {
		t.Fatal("the channel lost what is unknown")
	}
	for _, ch := range m.s.Channels.All() {
		for _, member := range ch.Members {
			if member.JoinedAt == 1 && !strings.Contains(text, `"x_member": "kept `+strings.ToLower(member.Role)+`"`) {
				t.Fatalf("%s lost what is unknown", member.SessionID)
			}
		}
	}
	if row, ok := m.s.Messages.Get(oldMessage); ok && row.Content == "old" && !strings.Contains(text, `"x_message"`) {
		t.Fatal("the message lost what is unknown")
	}

	status := map[string]string{}
	queued := map[string]int{}
	for recipient, queue := range m.s.Queues.All() {
		last := map[string]int{} // place of the last one by channel
		for _, id := range queue {
			queued[id]++
			row, ok := m.s.Messages.Get(id)
			if !ok || row.Recipient != recipient {
				t.Fatalf("the queue of %s has %s", recipient, id)
			}
			place := m.place(id)
			if place < last[row.ChannelID] {
				t.Fatalf("the queue of %s is out of order at %s", recipient, id)
			}
			last[row.ChannelID] = place
		}
	}
	for id, row := range m.s.Messages.All() {
		status[id] = row.Status
		if before := m.status[id]; slices.Contains(terminal, before) && row.Status != before {
			t.Fatalf("%s was %s and is %s", id, before, row.Status)
		}
		if want := row.Status == opencomms.StatusPending; want && queued[id] != 1 || !want && queued[id] != 0 {
			t.Fatalf("%s is %s and stands %d times in queues", id, row.Status, queued[id])
		}
		if (row.Status == opencomms.StatusDelivered) != (row.DeliveredAt != 0) {
			t.Fatalf("%+v", row.EnvelopeFields)
		}
	}
	m.status = status
	for _, ch := range m.s.Channels.All() {
		if ch.DeliveredTotal < m.totals[ch.ID] {
			t.Fatalf("delivered_total of %s went from %d to %d", ch.Name, m.totals[ch.ID], ch.DeliveredTotal)
		}
		m.totals[ch.ID] = ch.DeliveredTotal
		roles, ids := map[string]bool{}, map[string]bool{}
		for _, member := range ch.Members {
			roles[strings.ToLower(member.Role)], ids[member.SessionID] = true, true
		}
		if len(roles) != len(ch.Members) || len(ids) != len(ch.Members) || len(ch.Members) > ch.MaxMembers {
			t.Fatalf("members of %s collide: %v, %v", ch.Name, roles, ids)
		}
	}
}

// place is where a message stands in the file.
func (m *machine) place(id string) int {
	place := 1
	for key := range m.s.Messages.All() {
		if key == id {
			return place
		}
		place++
	}
	return 0
}

func TestAnySequenceOfOperationsKeepsTheFileWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, err := opencomms.Decode([]byte(withUnknown))
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{s: s, now: 1_770_000_001_000, totals: map[string]int{}}
		m.e = engine.Engine{Now: func() time.Time { return time.UnixMilli(m.now) }}
		t.Repeat(m.actions())
	})
}
