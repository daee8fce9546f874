package opencomms_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/opencomms"
)

func TestTheExampleIsWrittenAsItWasRead(t *testing.T) {
	data := example(t)
	if out := encode(t, decode(t, data)); out != data {
		t.Fatalf("%s", out)
	}
}

func TestAChangeOfOneFieldChangesItsLineOnly(t *testing.T) {
	data := example(t)
	for _, c := range []struct {
		want string
		edit func(c *opencomms.Channel, m []*opencomms.Envelope)
	}{
		{`"id": "chn_2",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.ID = "chn_2" }},
		{`"project_id": "q",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.ProjectID = "q" }},
		{`"worktree": "/w",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Worktree = "/w" }},
		{`"created_at": 7,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.CreatedAt = 7 }},
		{`"paused": true,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Paused = true }},
		{`"paused_at": 5,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.PausedAt = 5 }},
		{`"max_members": 9,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.MaxMembers = 9 }},
		{`"window_start": 1,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Rate.WindowStart = 1 }},
		{`"count": 3`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Rate.Count++ }},
		{`"sess_9a41c0de7b2f4c6d8e01aa55": 1`, func(c *opencomms.Channel, _ []*opencomms.Envelope) {
			c.Cooldowns.Set("sess_9a41c0de7b2f4c6d8e01aa55", 1)
		}},
		{`"ses_4f1c0a9be:411bd87e8703dfb7aacabcdf60104d50": 2,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) {
			c.SeenContent.Set("ses_4f1c0a9be:411bd87e8703dfb7aacabcdf60104d50", 2)
		}},
		{`"cor_1"`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.ProcessedCorrelations[0] = "cor_1" }},
		{`"max_hops": 1,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.MaxHops = 1 }},
		{`"rate_limit": 0,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.RateLimit = 0 }},
		{`"delivery_cooldown_ms": 0,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.DeliveryCooldown = 0 }},
		{`"stale_event_ms": 9,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.StaleAfter = 9 }},
		{`"active_member_id": null,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Timer.Active = "" }},
		{`"segment_started_at": null,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Timer.SegmentStart = 0 }},
		{`"sess_9a41c0de7b2f4c6d8e01aa55": 3`, func(c *opencomms.Channel, _ []*opencomms.Envelope) {
			c.Timer.Elapsed.Set("sess_9a41c0de7b2f4c6d8e01aa55", 3)
		}},
		{`"limit_ms": 60000,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Timer.Limit = 60_000 }},
		{`"limit_member_id": "s"`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Timer.LimitMember = "s" }},
		{`"max_runtime_ms": 60000,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Budgets.MaxRuntime = 60_000 }},
		{`"max_delivered_messages": 5`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Budgets.MaxDelivered = 5 }},
		{`"delivered_total": 2,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.DeliveredTotal++ }},
		{`"lifecycle": "saved",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Lifecycle = "saved" }},
		{`"description": null,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Description = "" }},
		{`"parent_channel_id": "chn_0"`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.ParentID = "chn_0" }},

		{`"session_id": "s",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].SessionID = "s" }},
		{`"role": "Judge",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Role = "Judge" }},
		{`"role_prompt": "",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].RolePrompt = "" }},
		{`"joined_at": 0,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].JoinedAt = 0 }},
		{`"stale": true,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Stale = true }},
		{`"stale_at": 1,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].StaleAt = 1 }},
		{`"host": "h",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Host = "h" }},
		{`"surface": "web",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Surface = "web" }},
		{`"delivery_mode": "poll",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Mode = "poll" }},
		{`"host_session_id": null,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[0].HostSessionID = "" }},
		{`"mode": "window",`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Policy.Mode = "window" }},
		{`"window_ms": 5`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Policy.Window = 5 }},
		{`"push": true,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Endpoint.Push = true }},
		{`"pull": false,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Endpoint.Pull = false }},
		{`"resume": true,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Endpoint.Resume = true }},
		{`"queue_while_busy": false,`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Endpoint.QueueWhileBusy = false }},
		{`"interrupt": true`, func(c *opencomms.Channel, _ []*opencomms.Envelope) { c.Members[1].Endpoint.Interrupt = true }},

		{`"message_id": "o",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].ID = "o" }},
		{`"channel_id": "c",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].ChannelID = "c" }},
		{`"sender_session_id": "s",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Sender = "s" }},
		{`"sender_role": "s",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].SenderRole = "s" }},
		{`"recipient_session_id": "s",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Recipient = "s" }},
		{`"recipient_role": "s",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].RecipientRole = "s" }},
		{`"timestamp": 1,`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Timestamp = 1 }},
		{`"message_type": "system",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Type = "system" }},
		{`"content": "\"\\\n<é>\u0001",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Content = "\"\\\n<é>\x01" }},
		{`"reply_to": null,`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].ReplyTo = "" }},
		{`"root_message_id": null,`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Root = "" }},
		{`"hop_count": 2,`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Hops = 2 }},
		{`"delivery_status": "failed",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Status = "failed" }},
		{`"correlation_id": "c",`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Correlation = "c" }},
		{`"delivered_at": 5,`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].DeliveredAt = 5 }},
		{`"attempts": 1,`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Attempts++ }},
		{`"delivery_method": "push"`, func(_ *opencomms.Channel, m []*opencomms.Envelope) { m[1].Method = "push" }},
	} {
		s := decode(t, data)
		channel, messages := only(t, s)
		c.edit(channel, messages)
		if got := changedLines(t, data, encode(t, s)); len(got) != 1 || got[0] != c.want {
			t.Errorf("%q changed, want %s", got, c.want)
		}
	}
}

