package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

func TestDispatchPrintsTheResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	res := w.Want(0, []string{"dispatch", "alpha", "--", "do", "all", "tests", "pass"})
	wantText(t, res.Out, "alpha  done  ", "  ctx 65%  laptop-", "\n  all tests pass\n", "artifacts: out/report.html")
	if res.Err != "" {
		t.Errorf("stderr carries %q", res.Err)
	}
	if strings.Contains(res.Out, "\x1b") {
		t.Errorf("escapes without a terminal: %q", res.Out)
	}
}

func TestExitCodesOfADispatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha", "beta")
	for _, c := range []struct {
		text string
		code int
		says string
	}{
		{"do it", cli.ExitOK, "done"},
		{"fail for a reason", cli.ExitNotDone, "for a reason"},
		{"partial half of it", cli.ExitNotDone, "half of it"},
		{"break", cli.ExitNotDone, "failed"},
		{"ask", cli.ExitQuestion, "1) staging"},
	} {
		wantText(t, w.Want(c.code, []string{"dispatch", "alpha", "--", c.text}).Out, c.says)
	}
	t.Run("5 before 1, 4 before 5", func(t *testing.T) {
		failed := w.dispatched("alpha", "fail")
		asks := w.dispatched("beta", "ask")
		w.hub.AwaitTask(asks, api.StateQuestion)
		w.Want(cli.ExitQuestion, []string{"task", "wait", failed, asks})
		hangs := w.dispatched("beta", "hang")
		res := w.Want(cli.ExitWaiting, []string{"task", "wait", failed, asks, hangs, "--timeout", "300ms"})
		wantText(t, res.Err, "still running: "+hangs+"\n", "meshctl task wait "+hangs)
		wantText(t, res.Out, "failed", "question", "running") // every row with its current state
	})
	t.Run("3 before 4", func(t *testing.T) {
		hangs := w.dispatched("alpha", "hang")
		r := w.Start([]string{"task", "wait", hangs, "--timeout", "25s"})
		// The stream must be there before its owner is revoked.
		w.hub.AwaitTask(hangs, api.StateRunning)
		if err := w.hub.Operator.Revoke(t.Context(), "laptop"); err != nil {
			t.Fatal(err)
		}
		if res := r.Wait(); res.Code != cli.ExitNoAccess {
			t.Errorf("exit code %d: %s", res.Code, res.Err)
		}
	})
}

// contract lists the keys of a task in cli.md.
var contract = []string{"task", "controller", "target", "state", "summary", "artifacts", "question", "session", "new_session", "tokens",
	"ctx_percent", "created_at", "started_at", "ended_at", "duration_ms", "attempt", "flags", "error"}

func wantKeys(t *testing.T, got map[string]any, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if _, ok := got[key]; !ok {
			t.Errorf("key %q is missing in %v", key, slices.Sorted(maps.Keys(got)))
		}
	}
}

