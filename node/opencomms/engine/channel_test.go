package engine_test

import (
	"strings"
	"testing"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

func TestCreateChecksInOrder(t *testing.T) {
	w := newWorld(t)
	w.channel("taken", 1)
	r := engine.CreateRequest{Channel: "taken!", Member: &engine.NewMember{Role: "?"}}
	steps := []struct {
		code engine.Code
		fix  func()
	}{
		{engine.InvalidName, func() { r.Channel = "taken" }},
		{engine.SessionRequired, func() { r.Member.Session = "ses_x" }},
		{engine.ProjectRequired, func() { r.ProjectID = project }},
		{engine.WorktreeRequired, func() { r.Worktree = worktree }},
		{engine.RolePromptRequired, func() { r.Member.RolePrompt = "x" }},
		{engine.InvalidRole, func() { r.Member.Role = "X" }},
		{engine.ChannelExists, func() { r.Channel = "free" }},
	}
	for _, step := range steps {
		_, err := w.e.Create(w.s, r)
		w.refused(err, step.code)
		step.fix()
	}
	_, err := w.e.Create(w.s, r)
	w.must(err)
}

func TestJoinChecksInOrder(t *testing.T) {
	w := newWorld(t)
	ch := w.channel("review", 2)
	ch.MaxMembers = 2
	ch.Lifecycle = opencomms.LifecycleSaved
	r := engine.JoinRequest{Channel: "nowhere", ProjectID: "other", Worktree: "/other", Member: engine.NewMember{Session: "ses_a", Role: "-"}}
	steps := []struct {
		code engine.Code
		fix  func()
	}{
		{engine.InvalidRole, func() { r.Member.Role = "B" }},
		{engine.ChannelMissing, func() { r.Channel = "review" }},
		{engine.NotActive, func() { ch.Lifecycle = opencomms.LifecycleActive }},
		{engine.ProjectMismatch, func() { r.ProjectID = "cli-local-project" }},
		{engine.WorktreeMismatch, func() { r.Worktree = worktree }},
		{engine.TwoRoles, func() { r.Member.Role = "A" }},
		{engine.AlreadyMember, func() { r.Member.Session = "ses_c" }},
		{engine.ChannelFull, func() { ch.MaxMembers = 3 }},
		{engine.RoleTaken, func() { r.Member.Role = "C" }},
		{engine.RolePromptRequired, func() { r.Member.RolePrompt = "x" }},
	}
	for _, step := range steps {
		_, err := w.e.Join(w.s, r)
		w.refused(err, step.code)
		step.fix()
	}
	_, err := w.e.Join(w.s, r)
	w.must(err)
}

func TestANewChannelHasEveryDefault(t *testing.T) {
	w := newWorld(t)
	m := engine.NewMember{Session: "ses_a", Role: " Lead   Dev ", RolePrompt: "Lead."}
	created, err := w.e.Create(w.s, engine.CreateRequest{Channel: " API-Review ", ProjectID: project, Worktree: worktree, Member: &m})
	w.must(err)
	ch := w.get("api-review")
	if created != (engine.Created{ChannelID: ch.ID, Name: "api-review", Role: "Lead Dev", SessionID: "ses_a"}) || !strings.HasPrefix(ch.ID, "chn_") {
		t.Errorf("created %+v", created)
	}
	if ch.MaxMembers != 8 || ch.RateLimit != 20 || ch.MaxHops != 4 || ch.DeliveryCooldown != 1000 || ch.StaleAfter != 300_000 || ch.Rate != (opencomms.Rate{WindowStart: w.now}) || ch.CreatedAt != w.now || ch.Lifecycle != "active" || ch.Budgets != (opencomms.Budgets{}) {
		t.Errorf("channel %+v", ch)
	}
	got := ch.Members[0]
	if got.Host != "generic" || got.Surface != "cli" || got.Mode != "push" || got.JoinedAt != w.now ||
		*got.Policy != (opencomms.StalePolicy{Mode: "window", Window: 300_000}) ||
		*got.Endpoint != (opencomms.EndpointCapabilities{Push: true, Pull: true, QueueWhileBusy: true}) {
		t.Errorf("member %+v", got)
	}
	if text := encode(t, w.s); !strings.Contains(text, `"processed_correlations": []`) || !strings.Contains(text, `"stale_event_ms": 300000`) {
		t.Errorf("the file lacks a field:\n%s", text)
	}
}

func TestNumbersOfAChannelAreBroughtIntoTheirRange(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name                  string
		members, rate, hops   int
		runtime               int64
		messages              int
		wantMembers, wantRate int
		wantHops              int
		wantRuntime           int64
		wantMessages          int
	}{
		{"low", 1, -1, -5, 1, -1, 2, 1, 1, 60_000, 1},
		{"high", 99, 5000, 51, 1 << 60, 2_000_000, 32, 1000, 50, 2_592_000_000, 1_000_000},
		{"within", 3, 30, 7, 70_000, 10, 3, 30, 7, 70_000, 10},
	} {
		ch := w.channel(c.name, 1, func(r *engine.CreateRequest) {
			r.MaxMembers, r.RateLimit, r.MaxHops = c.members, c.rate, c.hops
			r.Budgets = opencomms.Budgets{MaxRuntime: c.runtime, MaxDelivered: c.messages}
		})
		if ch.MaxMembers != c.wantMembers || ch.RateLimit != c.wantRate || ch.MaxHops != c.wantHops || ch.Budgets != (opencomms.Budgets{MaxRuntime: c.wantRuntime, MaxDelivered: c.wantMessages}) {
			t.Errorf("%s: %d members, rate %d, %d hops, %+v", c.name, ch.MaxMembers, ch.RateLimit, ch.MaxHops, ch.Budgets)
		}
	}
}