// unknown is the example with members that we do not know, at every level but the
// timer.
func unknown(t testing.TB) string {
	return example(t,
		`"schema_version": 2,`, `"schema_version": 2,
  "x-top": {
    "deep": [
      1.50,
      "\ud800",
      {}
    ]
  },`,
		`"project_id": "9b1e0c7",`, `"x-channel": 1e3,
      "project_id": "9b1e0c7",`,
		`"role": "Builder",`, `"x-member": "\u0061\/",
          "role": "Builder",`,
		`"window_ms": 300000`, `"window_ms": 300000,
            "x-policy": true`,
		`"queue_while_busy": true,
            "interrupt": false
          }
        },`, `"x-endpoint": -0,
            "queue_while_busy": true,
            "interrupt": false
          }
        },`,
		`"count": 2`, `"count": 2,
        "x-rate": []`,
		`"max_delivered_messages": null`, `"x-budgets": null,
        "max_delivered_messages": null`,
		`"content": "Looks fine, two nits inline",`, `"content": "Looks fine, two nits inline",
      "x-message": {
        "timestamp": 1
      },`,
		`"errors": []`, `"errors": [
    {
      "x-error": 1,
      "at": 5,
      "message": "m"
    },
    "not an object",
    [
      1
    ]
  ],
  "x-last": 1`,
	)
}

func TestUnknownMembersStayWhereTheyStand(t *testing.T) {
	data := unknown(t)
	if out := encode(t, decode(t, data)); out != data {
		t.Fatalf("%s", out)
	}
	// Also when what is around them changes.
	s := decode(t, data)
	c, messages := only(t, s)
	c.Paused = true
	c.Rate.Count = 3
	c.Budgets.MaxDelivered = 5
	c.Members[0].Stale = true
	c.Members[0].Policy.Window = 4
	c.Members[0].Endpoint.Pull = false
	messages[1].Attempts = 4
	s.Errors[0].At = 6
	want := strings.NewReplacer(
		`"paused": false`, `"paused": true`, `"count": 2`, `"count": 3`, `"max_delivered_messages": null`, `"max_delivered_messages": 5`,
		`"window_ms": 300000`, `"window_ms": 4`, `"attempts": 0`, `"attempts": 4`, `"at": 5`, `"at": 6`).Replace(data)
	want = strings.Replace(want, `"stale": false`, `"stale": true`, 1)
	want = strings.Replace(want, `"pull": true`, `"pull": false`, 1)
	if out := encode(t, s); out != want {
		t.Fatalf("%s", out)
	}
}

func TestATimerKeepsItsFiveFieldsOnly(t *testing.T) {
	data := example(t)
	s := decode(t, example(t, `"limit_member_id": null`, `"limit_member_id": null, "x": 1`))
	if out := encode(t, s); out != data {
		t.Fatalf("%s", out)
	}
}

