package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

// filled is a fill of so many per cent of a session's generation.
func filled(generation uint64, percent int64) api.Fill {
	return api.Fill{Generation: generation, Tokens: api.Tokens{Total: percent * 1000, Limit: 100000}}
}

// bound is a session as a hub tells it, with what a hostile node would put in.
func bound(controller, target string, percent int) api.Session {
	id := "ses_\x1b[2J" + target
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	s := api.Session{
		Controller: controller, Target: target, Workspace: "main", Session: &id, Title: "opencode-mesh " + controller, Generation: 3,
		CreatedAt: at, LastUsed: time.Now().Add(-5 * time.Minute), Tokens: &api.Tokens{Total: int64(percent) * 1000, Limit: 100000}, CtxPercent: &percent, Digest: 2,
	}
	return s
}

// sessionHub is a shell at a hub with sessions; it notes the requests for them.
func sessionHub(t *testing.T, sessions ...api.Session) (*clitest.Shell, *[]string) {
	t.Helper()
	var asked []string
	return stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String())
		if r.URL.Path == "/v1/bindings" {
			_ = json.NewEncoder(w).Encode(api.SessionList{Sessions: sessions})
			return
		}
		_ = json.NewEncoder(w).Encode(sessions[0])
	}), &asked
}

func TestSessionsAreListedWithTheirFill(t *testing.T) {
	a, b := bound("laptop", "alpha", 85), bound("laptop", "beta", 60)
	b.Session, b.Tokens, b.CtxPercent, b.Digest, b.LastUsed, b.Workspace = nil, nil, nil, 0, time.Time{}, "shop"
	a.Operation = &api.Task{Task: "t1", Op: api.OpCompact, State: api.StateRunning}
	sh, asked := sessionHub(t, a, b)
	out := sh.Want(0, []string{"session", "list"}).Out
	want := "" +
		"TARGET  WORKSPACE  SESSION    USED  DIGEST  OPERATION        CTX\n" +
		"alpha   main       ses_alpha  5m    2       compact running  ctx 85%\n" +
		"beta    shop       -          -     -       -                -\n"
	if out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	wantText(t, sh.Want(0, []string{"session", "list"}, onTerminal).Out, "\x1b[31mctx 85%\x1b[0m")
	if out := sh.Want(0, []string{"session", "list", "alpha", "--workspace", "shop", "--controller", "ci"}).Out; strings.Contains(out, "alpha") || !strings.Contains(out, "beta") {
		t.Errorf("of one workspace: %s", out)
	}
	if want := []string{"GET /v1/bindings?", "GET /v1/bindings?", "GET /v1/bindings?controller=ci&target=alpha"}; !slices.Equal(*asked, want) {
		t.Errorf("asked %q", *asked)
	}
	got := jsonLines(t, sh.Want(0, []string{"session", "list", "--json"}).Out)
	if len(got) != 2 || got[0]["ctx_percent"] != 85.0 || got[1]["session"] != nil || got[0]["operation"].(map[string]any)["op"] != "compact" {
		t.Errorf("got %v", got)
	}
	sh, _ = sessionHub(t, bound("ci", "alpha", 10), bound("laptop", "beta", 20))
	wantText(t, sh.Want(0, []string{"session", "list"}).Out, "CONTROLLER  TARGET", "ci          alpha")
	for _, args := range [][]string{{"list", "a", "b"}, {"list", "No Name"}, {"list", "--controller", "No Name"}, {"show"}, {"show", "a", "b"}, {"show", "No Name"}, {"digest"}, {"bogus"}} {
		sh.Want(cli.ExitUsage, append([]string{"session"}, args...))
	}
}

