package opencode_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
)

// cleaned runs Clean and returns what it told.
func cleaned(t *testing.T, a agent.Cleaner, keep ...string) ([]agent.Removed, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	var out []agent.Removed
	err := a.Clean(ctx, func(id string) bool { return slices.Contains(keep, id) }, func(r agent.Removed) { out = append(out, r) })
	return out, err
}

func TestCleanDeletesWhatTheMeshMade(t *testing.T) {
	f := newFake(t)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	second := t.TempDir()
	cfg := forFake(f, turn.Workspace.Dir)
	cfg.Workspaces = append(cfg.Workspaces, agent.Workspace{Name: "notes", Dir: second})
	a := start(t, cfg)
	awaitHealth(t, a, "healthy")
	bound := run(t, a, turn, newRecords()).Session
	made := time.UnixMilli(1796019878170)
	f.locked(func() {
		f.find(bound).Time.Created, f.find(bound).Time.Updated = made.UnixMilli(), made.UnixMilli()+1000
		// A human looked in afterwards; the last mesh result counts.
		f.say(bound, "msg_human", "thanks")
		f.step(fakePrompt{Session: bound, MessageID: "msg_human"}, "you are welcome", map[string]any{"finish": "stop", "time": completed})
		f.add(&fakeSession{ID: "ses_free", Dir: second, Title: "opencode-mesh laptop"})
		f.add(&fakeSession{ID: "ses_kept", Dir: second, Title: "opencode-mesh laptop"})
		f.add(&fakeSession{ID: "ses_busy", Dir: second, Title: "opencode-mesh ci"})
		f.busy["ses_busy"] = map[string]any{"type": "busy"}
		f.add(&fakeSession{ID: "ses_own", Dir: second, Title: "about opencode-mesh things"})
		f.add(&fakeSession{ID: "ses_elsewhere", Dir: "/elsewhere", Title: "opencode-mesh laptop"})
		p := fakePrompt{Session: "ses_free", MessageID: "msg_1"}
		f.say("ses_free", "msg_1", envelope("laptop-1-aaaa", "y"))
		f.step(p, strings.Repeat("é", 400), map[string]any{"finish": "stop", "time": completed})
	})
	got, err := cleaned(t, a, "ses_kept")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b agent.Removed) int { return strings.Compare(a.Session, b.Session) })
	want := []agent.Removed{
		{Session: bound, Title: "opencode-mesh alpha", Workspace: "main", CreatedAt: made, UpdatedAt: made.Add(time.Second), Summary: "well"},
		{Session: "ses_busy", Title: "opencode-mesh ci", Workspace: "notes", CreatedAt: time.UnixMilli(0), UpdatedAt: time.UnixMilli(0)},
		{Session: "ses_free", Title: "opencode-mesh laptop", Workspace: "notes", CreatedAt: time.UnixMilli(0), UpdatedAt: time.UnixMilli(0),
			Summary: strings.Repeat("é", 300)},
	}
	if !slices.Equal(got, want) {
		t.Errorf("removed %+v\nwant %+v", got, want)
	}
	var left []string
	for _, s := range f.sessions {
		left = append(left, s.ID)
	}
	if !slices.Equal(left, []string{"ses_kept", "ses_own", "ses_elsewhere"}) || !slices.Equal(f.aborts, []string{"ses_busy"}) {
		t.Errorf("left %q, aborted %q", left, f.aborts)
	}
}

func TestCleanGoesOnBehindAFullPage(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	f.locked(func() {
		for i := range 1100 {
			f.add(&fakeSession{ID: fmt.Sprintf("ses_m%d", i), Dir: dir, Title: "opencode-mesh laptop"})
		}
	})
	a := start(t, forFake(f, dir))
	awaitHealth(t, a, "healthy")
	if got, err := cleaned(t, a); err != nil || len(got) != 1100 || len(f.sessions) != 0 {
		t.Errorf("%d removed, %d left, %v", len(got), len(f.sessions), err)
	}
}

func TestCleanSaysWhatItCouldNotDelete(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	f.locked(func() {
		f.add(&fakeSession{ID: "ses_1", Dir: dir, Title: "opencode-mesh laptop"})
		f.add(&fakeSession{ID: "ses_2", Dir: dir, Title: "opencode-mesh laptop"})
		// Neither its messages nor itself.
		f.lose = func(path string) bool { return strings.HasPrefix(path, "/session/ses_2") }
	})
	a := start(t, forFake(f, dir))
	awaitHealth(t, a, "healthy")
	got, err := cleaned(t, a)
	if err == nil || !strings.Contains(err.Error(), "ses_2") || len(got) != 1 || got[0].Session != "ses_1" {
		t.Errorf("removed %+v, error %v", got, err)
	}
}
