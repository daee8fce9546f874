package opencode_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
)

// visited is an agent with a fake server that has a session nobody of the mesh made.
func visited(t *testing.T, change ...func(*opencode.Config)) (*fakeServer, *opencode.Agent, *fakeSession) {
	t.Helper()
	f := newFake(t)
	dir := t.TempDir()
	var s *fakeSession
	f.locked(func() { s = f.add(&fakeSession{Dir: dir, Title: "of a person"}) })
	cfg := forFake(f, dir)
	for _, fn := range change {
		fn(&cfg)
	}
	return f, start(t, cfg), s
}

func enter(t *testing.T, a *opencode.Agent, session string) agent.Visit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	v, err := a.Visit(ctx, session)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(cancel)
	return v
}

func TestOnlyAServersOwnSessionsAreHosted(t *testing.T) {
	f, a, s := visited(t)
	epoch := time.UnixMilli(0)
	var sub *fakeSession
	f.locked(func() { sub = f.add(&fakeSession{Dir: s.Dir, Parent: s.ID}) })
	for id, want := range map[string]agent.Hosted{
		s.ID:   {Session: s.ID, Dir: s.Dir, Title: s.Title, Status: agent.StatusIdle, Created: epoch, Updated: epoch},
		sub.ID: {Session: sub.ID, Dir: s.Dir, Parent: s.ID, Status: agent.StatusIdle, Created: epoch, Updated: epoch},
	} {
		if got, err := a.Hosted(t.Context(), id); err != nil || got != want {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
	}
	// The server answers 500 to an id of another form.
	for _, id := range []string{"ses_unknown", "builder", "ses_1/../x", ""} {
		if got, err := a.Hosted(t.Context(), id); !errors.Is(err, agent.ErrNoSession) {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
		if _, err := a.Visit(t.Context(), id); !errors.Is(err, agent.ErrNoSession) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestAVisitPromptsAsTheSessionIsPromptedAndUnderAnIdOfItsOwn(t *testing.T) {
	f, a, s := visited(t)
	f.locked(func() {
		f.say(s.ID, "msg_person", "plan it")
		m := s.messages[0]
		m.Info["agent"], m.Info["model"] = "plan", map[string]any{"providerID": "stub", "modelID": "two"}
	})
	v := enter(t, a, s.ID)
	defer v.Leave()
	if stored, err := v.Stored(t.Context(), agent.Prompt{Key: "k"}); err != nil || stored {
		t.Fatalf("stored before: %v, %v", stored, err)
	}
	for range 2 { // the second time as after a crash
		if err := v.Prompt(t.Context(), agent.Prompt{Key: "k", System: "You are the Builder.", Text: "mail"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Prompt(t.Context(), agent.Prompt{Key: "other", Text: "mail"}); err != nil {
		t.Fatal(err)
	}
	if stored, err := v.Stored(t.Context(), agent.Prompt{Key: "k"}); err != nil || !stored {
		t.Errorf("stored: %v, %v", stored, err)
	}
	if err := v.Finish(t.Context(), agent.Prompt{Key: "k"}, false); err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	one, same, other := f.prompts[0], f.prompts[1], f.prompts[2]
	if one.Agent != "plan" || one.Model.ID != "two" || one.System != "You are the Builder." || one.Parts[0].Text != "mail" {
		t.Errorf("%+v", one)
	}
	if one.MessageID != same.MessageID || one.Parts[0].ID != same.Parts[0].ID || one.MessageID == other.MessageID ||
		!strings.HasPrefix(one.MessageID, "msg_mesh_") || len(one.MessageID) > 40 {
		t.Errorf("ids %s, %s, %s", one.MessageID, same.MessageID, other.MessageID)
	}
}

func TestAVisitToANewSessionTakesTheNodesModelAndAgent(t *testing.T) {
	f, a, s := visited(t, func(c *opencode.Config) { c.Model, c.AgentName = "stub/two", "general" })
	v := enter(t, a, s.ID)
	defer v.Leave()
	if err := v.Prompt(t.Context(), agent.Prompt{Key: "k", Text: "mail"}); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.prompts[0]; p.Agent != "general" || p.Model.ID != "two" || p.System != "" {
		t.Errorf("%+v", p)
	}
}

func TestAPromptThatTheServerTookButDidNotStoreIsNotAccepted(t *testing.T) {
	f, a, s := visited(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) {
		if len(f.prompts) == 1 {
			f.event(p.Session, "session.error", map[string]any{"error": map[string]any{"name": "UnknownError", "data": map[string]any{"message": "no such agent"}}})
		}
	}
	v := enter(t, a, s.ID)
	defer v.Leave()
	for _, want := range []string{"no such agent", "did not store it"} {
		if err := v.Prompt(t.Context(), agent.Prompt{Key: "k", Text: "mail"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if stored, err := v.Stored(t.Context(), agent.Prompt{Key: "k"}); err != nil || stored {
		t.Errorf("stored %v, %v", stored, err)
	}
}

func TestWhatAPushedTurnAsksIsDecidedByPolicyAndNobodyIsWaitedFor(t *testing.T) {
	allow := func(c *opencode.Config) { c.Permissions = opencode.PermissionAllow }
	deny := func(c *opencode.Config) { c.Permissions = opencode.PermissionDeny }
	for name, c := range map[string]struct {
		change func(*opencode.Config)
		kind   string
		ask    map[string]any
		reply  string
	}{
		"ask":      {func(*opencode.Config) {}, "permission", permission("per_1", "bash", "rm x"), `permission per_1: {"message":"Nobody is here`},
		"allow":    {allow, "permission", permission("per_1", "bash", "ls"), `permission per_1: {"reply":"once"}`},
		"deny":     {deny, "permission", permission("per_1", "bash", "ls"), `permission per_1: {"message":"This machine's policy denies it.`},
		"question": {func(*opencode.Config) {}, "question", map[string]any{"id": "que_1", "questions": []any{map[string]any{"question": "Which?"}}}, `question que_1: {"answers":[["Nobody is here`},
	} {
		t.Run(name, func(t *testing.T) {
			f, a, s := visited(t, c.change)
			f.onPrompt = askings(c.kind, c.ask)
			// Left over from an earlier turn; it is not answered.
			f.locked(func() {
				old := permission("per_0", "bash", "old")
				old["sessionID"] = s.ID
				f.asks["permission"] = append(f.asks["permission"], old)
			})
			v := enter(t, a, s.ID)
			defer v.Leave()
			if err := v.Prompt(t.Context(), agent.Prompt{Key: "k", Text: "mail"}); err != nil {
				t.Fatal(err)
			}
			f.await("the ask", func() bool { return len(f.asks[c.kind]) > 0 })
			done := make(chan error, 1)
			go func() { done <- v.Finish(t.Context(), agent.Prompt{Key: "k"}, false) }()
			f.await("an answer", func() bool { return len(f.replies) > 0 })
			f.locked(func() { // the turn ends, whatever the leftover does to the fake's
				if f.busy[s.ID] != nil {
					f.finish(f.prompts[0], "went on")
				}
			})
			if err := <-done; err != nil {
				t.Error(err)
			}
			wantReplies(t, f, c.reply)
		})
	}
}

func TestAMessageThatNothingAnswersIsRunAgainAndThenGivenUp(t *testing.T) {
	for name, answers := range map[string]int{"answered at last": 2, "never": 9} {
		t.Run(name, func(t *testing.T) {
			f, a, s := visited(t)
			f.onPrompt = func(f *fakeServer, p fakePrompt) {
				if f.store(p); len(f.prompts) > answers {
					f.finish(p, "well")
				}
			}
			v := enter(t, a, s.ID)
			defer v.Leave()
			if err := v.Prompt(t.Context(), agent.Prompt{Key: "k", Text: "mail"}); err != nil {
				t.Fatal(err)
			}
			err := v.Finish(t.Context(), agent.Prompt{Key: "k"}, false)
			if never := answers == 9; errors.Is(err, agent.ErrNotRun) != never || err != nil && !never {
				t.Errorf("got %v", err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.prompts) != 3 || len(f.prompts[1].Parts) != 0 || f.prompts[1].MessageID != f.prompts[0].MessageID {
				t.Errorf("prompts %+v", f.prompts)
			}
		})
	}
}

func TestATurnThatTheEndOfTheServerCutOffIsRunAgain(t *testing.T) {
	aborted := map[string]any{"time": completed, "error": map[string]any{"name": "MessageAbortedError", "data": map[string]any{"message": "Aborted"}}}
	for name, c := range map[string]struct {
		answer  map[string]any
		resumed bool
		prompts int
	}{
		"killed":                       {map[string]any{}, true, 2},
		"killed, seen by this process": {map[string]any{}, false, 2},
		// The server at a URL outlives the node: somebody wanted that.
		"aborted by somebody": {aborted, true, 1},
		"failed":              {map[string]any{"time": completed, "error": map[string]any{"name": "APIError"}}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f, a, s := visited(t)
			f.onPrompt = func(f *fakeServer, p fakePrompt) {
				if f.store(p); len(f.prompts) == 1 {
					f.step(p, "half", c.answer)
				} else {
					f.finish(p, "whole")
				}
			}
			v := enter(t, a, s.ID)
			defer v.Leave()
			if err := v.Prompt(t.Context(), agent.Prompt{Key: "k", Text: "mail"}); err != nil {
				t.Fatal(err)
			}
			if err := v.Finish(t.Context(), agent.Prompt{Key: "k"}, c.resumed); err != nil {
				t.Error(err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.prompts) != c.prompts {
				t.Errorf("%d prompts", len(f.prompts))
			}
		})
	}
}

func TestAVisitWaitsForWhatRunsInTheSession(t *testing.T) {
	f, a, s := visited(t)
	f.locked(func() { f.busy[s.ID] = map[string]any{"type": "busy"} })
	v := enter(t, a, s.ID)
	defer v.Leave()
	idle := make(chan error, 1)
	go func() { idle <- v.Idle(t.Context()) }()
	f.awaitPolls(3)
	select {
	case err := <-idle:
		t.Fatalf("idle while a turn runs: %v", err)
	default:
	}
	f.locked(func() { f.idle(s.ID) })
	if err := <-idle; err != nil {
		t.Error(err)
	}
}

func TestATurnAndAVisitAreNeverInASessionAtOnce(t *testing.T) {
	f, a, s := visited(t)
	f.onPrompt = func(f *fakeServer, p fakePrompt) { f.work(p) }
	v := enter(t, a, s.ID)
	turn := newTurn(t, "alpha-1-aaaa", "x")
	turn.Workspace.Dir, turn.Session.ID = s.Dir, s.ID
	host := newRecords()
	done, _ := begin(t, a, turn, host)
	host.awaitNote(t, "the session is in use")
	f.mu.Lock()
	if n := len(f.prompts); n != 0 {
		t.Errorf("%d prompts during a visit", n)
	}
	f.mu.Unlock()
	v.Leave()
	f.await("the turn's prompt", func() bool { return len(f.prompts) == 1 })

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Visit(ctx, s.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a visit during a turn: %v", err)
	}
	f.locked(func() { f.finish(f.prompts[0], resultBlock(f.prompts[0], "done", "well")) })
	if out := settle(t, done); out.State != api.StateDone {
		t.Errorf("%+v", out)
	}
	enter(t, a, s.ID).Leave()
}

func TestPluginsAreFoundWhereverOpencodeLoadsThemFrom(t *testing.T) {
	names := []string{"opencomms", "opencode-comms"}
	for name, c := range map[string]struct {
		config []any  // the plugin list
		file   string // below the root
		found  string // "" is none
	}{
		"none":                        {},
		"another":                     {config: []any{"some-plugin@1.2.0"}, file: "work/tree/.opencode/plugin/other.ts"},
		"a package":                   {config: []any{"other", "@cl-baf/OpenComms@1.5.0"}, found: "OpenComms"},
		"a package with options":      {config: []any{[]any{"opencode-comms", map[string]any{"x": 1}}}, found: "opencode-comms"},
		"a file of the configuration": {config: []any{"file:///opt/OpenComms/dist/plugin.js"}, found: "OpenComms/dist"},
		"a file of the project":       {file: "work/tree/.opencode/plugin/opencomms.ts", found: "plugin/opencomms.ts"},
		"the other name of it":        {file: "work/tree/.opencode/plugins/my-opencode-comms.js", found: "my-opencode-comms.js"},
		"above in the worktree":       {file: "work/.opencode/plugin/opencomms.js", found: "work/.opencode"},
		"above the worktree":          {file: ".opencode/plugin/opencomms.js"},
		"the user's":                  {file: "config/plugins/opencomms.js", found: "config/plugins"},
	} {
		t.Run(name, func(t *testing.T) {
			// The project itself is called as the plugin is.
			root := filepath.Join(t.TempDir(), "opencomms-demo")
			dir := filepath.Join(root, "work", "tree")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			f, a, _ := visited(t)
			f.locked(func() {
				f.configDir, f.worktree = filepath.Join(root, "config"), filepath.Join(root, "work")
				f.config["plugin"] = append([]any{"file://" + dir + "/tools/mine.js"}, c.config...)
			})
			if c.file != "" {
				write(t, filepath.Join(root, c.file), "export {}")
			}
			got, err := a.Plugin(t.Context(), dir, names)
			if err != nil || (got == "") != (c.found == "") || !strings.Contains(got, c.found) {
				t.Errorf("found %q, %v; want %q", got, err, c.found)
			}
		})
	}
}
