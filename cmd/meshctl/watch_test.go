package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/protocol/api"
)

// event writes one event of a stream.
func event(w http.ResponseWriter, typ string, v any) {
	data, _ := json.Marshal(v)
	_, _ = io.WriteString(w, "event: "+typ+"\ndata: "+string(data)+"\n\n")
	_ = http.NewResponseController(w).Flush()
}

func TestAnAbsenceOfTheHubIsSaidOnceAndItsReturnOnce(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"watch": {"watch"}, "wait": {"task", "wait", "t1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var streams atomic.Int32
			sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/events" {
					_ = json.NewEncoder(w).Encode(api.Task{Task: "t1", State: api.StateRunning})
					return
				}
				switch n := streams.Add(1); {
				case n == 1:
					event(w, api.EventBeat, api.Beat{})
				case n < 5:
					w.WriteHeader(http.StatusServiceUnavailable)
				default:
					event(w, api.EventBeat, api.Beat{})
					<-r.Context().Done()
				}
			})
			r := sh.Start(args)
			r.Err.AwaitText(t, "the hub is back\n")
			r.Interrupt()
			if said := r.Wait().Err; strings.Count(said, "connection lost, still trying") != 1 || strings.Count(said, "the hub is back") != 1 {
				t.Errorf("it said:\n%s", said)
			}
		})
	}
}

// busy is what an agent does, with what a hostile one would put in.
var busy = &api.Activity{Tool: "bash: go test\x1b[2J ./...", Line: "ok\r\n pkg", Tokens: &api.Tokens{Total: 170400, Limit: 200000}}

func TestWhatARunningAgentDoesIsShown(t *testing.T) {
	running := task("t1", "beta", api.StateRunning, "")
	running.Activity, running.Controller = busy, "laptop"
	s := newScreen(120, 24)
	pictured(s, true, running).draw()
	wantText(t, s.String(), "running       0s  ctx 85%  170.4k tokens  bash: go test ./... · ok  pkg")

	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/events" {
			_ = json.NewEncoder(w).Encode(running)
			return
		}
		event(w, api.EventTask, running)
		<-r.Context().Done()
	})
	watch := sh.Start([]string{"watch"}, onTerminal)
	watch.Out.AwaitText(t, "laptop -> beta  running  t1  \x1b[31mctx 85%\x1b[0m  bash: go test ./... · ok  pkg\n")
	watch.Stop()
	out := sh.Want(0, []string{"task", "show", "t1"}).Out
	wantText(t, out, "beta  running  ctx 85%  t1\n", "tool        bash: go test ./...\n", "line        ok  pkg\n", "so far      170.4k tokens\n")
	if strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
}

func TestTasksShowOperationsFilesAndFlags(t *testing.T) {
	done := task("t1", "beta", api.StateDone, "62% -> 9%, digest 3")
	done.Op, done.Controller, done.Flags = api.OpCompact, "laptop", []api.Flag{api.FlagAssumed}
	done.Files = []api.Artifact{{Path: "out/a\x1b[31m.txt", Size: 2048, SHA256: strings.Repeat("ab", 32)}, {Path: "b", Problem: "not there"}}
	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/tasks" {
			_ = json.NewEncoder(w).Encode(api.TaskPage{Tasks: []api.Task{done}})
			return
		}
		_ = json.NewEncoder(w).Encode(done)
	})
	wantText(t, sh.Want(0, []string{"task", "list"}).Out, "laptop -> beta  compact  done  62% -> 9%, digest 3\n")
	out := sh.Want(0, []string{"task", "show", "t1"}).Out
	wantText(t, out, "beta  compact  done  t1\n  62% -> 9%, digest 3\n", "flags: assumed\n  nobody answered in time", "operation   compact\n",
		"artifact    out/a.txt  2.0 KiB  abababababab\n", "artifact    b  not there  -\n")
}

func TestAPermissionIsAnsweredByItsOptions(t *testing.T) {
	asks := task("t1", "beta", api.StateQuestion, "")
	asks.Question = &api.Question{Kind: api.QuestionPermission, Text: "bash: git push", Options: []string{api.PermitOnce, api.PermitAlways, api.PermitReject}}
	sh := stubHub(t, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(asks) })
	wantText(t, sh.Want(0, []string{"task", "show", "t1"}).Out, "  bash: git push\n  1) once\n  2) always\n  3) reject\n  answer with: meshctl task answer t1 once|always|reject [MESSAGE]\n")
}

func TestWhatIsDoneByItselfTravelsWithTheDispatch(t *testing.T) {
	var got api.Dispatch
	var query string
	sh := stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/envelopes" {
			query = r.URL.RawQuery
		}
		if r.URL.Path == "/v1/tasks" {
			got = api.Dispatch{}
			_ = json.NewDecoder(r.Body).Decode(&got)
			_ = json.NewEncoder(w).Encode(api.Dispatched{Tasks: []api.Task{{Task: "t1", Target: "beta", State: api.StateQueued}}})
			return
		}
		_ = json.NewEncoder(w).Encode(api.Task{Task: "t1", State: api.StateDone})
	})
	dispatch := []string{"dispatch", "beta", "--detach", "--", "x"}
	sh.Want(0, append([]string{"dispatch", "--auto-answer", "^(yes|ok)$", "--auto-compact", "80"}, dispatch[1:]...))
	if got.AutoAnswer != "^(yes|ok)$" || got.AutoCompact != 80 {
		t.Errorf("flags: %+v", got)
	}
	sh.Want(0, dispatch)
	if got.AutoAnswer != "" || got.AutoCompact != 0 {
		t.Errorf("by default: %+v", got)
	}
	env := func(app *cli.App) { app.Env = append(app.Env, "MESHCTL_AUTO_ANSWER=first", "MESHCTL_AUTO_COMPACT=70") }
	sh.Want(0, dispatch, env)
	if got.AutoAnswer != api.AutoAnswerFirst || got.AutoCompact != 70 {
		t.Errorf("variables: %+v", got)
	}
	sh.Want(0, []string{"envelope", "beta", "--workspace", "shop", "--deadline", "1m", "--new"}, typed("x"), env)
	if query != "auto_answer=first&auto_compact=70&deadline_ms=60000&new=true&target=beta&workspace=shop" {
		t.Errorf("the envelope went with %s", query)
	}
	for _, args := range [][]string{{"--auto-compact", "101"}, {"--auto-compact", "-1"}, {"--auto-compact", "most"}, {"--auto-answer", "("}} {
		wantText(t, sh.Want(cli.ExitUsage, append(append([]string{"dispatch"}, args...), dispatch[1:]...)).Err, args[0])
	}
}
