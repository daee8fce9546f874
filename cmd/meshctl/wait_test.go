package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

func TestATimeoutDetachesAndTheResultIsThereLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	res := w.Want(cli.ExitWaiting, []string{"dispatch", "alpha", "--timeout", "300ms", "--json", "--", "hang"})
	got := jsonLines(t, res.Out)
	if len(got) != 1 || got[0]["state"] == "done" {
		t.Fatalf("got %v", got)
	}
	id := got[0]["task"].(string)
	wantText(t, res.Err, "still running: "+id)
	w.hub.AwaitTask(id, api.StateRunning) // it goes on
	w.Want(0, []string{"task", "cancel", id})
	w.Want(cli.ExitNotDone, []string{"task", "wait", id})
}

func TestCtrlCDetaches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	r := w.Start([]string{"dispatch", "alpha", "--id", "t1", "--", "hang"})
	w.hub.AwaitTask("t1", api.StateRunning)
	r.Interrupt()
	res := r.Wait()
	if res.Code != cli.ExitWaiting {
		t.Errorf("exit code %d: %s", res.Code, res.Err)
	}
	wantText(t, res.Err, "still running: t1", "meshctl task wait t1")
	wantText(t, res.Out, "t1")
	if task := w.hub.AwaitTask("t1", api.StateRunning); task.CancelAt != nil {
		t.Error("the task was canceled")
	}
}

func TestAWaitGoesOnWhenTheHubRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	r := w.Start([]string{"dispatch", "alpha", "--id", "t1", "--", "hang"})
	w.hub.AwaitTask("t1", api.StateRunning)
	w.hub.Restart()
	r.Err.AwaitText(t, "still trying")
	w.hub.AwaitState("alpha", api.NodeOnline)
	if _, err := w.hub.Operator.Cancel(t.Context(), "t1"); err != nil {
		t.Fatal(err)
	}
	if res := r.Wait(); res.Code != cli.ExitNotDone || !strings.Contains(res.Out, "canceled") {
		t.Errorf("exit code %d: %s %s", res.Code, res.Out, res.Err)
	}
}

// The precedence of the exit codes: 3 > 4 > 5 > 1.
func TestAWaitThatEndsWhileTheHubIsAwayCannotReach(t *testing.T) {
	t.Parallel()
	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/events" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(api.Task{Task: "t1", State: api.StateRunning})
	})
	r := sh.Start([]string{"task", "wait", "t1"})
	r.Err.AwaitText(t, "connection lost, still trying")
	r.Interrupt()
	res := r.Wait()
	if res.Code != cli.ExitNoAccess {
		t.Errorf("exit code %d", res.Code)
	}
	wantText(t, res.Err, "still running: t1")
	wantText(t, res.Out, "running  t1")
}

func TestAWaitGoesOnWhenTheHubFailsBetweenAnEventAndTheReadAfterIt(t *testing.T) {
	t.Parallel() // it tries again for some seconds
	var reads atomic.Int32
	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/events":
			_, _ = io.WriteString(w, "event: beat\ndata: {}\n\n")
		case reads.Add(1) == 1:
			_ = json.NewEncoder(w).Encode(api.Task{Task: "t1", State: api.StateRunning})
		case reads.Load() <= 8: // more often than one call is made
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_ = json.NewEncoder(w).Encode(api.Task{Task: "t1", State: api.StateDone})
		}
	})
	wantText(t, sh.Want(0, []string{"task", "wait", "t1"}).Out, "done")
}

func TestAQuestionIsShownWithItsOptionsAndAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha", "beta")
	hangs := w.dispatched("beta", "hang")
	asks := w.dispatched("alpha", "ask")
	r := w.Start([]string{"task", "wait", asks, hangs})
	// It is said while the other goes on, because somebody can answer it.
	r.Out.AwaitText(t, "  1) staging\n  2) production\n  answer with: meshctl task answer "+asks+" TEXT\n")
	wantText(t, r.Out.String(), "question", "Which database?")

	w.Want(cli.ExitUsage, []string{"task", "answer", asks})
	w.Want(cli.ExitUsage, []string{"task", "answer", asks, " "})
	w.Want(0, []string{"task", "answer", asks, "2"})
	r.Out.AwaitText(t, "answered: Answer to your question (repeated below): production") // and so is how it went on
	wantText(t, w.Want(cli.ExitNotDone, []string{"task", "answer", asks, "1"}).Err, "answered")
	w.Want(0, []string{"task", "cancel", hangs})
	if res := r.Wait(); res.Code != cli.ExitNotDone {
		t.Errorf("exit code %d", res.Code)
	}
}

func TestInJSONATaskThatAsksHasOneLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha", "beta")
	hangs := w.dispatched("beta", "hang")
	asks := w.dispatched("alpha", "ask")
	w.hub.AwaitTask(asks, api.StateQuestion)
	r := w.Start([]string{"task", "wait", asks, hangs, "--json"})
	w.Want(0, []string{"task", "answer", asks, "staging"})
	r.Out.AwaitText(t, "answered: Answer to your question (repeated below): staging")
	w.Want(0, []string{"task", "cancel", hangs})
	if got := jsonLines(t, r.Wait().Out); len(got) != 2 || got[0]["state"] != "done" || got[1]["state"] != "canceled" {
		t.Errorf("got %v", got)
	}
}

func TestUnknownDoesNotEndAWait(t *testing.T) {
	for state, over := range map[api.State]bool{api.StateUnknown: false, api.StateHeld: false, api.StateQuestion: true, api.StateRefused: true} {
		if finished(api.Task{State: state}) != over {
			t.Errorf("%s ends a wait: %v", state, !over)
		}
	}
}

func TestTheDemoAgentWorksFromEndToEnd(t *testing.T) {
	t.Parallel() // its programs take a while to start
	w := newWorld(t)
	for _, name := range []string{"alpha", "beta"} {
		w.hub.StartNode(name, clitest.DemoAgent(t))
	}
	res := w.Want(0, []string{"dispatch", "--all", "--", "Describe your workspace."})
	wantText(t, res.Out, "alpha  done", "beta  done", "0 files")
	wantText(t, w.Want(cli.ExitQuestion, []string{"dispatch", "alpha", "--", "ASK:Which one?|this|that"}).Out, "Which one?", "2) that")
}

func TestAForgottenDoubleDashIsNamedBeforeATextIsAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	wantText(t, w.Want(cli.ExitUsage, []string{"dispatch", "alpha", "hi", "there"}).Err, `"hi"`, "known: alpha", "after --")
}