func TestTheFirstMemberOfAnEmptyChannelGivesItItsIdentity(t *testing.T) {
	w := newWorld(t)
	_, err := w.e.Create(w.s, engine.CreateRequest{Channel: "a", ProjectID: "gui-local-project", Worktree: "/elsewhere"})
	w.must(err)
	_, err = w.e.Create(w.s, engine.CreateRequest{Channel: "b", ProjectID: "gui-local-project", Worktree: "/elsewhere"})
	w.must(err)
	w.must(join(w, "a", pull(0)))
	if ch := w.get("a"); ch.ProjectID != project || ch.Worktree != worktree {
		t.Errorf("a has %s in %s", ch.ProjectID, ch.Worktree)
	}
	_, err = w.e.Join(w.s, engine.JoinRequest{Channel: "b", ProjectID: "local-project", Worktree: worktree, Member: pull(0)})
	w.must(err)
	if ch := w.get("b"); ch.ProjectID != "gui-local-project" || ch.Worktree != worktree {
		t.Errorf("b has %s in %s", ch.ProjectID, ch.Worktree)
	}
	// A channel of any project takes one with a project of its own, and keeps its id.
	w.must(join(w, "b", pull(1)))
	if ch := w.get("b"); ch.ProjectID != "gui-local-project" || len(ch.Members) != 2 {
		t.Errorf("b has %s and %d members", ch.ProjectID, len(ch.Members))
	}
}

func TestAJoinTellsWhichArchiveTheChannelContinues(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 1).ParentID = id("chn_", 7)
	joined, err := w.e.Join(w.s, engine.JoinRequest{Channel: "REVIEW", ProjectID: project, Worktree: worktree, Member: pull(1)})
	w.must(err)
	if joined.ParentID == nil || *joined.ParentID != id("chn_", 7) || joined.Role != "B" || joined.ChannelID != w.get("review").ID {
		t.Errorf("joined %+v", joined)
	}
}

func TestMembersShareNothingWithWhoAskedForThem(t *testing.T) {
	w := newWorld(t)
	m := pull(0)
	m.Endpoint = &opencomms.EndpointCapabilities{Pull: true}
	_, err := w.e.Create(w.s, engine.CreateRequest{Channel: "review", ProjectID: project, Worktree: worktree, Member: &m})
	w.must(err)
	m.Policy.Mode, m.Endpoint.Push = "window", true
	if got := w.get("review").Members[0]; got.Policy.Mode != "none" || *got.Endpoint != (opencomms.EndpointCapabilities{Pull: true}) {
		t.Errorf("%+v, %+v", got.Policy, got.Endpoint)
	}
}
