package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// TestBindingsOnTheRealOpencode is one fleet for its cases; each case is a controller
// of its own and so has a session of its own.
func TestBindingsOnTheRealOpencode(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	alpha := f.Node("alpha", using(server))
	f.Ctl("watcher").Healthy("alpha")

	t.Run("what is bound is listed with its fill, and the fills are kept over time", func(t *testing.T) {
		ctl := f.In(t).Ctl("filler")
		first := do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:20000,100")
		do(t, ctl, api.StateDone, "alpha", "--", "two USAGE:130000,100")
		s := bound(t, ctl, "alpha")
		if s.Session == nil || *s.Session != *first.Session || s.Controller != "filler" || s.Target != "alpha" || s.Title != "opencode-mesh filler" {
			t.Errorf("bound %+v", s)
		}
		var totals []int64
		for _, f := range s.Fills {
			totals = append(totals, f.Total)
		}
		if !slices.Equal(totals, []int64{20100, 130100}) || s.CtxPercent == nil || *s.CtxPercent != 65 {
			t.Errorf("fills %v, ctx %v", totals, s.CtxPercent)
		}
		if s.Fills[0].At.After(s.Fills[1].At) || s.LastUsed.Before(s.CreatedAt) {
			t.Errorf("times %+v", s)
		}
		out := ctl.Run("session", "list")
		if out.Code != 0 || !has(*first.Session, "65%")(out.Stdout) {
			t.Errorf("%+v", out)
		}
		out = ctl.Run("session", "list", "alpha", "--json")
		var listed api.Session
		if err := json.Unmarshal([]byte(strings.TrimSpace(out.Stdout)), &listed); err != nil || listed.Session == nil || *listed.Session != *first.Session {
			t.Errorf("%v %+v", err, out)
		}
		if n := ctl.Online("alpha"); n.CtxPercent == nil || *n.CtxPercent != 65 {
			t.Errorf("nodes shows %v", n.CtxPercent)
		}
	})
	t.Run("reset drops the binding and leaves the session", func(t *testing.T) {
		ctl := f.In(t).Ctl("resetter")
		before := do(t, ctl, api.StateDone, "alpha", "--", "one")
		op, out := operate(t, ctl, "reset", "alpha")
		if out.Code != 0 || op.State != api.StateDone || op.Op != api.OpReset {
			t.Fatalf("%+v %+v", op, out)
		}
		s := bound(t, ctl, "alpha")
		if s.Session != nil || len(s.Former) != 1 || s.Former[0].Session != *before.Session || s.Former[0].Why != api.EndedReset {
			t.Errorf("bound %+v", s)
		}
		after := do(t, ctl, api.StateDone, "alpha", "--", "two")
		if *after.Session == *before.Session || !after.NewSession || !there(t, server, *before.Session) {
			t.Errorf("%+v after %+v", after, before)
		}
	})
	t.Run("--new archives what was bound", func(t *testing.T) {
		ctl := f.In(t).Ctl("renewer")
		before := do(t, ctl, api.StateDone, "alpha", "--", "one USAGE:7000,1")
		after := do(t, ctl, api.StateDone, "alpha", "--new", "--", "two")
		s := bound(t, ctl, "alpha")
		if *s.Session != *after.Session || len(s.Former) != 1 || s.Former[0].Session != *before.Session || s.Former[0].Why != api.EndedNew || s.Former[0].Tokens == nil || s.Former[0].Tokens.Total != 7001 {
			t.Errorf("bound %+v", s)
		}
	})
	t.Run("a session that is gone is replaced, and the task says so", func(t *testing.T) {
		ctl := f.In(t).Ctl("loser")
		before := do(t, ctl, api.StateDone, "alpha", "--", "one")
		deleteSession(t, server, *before.Session)
		after := do(t, ctl, api.StateDone, "alpha", "--", "two")
		if *after.Session == *before.Session || !after.NewSession || !slices.Contains(after.Flags, api.FlagSessionReplaced) {
			t.Errorf("%+v", after)
		}
		again := do(t, ctl, api.StateDone, "alpha", "--", "three")
		if *again.Session != *after.Session || slices.Contains(again.Flags, api.FlagSessionReplaced) {
			t.Errorf("%+v after %+v", again, after)
		}
		s := bound(t, ctl, "alpha")
		if *s.Session != *after.Session || len(s.Former) != 1 || s.Former[0].Session != *before.Session || s.Former[0].Why != api.EndedReplaced {
			t.Errorf("bound %+v", s)
		}
	})
	t.Run("concurrent dispatches of one pair enter one session in order", func(t *testing.T) {
		ctl := f.In(t).Ctl("crowd")
		ids := []string{detached(t, ctl, "alpha", "--", "GATE:crowd number 0")}
		asked(t, llm, has(ids[0], "number 0"))
		for _, text := range []string{"number 1", "number 2", "number 3", "number 4"} {
			ids = append(ids, detached(t, ctl, "alpha", "--", text))
		}
		llm.Open("crowd")
		session := ""
		for _, id := range ids {
			task := waited(t, ctl, id)
			if task.State != api.StateDone || session != "" && *task.Session != session {
				t.Errorf("%+v", task)
			}
			session = *task.Session
		}
		texts := said(t, server, session)
		if len(texts) != 2*len(ids) {
			t.Fatalf("%d messages in the session: %q", len(texts), texts)
		}
		for i, id := range ids {
			if !strings.HasPrefix(texts[2*i], "user: ") || !strings.Contains(texts[2*i], id) || !strings.HasPrefix(texts[2*i+1], "assistant: ") || !strings.Contains(texts[2*i+1], id) {
				t.Errorf("turn %d is not that of %s: %q %q", i, id, texts[2*i], texts[2*i+1])
			}
		}
	})
	t.Run("a controller sees and changes its own bindings only", func(t *testing.T) {
		ctl, other := f.In(t).Ctl("owner"), f.In(t).Ctl("stranger")
		mine := do(t, ctl, api.StateDone, "alpha", "--", "mine")
		if status, answer := other.API("GET", "/v1/bindings/owner/alpha?workspace=main", nil); status != 404 {
			t.Errorf("a stranger sees %d %s", status, answer)
		}
		if status, answer := other.API("POST", "/v1/bindings/owner/alpha/reset", api.Operate{ID: "stranger-op-1"}); status != 404 {
			t.Errorf("a stranger resets: %d %s", status, answer)
		}
		if out := other.Run("session", "list"); strings.Contains(out.Stdout, *mine.Session) {
			t.Errorf("a stranger lists %+v", out)
		}
		if got := sessionOf(t, ctl, "alpha"); got != *mine.Session {
			t.Errorf("bound %s, was %s", got, *mine.Session)
		}
		boss := f.In(t).Ctl("boss", "--operator")
		var s api.Session
		boss.Get("/v1/bindings/owner/alpha?workspace=main", &s)
		if s.Session == nil || *s.Session != *mine.Session {
			t.Errorf("an operator sees %+v", s)
		}
	})
	t.Run("clear asks first, deletes the session and drops the binding", func(t *testing.T) {
		ctl := f.In(t).Ctl("cleaner")
		task := do(t, ctl, api.StateDone, "alpha", "--", "one")
		if out := ctl.RunStdin("no\n", "session", "clear", "alpha"); out.Code == 0 || !strings.Contains(out.Stderr, "--yes") {
			t.Errorf("without a terminal and without --yes: %+v", out)
		}
		if !there(t, server, *task.Session) || sessionOf(t, ctl, "alpha") != *task.Session {
			t.Fatal("it was not asked for and done all the same")
		}
		op, out := operate(t, ctl, "clear", "alpha", "--yes")
		if out.Code != 0 || op.State != api.StateDone || op.Op != api.OpClear {
			t.Fatalf("%+v %+v", op, out)
		}
		if there(t, server, *task.Session) {
			t.Error("the session is still there")
		}
		s := bound(t, ctl, "alpha")
		if s.Session != nil || len(s.Former) != 1 || s.Former[0].Why != api.EndedClear {
			t.Errorf("bound %+v", s)
		}
		next := do(t, ctl, api.StateDone, "alpha", "--", "two")
		if *next.Session == *task.Session || slices.Contains(next.Flags, api.FlagSessionReplaced) {
			t.Errorf("%+v", next)
		}
		if out := f.In(t).Ctl("nobody").Run("session", "clear", "alpha", "--yes"); out.Code == 0 || !strings.Contains(out.Stderr, "session") {
			t.Errorf("nothing to clear: %+v", out)
		}
	})
	t.Run("a clear waits for what was dispatched before it, and holds up what comes after", func(t *testing.T) {
		ctl := f.In(t).Ctl("patient")
		first := do(t, ctl, api.StateDone, "alpha", "--", "one")
		held := detached(t, ctl, "alpha", "--", "GATE:patient")
		asked(t, llm, has(held))
		status, answer := ctl.API("POST", "/v1/bindings/-/alpha/clear", api.Operate{ID: "patient-clear-1"})
		if status != 201 {
			t.Fatalf("%d %s", status, answer)
		}
		after := detached(t, ctl, "alpha", "--", "after")
		if !there(t, server, *first.Session) {
			t.Error("the session was deleted under a running task")
		}
		llm.Open("patient")
		if task := waited(t, ctl, held); task.State != api.StateDone || *task.Session != *first.Session {
			t.Errorf("%+v", task)
		}
		if op := waited(t, ctl, "patient-clear-1"); op.State != api.StateDone {
			t.Errorf("%+v", op)
		}
		if task := waited(t, ctl, after); task.State != api.StateDone || *task.Session == *first.Session {
			t.Errorf("%+v", task)
		}
	})
	t.Run("an operation on a binding that never was is refused in words", func(t *testing.T) {
		ctl := f.In(t).Ctl("newcomer")
		for _, op := range []string{"compact", "clear"} {
			status, answer := ctl.API("POST", "/v1/bindings/-/alpha/"+op, api.Operate{ID: "newcomer-" + op})
			if status != 409 && status != 404 || !strings.Contains(string(answer), "session") {
				t.Errorf("%s: %d %s", op, status, answer)
			}
		}
	})
	t.Run("the stopped node deletes nothing", func(t *testing.T) {
		before := sessionsIn(t, server, alpha.Work)
		if code := alpha.Stop(); code != 0 {
			t.Errorf("exit %d", code)
		}
		if after := sessionsIn(t, server, alpha.Work); len(before) == 0 || len(after) != len(before) {
			t.Errorf("%d sessions before, %d after", len(before), len(after))
		}
	})
}

