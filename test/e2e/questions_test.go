package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// outside makes a file that opencode asks leave for: its directory is no workspace.
func outside(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret.txt")
	if err := os.WriteFile(path, []byte("the word is plum"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestQuestionsOnTheRealOpencode lets three nodes with different permission policies
// work with one opencode, each in its own workspace.
func TestQuestionsOnTheRealOpencode(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	f.Node("asks", using(server))
	f.Node("allows", using(server, "--permissions", "allow", "--permission", "external_directory:*/keep/*=deny"))
	f.Node("denies", using(server, "--permissions", "deny"))
	ctl := f.Ctl("desk")
	for _, name := range []string{"asks", "allows", "denies"} {
		ctl.Healthy(name)
	}
	// The hub lets nothing expire in its first minute, so these two wait while the
	// others run.
	t.Cleanup(llm.Direct(func(user string) bool { return strings.Contains(user, "assum") && !strings.Contains(user, "ASK") },
		`REPLY:[opencode-mesh-result v1]\ntask: {task}\nstatus: done\nsummary: assumed main\nartifacts: none\n[/opencode-mesh-result]`))
	silent, still := f.Ctl("silent"), f.Ctl("still")
	unanswered := detached(t, silent, "asks", "--question-timeout", "1s", "--", "ASK")
	ungranted := detached(t, still, "asks", "--question-timeout", "1s", "--auto-answer", "first", "--", "TOOL:cat "+outside(t))

	answer := func(t *testing.T, id string, text ...string) {
		t.Helper()
		if out := ctl.Run(append([]string{"task", "answer", id}, text...)...); out.Code != 0 {
			t.Fatalf("answer %q: %+v", text, out)
		}
	}

	t.Run("a question is answered through the API, once", func(t *testing.T) {
		ctl := ctl.In(t)
		task := do(t, ctl, api.StateQuestion, "asks", "--", "ASK")
		path := "/v1/tasks/" + task.Task + "/answer"
		if status, body := ctl.API("POST", path, api.Answer{Question: task.Question.ID, Text: "develop"}); status != 200 && status != 202 {
			t.Fatalf("%d %s", status, body)
		}
		if status, body := ctl.API("POST", path, api.Answer{Question: task.Question.ID, Text: "main"}); status != 409 {
			t.Errorf("a second answer: %d %s", status, body)
		}
		after := waited(t, ctl, task.Task)
		if after.State != api.StateDone || *after.Session != *task.Session || after.Turn != 2 {
			t.Errorf("%+v", after)
		}
		if texts := said(t, server, *task.Session); !strings.Contains(texts[2], "develop") {
			t.Errorf("the agent read %q", texts[2])
		}
	})
	t.Run("a number picks an option", func(t *testing.T) {
		ctl := ctl.In(t)
		task := do(t, ctl, api.StateQuestion, "asks", "--new", "--", "ASK")
		answer(t, task.Task, "2")
		waited(t, ctl, task.Task)
		if texts := said(t, server, *task.Session); !strings.Contains(texts[2], "develop") {
			t.Errorf("the agent read %q", texts[2])
		}
	})
	t.Run("a policy answers", func(t *testing.T) {
		ctl := ctl.In(t)
		for policy, want := range map[string]string{"first": "main", "^dev": "develop"} {
			task := do(t, ctl, api.StateDone, "asks", "--new", "--auto-answer", policy, "--", "ASK")
			if texts := said(t, server, *task.Session); task.Turn != 2 || !strings.Contains(texts[2], want) {
				t.Errorf("%s: turn %d, the agent read %q", policy, task.Turn, texts)
			}
			if out := ctl.Run("task", "show", task.Task); !strings.Contains(out.Stdout, "policy") {
				t.Errorf("%s: nobody sees who answered: %+v", policy, out)
			}
		}
		for _, policy := range []string{"none", "release"} {
			task := do(t, ctl, api.StateQuestion, "asks", "--new", "--auto-answer", policy, "--", "ASK")
			answer(t, task.Task, "1")
			waited(t, ctl, task.Task)
		}
		if tasks, out := ctl.Dispatch("asks", "--auto-answer", "(", "--", "ASK"); out.Code != 2 || len(tasks) != 0 {
			t.Errorf("a broken expression: %+v", out)
		}
	})
	t.Run("the agent's own question waits in the middle of the turn", func(t *testing.T) {
		ctl := ctl.In(t)
		args, err := json.Marshal(map[string]any{"questions": []any{map[string]any{"question": "Which branch?", "header": "Branch",
			"options": []any{map[string]string{"label": "main", "description": "the usual"}, map[string]string{"label": "next", "description": "the other"}}}}})
		if err != nil {
			t.Fatal(err)
		}
		task := do(t, ctl, api.StateQuestion, "asks", "--new", "--", "TOOLNAME:question TOOLARGS:"+string(args))
		if task.Question.Kind != api.QuestionText || !strings.Contains(task.Question.Text, "Which branch?") || !slices.Equal(task.Question.Options, []string{"main", "next"}) {
			t.Errorf("%+v", task.Question)
		}
		answer(t, task.Task, "2")
		after := waited(t, ctl, task.Task)
		if after.State != api.StateDone || after.Turn != 1 || !strings.Contains(shownTask(t, ctl, task.Task).Reply, "next") {
			t.Errorf("%+v", after)
		}
	})

	permission := func(t *testing.T, target, path string, more ...string) api.Task {
		t.Helper()
		args := append([]string{target, "--new"}, more...)
		task := do(t, ctl, api.StateQuestion, append(args, "--", "TOOL:cat "+path)...)
		q := task.Question
		if q.Kind != api.QuestionPermission || !slices.Equal(q.Options, []string{api.PermitOnce, api.PermitAlways, api.PermitReject}) || !strings.Contains(q.Text, "external_directory") {
			t.Fatalf("%+v", q)
		}
		return task
	}
	granted := func(t *testing.T, task api.Task) {
		t.Helper()
		if full := shownTask(t, ctl, task.Task); task.State != api.StateDone || !strings.Contains(full.Reply, "the word is plum") || len(task.Flags) > 0 || task.Turn != 1 {
			t.Errorf("%+v %q", task, full.Reply)
		}
	}
	t.Run("leave that is granted once is asked for again, always is not", func(t *testing.T) {
		ctl := ctl.In(t)
		path := outside(t)
		for _, leave := range []string{"once", "2"} {
			task := permission(t, "asks", path)
			if out := ctl.Run("task", "answer", task.Task, "perhaps"); out.Code == 0 || !has("once", "always", "reject")(out.Stderr) {
				t.Errorf("an answer that is none of the options: %+v", out)
			}
			answer(t, task.Task, leave)
			granted(t, waited(t, ctl, task.Task))
		}
		granted(t, do(t, ctl, api.StateDone, "asks", "--", "TOOL:cat "+path))
	})
	t.Run("leave that is refused is flagged, with a message the agent goes on", func(t *testing.T) {
		ctl := ctl.In(t)
		path := outside(t)
		for _, words := range [][]string{{"3"}, {"reject", "read", "the", "README"}} {
			task := permission(t, "asks", path)
			answer(t, task.Task, words...)
			after := waited(t, ctl, task.Task)
			full := shownTask(t, ctl, task.Task)
			if !after.State.Settled() || !slices.Contains(after.Flags, api.FlagPermissionRejected) || strings.Contains(full.Reply, "plum") {
				t.Errorf("%q: %+v", words, after)
			}
			if len(words) > 1 && (after.State != api.StateDone || !strings.Contains(full.Reply, "read the README")) {
				t.Errorf("%q: %+v %q", words, after, full.Reply)
			}
		}
	})
	t.Run("the node's policy decides without a question", func(t *testing.T) {
		ctl := ctl.In(t)
		path := outside(t)
		granted(t, do(t, ctl, api.StateDone, "allows", "--", "TOOL:cat "+path))
		keep := filepath.Join(filepath.Dir(path), "keep", "secret.txt")
		if err := os.MkdirAll(filepath.Dir(keep), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(keep, []byte("the word is plum"), 0o600); err != nil {
			t.Fatal(err)
		}
		for target, path := range map[string]string{"denies": path, "allows": keep} {
			tasks, out := ctl.Dispatch(target, "--", "TOOL:cat "+path)
			task := one(t, tasks, out)
			if full := shownTask(t, ctl, task.Task); !task.State.Settled() || !slices.Contains(task.Flags, api.FlagPermissionRejected) || strings.Contains(full.Reply, "plum") {
				t.Errorf("%s: %+v %q", target, task, full.Reply)
			}
		}
	})
	t.Run("an unanswered question ends with an assumption that is shown", func(t *testing.T) {
		ctl := silent.In(t)
		var task api.Task
		eventually(t, "the end", func() bool { task = shownTask(t, ctl, unanswered); return task.State.Settled() })
		if task.State != api.StateDone || task.Summary != "assumed main" || !slices.Contains(task.Flags, api.FlagAssumed) || task.Turn != 2 {
			t.Errorf("%+v", task)
		}
		if out := ctl.Run("task", "show", unanswered); !has("assumed main", api.FlagAssumed)(out.Stdout) {
			t.Errorf("%+v", out)
		}
		asked := 0
		for _, text := range said(t, server, *task.Session) {
			if strings.HasPrefix(text, "user: ") {
				asked++
			}
		}
		if asked != 2 {
			t.Errorf("the agent was told %d times", asked)
		}
	})
	t.Run("leave that nobody grants in time is refused", func(t *testing.T) {
		ctl := still.In(t)
		var task api.Task
		eventually(t, "the end", func() bool { task = shownTask(t, ctl, ungranted); return task.State.Settled() })
		if !slices.Contains(task.Flags, api.FlagPermissionRejected) || strings.Contains(task.Reply, "plum") {
			t.Errorf("%+v", task)
		}
	})
	t.Run("a permission that waits survives the hub", func(t *testing.T) {
		ctl := ctl.In(t)
		task := permission(t, "asks", outside(t))
		f.Hub.Kill()
		f.Hub.Start()
		ctl.Healthy("asks")
		again := shownTask(t, ctl, task.Task)
		if again.State != api.StateQuestion || again.Question.ID != task.Question.ID {
			t.Fatalf("%+v", again)
		}
		answer(t, task.Task, "once")
		granted(t, waited(t, ctl, task.Task))
	})
	t.Run("a cancel ends a turn that waits for leave", func(t *testing.T) {
		ctl := ctl.In(t)
		task := permission(t, "asks", outside(t))
		if out := ctl.Run("task", "cancel", task.Task); out.Code != 0 {
			t.Fatalf("%+v", out)
		}
		if after := waited(t, ctl, task.Task); after.State != api.StateCanceled || after.Question != nil {
			t.Errorf("%+v", after)
		}
		if status, body := ctl.API("POST", "/v1/tasks/"+task.Task+"/answer", api.Answer{Text: "once"}); status != 409 {
			t.Errorf("an answer after it: %d %s", status, body)
		}
		do(t, ctl, api.StateDone, "asks", "--", "next")
	})
	t.Run("nothing is left that waits in opencode", func(t *testing.T) {
		for _, name := range []string{"asks", "allows", "denies"} {
			var pending []json.RawMessage
			server.Call(t, "GET", fmt.Sprintf("/permission?directory=%s", filepath.Join(f.Dir, name+"-work")), nil, &pending)
			if len(pending) > 1 { // opencode keeps listing the one whose turn was aborted
				t.Errorf("%s: %s", name, pending)
			}
		}
	})
}
