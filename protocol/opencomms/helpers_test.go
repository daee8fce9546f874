package opencomms_test

import (
	_ "embed"
	"errors"
	"strings"
	"testing"

	"opencode-mesh/protocol/opencomms"
)

//go:embed testdata/example.json
var exampleData []byte

func decode(t testing.TB, data string) *opencomms.State {
	t.Helper()
	s, err := opencomms.Decode([]byte(data))
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return s
}

func encode(t testing.TB, s *opencomms.State) string {
	t.Helper()
	out, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// newChannel is a channel as it is created, without members.
func newChannel(name string) *opencomms.Channel {
	return &opencomms.Channel{
		ID: opencomms.NewID(opencomms.PrefixChannel), Name: name, ProjectID: "p", Worktree: "/home/u/proj",
		CreatedAt: 1_770_000_000_000, MaxMembers: opencomms.DefaultMembers,
		Rate:    opencomms.Rate{WindowStart: 1_770_000_000_000},
		MaxHops: opencomms.DefaultHops, RateLimit: opencomms.DefaultRate,
		DeliveryCooldown: opencomms.DefaultCooldown.Milliseconds(), StaleAfter: opencomms.DefaultStale.Milliseconds(),
		Lifecycle: opencomms.LifecycleActive,
	}
}

func newMember(session, role string) *opencomms.Member {
	endpoint := opencomms.DerivedEndpoint(opencomms.ModePull)
	return &opencomms.Member{
		SessionID: session, Role: role, RolePrompt: "Do it.", JoinedAt: 1_770_000_000_000,
		Host: "opencode-mesh", Surface: opencomms.SurfaceAPI, Mode: opencomms.ModePull,
		Policy: &opencomms.StalePolicy{Mode: opencomms.StaleNone}, Endpoint: &endpoint,
	}
}

// example is the example file with replacements: pairs of what stands there, once,
// and what is to stand there.
func example(t testing.TB, replacements ...string) string {
	t.Helper()
	text := string(exampleData)
	for i := 0; i < len(replacements); i += 2 {
		if n := strings.Count(text, replacements[i]); n != 1 {
			t.Fatalf("%q stands %d times in the example", replacements[i], n)
		}
		text = strings.Replace(text, replacements[i], replacements[i+1], 1)
	}
	return text
}

// only returns the one channel of the example, and its messages in order.
func only(t testing.TB, s *opencomms.State) (*opencomms.Channel, []*opencomms.Envelope) {
	t.Helper()
	c, ok := s.Channels.Get("api-review")
	if !ok {
		t.Fatal("the channel is not there")
	}
	var list []*opencomms.Envelope
	for _, e := range s.Messages.All() {
		list = append(list, e)
	}
	return c, list
}

// wantInvalid makes sure that a text is refused, at a path.
func wantInvalid(t testing.TB, text, path string) {
	t.Helper()
	s, err := opencomms.Decode([]byte(text))
	var invalid *opencomms.InvalidError
	if !errors.As(err, &invalid) || s != nil {
		t.Fatalf("it was read with error %v", err)
	}
	if invalid.Path != path || invalid.Reason == "" {
		t.Fatalf("refused at %q (%s), want %q", invalid.Path, invalid.Reason, path)
	}
}

// changedLines returns the lines of b that are not those of a, which has as many.
func changedLines(t testing.TB, a, b string) []string {
	t.Helper()
	was, is := strings.Split(a, "\n"), strings.Split(b, "\n")
	if len(was) != len(is) {
		t.Fatalf("%d lines became %d:\n%s", len(was), len(is), b)
	}
	var out []string
	for i := range is {
		if was[i] != is[i] {
			out = append(out, strings.TrimSpace(is[i]))
		}
	}
	return out
}

// exampleArchive is an archive of the example's channel.
func exampleArchive(t testing.TB) string {
	t.Helper()
	c, messages := only(t, decode(t, example(t)))
	a := opencomms.Archive{
		ChannelID: c.ID, Name: c.Name, Description: c.Description, Summary: "All is well.", Members: c.Members,
		CreatedAt: c.CreatedAt, SavedAt: 1_770_000_030_000, SavedBy: c.Members[0].SessionID, SavedByRole: c.Members[0].Role,
		Messages: messages, FinalNote: messages[1].Content,
	}
	data, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
