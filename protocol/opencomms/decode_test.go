package opencomms_test

import (
	"fmt"
	"strings"
	"testing"

	"opencode-mesh/protocol/opencomms"
)

func TestAFileIsRefusedByEveryRuleOfItsReaders(t *testing.T) {
	const (
		channel = `channels["api-review"]`
		first   = `messages["ocm_0b7d2f5ac1e94c0f8f3e6a1b2c3d4e5f"]`
	)
	many := make([]string, opencomms.MaxMembers-1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"session_id": "s%d", "role": "R%d", "role_prompt": "", "joined_at": 1, "host": "", "surface": "", "delivery_mode": ""}`, i, i)
	}
	for _, c := range []struct {
		rule string
		path string
		old  string
		now  string
	}{
		{"schema_version is 2", "schema_version", `"schema_version": 2`, `"schema_version": 1`},
		{"schema_version is not a later one", "schema_version", `"schema_version": 2`, `"schema_version": 3`},
		{"schema_version is a number", "schema_version", `"schema_version": 2`, `"schema_version": "2"`},
		{"schema_version is there", "schema_version", `"schema_version": 2`, `"schema": 2`},
		{"channels is there", "channels", `"channels": {`, `"canals": {`},
		{"messages is there", "messages", `"messages": {`, `"mail": {`},
		{"queues is there", "queues", `"queues": {`, `"queue": {`},
		{"delivered_to is there", "delivered_to", `"delivered_to": {`, `"delivered": {`},
		{"errors is there", "errors", `"errors": []`, `"error": []`},
		{"errors is no object", "errors", `"errors": []`, `"errors": {}`},
		{"errors is not null", "errors", `"errors": []`, `"errors": null`},
		{"a queue is a list", `queues["sess_9a41c0de7b2f4c6d8e01aa55"]`, `"sess_9a41c0de7b2f4c6d8e01aa55": [],`, `"sess_9a41c0de7b2f4c6d8e01aa55": null,`},
		{"a queue holds strings", `queues["sess_9a41c0de7b2f4c6d8e01aa55"]`, `"sess_9a41c0de7b2f4c6d8e01aa55": [],`, `"sess_9a41c0de7b2f4c6d8e01aa55": ["a", 1],`},
		{"delivered_to holds strings", `delivered_to["x"]`, `"delivered_to": {`, `"delivered_to": {"x": [null],`},
		{"delivered_to holds lists", `delivered_to["x"]`, `"delivered_to": {`, `"delivered_to": {"x": "sess_1",`},
		{"a channel's key is its name", channel + ".name", `"name": "api-review"`, `"name": "api-reviews"`},
		{"a channel has a string id", channel + ".id", `"id": "chn_1a2b3c4d5e6f47089a0b1c2d3e4f5061"`, `"id": 7`},
		{"a channel has a name", channel + ".name", `"name": "api-review"`, `"title": "api-review"`},
		{"a channel has a string project_id", channel + ".project_id", `"project_id": "9b1e0c7"`, `"project_id": null`},
		{"a channel has a string worktree", channel + ".worktree", `"worktree": "/home/u/proj"`, `"worktree": {}`},
		{"a channel has members", channel + ".members", `"members": [`, `"fellows": [`},
		{"a channel is an object", `channels["x"]`, `"channels": {`, `"channels": {"x": [],`},
		{"a channel is not null", `channels["x"]`, `"channels": {`, `"channels": {"x": null,`},
		{"a channel has at most 32 members", channel + ".members", `"members": [`, `"members": [` + strings.Join(many, ",") + ","},
		{"members are objects", channel + ".members[0]", `"members": [`, `"members": ["x",`},
		{"members are not null", channel + ".members[0]", `"members": [`, `"members": [null,`},
		{"a member has a session_id", channel + ".members[1].session_id", `"session_id": "sess_9a41c0de7b2f4c6d8e01aa55"`, `"session_id": ""`},
		{"a member's session_id is a string", channel + ".members[1].session_id", `"session_id": "sess_9a41c0de7b2f4c6d8e01aa55"`, `"session_id": 5`},
		{"a role begins with a letter", channel + ".members[0].role", `"role": "Builder"`, `"role": "1 Builder"`},
		{"a role has at most 32 characters", channel + ".members[0].role", `"role": "Builder"`, `"role": "` + strings.Repeat("B", 33) + `"`},
		{"a role has no line break", channel + ".members[0].role", `"role": "Builder"`, `"role": "Builder\n"`},
		{"a role is ASCII", channel + ".members[0].role", `"role": "Builder"`, `"role": "Bülder"`},
		{"a role is not empty", channel + ".members[0].role", `"role": "Builder"`, `"role": ""`},
		{"a member has a role_prompt", channel + ".members[0].role_prompt", `"role_prompt": "Implement and ask for review."`, `"role_prompt": null`},
		{"a member's joined_at is a number", channel + ".members[1].joined_at", `"joined_at": 1770000005000`, `"joined_at": "1770000005000"`},
		{"a member has a host", channel + ".members[1].host", `"host": "go-node"`, `"hosts": "go-node"`},
		{"a member has a surface", channel + ".members[1].surface", `"surface": "mcp"`, `"surface": null`},
		{"a member has a delivery_mode", channel + ".members[1].delivery_mode", `"delivery_mode": "pull",`, ``},
		{"a message is an object", `messages["x"]`, `"messages": {`, `"messages": {"x": 1,`},
		{"a message has a string channel_id", first + ".channel_id", `"message_id": "ocm_0b7d2f5ac1e94c0f8f3e6a1b2c3d4e5f",
      "channel_id": "chn_1a2b3c4d5e6f47089a0b1c2d3e4f5061"`, `"channel_id": 1`},
		{"a message has a timestamp that is a number", first + ".timestamp", `"timestamp": 1770000010000`, `"timestamp": "1770000010000"`},
		{"a message has a timestamp", first + ".timestamp", `"timestamp": 1770000010000,`, ``},
	} {
		t.Run(c.rule, func(t *testing.T) { wantInvalid(t, example(t, c.old, c.now), c.path) })
	}
}

func TestWhatIsNotAnObjectIsRefused(t *testing.T) {
	for _, text := range []string{`[]`, `null`, `2`, `"x"`, `true`} {
		wantInvalid(t, text, "")
	}
	for _, name := range []string{"channels", "messages", "queues", "delivered_to"} {
		for _, value := range []string{`[]`, `null`, `""`, `1`} {
			text := strings.Replace(emptyFile, `"`+name+`": {}`, `"`+name+`": `+value, 1)
			wantInvalid(t, text, name)
		}
	}
}

const emptyFile = `{
  "schema_version": 2,
  "channels": {},
  "messages": {},
  "queues": {},
  "delivered_to": {},
  "errors": []
}`

func TestAnEmptyStateIsAnEmptyFile(t *testing.T) {
	if out := encode(t, opencomms.New()); out != emptyFile {
		t.Fatalf("%s", out)
	}
	if out := encode(t, decode(t, emptyFile)); out != emptyFile {
		t.Fatalf("%s", out)
	}
}

func TestAChannelWithoutMembersSaysThatItIsActive(t *testing.T) {
	const bare = `"id": "chn_1", "name": "x", "project_id": "", "worktree": "", "members": []`
	file := func(rest string) string {
		return strings.Replace(emptyFile, `"channels": {}`, `"channels": {"x": {`+bare+rest+`}}`, 1)
	}
	decode(t, file(`, "lifecycle": "active"`))
	for _, rest := range []string{``, `, "lifecycle": "saved"`, `, "lifecycle": "deleted"`, `, "lifecycle": "new"`, `, "lifecycle": null`} {
		wantInvalid(t, file(rest), `channels["x"].members`)
	}
}

func TestTheLastOfTwoEqualKeysCountsWhereTheFirstStands(t *testing.T) {
	const good = `{"channel_id": "c", "timestamp": 1, "content": "second"}`
	file := func(messages string) string {
		return strings.Replace(emptyFile, `"messages": {}`, `"messages": {`+messages+`}`, 1)
	}
	s := decode(t, file(`"a": {"channel_id": 5}, "b": `+good+`, "a": `+good))
	var keys []string
	for key, e := range s.Messages.All() {
		keys = append(keys, key)
		if e.Content != "second" {
			t.Errorf("%s has %q", key, e.Content)
		}
	}
	if fmt.Sprint(keys) != "[a b]" {
		t.Errorf("the order is %q", keys)
	}
	wantInvalid(t, file(`"a": `+good+`, "a": null`), `messages["a"]`)
	// In the same way with fields, lists and the members of the file.
	decode(t, file(`"a": {"timestamp": "x", "timestamp": 5, "channel_id": null, "channel_id": "c"}`))
	decode(t, example(t, `"members": [`, `"members": [null], "members": [`))
	decode(t, example(t, `"errors": []`, `"errors": null, "errors": []`))
	decode(t, example(t, `"queues": {`, `"queues": {"x": 5}, "queues": {`))
	wantInvalid(t, example(t, `"errors": []`, `"errors": [], "errors": null`), "errors")
	wantInvalid(t, file(`"a": {"channel_id": "c", "timestamp": 5, "timestamp": "x"}`), `messages["a"].timestamp`)
	s = decode(t, example(t, `"errors": []`, `"errors": [{"at": 1}], "errors": [{"at": 2}]`,
		`"cooldown_until": {`, `"cooldown_until": {"x": 5, "x": null,`))
	if c, _ := only(t, s); len(s.Errors) != 1 || s.Errors[0].At != 2 || c.Cooldowns.Len() != 1 {
		t.Errorf("%+v %v", s.Errors, pairs(c.Cooldowns))
	}
}

func TestListsThatWereReadGrowApart(t *testing.T) {
	s := decode(t, strings.Replace(emptyFile, `"queues": {}`, `"queues": {"a": ["a"], "b": ["b"], "c": ["c"], "d": ["d"], "e": ["e"]}`, 1))
	for key, list := range s.Queues.All() {
		s.Queues.Set(key, append(list, "more"))
	}
	for key, list := range s.Queues.All() {
		if fmt.Sprint(list) != "["+key+" more]" {
			t.Errorf("%s is %q", key, list)
		}
	}
}

func TestBrokenSyntaxIsSaidBeforeBrokenRules(t *testing.T) {
	text := example(t, `"schema_version": 2`, `"schema_version": 5`)
	wantInvalid(t, text+"x", "")
	wantInvalid(t, text, "schema_version")
}

func TestAPathIsFitToBeShown(t *testing.T) {
	_, err := opencomms.Decode([]byte(strings.Replace(emptyFile, `"queues": {}`, `"queues": {"\u001b[31m`+strings.Repeat("long", 1000)+`\n": 1}`, 1)))
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 200 {
		t.Fatalf("%q", err)
	}
}

func TestWhatAChannelLacksGetsItsDefaultAndIsWritten(t *testing.T) {
	for _, c := range []struct {
		field  string
		old    string
		now    string
		want   any
		get    func(*opencomms.Channel) any
		stands string // what is written
	}{
		{"paused", `"paused": false,`, ``, false, func(c *opencomms.Channel) any { return c.Paused }, `"paused": false`},
		{"max_members absent", `"max_members": 8,`, ``, 8, func(c *opencomms.Channel) any { return c.MaxMembers }, `"max_members": 8`},
		{"max_members null", `"max_members": 8`, `"max_members": null`, 8, func(c *opencomms.Channel) any { return c.MaxMembers }, `"max_members": 8`},
		{"max_members as text", `"max_members": 8`, `"max_members": "9"`, 8, func(c *opencomms.Channel) any { return c.MaxMembers }, `"max_members": 8`},
		{"max_members too small", `"max_members": 8`, `"max_members": 1`, 2, func(c *opencomms.Channel) any { return c.MaxMembers }, `"max_members": 2`},
		{"max_members too large", `"max_members": 8`, `"max_members": 1e99`, 32, func(c *opencomms.Channel) any { return c.MaxMembers }, `"max_members": 32`},
		{"max_members below zero", `"max_members": 8`, `"max_members": -7.5`, 2, func(c *opencomms.Channel) any { return c.MaxMembers }, `"max_members": 2`},
		{"rate absent", `"rate": {`, `"rates": {`, opencomms.Rate{}, func(c *opencomms.Channel) any { return c.Rate }, `"rate": {`},
		{"rate null", `"rate": {
        "window_start": 1770000010000,
        "count": 2
      }`, `"rate": null`, opencomms.Rate{}, func(c *opencomms.Channel) any { return c.Rate }, `"window_start": 0`},
		{"window_start is no number", `"window_start": 1770000010000`, `"window_start": "x"`, int64(0), func(c *opencomms.Channel) any { return c.Rate.WindowStart }, `"window_start": 0`},
		{"cooldown_until null", `"cooldown_until": {
        "sess_9a41c0de7b2f4c6d8e01aa55": 1770000012000
      }`, `"cooldown_until": null`, 0, func(c *opencomms.Channel) any { return c.Cooldowns.Len() }, `"cooldown_until": {}`},
		{"seen_content absent", `"seen_content": {`, `"seen": {`, 0, func(c *opencomms.Channel) any { return c.SeenContent.Len() }, `"seen_content": {}`},
		{"processed_correlations no list", `"processed_correlations": [
        "cor_5e3a9c1d7f2b4a6c8d0e1f2a3b4c5d6e"
      ]`, `"processed_correlations": null`, 0, func(c *opencomms.Channel) any { return len(c.ProcessedCorrelations) }, `"processed_correlations": []`},
		{"max_hops", `"max_hops": 4,`, ``, 4, func(c *opencomms.Channel) any { return c.MaxHops }, `"max_hops": 4`},
		{"rate_limit", `"rate_limit": 20`, `"rate_limit": null`, 20, func(c *opencomms.Channel) any { return c.RateLimit }, `"rate_limit": 20`},
		{"delivery_cooldown_ms", `"delivery_cooldown_ms": 1000`, `"delivery_cooldown_ms": null`, int64(1000), func(c *opencomms.Channel) any { return c.DeliveryCooldown }, `"delivery_cooldown_ms": 1000`},
		{"stale_event_ms", `"stale_event_ms": 300000,`, ``, int64(300_000), func(c *opencomms.Channel) any { return c.StaleAfter }, `"stale_event_ms": 300000`},
		{"timer absent", `"timer": {`, `"clock": {`, "", func(c *opencomms.Channel) any { return c.Timer.Active }, `"active_member_id": null`},
		{"timer in parts", `"limit_ms": null,
        "limit_member_id": null`, `"x": 1`, "ses_4f1c0a9be", func(c *opencomms.Channel) any { return c.Timer.Active }, `"limit_member_id": null`},
		{"budgets absent", `"budgets": {`, `"budget": {`, opencomms.Budgets{}, func(c *opencomms.Channel) any { return c.Budgets }, `"budgets": {`},
		{"budgets in parts", `"max_runtime_ms": null,`, ``, int64(0), func(c *opencomms.Channel) any { return c.Budgets.MaxRuntime }, `"max_runtime_ms": null`},
		{"budget not finite", `"max_delivered_messages": null`, `"max_delivered_messages": 1e999`, 0, func(c *opencomms.Channel) any { return c.Budgets.MaxDelivered }, `"max_delivered_messages": null`},
		{"delivered_total", `"delivered_total": 1,`, ``, 1, func(c *opencomms.Channel) any { return c.DeliveredTotal }, `"delivered_total": 1`},
		{"lifecycle absent", `"lifecycle": "active",`, ``, "active", func(c *opencomms.Channel) any { return c.Lifecycle }, `"lifecycle": "active"`},
		{"lifecycle of another kind", `"lifecycle": "active"`, `"lifecycle": "asleep"`, "active", func(c *opencomms.Channel) any { return c.Lifecycle }, `"lifecycle": "active"`},
		{"description", `"description": "Review the store package",`, ``, "", func(c *opencomms.Channel) any { return c.Description }, `"description": null`},
		{"parent_channel_id", `"description": "Review the store package",
      "parent_channel_id": null`, `"description": null`, "", func(c *opencomms.Channel) any { return c.ParentID }, `"parent_channel_id": null`},
	} {
		t.Run(c.field, func(t *testing.T) {
			s := decode(t, example(t, c.old, c.now))
			channel, _ := only(t, s)
			if got := c.get(channel); got != c.want {
				t.Errorf("it is %v, want %v", got, c.want)
			}
			out := encode(t, s)
			if strings.Count(out, c.stands) != 1 {
				t.Errorf("%s is not in\n%s", c.stands, out)
			}
			if again := encode(t, decode(t, out)); again != out {
				t.Errorf("it changes once more:\n%s", again)
			}
		})
	}
}

func TestAChannelFromBeforeBudgetsCountsWhatItDelivered(t *testing.T) {
	// What is in flight counts, mail of another channel does not.
	text := example(t, `"delivered_total": 1,`, ``, `"delivery_status": "pending"`, `"delivery_status": "in_flight"`,
		`"messages": {`, `"messages": {"x": {"channel_id": "other", "timestamp": 1, "delivery_status": "delivered"},`)
	c, _ := only(t, decode(t, text))
	if c.DeliveredTotal != 2 {
		t.Fatalf("%d", c.DeliveredTotal)
	}
	// The same when the messages stand before the channels.
	cut := strings.Index(text, `"messages"`)
	end := strings.Index(text, `"queues"`)
	text = strings.Replace(text[:cut]+text[end:], `"channels"`, text[cut:end]+`"channels"`, 1)
	if c, _ := only(t, decode(t, text)); c.DeliveredTotal != 2 {
		t.Fatalf("%d", c.DeliveredTotal)
	}
}

func TestAMemberWithoutCapabilitiesHasThoseOfItsMode(t *testing.T) {
	for mode, want := range map[string]string{ // push pull resume queue_while_busy interrupt
		opencomms.ModePush: "11010", opencomms.ModeSpawnPush: "11100", opencomms.ModePull: "01010", opencomms.ModePoll: "01010",
		opencomms.ModeManagedThread: "11110", opencomms.ModeUnsupported: "00000", "telepathy": "00000",
	} {
		s := decode(t, example(t, `"delivery_mode": "pull"`, `"delivery_mode": "`+mode+`"`, `"window_ms": null
          },
          "endpoint_capabilities": {`, `"window_ms": null
          },
          "endpoint": {`))
		out := encode(t, s)
		c, _ := only(t, s)
		again, _ := only(t, decode(t, out))
		for _, m := range []*opencomms.Member{c.Members[1], again.Members[1]} {
			e := m.Endpoint
			got := ""
			for _, can := range []bool{e.Push, e.Pull, e.Resume, e.QueueWhileBusy, e.Interrupt} {
				got += map[bool]string{true: "1", false: "0"}[can]
			}
			if got != want {
				t.Errorf("%s: %s, want %s", mode, got, want)
			}
		}
		if strings.Count(out, `"endpoint_capabilities"`) != 2 || !strings.Contains(out, `"endpoint": {`) {
			t.Errorf("%s", out)
		}
	}
}

func TestAMessageWithoutRootAndMethodGetsThem(t *testing.T) {
	out := encode(t, decode(t, example(t, `"root_message_id": null,`, ``, `"delivery_method": null`, `"x": 1`)))
	for text, want := range map[string]int{`"root_message_id": null`: 1, `"delivery_method": null`: 1, `"delivery_method": "pull"`: 1, `"x": 1`: 1} {
		if n := strings.Count(out, text); n != want {
			t.Errorf("%s stands %d times:\n%s", text, n, out)
		}
	}
}

func TestAMessageNeedsNoMoreThanChannelAndTime(t *testing.T) {
	text := strings.Replace(emptyFile, `"messages": {}`, `"messages": {
    "odd": {
      "timestamp": 1.5,
      "channel_id": "c",
      "root_message_id": null,
      "delivery_method": null,
      "content": {
        "not": "text"
      },
      "attempts": "many",
      "reply_to": 7
    }
  }`, 1)
	s := decode(t, text)
	e, _ := s.Messages.Get("odd")
	if e.Timestamp != 1 || e.Content != "" || e.Attempts != 0 || e.ReplyTo != "" || e.Status != "" {
		t.Fatalf("%+v", e.EnvelopeFields)
	}
	if out := encode(t, s); out != text {
		t.Fatalf("%s", out)
	}
	// A change of one field leaves what we do not understand.
	e.Status = opencomms.StatusStale
	want := strings.Replace(text, `"reply_to": 7`, `"reply_to": 7,
      "delivery_status": "stale"`, 1)
	if out := encode(t, s); out != want {
		t.Fatalf("%s", out)
	}
}

func TestAMemberWithoutStalePolicyStaysWithoutOne(t *testing.T) {
	for _, policy := range []string{``, `"stale_policy": null,`, `"stale_policy": "none",`} {
		text := example(t, `"stale_policy": {
            "mode": "none",
            "window_ms": null
          },`, policy)
		s := decode(t, text)
		c, _ := only(t, s)
		if c.Members[1].Policy != nil {
			t.Errorf("%q is %+v", policy, c.Members[1].Policy)
		}
		if out := encode(t, s); out != text {
			t.Errorf("%s", out)
		}
	}
}

func TestPausedIsWhatJavaScriptTakesForTrue(t *testing.T) {
	for text, want := range map[string]bool{
		`true`: true, `1`: true, `"no"`: true, `{}`: true, `[]`: true, `-0.5`: true, `1e999`: true,
		`false`: false, `0`: false, `-0`: false, `0e5`: false, `""`: false, `null`: false,
	} {
		file := example(t, `"paused": false`, `"paused": `+text)
		s := decode(t, file)
		if c, _ := only(t, s); c.Paused != want {
			t.Errorf("%s is %v", text, c.Paused)
		}
		if out := encode(t, s); out != file {
			t.Errorf("%s was written otherwise", text)
		}
	}
}

func TestABudgetThatLeavesNothingIsNoEndlessOne(t *testing.T) {
	for text, want := range map[string]int{`0`: 1, `-5`: 1, `0.5`: 1, `7.9`: 7, `null`: 0} {
		s := decode(t, example(t, `"max_delivered_messages": null`, `"max_delivered_messages": `+text))
		if c, _ := only(t, s); c.Budgets.MaxDelivered != want {
			t.Errorf("%s is %d", text, c.Budgets.MaxDelivered)
		}
	}
}

func TestNumbersOfAnyFormAreRead(t *testing.T) {
	for text, want := range map[string]int64{
		`1e3`: 1000, `1.9`: 1, `-1.9`: -1, `-0`: 0, `0.0001e4`: 1, `12E+2`: 1200, `5e-1`: 0, `123456789012345`: 123456789012345,
		`9007199254740993`: 1<<53 - 1, `1e400`: 1<<53 - 1, `-1e400`: 1 - 1<<53, `1e-400`: 0, `99999999999999999999999`: 1<<53 - 1,
	} {
		file := example(t, `"timestamp": 1770000010000`, `"timestamp": `+text)
		s := decode(t, file)
		_, list := only(t, s)
		if list[0].Timestamp != want {
			t.Errorf("%s is %d", text, list[0].Timestamp)
		}
		list[0].Attempts++
		if out := encode(t, s); strings.Count(out, `"timestamp": `+text+",") != 1 {
			t.Errorf("%s was written otherwise", text)
		}
	}
}