func TestAFileOfAnotherLayoutKeepsWhatNobodyTouched(t *testing.T) {
	var compact strings.Builder
	for line := range strings.Lines(unknown(t)) {
		compact.WriteString(strings.TrimSpace(line))
	}
	s := decode(t, compact.String())
	_, messages := only(t, s)
	messages[0].Attempts = 7
	out := encode(t, s)
	for _, text := range []string{
		`{"id":`, `"x-member": "\u0061\/","role"`, `"x-rate": []}`, `{"message_id": "ocm_7c9e11d04b5a4f7e9a6d2233445566ff","channel_id"`, `{"deep": [1.50,"\ud800",{}]}`,
	} {
		if want := strings.Replace(text, `{"id":`, `{"id": "chn`, 1); strings.Count(out, want) != 1 {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
	again := decode(t, out)
	if _, m := only(t, again); m[0].Attempts != 7 || m[1].Content != "Looks fine, two nits inline" {
		t.Errorf("%+v", m)
	}
	if twice := encode(t, again); twice != out {
		t.Errorf("%s", twice)
	}
}

func TestHalvesOfSurrogatePairsAreToldApartAndWrittenBack(t *testing.T) {
	if _, m := only(t, decode(t, example(t, `"Please review internal/store.go"`, `"\ud83d\ue000"`))); m[0].Content != "\xed\xa0\xbd\ue000" {
		t.Errorf("%q", m[0].Content)
	}
	data := example(t, `"Please review internal/store.go"`, `"a\ud800b\udc00\ud83d\ude00"`,
		`"sess_9a41c0de7b2f4c6d8e01aa55": [],`, `"\ud800": [],
    "\ud801": [
      "\udfff"
    ],`)
	s := decode(t, data)
	if s.Queues.Len() != 3 {
		t.Fatalf("%d queues", s.Queues.Len())
	}
	_, messages := only(t, s)
	content := messages[0].Content
	if n := opencomms.Length(content); n != 6 {
		t.Errorf("length %d", n)
	}
	if v := opencomms.Valid(content); v != "a\uFFFDb\uFFFD😀" {
		t.Errorf("%q", v)
	}
	if out := encode(t, s); out != data {
		t.Errorf("%s", out)
	}
	messages[0].Attempts, messages[1].Content = 5, content
	out := encode(t, s)
	if got := changedLines(t, data, out); fmt.Sprint(got) != `["attempts": 5, "content": "a\ud800b\udc00😀",]` {
		t.Errorf("%s", got)
	}
}

func TestBytesThatAreNoTextBecomeReplacementCharacters(t *testing.T) {
	// As a program sees them that decodes UTF-8: one for each broken beginning.
	for bytes, want := range map[string]string{
		"\xff": "\uFFFD", "\xe2\x82": "\uFFFD", "\xe2\x82a": "\uFFFDa", "\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD", "\xf0\x9f\x98": "\uFFFD",
		"\xf0\x80": "\uFFFD\uFFFD", "\xc0\xaf": "\uFFFD\uFFFD", "\xf4\x90\x80": "\uFFFD\uFFFD\uFFFD", "é": "é", "\xe0\xa0": "\uFFFD", "\xe0\x80": "\uFFFD\uFFFD",
	} {
		s := decode(t, example(t, `"Please review internal/store.go"`, `"`+bytes+`"`))
		if _, m := only(t, s); m[0].Content != want {
			t.Errorf("%q is %q, want %q", bytes, m[0].Content, want)
		}
		encode(t, s)
		if _, err := opencomms.Decode([]byte(bytes + emptyFile)); err == nil {
			t.Errorf("%q before the file", bytes)
		}
	}
	s := opencomms.New()
	s.Queues.Set("q\xff", []string{"\xe2\x82"})
	if out := encode(t, s); !strings.Contains(out, "\"q\uFFFD\": [\n      \"\uFFFD\uFFFD\"") {
		t.Errorf("%s", out)
	}
}

func TestNothingInvalidIsWritten(t *testing.T) {
	for path, edit := range map[string]func(*opencomms.State, *opencomms.Channel){
		`channels["api-review"].name`:                    func(_ *opencomms.State, c *opencomms.Channel) { c.Name = "other" },
		`channels["x"]`:                                  func(s *opencomms.State, _ *opencomms.Channel) { s.Channels.Set("x", nil) },
		`messages["x"]`:                                  func(s *opencomms.State, _ *opencomms.Channel) { s.Messages.Set("x", nil) },
		`channels["api-review"].members`:                 func(_ *opencomms.State, c *opencomms.Channel) { c.Members, c.Lifecycle = nil, "saved" },
		`channels["api-review"].members[1].role`:         func(_ *opencomms.State, c *opencomms.Channel) { c.Members[1].Role = " x" },
		`channels["api-review"].members[0].session_id`:   func(_ *opencomms.State, c *opencomms.Channel) { c.Members[0].SessionID = "" },
		`channels["api-review"].members[1]`:              func(_ *opencomms.State, c *opencomms.Channel) { c.Members[1] = nil },
		`channels["api-review"].members[0].capabilities`: func(_ *opencomms.State, c *opencomms.Channel) { c.Members[0].Capabilities = json.RawMessage(`{"a":}`) },
	} {
		s := decode(t, example(t))
		c, _ := only(t, s)
		edit(s, c)
		out, err := s.Encode()
		var invalid *opencomms.InvalidError
		if !errors.As(err, &invalid) || invalid.Path != path || out != nil {
			t.Errorf("%s: %v and %d bytes", path, err, len(out))
		}
		if v := s.Validate(); v == nil || v.Error() != err.Error() {
			t.Errorf("Validate: %v", v)
		}
	}
	s := decode(t, example(t))
	c, _ := only(t, s)
	c.Members = slices.Repeat(c.Members[:1], opencomms.MaxMembers+1)
	if _, err := s.Encode(); err == nil {
		t.Error("33 members were written")
	}
	c.Members = c.Members[:opencomms.MaxMembers]
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	encode(t, s)
}

func TestNullIsWrittenForNoListAndNoObject(t *testing.T) {
	s := opencomms.New()
	c := newChannel("x")
	s.Channels.Set("x", c)
	s.Queues.Set("q", nil)
	s.DeliveredTo.Set("m", nil)
	out := encode(t, s)
	for _, want := range []string{`"q": []`, `"m": []`, `"members": []`, `"processed_correlations": []`, `"cooldown_until": {}`, `"seen_content": {}`, `"elapsed_ms": {}`, `"errors": []`} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
}

func TestWhatIsNewHasTheOrderOfTheExample(t *testing.T) {
	data := example(t)
	old := decode(t, data)
	c, messages := only(t, old)
	s := opencomms.New()
	fresh := &opencomms.Channel{
		ID: c.ID, Name: c.Name, ProjectID: c.ProjectID, Worktree: c.Worktree, CreatedAt: c.CreatedAt, Members: nil, MaxMembers: c.MaxMembers,
		Rate: c.Rate, Cooldowns: c.Cooldowns, SeenContent: c.SeenContent, ProcessedCorrelations: c.ProcessedCorrelations, MaxHops: c.MaxHops,
		RateLimit: c.RateLimit, DeliveryCooldown: c.DeliveryCooldown, StaleAfter: c.StaleAfter, Timer: c.Timer, Budgets: c.Budgets,
		DeliveredTotal: c.DeliveredTotal, Lifecycle: c.Lifecycle, Description: c.Description,
	}
	for _, m := range c.Members {
		fresh.Members = append(fresh.Members, &opencomms.Member{
			SessionID: m.SessionID, Role: m.Role, RolePrompt: m.RolePrompt, JoinedAt: m.JoinedAt, Host: m.Host, Surface: m.Surface,
			Mode: m.Mode, HostSessionID: m.HostSessionID, Policy: m.Policy, // what it can do follows from the mode
		})
	}
	s.Channels.Set(fresh.Name, fresh)
	for _, e := range messages {
		s.Messages.Set(e.ID, &opencomms.Envelope{EnvelopeFields: e.EnvelopeFields})
	}
	s.Queues, s.DeliveredTo = old.Queues, old.DeliveredTo
	if out := encode(t, s); out != data {
		t.Fatalf("%s", out)
	}
}

func TestOptionalPartsComeAndGo(t *testing.T) {
	data := example(t)
	s := decode(t, data)
	c, _ := only(t, s)
	policy := c.Members[0].Policy
	c.Members[0].Policy = nil
	c.Members[0].Capabilities = json.RawMessage("{\"a\":[1,{}],\n\"b\":\"<\"}")
	out := encode(t, s)
	if strings.Count(out, "stale_policy") != 1 || !strings.Contains(out, `
          "capabilities": {
            "a": [
              1,
              {}
            ],
            "b": "<"
          }
        },`) {
		t.Fatalf("%s", out)
	}
	s = decode(t, out)
	c, _ = only(t, s)
	if c.Members[0].Policy != nil || !json.Valid(c.Members[0].Capabilities) || encode(t, s) != out {
		t.Fatalf("%+v", c.Members[0])
	}
	c.Members[0].Policy, c.Members[0].Capabilities = policy, nil
	c, _ = only(t, decode(t, encode(t, s)))
	if c.Members[0].Policy == nil || *c.Members[0].Policy != *policy || c.Members[0].Capabilities != nil {
		t.Fatalf("%+v", c.Members[0])
	}
}

func TestTheNewestErrorsAreWritten(t *testing.T) {
	s := opencomms.New()
	for i := range opencomms.MaxErrors + 5 {
		s.Errors = append(s.Errors, opencomms.ErrorEntry{At: int64(i), Message: "m"})
	}
	got := decode(t, encode(t, s)).Errors
	if len(got) != opencomms.MaxErrors || got[0].At != 5 || len(s.Errors) != opencomms.MaxErrors+5 {
		t.Fatalf("%d from %+v", len(got), got[0])
	}
}

func TestAnErrorThatIsNoObjectIsReplacedByWhatItIsSetTo(t *testing.T) {
	s := decode(t, unknown(t))
	s.Errors[1].Message = "now one"
	back := decode(t, encode(t, s))
	if len(back.Errors) != 3 || back.Errors[1].Message != "now one" {
		t.Fatalf("%+v", back.Errors)
	}
}

func TestNumbersAreWrittenAsOthersCanReadThem(t *testing.T) {
	s := decode(t, example(t))
	c, _ := only(t, s)
	c.StaleAfter, c.CreatedAt = math.MaxInt64, math.MinInt64
	out := encode(t, s)
	if !strings.Contains(out, `"stale_event_ms": 9007199254740991,`) || !strings.Contains(out, `"created_at": -9007199254740991,`) {
		t.Fatalf("%s", out)
	}
}

func TestCapabilitiesThatAreTooDeepForTheFileAreRefused(t *testing.T) {
	for depth, want := range map[int]bool{opencomms.MaxDepth - 5: true, opencomms.MaxDepth - 4: false} {
		s := decode(t, example(t))
		c, _ := only(t, s)
		c.Members[0].Capabilities = json.RawMessage(strings.Repeat("[", depth) + strings.Repeat("]", depth))
		out, err := s.Encode()
		if (err == nil) != want {
			t.Fatalf("%d: %v", depth, err)
		}
		if want {
			decode(t, string(out))
		}
	}
}

func TestMembersKeepTheirOrder(t *testing.T) {
	s := decode(t, unknown(t))
	c, _ := only(t, s)
	slices.Reverse(c.Members)
	c.Members = append(c.Members, newMember("sess_3", "Third"))
	c, _ = only(t, decode(t, encode(t, s)))
	if c.Members[0].Role != "Reviewer" || c.Members[1].Role != "Builder" || c.Members[2].Role != "Third" {
		t.Fatalf("%+v", c.Members)
	}
}

func TestEncodeLeavesTheStateAsItIs(t *testing.T) {
	s := decode(t, unknown(t))
	c, _ := only(t, s)
	c.Members[0].Endpoint = nil
	c.DeliveredTotal = 9
	first := encode(t, s)
	if c.Members[0].Endpoint != nil || encode(t, s) != first {
		t.Fatal("it was changed")
	}
}
