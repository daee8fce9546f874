package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

func TestTaskList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha", "beta")
	w.Want(0, []string{"dispatch", "alpha", "--id", "t1", "--", "do one"})
	w.Want(cli.ExitNotDone, []string{"dispatch", "beta", "--id", "t2", "--", "fail two"})
	w.Want(0, []string{"dispatch", "alpha", "--id", "t3", "--detach", "--", "hang"})
	ids := func(args ...string) string {
		var out []string
		for _, task := range jsonLines(t, w.Want(0, append([]string{"task", "list", "--json"}, args...)).Out) {
			out = append(out, task["task"].(string))
		}
		return strings.Join(out, " ")
	}
	for args, want := range map[string]string{
		"":                              "t3 t2 t1",
		"--open":                        "t3",
		"--target alpha":                "t3 t1",
		"--state failed --state done":   "t2 t1",
		"--limit 2":                     "t3 t2",
		"--target alpha --state failed": "",
	} {
		if got := ids(strings.Fields(args)...); got != want {
			t.Errorf("%q lists %q, want %q", args, got, want)
		}
	}
	wantText(t, w.Want(0, []string{"task", "list"}).Out, "t2", "laptop -> beta", "failed", "two")
	for _, args := range []string{"--limit 0", "--state happy", "--target nobody", "extra"} {
		w.Want(cli.ExitUsage, append([]string{"task", "list"}, strings.Fields(args)...))
	}
	t.Run("shows others' tasks to operators only", func(t *testing.T) {
		w.login("desk", "--profile", "desk")
		if out := w.Want(0, []string{"task", "list", "--json", "--profile", "desk"}).Out; out != "" {
			t.Errorf("desk sees %s", out)
		}
		w.Want(cli.ExitUsage, []string{"task", "show", "t1", "--profile", "desk"})
		w.Want(cli.ExitNoAccess, []string{"task", "abandon", "t3", "--profile", "desk"})
		w.login("boss", "--operator", "--profile", "boss")
		if out := w.Want(0, []string{"task", "list", "--json", "--controller", "laptop", "--profile", "boss"}).Out; strings.Count(out, "\n") != 3 {
			t.Errorf("boss sees %s", out)
		}
	})
}

func TestTaskListGoesThroughPages(t *testing.T) {
	var asked []string
	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		asked = append(asked, q.Get("limit")+" "+q.Get("before"))
		limit, _ := strconv.Atoi(q.Get("limit"))
		_ = json.NewEncoder(w).Encode(api.TaskPage{Tasks: make([]api.Task, limit), Next: fmt.Sprint(len(asked))})
	})
	out := sh.Want(0, []string{"task", "list", "--limit", "2050", "--json"}).Out
	if strings.Count(out, "\n") != 2050 || !slices.Equal(asked, []string{"1000 ", "1000 1", "50 2"}) {
		t.Errorf("%d lines after %q", strings.Count(out, "\n"), asked)
	}
}

func TestTaskShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	w.Want(0, []string{"dispatch", "alpha", "--id", "t1", "--", "escape"})
	out := w.Want(0, []string{"task", "show", "t1"}).Out
	wantText(t, out, "alpha  done", "laptop", "session", "ses_1", "130000 of 200000", "offered  attempt 1 turn 1", "done  attempt 1 turn 1",
		"--- text\n  escape\n", "--- reply", "the reply to t1")
	t.Run("without control characters", func(t *testing.T) {
		wantText(t, out, "red alert and a bell", "out/evil.txt")
		if strings.ContainsAny(out, "\x1b\x07\r") {
			t.Errorf("got %q", out)
		}
		for _, args := range [][]string{{"task", "list"}, {"task", "wait", "t1"}} {
			if out := w.Want(0, args, onTerminal, func(app *cli.App) { app.Env = append(app.Env, "NO_COLOR=1") }).Out; strings.Contains(out, "31m") || strings.ContainsAny(out, "\x07") {
				t.Errorf("%v: got %q", args, out)
			}
		}
	})
	for _, args := range []string{"show", "show nobody-1", "show ../x", "wait", "cancel", "retry", "events", "events nobody-1 nobody-2", "answer", "abandon", "bogus"} {
		w.Want(cli.ExitUsage, append([]string{"task"}, strings.Fields(args)...))
	}
}

func TestTaskCancelRetryAndAbandon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	w.login("boss", "--operator", "--profile", "boss")
	w.Want(0, []string{"dispatch", "alpha", "--id", "t1", "--", "do it"})
	w.Want(0, []string{"dispatch", "alpha", "--id", "t2", "--detach", "--", "hang"})
	w.hub.AwaitTask("t2", api.StateRunning)

	wantText(t, w.Want(cli.ExitNotDone, []string{"task", "cancel", "t1"}).Err, "t1", "already_settled")
	wantText(t, w.Want(cli.ExitNotDone, []string{"task", "retry", "t2"}).Err, "t2", "not_settled")
	w.Want(0, []string{"task", "cancel", "t2", "--json"})
	w.hub.AwaitTask("t2", api.StateCanceled)

	if again := jsonLines(t, w.Want(0, []string{"task", "retry", "t1", "--json"}).Out)[0]; again["attempt"] != 2.0 {
		t.Errorf("got %v", again)
	}
	w.hub.AwaitTask("t1", api.StateDone)

	n := w.hub.StartNode("beta", clitest.Agent(obey))
	w.Want(0, []string{"dispatch", "beta", "--id", "t3", "--detach", "--", "hang"})
	w.hub.AwaitTask("t3", api.StateRunning)
	n.Stop()
	w.Want(0, []string{"task", "abandon", "t3", "--profile", "boss"})
	if task := w.hub.AwaitTask("t3", api.StateFailed); task.Error == nil || task.Error.Code != api.TaskNodeLost {
		t.Errorf("got %+v", task)
	}
}