func TestASessionIsShownWithItsHistory(t *testing.T) {
	s := bound("laptop", "beta", 9)
	s.Operation = &api.Task{Task: "t1", Op: api.OpCompact, State: api.StateQueued}
	s.Fills = []api.Fill{filled(2, 5), filled(2, 61), {Generation: 2, Tokens: api.Tokens{Total: 1}}, filled(2, 99), filled(3, 9)}
	s.Former = []api.FormerSession{{Generation: 2, Session: "ses_\x1b[2Jold", EndedAt: s.CreatedAt, Tokens: &api.Tokens{Total: 99, Limit: 100}, Why: api.EndedCompact}}
	sh, asked := sessionHub(t, s)
	out := sh.Want(0, []string{"session", "show", "beta", "--workspace", "shop & co", "--controller", "ci"}).Out
	wantText(t, out, "beta  main  ses_beta  ctx 9%\n", "controller  laptop\n", "generation  3\n", "tokens      9000 of 100000\n", "digest      2\n",
		"operation   compact queued  t1\n", "fill        5% 61% 99% | 9%\n", "GENERATION  SESSION  ENDED BY  ENDED", "2           ses_old  compact   ", "ctx 99%")
	if strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
	if (*asked)[0] != "GET /v1/bindings/ci/beta?workspace=shop+%26+co" {
		t.Errorf("asked %q", *asked)
	}
	wantText(t, sh.Want(0, []string{"session", "show", "beta"}, onTerminal).Out, "fill        ▁\x1b[33m▅\x1b[0m\x1b[31m█\x1b[0m|▁  9%\n")
	if (*asked)[1] != "GET /v1/bindings/-/beta" {
		t.Errorf("asked %q", *asked)
	}
	if got := jsonLines(t, sh.Want(0, []string{"session", "show", "beta", "--json"}).Out); len(got) != 1 || len(got[0]["fills"].([]any)) != 5 || len(got[0]["former"].([]any)) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestALongHistoryShowsItsEnd(t *testing.T) {
	m := NewMain(&cli.App{})
	var fills []api.Fill
	for i := range 300 {
		fills = append(fills, filled(1, int64(i%101)))
	}
	if got := strings.Fields(m.history(fills)); len(got) != shownFills || got[shownFills-1] != "97%" {
		t.Errorf("%d points: %v", len(got), got)
	}
	if got := m.history(nil); got != "" {
		t.Errorf("of nothing: %q", got)
	}
	m.app.StdoutTerminal = true
	if got := m.history([]api.Fill{filled(1, 0), filled(1, 100), filled(1, 250)}); !strings.Contains(got, "▁") || !strings.HasSuffix(got, "250%") {
		t.Errorf("got %q", got)
	}
}

// operationHub is a shell at a hub that takes operations, which are in a state at
// once; the first breaks calls find no answer.
func operationHub(t *testing.T, state api.State, breaks int) (*clitest.Shell, *[]string) {
	t.Helper()
	var asked []string
	made := api.Task{}
	return stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/events":
			event(w, api.EventBeat, api.Beat{})
			<-r.Context().Done()
		case r.Method == http.MethodPost:
			var o api.Operate
			_ = json.NewDecoder(r.Body).Decode(&o)
			asked = append(asked, fmt.Sprint(r.URL.Path, " ", o.Workspace, " ", o.ID))
			if len(asked) <= breaks {
				panic(http.ErrAbortHandler)
			}
			made = api.Task{Task: o.ID, Controller: "laptop", Target: "beta", State: state, Op: r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], Summary: "62% -> 9%, digest 3"}
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(made)
		case strings.HasPrefix(r.URL.Path, "/v1/bindings/"):
			_ = json.NewEncoder(w).Encode(bound("laptop", "beta", 50))
		default:
			_ = json.NewEncoder(w).Encode(made)
		}
	}), &asked
}

