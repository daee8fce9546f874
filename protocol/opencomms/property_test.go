package opencomms_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"opencode-mesh/protocol/opencomms"
)

type pair[V any] struct {
	Key string
	Val V
}

func pairs[V any](o opencomms.Ordered[V]) []pair[V] {
	var out []pair[V]
	for key, v := range o.All() {
		out = append(out, pair[V]{key, v})
	}
	return out
}

// sameState compares what states say, with the order of everything.
var sameState = cmp.Options{
	cmp.Transformer("numbers", pairs[int64]), cmp.Transformer("lists", pairs[[]string]),
	cmp.Transformer("channels", pairs[*opencomms.Channel]), cmp.Transformer("messages", pairs[*opencomms.Envelope]),
	cmpopts.IgnoreUnexported(opencomms.State{}, opencomms.Channel{}, opencomms.Member{}, opencomms.Envelope{}, opencomms.ErrorEntry{}, opencomms.Archive{}),
	cmpopts.EquateEmpty(),
}

// validFile is the load rule of the programs that share the file, written again on
// what encoding/json reads.
func validFile(data []byte) error {
	var root map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&root); err != nil {
		return err
	}
	version, _ := root["schema_version"].(json.Number)
	if f, err := version.Float64(); err != nil || f != 2 {
		return fmt.Errorf("schema_version %v", root["schema_version"])
	}
	channels, ok1 := root["channels"].(map[string]any)
	messages, ok2 := root["messages"].(map[string]any)
	queues, ok3 := root["queues"].(map[string]any)
	delivered, ok4 := root["delivered_to"].(map[string]any)
	_, ok5 := root["errors"].([]any)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
		return fmt.Errorf("the file has other parts: %v %v %v %v %v", ok1, ok2, ok3, ok4, ok5)
	}
	for key, v := range channels {
		c, _ := v.(map[string]any)
		for _, name := range []string{"id", "name", "project_id", "worktree"} {
			if _, ok := c[name].(string); !ok {
				return fmt.Errorf("channel %q has no %s", key, name)
			}
		}
		members, ok := c["members"].([]any)
		if !ok || c["name"] != key || len(members) > 32 || len(members) == 0 && c["lifecycle"] != "active" {
			return fmt.Errorf("channel %q", key)
		}
		for i, v := range members {
			m, _ := v.(map[string]any)
			for _, name := range []string{"session_id", "role", "role_prompt", "host", "surface", "delivery_mode"} {
				if _, ok := m[name].(string); !ok {
					return fmt.Errorf("member %d of %q has no %s", i, key, name)
				}
			}
			if _, ok := m["joined_at"].(json.Number); !ok || m["session_id"] == "" || !roleRule.MatchString(m["role"].(string)) {
				return fmt.Errorf("member %d of %q", i, key)
			}
		}
	}
	for id, v := range messages {
		m, _ := v.(map[string]any)
		if _, ok := m["timestamp"].(json.Number); !ok {
			return fmt.Errorf("message %q", id)
		}
		if _, ok := m["channel_id"].(string); !ok {
			return fmt.Errorf("message %q", id)
		}
	}
	for _, lists := range []map[string]any{queues, delivered} {
		for key, v := range lists {
			list, ok := v.([]any)
			if !ok || slices.ContainsFunc(list, func(v any) bool { _, ok := v.(string); return !ok }) {
				return fmt.Errorf("list %q", key)
			}
		}
	}
	return nil
}

var roleRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9 _-]{0,31}$`)

// Values that edits give. Strings hold whatever JSON can say.
var (
	anyText   = rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune("a\"\\\n\x00\x1f\u2028<é😀\u007f"))), rapid.Just("\xed\xa0\x80"))
	anyKey    = rapid.StringMatching(`[a-z]{1,2}_[a-z]?`)
	anyRole   = rapid.StringMatching(`[A-Za-z][A-Za-z0-9 _-]{0,31}`)
	anyNumber = rapid.Int64Range(1-1<<53, 1<<53-1)
	anyCount  = rapid.IntRange(0, 1_000_000)
)

func pick[V any](t *rapid.T, o *opencomms.Ordered[V]) (key string, v V, ok bool) {
	if o.Len() == 0 {
		return "", v, false
	}
	p := rapid.SampledFrom(pairs(*o)).Draw(t, "one")
	return p.Key, p.Val, true
}

// edits are all that can be done with the types of a state.
var edits = map[string]func(t *rapid.T, s *opencomms.State){
	"add channel": func(t *rapid.T, s *opencomms.State) {
		c := newChannel("c" + anyKey.Draw(t, "name"))
		s.Channels.Set(c.Name, c)
	},
	"delete channel": func(t *rapid.T, s *opencomms.State) {
		if name, _, ok := pick(t, &s.Channels); ok {
			s.Channels.Delete(name)
		}
	},
	"edit channel": func(t *rapid.T, s *opencomms.State) {
		_, c, ok := pick(t, &s.Channels)
		if !ok {
			return
		}
		for range rapid.IntRange(1, 4).Draw(t, "n") {
			switch rapid.IntRange(0, 20).Draw(t, "field") {
			case 0:
				c.ID = anyText.Draw(t, "id")
			case 1:
				c.ProjectID = anyText.Draw(t, "project")
			case 2:
				c.Worktree = anyText.Draw(t, "worktree")
			case 3:
				c.CreatedAt = anyNumber.Draw(t, "created")
			case 4:
				c.Paused, c.PausedAt = rapid.Bool().Draw(t, "paused"), anyNumber.Draw(t, "paused at")
			case 5:
				c.MaxMembers = rapid.IntRange(2, 32).Draw(t, "max")
			case 6:
				c.Rate = opencomms.Rate{WindowStart: anyNumber.Draw(t, "window"), Count: anyCount.Draw(t, "count")}
			case 7:
				c.Cooldowns.Set(anyKey.Draw(t, "key"), anyNumber.Draw(t, "until"))
			case 8:
				c.SeenContent.Set(anyText.Draw(t, "key"), anyNumber.Draw(t, "seen"))
			case 9:
				if key, _, ok := pick(t, &c.SeenContent); ok {
					c.SeenContent.Delete(key)
				}
			case 10:
				c.ProcessedCorrelations = rapid.SliceOfN(anyText, 0, 3).Draw(t, "correlations")
			case 11:
				c.MaxHops = anyCount.Draw(t, "hops")
			case 12:
				c.RateLimit = anyCount.Draw(t, "rate")
			case 13:
				c.DeliveryCooldown, c.StaleAfter = anyNumber.Draw(t, "cooldown"), anyNumber.Draw(t, "stale")
			case 14:
				c.Timer.Active, c.Timer.SegmentStart = anyText.Draw(t, "active"), anyNumber.Draw(t, "start")
			case 15:
				c.Timer.Elapsed.Set(anyKey.Draw(t, "key"), anyNumber.Draw(t, "elapsed"))
			case 16:
				c.Timer.Limit, c.Timer.LimitMember = anyNumber.Draw(t, "limit"), anyText.Draw(t, "member")
			case 17:
				c.Budgets = opencomms.Budgets{MaxRuntime: int64(anyCount.Draw(t, "runtime")), MaxDelivered: anyCount.Draw(t, "delivered")}
			case 18:
				c.DeliveredTotal = anyCount.Draw(t, "total")
			case 19:
				c.Lifecycle = opencomms.LifecycleActive
				if len(c.Members) > 0 {
					c.Lifecycle = rapid.SampledFrom([]string{"active", "saved", "deleted"}).Draw(t, "lifecycle")
				}
			case 20:
				c.Description, c.ParentID = anyText.Draw(t, "description"), anyText.Draw(t, "parent")
			}
		}
	},
	"add member": func(t *rapid.T, s *opencomms.State) {
		if _, c, ok := pick(t, &s.Channels); ok && len(c.Members) < opencomms.MaxMembers {
			c.Members = append(c.Members, newMember("s"+anyText.Draw(t, "session"), anyRole.Draw(t, "role")))
		}
	},
	"move or remove member": func(t *rapid.T, s *opencomms.State) {
		_, c, ok := pick(t, &s.Channels)
		if !ok || len(c.Members) == 0 {
			return
		}
		i := rapid.IntRange(0, len(c.Members)-1).Draw(t, "which")
		m := c.Members[i]
		c.Members = slices.Delete(c.Members, i, i+1)
		if len(c.Members) == 0 && c.Lifecycle != opencomms.LifecycleActive || rapid.Bool().Draw(t, "back") {
			c.Members = append(c.Members, m.Clone())
		}
	},
	"edit member": func(t *rapid.T, s *opencomms.State) {
		_, c, ok := pick(t, &s.Channels)
		if !ok || len(c.Members) == 0 {
			return
		}
		m := rapid.SampledFrom(c.Members).Draw(t, "member")
		switch rapid.IntRange(0, 10).Draw(t, "field") {
		case 0:
			m.SessionID = "s" + anyText.Draw(t, "session")
		case 1:
			m.Role = anyRole.Draw(t, "role")
		case 2:
			m.RolePrompt = anyText.Draw(t, "prompt")
		case 3:
			m.JoinedAt = anyNumber.Draw(t, "joined")
		case 4:
			m.Stale, m.StaleAt = rapid.Bool().Draw(t, "stale"), anyNumber.Draw(t, "stale at")
		case 5:
			m.Host, m.Surface, m.Mode = anyText.Draw(t, "host"), anyText.Draw(t, "surface"), anyText.Draw(t, "mode")
		case 6:
			m.HostSessionID = anyText.Draw(t, "host session")
		case 7:
			m.Policy = rapid.SampledFrom([]*opencomms.StalePolicy{nil, {Mode: "none"}, {Mode: "window", Window: 5}}).Draw(t, "policy")
		case 8:
			if m.Policy != nil {
				m.Policy.Window = anyNumber.Draw(t, "window")
			}
		case 9:
			e := opencomms.DerivedEndpoint(rapid.SampledFrom([]string{"push", "spawn_push", "pull", "none"}).Draw(t, "endpoint"))
			m.Endpoint = &e
		case 10:
			m.Capabilities = rapid.SampledFrom([]json.RawMessage{nil, json.RawMessage("{}"), json.RawMessage(`{
            "a": true
          }`)}).Draw(t, "capabilities")
		}
	},
	"add message": func(t *rapid.T, s *opencomms.State) {
		e := &opencomms.Envelope{EnvelopeFields: opencomms.EnvelopeFields{
			ID: "m" + anyKey.Draw(t, "id"), ChannelID: anyText.Draw(t, "channel"), Content: anyText.Draw(t, "content"), Timestamp: anyNumber.Draw(t, "at"),
		}}
		s.Messages.Set(e.ID, e)
	},
	"edit message": func(t *rapid.T, s *opencomms.State) {
		_, e, ok := pick(t, &s.Messages)
		if !ok {
			return
		}
		switch rapid.IntRange(0, 6).Draw(t, "field") {
		case 0:
			e.ChannelID, e.Correlation = anyText.Draw(t, "channel"), anyText.Draw(t, "correlation")
		case 1:
			e.Sender, e.SenderRole, e.Recipient, e.RecipientRole = anyText.Draw(t, "s"), anyText.Draw(t, "sr"), anyText.Draw(t, "r"), anyText.Draw(t, "rr")
		case 2:
			e.Timestamp, e.DeliveredAt = anyNumber.Draw(t, "at"), anyNumber.Draw(t, "delivered")
		case 3:
			e.Type, e.Status, e.Method = anyText.Draw(t, "type"), anyText.Draw(t, "status"), anyText.Draw(t, "method")
		case 4:
			e.Content = anyText.Draw(t, "content")
		case 5:
			e.ReplyTo, e.Root = anyText.Draw(t, "reply"), anyText.Draw(t, "root")
		case 6:
			e.Hops, e.Attempts = anyCount.Draw(t, "hops"), anyCount.Draw(t, "attempts")
		}
	},
	"delete message": func(t *rapid.T, s *opencomms.State) {
		if id, _, ok := pick(t, &s.Messages); ok {
			s.Messages.Delete(id)
			s.DeliveredTo.Delete(id)
		}
	},
	"queue": func(t *rapid.T, s *opencomms.State) {
		s.Queues.Set(anyKey.Draw(t, "recipient"), rapid.SliceOfN(anyText, 0, 3).Draw(t, "ids"))
	},
	"deliver": func(t *rapid.T, s *opencomms.State) {
		key, to, ok := pick(t, &s.DeliveredTo)
		if !ok {
			key = anyKey.Draw(t, "id")
		}
		s.DeliveredTo.Set(key, append(to, anyText.Draw(t, "session")))
	},
	"error": func(t *rapid.T, s *opencomms.State) {
		s.Errors = append(s.Errors, opencomms.ErrorEntry{At: anyNumber.Draw(t, "at"), Message: anyText.Draw(t, "message")})
	},
}

var editNames = func() (names []string) {
	for name := range edits {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}()

// edit makes a few edits.
func edit(t *rapid.T, s *opencomms.State) {
	for range rapid.IntRange(0, 12).Draw(t, "edits") {
		edits[rapid.SampledFrom(editNames).Draw(t, "edit")](t, s)
	}
}

// markers are the unknown members that are to be in the file: those whose records
// are.
func markers(s *opencomms.State) []string {
	want := []string{`"x-top"`, `"x-last"`, `"x-error"`}
	if c, ok := s.Channels.Get("api-review"); ok {
		want = append(want, `"x-channel"`, `"x-rate"`, `"x-budgets"`)
		for _, m := range c.Members {
			if m.JoinedAt == marked {
				want = append(want, `"x-member": "\u0061\/"`)
			}
		}
	}
	if _, ok := s.Messages.Get("ocm_7c9e11d04b5a4f7e9a6d2233445566ff"); ok {
		want = append(want, `"x-message"`)
	}
	return want
}

// marked is the time by which the member with unknown members is known.
const marked = 1 << 53 / 2

func TestAnyEditsAreReadAsTheyWereMadeAndUnknownMembersStay(t *testing.T) {
	base := strings.Replace(unknown(t), `"joined_at": 1770000000000`, `"joined_at": `+fmt.Sprint(marked), 1)
	rapid.Check(t, func(t *rapid.T) {
		s, err := opencomms.Decode([]byte(base))
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			edit(t, s)
			data, err := s.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if err := validFile(data); err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			back, err := opencomms.Decode(data)
			if err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			if d := cmp.Diff(s, back, sameState); d != "" {
				t.Fatalf("(-made +read):\n%s\n%s", d, data)
			}
			for _, m := range markers(s) {
				if n := strings.Count(string(data), m); n != 1 {
					t.Fatalf("%s stands %d times in\n%s", m, n, data)
				}
			}
			again, err := back.Encode()
			if err != nil || string(again) != string(data) {
				t.Fatalf("%v, and it was written otherwise:\n%s\n%s", err, data, again)
			}
			s = back
		}
	})
}

func TestOrderedIsAMapThatKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o opencomms.Ordered[int]
		var model []pair[int]
		at := func(key string) int { return slices.IndexFunc(model, func(p pair[int]) bool { return p.Key == key }) }
		set := func(key string, v int) {
			o.Set(key, v)
			if i := at(key); i >= 0 {
				model[i].Val = v
			} else {
				model = append(model, pair[int]{key, v})
			}
		}
		remove := func(key string) {
			o.Delete(key)
			if i := at(key); i >= 0 {
				model = slices.Delete(model, i, i+1)
			}
		}
		key := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "key")) })
		for i := range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0: // deletes and adds while it is walked
				seen := 0
				for k := range o.All() {
					seen++
					if seen%2 == 0 {
						remove(k)
						set("new-"+k, i)
					}
				}
			case 1, 2, 3, 4:
				remove(key.Draw(t, "key"))
			default:
				set(key.Draw(t, "key"), i)
			}
			k := key.Draw(t, "key")
			v, ok := o.Get(k)
			if i := at(k); ok != (i >= 0) || ok && v != model[i].Val || o.Len() != len(model) {
				t.Fatalf("%q is %d %v of %d, want %v", k, v, ok, o.Len(), model)
			}
		}
		if d := cmp.Diff(model, pairs(o), cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}