func TestJSONOfATaskIsTheContracts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	res := w.Want(0, []string{"dispatch", "alpha", "--json", "--", "do well"})
	got := jsonLines(t, res.Out)
	if len(got) != 1 {
		t.Fatalf("%d lines: %s", len(got), res.Out)
	}
	task := got[0]
	wantKeys(t, task, contract...)
	tokens, _ := task["tokens"].(map[string]any)
	for key, want := range map[string]any{
		"controller": "laptop", "target": "alpha", "state": "done", "summary": "well", "question": nil, "session": "ses_1",
		"new_session": true, "ctx_percent": 65.0, "attempt": 1.0, "error": nil,
	} {
		if task[key] != want {
			t.Errorf("%s is %v, want %v", key, task[key], want)
		}
	}
	if a, ok := task["artifacts"].([]any); !ok || len(a) != 1 || a[0] != "out/report.html" || tokens["total"] != 130000.0 || tokens["limit"] != 200000.0 {
		t.Errorf("artifacts %v, tokens %v", task["artifacts"], tokens)
	}
	if ms, ok := task["duration_ms"].(float64); !ok || ms < 1 {
		t.Errorf("duration_ms is %v", task["duration_ms"])
	}
	if f, ok := task["flags"].([]any); !ok || len(f) != 0 {
		t.Errorf("flags are %v, not an empty list", task["flags"])
	}
	for _, key := range []string{"created_at", "started_at", "ended_at"} {
		if s, _ := task[key].(string); !strings.HasSuffix(s, "Z") {
			t.Errorf("%s is %v, not UTC", key, task[key])
		}
	}
	if id := task["task"].(string); !strings.HasPrefix(id, "laptop-") {
		t.Errorf("id %s", id)
	}

	t.Run("show and wait print the same, show with texts and life", func(t *testing.T) {
		id := task["task"].(string)
		waited := jsonLines(t, w.Want(0, []string{"task", "wait", id, "--json"}).Out)[0]
		shown := jsonLines(t, w.Want(0, []string{"task", "show", id, "--json"}).Out)[0]
		for _, key := range contract {
			if key != "artifacts" && key != "flags" && key != "tokens" && (waited[key] != task[key] || shown[key] != task[key]) {
				t.Errorf("%s: %v, %v and %v", key, task[key], waited[key], shown[key])
			}
		}
		wantKeys(t, shown, "text", "reply", "life")
	})
	t.Run("a mesh failure says why", func(t *testing.T) {
		failed := jsonLines(t, w.Want(cli.ExitNotDone, []string{"dispatch", "alpha", "--json", "--", "break"}).Out)[0]
		e, _ := failed["error"].(map[string]any)
		if failed["state"] != "failed" || e["code"] != "agent_unavailable" || e["message"] == "" {
			t.Errorf("got %v", failed)
		}
	})
	t.Run("a question has its own shape", func(t *testing.T) {
		asked := jsonLines(t, w.Want(cli.ExitQuestion, []string{"dispatch", "alpha", "--json", "--", "ask"}).Out)[0]
		q, _ := asked["question"].(map[string]any)
		wantKeys(t, q, "id", "kind", "text", "options", "asked_at", "expires_at")
		if asked["state"] != "question" || q["kind"] != "question" || q["text"] != "Which database?" || len(q["options"].([]any)) != 2 {
			t.Errorf("got %v", asked)
		}
	})
	t.Run("a long summary is whole", func(t *testing.T) {
		for _, args := range [][]string{{"dispatch", "alpha", "--id", "long-1", "--json", "--", "long"}, {"dispatch", "alpha", "--id", "long-1", "--json", "--", "long"}, {"task", "wait", "long-1", "--json"}} {
			if got := jsonLines(t, w.Want(0, args).Out)[0]["summary"].(string); len(got) < 499 {
				t.Errorf("%v: %d bytes of summary", args, len(got))
			}
		}
	})
	t.Run("a detached one is printed at once", func(t *testing.T) {
		detached := jsonLines(t, w.Want(0, []string{"dispatch", "alpha", "--detach", "--json", "--", "hang"}).Out)
		wantKeys(t, detached[0], contract...)
		if detached[0]["state"] == "done" || detached[0]["ended_at"] != nil {
			t.Errorf("got %v", detached[0])
		}
	})
}

func TestJSONOfANodeIsTheContracts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	w.hub.StartNode("beta", clitest.Agent(obey)).Stop()
	w.hub.AwaitState("beta", api.NodeOffline)
	w.Want(0, []string{"dispatch", "alpha", "--", "do it"})
	var got []map[string]any
	// The fill of a session is stored beside the result and may come a moment later.
	w.eventually("the fill of alpha's session", func() bool {
		got = jsonLines(t, w.Want(0, []string{"nodes", "--json"}).Out)
		return len(got) == 2 && got[0]["ctx_percent"] != nil
	})
	for _, n := range got {
		wantKeys(t, n, "name", "state", "since", "platform", "agent", "ctx_percent", "running", "queued")
		wantKeys(t, n["agent"].(map[string]any), "kind", "health", "version")
	}
	if a := got[0]; a["name"] != "alpha" || a["state"] != "online" || a["ctx_percent"] != 65.0 || a["agent"].(map[string]any)["health"] != "healthy" || !strings.Contains(a["platform"].(string), "/") {
		t.Errorf("alpha: %v", a)
	}
	if b := got[1]; b["state"] != "offline" || b["ctx_percent"] != nil {
		t.Errorf("beta: %v", b)
	}
	wantText(t, w.Want(0, []string{"nodes"}).Out, "NAME", "alpha", "online", "opencode 1.2.3 healthy", "ctx 65%")
}