func TestAnOperationIsWaitedForLikeATask(t *testing.T) {
	for _, op := range []string{api.OpCompact, api.OpReset, api.OpClear} {
		for state, code := range map[api.State]int{api.StateDone: cli.ExitOK, api.StateFailed: cli.ExitNotDone, api.StateRunning: cli.ExitWaiting} {
			sh, asked := operationHub(t, state, 0)
			args := []string{"session", op, "beta", "--workspace", "shop", "--controller", "ci", "--timeout", "300ms"}
			if op == api.OpClear {
				args = append(args, "--yes")
			}
			wantText(t, sh.Want(code, args).Out, "beta  "+op+"  "+string(state)+"  ", "62% -> 9%, digest 3")
			if len(*asked) != 1 || !strings.HasPrefix((*asked)[0], "/v1/bindings/ci/beta/"+op+" shop laptop-") {
				t.Errorf("asked %q", *asked)
			}
		}
	}
	t.Run("or not", func(t *testing.T) {
		sh, asked := operationHub(t, api.StateQueued, 0)
		got := jsonLines(t, sh.Want(0, []string{"session", "compact", "beta", "--detach", "--json"}).Out)
		if len(got) != 1 || got[0]["op"] != "compact" || got[0]["state"] != "queued" || !strings.HasPrefix((*asked)[0], "/v1/bindings/-/beta/compact  laptop-") {
			t.Errorf("got %v, asked %q", got, *asked)
		}
	})
	t.Run("one that is sent again is the same", func(t *testing.T) {
		sh, asked := operationHub(t, api.StateDone, 2)
		sh.Want(0, []string{"session", "reset", "beta"})
		if len(*asked) != 3 || (*asked)[0] != (*asked)[2] {
			t.Errorf("asked %q", *asked)
		}
	})
	t.Run("what the hub refuses", func(t *testing.T) {
		for refusal, exit := range map[api.Code]int{
			api.CodeConflict: cli.ExitNotDone, api.CodeNotSupported: cli.ExitUsage, api.CodeNotFound: cli.ExitUsage, api.CodeUnknownTarget: cli.ExitUsage, api.CodeQueueFull: cli.ExitNoAccess,
		} {
			sh := stubHub(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(refusal.Status())
				_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(refusal, "because")})
			})
			wantText(t, sh.Want(exit, []string{"session", "compact", "beta"}).Err, "because")
		}
	})
}

func TestAClearAsksFirst(t *testing.T) {
	clearing := []string{"session", "clear", "beta"}
	t.Run("where nobody can be asked", func(t *testing.T) {
		sh, asked := operationHub(t, api.StateDone, 0)
		wantText(t, sh.Want(cli.ExitUsage, clearing).Err, "--yes", "nothing was done")
		sh.Want(cli.ExitUsage, clearing, func(app *cli.App) { app.Env = append(app.Env, "MESHCTL_YES=true") })
		if len(*asked) > 0 {
			t.Errorf("asked %q", *asked)
		}
	})
	for answer, done := range map[string]bool{"y\n": true, "YES\n": true, "yes": true, "n\n": false, "\n": false, "": false, "yess\n": false, "sure\n": false} {
		sh, asked := operationHub(t, api.StateDone, 0)
		code := cli.ExitNotDone
		if done {
			code = cli.ExitOK
		}
		res := sh.Want(code, clearing, typed(answer), func(app *cli.App) { app.StdinTerminal = true })
		wantText(t, res.Err, "Delete session ses_beta of laptop on beta, workspace main, for good? [y/N] ")
		if done != (len(*asked) == 1) || strings.Contains(res.Err, "\x1b") || done == strings.Contains(res.Err, "nothing was done") {
			t.Errorf("%q: asked %q, said %q", answer, *asked, res.Err)
		}
	}
	t.Run("and Ctrl-C is a no", func(t *testing.T) {
		sh, asked := operationHub(t, api.StateDone, 0)
		never, end := io.Pipe()
		defer end.Close()
		r := sh.Start(clearing, func(app *cli.App) { app.StdinTerminal, app.Stdin = true, never })
		r.Err.AwaitText(t, "[y/N]")
		r.Interrupt()
		if res := r.Wait(); res.Code != cli.ExitNoAccess || len(*asked) > 0 {
			t.Errorf("exit code %d, asked %q", res.Code, *asked)
		}
	})
}

// digestHub is a shell at a hub with digests.
func digestHub(t *testing.T, digests ...api.Digest) *clitest.Shell {
	t.Helper()
	return stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/digests" || r.URL.RawQuery != "controller=-&target=beta" {
			t.Errorf("asked %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode(api.DigestList{Digests: digests})
	})
}