func TestInboundCleanUpDeletesTheMeshesSessionsAtTheStopAndKeepsALineOfEach(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	alpha := f.Node("alpha", using(server, "--inbound-cleanup"))
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	done := do(t, ctl, api.StateDone, "alpha", "--", "one")
	waiting := do(t, f.Ctl("laptop"), api.StateQuestion, "alpha", "--", "ASK")
	var own struct {
		ID string `json:"id"`
	}
	server.Call(t, "POST", "/session?directory="+alpha.Work, map[string]string{"title": "my opencode-mesh notes"}, &own)
	if code := alpha.Stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if there(t, server, *done.Session) {
		t.Error("a session of the mesh is still there")
	}
	if !there(t, server, own.ID) {
		t.Error("the owner's session is gone")
	}
	if !there(t, server, *waiting.Session) {
		t.Error("the session of a question that waits is gone")
	}
	raw, err := os.ReadFile(filepath.Join(alpha.Dir, "cleanup.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	var line struct{ Session, Title, Workspace, Summary string }
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil || len(lines) != 1 {
		t.Fatalf("%v: %s", err, raw)
	}
	if line.Session != *done.Session || line.Title != "opencode-mesh desk" || line.Workspace != "main" || line.Summary != "stub ok" {
		t.Errorf("%+v", line)
	}
	if fi, err := os.Stat(filepath.Join(alpha.Dir, "cleanup.jsonl")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	// The next dispatch finds the session gone and goes on in a new one.
	alpha.Start()
	ctl.Healthy("alpha")
	if task := do(t, ctl, api.StateDone, "alpha", "--", "two"); !slices.Contains(task.Flags, api.FlagSessionReplaced) {
		t.Errorf("%+v", task)
	}
}