func TestEventsAreShownUntilCtrlC(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	watch := w.Start([]string{"watch", "--json"})
	plain := w.Start([]string{"watch"})
	// A node that comes and goes shows that the streams are there.
	alive := func() bool {
		return strings.Contains(watch.Out.String(), `"node"`) && strings.Contains(plain.Out.String(), "node ")
	}
	for i := 0; !alive(); i++ {
		w.hub.StartNode(fmt.Sprintf("extra-%d", i), clitest.Agent(obey)).Stop()
	}
	w.Want(0, []string{"dispatch", "alpha", "--id", "t1", "--detach", "--", "hang"})
	w.hub.AwaitTask("t1", api.StateRunning)
	one := w.Start([]string{"task", "events", "t1", "--json"})
	w.Want(0, []string{"task", "cancel", "t1"})
	watch.Out.AwaitText(t, `"state":"canceled"`)
	plain.Out.AwaitText(t, "laptop -> alpha  canceled  t1")
	for _, r := range []*clitest.Running{watch, plain, one} {
		if res := r.Stop(); res.Code != 0 {
			t.Errorf("exit code %d: %s", res.Code, res.Err)
		}
	}
	for _, e := range jsonLines(t, watch.Out.String()) {
		wantKeys(t, e, "type", "data")
		if e["type"] == api.EventBeat {
			t.Error("heartbeats are shown")
		}
	}
	for _, e := range jsonLines(t, one.Out.String()) {
		if d := e["data"].(map[string]any); d["task"] != "t1" {
			t.Errorf("an event of %v", d["task"])
		}
	}
}

func TestEventsOfSeveralTasksAreThoseAndNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	for _, id := range []string{"t1", "t2", "t3"} {
		w.Want(0, []string{"dispatch", "alpha", "--id", id, "--detach", "--new", "--", "hang"})
		w.hub.AwaitTask(id, api.StateRunning)
	}
	two := w.Start([]string{"task", "events", "t1", "t3", "--json"})
	canceled := func(text string) bool {
		return strings.Contains(text, `"task":"t1"`) && strings.Contains(text, `"task":"t3"`) && strings.Count(text, `"state":"canceled"`) >= 2
	}
	// What ends before the stream begins is not in it: tasks are retried and canceled until it is there.
	for _, id := range []string{"t2", "t1", "t3"} {
		w.Want(0, []string{"task", "cancel", id})
	}
	for !canceled(two.Out.String()) {
		for _, id := range []string{"t2", "t1", "t3"} {
			w.hub.AwaitTask(id, api.StateCanceled)
			w.Want(0, []string{"task", "retry", id})
			w.hub.AwaitTask(id, api.StateRunning)
			w.Want(0, []string{"task", "cancel", id})
		}
	}
	for _, e := range jsonLines(t, two.Stop().Out) {
		if id := e["data"].(map[string]any)["task"]; id != "t1" && id != "t3" {
			t.Errorf("an event of %v", id)
		}
	}
}

func TestEnvelope(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	envelope := func(from, id, text string) string {
		return "[opencode-mesh v1]\nfrom: " + from + "\ntask: " + id + "\nmode: one-shot\nreply: result-block\n---\n" + text + "\n"
	}
	if res := w.Want(0, []string{"envelope", "alpha"}, typed(envelope("laptop", "e1", "do it"))); res.Out != "the reply to e1\n" {
		t.Errorf("got %q", res.Out)
	}
	w.Want(cli.ExitNotDone, []string{"envelope", "alpha"}, typed(envelope("laptop", "e2", "fail")))
	w.Want(cli.ExitQuestion, []string{"envelope", "alpha"}, typed(envelope("laptop", "e3", "ask")))
	res := w.Want(cli.ExitNotDone, []string{"envelope", "alpha"}, typed(envelope("laptop", "e4", "break")))
	wantText(t, res.Err, "failed")
	if res := w.Want(0, []string{"envelope", "alpha"}, typed(envelope("laptop", "e0", "raw")), onTerminal); res.Out != "two\n    lines\n" {
		t.Errorf("a terminal gets %q", res.Out)
	}
	if res := w.Want(0, []string{"envelope", "alpha"}, typed(envelope("laptop", "e0", "raw"))); res.Out != "two\x1b[2J\n\tlines\n" {
		t.Errorf("a pipe gets %q", res.Out)
	}
	if res.Out != "" {
		t.Errorf("a reply that is none: %q", res.Out)
	}
	wantText(t, w.Want(cli.ExitNoAccess, []string{"envelope", "alpha"}, typed(envelope("beta", "e5", "do it"))).Err, "from_mismatch")
	wantText(t, w.Want(cli.ExitUsage, []string{"envelope", "alpha"}, typed("[opencode-mesh v1]\nfrom: laptop\nno end\n")).Err, "malformed_envelope", "line")
	wantText(t, w.Want(cli.ExitUsage, []string{"envelope", "nobody"}, typed(envelope("laptop", "e6", "do it"))).Err, "alpha")
	w.Want(cli.ExitUsage, []string{"envelope", "No Name"}, typed(envelope("laptop", "e7", "do it")))
	w.Want(cli.ExitUsage, []string{"envelope", "alpha"})
	w.Want(cli.ExitUsage, []string{"envelope"})

	r := w.Start([]string{"envelope", "alpha"}, typed(envelope("laptop", "e8", "hang")))
	w.hub.AwaitTask("e8", api.StateRunning)
	if res := r.Stop(); res.Code != cli.ExitWaiting || !strings.Contains(res.Err, "still running: e8") {
		t.Errorf("exit code %d: %s", res.Code, res.Err)
	}
}