func threeDigests() []api.Digest {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.Local)
	return []api.Digest{
		{Generation: 1, Task: "t1", Session: "ses_1", At: at, Facts: []string{"build with make", "never touch db/"}, Pending: "port the tests"},
		{Generation: 2, Task: "t2", Session: "ses_2", At: at, Facts: []string{"build with make release", "never touch db/", "out/ is \x1b[31mignored"}, Pending: "", Refs: "a.md\nb.md"},
		{Generation: 3, Task: "t3", Session: "ses_3", At: at, Facts: []string{"build with make release", "never touch db/", "out/ is ignored"}, Refs: "a.md\nb.md"},
	}
}

func TestDigestsAreShownByGeneration(t *testing.T) {
	sh := digestHub(t, threeDigests()...)
	digest := func(code int, args ...string) string {
		t.Helper()
		return sh.Want(code, append([]string{"session", "digest", "beta"}, args...)).Out
	}
	second := "digest 2  2026-11-29 10:00:00  task t2  session ses_2\nfacts\n  build with make release\n  never touch db/\n  out/ is ignored\npending\n  none\nrefs\n  a.md\n  b.md\n"
	if out := digest(0, "--generation", "2"); out != second {
		t.Errorf("got\n%swant\n%s", out, second)
	}
	wantText(t, digest(0), "digest 3  ")
	if out := digest(0, "--all"); strings.Count(out, "digest ") != 3 || !strings.Contains(out, "\n\n"+second+"\n") {
		t.Errorf("all:\n%s", out)
	}
	got := jsonLines(t, digest(0, "--all", "--json"))
	if len(got) != 3 || got[0]["generation"] != 1.0 || got[0]["pending"] != "port the tests" || len(got[1]["facts"].([]any)) != 3 {
		t.Errorf("got %v", got)
	}
	wantText(t, sh.Want(cli.ExitUsage, []string{"session", "digest", "beta", "--generation", "7"}).Err, "no digest of generation 7 (there are 1, 2, 3)")
	for _, args := range [][]string{{"--generation", "-1"}, {"--generation", "1", "--all"}, {"--diff", "--all"}, {"--diff=x"}, {"--diff=1..9"}, {"1..2"}, {"--diff", "x"}} {
		digest(cli.ExitUsage, args...)
	}
	sh = digestHub(t)
	wantText(t, sh.Want(cli.ExitNotDone, []string{"session", "digest", "beta"}).Err, "no digest yet", "meshctl session compact beta")
}

func TestADiffOfDigestsShowsWhatChanged(t *testing.T) {
	sh := digestHub(t, threeDigests()...)
	want := "digest 1 -> 2\nfacts\n  - build with make\n  + build with make release\n    never touch db/\n  + out/ is ignored\npending\n  - port the tests\nrefs\n  + a.md\n  + b.md\n"
	for _, args := range [][]string{{"--diff=1..2"}, {"--diff", "1..2"}} {
		if out := sh.Want(0, append([]string{"session", "digest", "beta"}, args...)).Out; out != want {
			t.Errorf("%v: got\n%swant\n%s", args, out, want)
		}
	}
	if out := sh.Want(0, []string{"session", "digest", "beta", "--diff"}).Out; out != "digest 2 -> 3\nnothing changed\n" {
		t.Errorf("the last two:\n%s", out)
	}
	wantText(t, sh.Want(0, []string{"session", "digest", "beta", "--diff=2..1"}, onTerminal).Out, "\x1b[31m  - build with make release\x1b[0m\n", "\x1b[32m  + build with make\x1b[0m\n")
	got := jsonLines(t, sh.Want(0, []string{"session", "digest", "beta", "--diff=1..2", "--json"}).Out)[0]
	facts, _ := got["facts"].(map[string]any)
	if got["from"] != 1.0 || got["to"] != 2.0 || fmt.Sprint(facts["removed"]) != "[build with make]" || fmt.Sprint(facts["added"]) != "[build with make release out/ is ignored]" {
		t.Errorf("got %v", got)
	}
	wantText(t, digestHub(t, threeDigests()[:1]...).Want(cli.ExitNotDone, []string{"session", "digest", "beta", "--diff"}).Err, "only one digest")
}
