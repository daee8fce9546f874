package opencomms_test

import (
	_ "embed"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"opencode-mesh/protocol/opencomms"
)

//go:embed testdata/v1-early.json
var earlyV1 string

//go:embed testdata/v1-late.json
var lateV1 string

func convert(t *testing.T, text string) *opencomms.State {
	t.Helper()
	s, err := opencomms.ConvertV1([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out := encode(t, s)
	if err := validFile([]byte(out)); err != nil {
		t.Fatal(err)
	}
	back := decode(t, out)
	if d := cmp.Diff(s, back, sameState); d != "" {
		t.Fatal(d)
	}
	if again := encode(t, back); again != out {
		t.Fatalf("it changes once more:\n%s", again)
	}
	return s
}

func TestAnEarlyFileOfVersionOneBecomesOneOfVersionTwo(t *testing.T) {
	s := convert(t, earlyV1)
	c, _ := s.Channels.Get("review")
	if c == nil || len(c.Members) != 2 {
		t.Fatalf("%+v", c)
	}
	endpoint := opencomms.DerivedEndpoint(opencomms.ModePush)
	want := &opencomms.Member{
		SessionID: "ses_b", Role: "Builder", RolePrompt: "Build.", JoinedAt: 1_700_000_000_001, Host: "opencode-comms", Surface: "cli", Mode: "push",
		HostSessionID: "ses_b", Policy: &opencomms.StalePolicy{Mode: "window", Window: 300_000}, Endpoint: &endpoint,
	}
	if d := cmp.Diff(want, c.Members[0], cmpopts.IgnoreUnexported(opencomms.Member{})); d != "" {
		t.Error(d)
	}
	// The clock of a role is that of its first member.
	if c.Timer.Active != "ses_r" || c.Timer.LimitMember != "ses_r" || c.Timer.SegmentStart != 1_700_000_000_900 || c.Timer.Limit != 60_000 {
		t.Errorf("%+v", c.Timer)
	}
	if d := cmp.Diff([]pair[int64]{{"Builder", 10}, {"ses_r", 25}}, pairs(c.Timer.Elapsed)); d != "" {
		t.Error(d)
	}
	if c.MaxMembers != 8 || c.DeliveredTotal != 1 || c.Lifecycle != opencomms.LifecycleActive || c.Budgets != (opencomms.Budgets{}) || c.MaxHops != 4 {
		t.Errorf("%+v", c)
	}
	// The rest stays as it was.
	if d := cmp.Diff([]pair[int64]{{"411bd87e8703dfb7aacabcdf60104d50", 1_700_000_000_500}}, pairs(c.SeenContent)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]pair[[]string]{{"ses_b", []string{"ocm_2"}}, {"ses_r", nil}}, pairs(s.Queues), cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	out := encode(t, s)
	for _, text := range []string{`"schema_version": 2`, `"x-message": true`, `"content": "Done"`, `"root_message_id": null`} {
		if !strings.Contains(out, text) {
			t.Errorf("%s is not in\n%s", text, out)
		}
	}
	if strings.Contains(out, "x-member") || strings.Contains(out, "active_role") {
		t.Errorf("%s", out)
	}
}

func TestALateFileOfVersionOneKeepsItsRolesAndClock(t *testing.T) {
	s := convert(t, lateV1)
	c, _ := s.Channels.Get("team")
	if len(c.Members) != 3 || c.Members[2].Role != "Lead Tester" || c.Members[2].Stale || c.Members[2].StaleAt != 0 || c.MaxMembers != 4 {
		t.Errorf("%+v", c.Members)
	}
	if c.Timer.Active != "ses_2" || c.Timer.LimitMember != "ses_3" || c.Timer.Limit != 1_000 {
		t.Errorf("%+v", c.Timer)
	}
	if d := cmp.Diff([]pair[int64]{{"ses_1", 5}, {"ses_2", 7}}, pairs(c.Timer.Elapsed)); d != "" {
		t.Error(d)
	}
	if _, ok := c.SeenContent.Get("ses_1:411bd87e8703dfb7aacabcdf60104d50"); !ok {
		t.Error("what was seen is gone")
	}
}

func TestAClockGoesToTheFirstOfTwoMembersOfARole(t *testing.T) {
	s := convert(t, strings.Replace(earlyV1, `"role": "Builder"`, `"role": "Reviewer"`, 1))
	if c, _ := s.Channels.Get("review"); c.Timer.Active != "ses_b" || c.Timer.LimitMember != "ses_b" {
		t.Errorf("%+v", c.Timer)
	}
}

func TestAClockOfARoleThatNobodyHasStops(t *testing.T) {
	s := convert(t, strings.Replace(earlyV1, `"active_role": "Reviewer"`, `"active_role": "Tester"`, 1))
	c, _ := s.Channels.Get("review")
	if c.Timer.Active != "" || c.Timer.LimitMember != "" {
		t.Errorf("%+v", c.Timer)
	}
	if d := cmp.Diff([]pair[int64]{{"Builder", 10}, {"Reviewer", 20}, {"ses_r", 5}}, pairs(c.Timer.Elapsed)); d != "" {
		t.Error(d)
	}
}

func TestAClockOfRolesIsConvertedInAFileOfVersionTwoToo(t *testing.T) {
	// It is one of roles, too, when only its elapsed_ms is missing.
	s := decode(t, example(t, `"active_member_id": "ses_4f1c0a9be",`, `"active_member_id": "x", "active_role": "Builder",`, `"elapsed_ms": {`, `"elapsed": {`))
	c, _ := only(t, s)
	if c.Timer.Active != "ses_4f1c0a9be" {
		t.Errorf("%+v", c.Timer)
	}
	s = decode(t, example(t, `"active_member_id": "ses_4f1c0a9be",`, `"active_role": "Reviewer",`))
	c, _ = only(t, s)
	if c.Timer.Active != "sess_9a41c0de7b2f4c6d8e01aa55" {
		t.Errorf("%+v", c.Timer)
	}
	if out := encode(t, s); strings.Contains(out, "active_role") || !strings.Contains(out, `"active_member_id": "sess_9a41c0de7b2f4c6d8e01aa55"`) {
		t.Errorf("%s", out)
	}
}

func TestAFileOfVersionOneIsValidatedByItsOwnRules(t *testing.T) {
	for what, text := range map[string]string{
		"a file of version 2": string(exampleData), "no file": "", "a role": strings.Replace(earlyV1, `"role": "Builder"`, `"role": ""`, 1),
		"a prompt": strings.Replace(earlyV1, `"role_prompt": "Build."`, `"role_prompt": null`, 1), "a key": strings.Replace(earlyV1, `"name": "review"`, `"name": "x"`, 1),
	} {
		if _, err := opencomms.ConvertV1([]byte(text)); err == nil {
			t.Errorf("%s was converted", what)
		}
	}
	if _, err := opencomms.Decode([]byte(earlyV1)); err == nil {
		t.Error("it passes as one of version 2")
	}
}

func TestOnlyAFileInWhichNothingEverHappenedIsInert(t *testing.T) {
	inert := func() *opencomms.State {
		s := opencomms.New()
		c := newChannel("x")
		s.Channels.Set("x", c)
		s.Queues.Set("q", nil)
		s.DeliveredTo.Set("m", []string{})
		s.Errors = []opencomms.ErrorEntry{{At: 1, Message: "m"}}
		return s
	}
	if !inert().Inert() || !opencomms.New().Inert() {
		t.Error("an empty file is not inert")
	}
	for what, edit := range map[string]func(*opencomms.State){
		"a message":  func(s *opencomms.State) { s.Messages.Set("m", &opencomms.Envelope{}) },
		"a queue":    func(s *opencomms.State) { s.Queues.Set("q", []string{"m"}) },
		"a delivery": func(s *opencomms.State) { s.DeliveredTo.Set("m", []string{"s"}) },
		"a member": func(s *opencomms.State) {
			c, _ := s.Channels.Get("x")
			c.Members = []*opencomms.Member{newMember("s", "R")}
		},
		"a lifecycle": func(s *opencomms.State) { c, _ := s.Channels.Get("x"); c.Lifecycle = opencomms.LifecycleSaved },
	} {
		s := inert()
		edit(s)
		if s.Inert() {
			t.Errorf("%s makes no difference", what)
		}
	}
}

func TestAConvertedFileAdoptsThePlaceholdersWhoseNamesAreFree(t *testing.T) {
	s := convert(t, earlyV1)
	s.Errors = append(s.Errors, opencomms.ErrorEntry{At: 1, Message: "old"})
	placeholders := opencomms.New()
	for _, name := range []string{"other", "review"} {
		placeholders.Channels.Set(name, newChannel(name))
	}
	placeholders.Errors = []opencomms.ErrorEntry{{At: 2, Message: "new"}}
	s.Adopt(placeholders)
	var names []string
	for name, c := range s.Channels.All() {
		names = append(names, name)
		if name == "review" && len(c.Members) != 2 {
			t.Error("the placeholder took the place of the channel")
		}
	}
	if !slices.Equal(names, []string{"review", "other"}) || len(s.Errors) != 2 || s.Errors[1].Message != "new" {
		t.Errorf("%q %+v", names, s.Errors)
	}
	encode(t, s)
}