func TestDispatchToAllTakesWhoIsOnline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha", "beta")
	w.hub.StartNode("gamma", clitest.Agent(obey)).Stop()
	w.hub.AwaitState("gamma", api.NodeOffline)
	targets := func(out string) (names []string) {
		for _, task := range jsonLines(t, out) {
			names = append(names, task["target"].(string))
		}
		slices.Sort(names)
		return names
	}
	res := w.Want(0, []string{"dispatch", "--all", "--json", "--", "do it"})
	if got := targets(res.Out); !slices.Equal(got, []string{"alpha", "beta"}) {
		t.Errorf("went to %q", got)
	}
	wantText(t, res.Err, "skipped, offline: gamma", "--include-offline")

	res = w.Want(0, []string{"dispatch", "--all", "--include-offline", "--detach", "--json", "--", "do it"})
	if got := targets(res.Out); !slices.Equal(got, []string{"alpha", "beta", "gamma"}) || strings.Contains(res.Err, "skipped") {
		t.Errorf("went to %q: %s", got, res.Err)
	}
}

func TestDispatchToAllWithNobodyOnlineCreatesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Want(cli.ExitUsage, []string{"dispatch", "--all", "--", "x"})
	if got := w.tasks(); len(got) > 0 {
		t.Errorf("created %v", got)
	}
}

func TestABadDispatchCreatesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha", "beta")
	for _, c := range []struct {
		what string
		args []string
		says []string
	}{
		{"unknown target", []string{"alpha", "nobody", "--", "x"}, []string{"nobody", "alpha", "beta"}},
		{"forgotten --", []string{"alpha", "run", "the", "tests"}, []string{"after --"}},
		{"name that is none", []string{"Alpha!", "--", "x"}, []string{"Alpha!", "--"}},
		{"target named twice", []string{"alpha", "alpha", "--", "x"}, []string{"twice"}},
		{"no target", []string{"--", "x"}, []string{"--all"}},
		{"all and a target", []string{"--all", "alpha", "--", "x"}, []string{"--all"}},
		{"include-offline alone", []string{"alpha", "--include-offline", "--", "x"}, []string{"--all"}},
		{"one id for two", []string{"alpha", "beta", "--id", "t1", "--", "x"}, []string{"--id"}},
		{"one id for all", []string{"--all", "--id", "t1", "--", "x"}, []string{"--id"}},
		{"bad id", []string{"alpha", "--id", "../x", "--", "x"}, []string{"../x"}},
		{"bad mode", []string{"alpha", "--mode", "resume", "--", "x"}, []string{"--mode"}},
		{"bad workspace", []string{"alpha", "--workspace", "attic", "--", "x"}, []string{"attic", "main"}},
		{"bad deadline", []string{"alpha", "--deadline", "-1m", "--", "x"}, []string{"--deadline"}},
		{"deadline beyond the limit", []string{"alpha", "--deadline", "2000h", "--", "x"}, []string{"deadline"}},
		{"bad ttl", []string{"alpha", "--ttl", "1ns", "--", "x"}, []string{"--ttl"}},
		{"bad question timeout", []string{"alpha", "--question-timeout", "never", "--", "x"}, []string{"--question-timeout"}},
		{"bad timeout", []string{"alpha", "--timeout", "-1s", "--", "x"}, []string{"--timeout"}},
		{"empty text", []string{"alpha", "--", " "}, []string{"empty"}},
		{"empty stdin", []string{"alpha"}, []string{"empty"}},
		{"control characters in a name", []string{"a\x1b[31m", "--", "x"}, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			res := w.Want(cli.ExitUsage, append([]string{"dispatch"}, c.args...))
			wantText(t, res.Err, c.says...)
			if res.Out != "" || strings.Contains(res.Err, "\x1b") {
				t.Errorf("stdout %q, stderr %q", res.Out, res.Err)
			}
		})
	}
	t.Run("text too large", func(t *testing.T) {
		w.Want(cli.ExitUsage, []string{"dispatch", "alpha"}, typed(strings.Repeat("x", api.MaxText+1)))
	})
	if got := w.tasks(); len(got) > 0 {
		t.Errorf("created %v", got)
	}
}

func TestTheTextComesFromStdinToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	for _, args := range [][]string{{"alpha"}, {"alpha", "-"}, {"alpha", "--", "-"}} {
		out := w.Want(0, append([]string{"dispatch"}, args...), typed("do line one\n  line two\n")).Out
		wantText(t, out, "line one")
		id := out[strings.Index(out, "laptop-"):strings.Index(out, "\n")]
		wantText(t, w.Want(0, []string{"task", "show", id}).Out, "  --- text\n", "do line one\n    line two\n")
	}
	t.Run("and a person is told that it is waited for", func(t *testing.T) {
		res := w.Want(0, []string{"dispatch", "alpha"}, typed("do it"), func(app *cli.App) { app.StdinTerminal = true })
		wantText(t, res.Err, "Ctrl-D")
	})
}

func TestTheSameIDAgainIsTheSameTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	args := []string{"dispatch", "alpha", "--id", "mine-1", "--json", "--", "do it"}
	first := jsonLines(t, w.Want(0, args).Out)[0]
	again := jsonLines(t, w.Want(0, args).Out)[0]
	if first["ended_at"] != again["ended_at"] || again["attempt"] != 1.0 || len(w.tasks()) != 1 {
		t.Errorf("it ran again: %v, %v", first, again)
	}
	wantText(t, w.Want(cli.ExitUsage, []string{"dispatch", "alpha", "--id", "mine-1", "--", "do something else"}).Err, "task_conflict")
}

func TestOptionsTravelWithTheDispatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	id := w.dispatched("alpha", "hang")
	w.hub.AwaitTask(id, api.StateRunning)
	out := w.Want(0, []string{"dispatch", "alpha", "--new", "--mode", "one-shot", "--workspace", "main", "--ttl", "1h", "--json", "--detach", "--", "do it"}).Out
	task := jsonLines(t, out)[0]
	if task["mode"] != "one-shot" || task["workspace"] != "main" || task["expires_at"] == nil {
		t.Errorf("got %v", task)
	}
	// A new session is a lane of its own and does not wait for the hanging one.
	w.hub.AwaitTask(task["task"].(string), api.StateDone)
	t.Run("the deadline ends the agent", func(t *testing.T) {
		got := jsonLines(t, w.Want(cli.ExitNotDone, []string{"dispatch", "alpha", "--new", "--deadline", "200ms", "--json", "--", "hang"}).Out)[0]
		if e, _ := got["error"].(map[string]any); e["code"] != "deadline" {
			t.Errorf("got %v", got)
		}
	})
}

func TestTheHubCannotBeReached(t *testing.T) {
	t.Parallel() // it tries for some seconds
	w := newWorld(t)
	w.hub.Stop()
	res := w.Start([]string{"dispatch", "alpha", "--", "x"})
	if got := res.Wait(); got.Code != cli.ExitNoAccess {
		t.Errorf("exit code %d: %s", got.Code, got.Err)
	} else {
		wantText(t, got.Err, "may have been taken", "meshctl task show laptop-")
	}
}
