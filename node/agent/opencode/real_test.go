package opencode_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// real is a node's agent on the real binary, supervised, and its model.
type real struct {
	model *stubllm.Server
	cfg   opencode.Config
	home  string
}

func newReal(t *testing.T) *real {
	t.Helper()
	r := &real{model: stubllm.Start(t), home: t.TempDir()}
	log, _ := newLog(t)
	env := opencodebin.Env(t, opencodebin.Options{ModelURL: r.model.URL(), Home: r.home})
	r.cfg = opencode.Config{
		Bin: opencodebin.Find(t), GuardCommand: guardCommand(t), DataDir: filepath.Join(t.TempDir(), "agent"),
		Env:        append(env, "MESH_PASSWORD=hunter2", "MESHNODE_HUB=x", "OPENCODE_DB=/nowhere/db", "OPENCODE_ENABLE_QUESTION_TOOL=1"),
		Workspaces: workspaces(t), PollInterval: 100 * time.Millisecond, HealthInterval: time.Second, Log: log,
	}
	return r
}

// turn makes a turn in the agent's workspace.
func (r *real) turn(t *testing.T, task, body string) agent.Turn {
	t.Helper()
	turn := newTurn(t, task, body)
	turn.Workspace = r.cfg.Workspaces[0]
	return turn
}

// arrived waits until the model was asked by a message that holds text.
func (r *real) arrived(t *testing.T, text string) {
	t.Helper()
	r.await(t, func(q stubllm.Request) bool { return strings.Contains(q.User, text) })
}

func (r *real) await(t *testing.T, match func(stubllm.Request) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if _, err := r.model.WaitFor(ctx, match); err != nil {
		t.Fatal(err)
	}
}

// serverRecord is the record that a guard keeps.
type serverRecord struct {
	Guard, Server struct{ PID int }
	Marker        string
}

func (r *real) record(t *testing.T) serverRecord {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(r.cfg.DataDir, "server.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec serverRecord
	if err := json.Unmarshal(raw, &rec); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), "assword") {
		t.Errorf("the record holds a secret: %s", raw)
	}
	return rec
}

// running reports whether a process runs; one that nobody waited for does not.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// withArgument finds the running processes that have an argument.
func withArgument(t *testing.T, arg string) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, dir := range dirs {
		raw, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if slices.Contains(strings.Split(string(raw), "\x00"), arg) {
			if pid, _ := strconv.Atoi(filepath.Base(dir)); running(pid) {
				out = append(out, pid)
			}
		}
	}
	return out
}

// nap is an argument of sleep that no other process of this machine has.
func nap(n int) string { return fmt.Sprintf("%d.%d", 86400+n, os.Getpid()) }

// needProc fails on systems where the test could not see what it must see.
func needProc(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Fatal("this test reads /proc and runs on Linux")
	}
}

func TestTheRealServer(t *testing.T) {
	needProc(t)
	r := newReal(t)
	a := start(t, r.cfg)

	session := ""
	t.Run("runs a turn to a result with its tokens", func(t *testing.T) {
		host := newRecords()
		out := run(t, a, r.turn(t, "alpha-1-done", "do it USAGE:1000,50,600,20"), host)
		expect(t, out, api.StateDone, "")
		if out.Summary != "stub ok" || !out.NewSession || out.Tokens == nil || out.Tokens.Total != 1050 || out.Tokens.Limit != opencodebin.DefaultContext {
			t.Errorf("outcome %+v, tokens %+v", out, out.Tokens)
		}
		session = out.Session
		if !slices.Equal(host.made, []string{session}) {
			t.Errorf("made %q", host.made)
		}
	})
	t.Run("is known by its version and memory", func(t *testing.T) {
		s := a.Status(t.Context())
		if s.Health != api.HealthHealthy || s.Version != opencodebin.Version || s.Memory < 50<<20 || len(s.Warnings) != 0 {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("gets the conduct, no question tool, and no request for a title", func(t *testing.T) {
		for _, q := range r.model.Requests() {
			if q.Kind != stubllm.KindChat || !strings.Contains(q.System, "Always end with exactly one result block") || slices.Contains(q.Tools, "question") {
				t.Errorf("%s request, tools %q", q.Kind, q.Tools)
			}
		}
	})
	t.Run("keeps the user's configuration, has a database of its own and no mesh variables", func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(r.cfg.DataDir, "opencode.db")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(r.home, ".local", "share", "opencode", "opencode.db")); !os.IsNotExist(err) {
			t.Errorf("the user's database was touched: %v", err)
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", r.record(t).Server.PID))
		if err != nil {
			t.Fatal(err)
		}
		for v := range strings.SplitSeq(string(env), "\x00") {
			if strings.HasPrefix(v, "MESH") || strings.Contains(v, "hunter2") || v == "OPENCODE_DB=/nowhere/db" || strings.HasPrefix(v, "OPENCODE_ENABLE_QUESTION_TOOL") {
				t.Errorf("the server's environment has %s", v)
			}
		}
	})
	for _, c := range []struct {
		name, task, body string
		state            api.State
		flags            []api.Flag
		summary          string
	}{
		{"uses the session again; failed", "alpha-1-fail", `REPLY:[opencode-mesh-result v1]\ntask: alpha-1-fail\nstatus: failed\nsummary: no compiler\nartifacts: none\n[/opencode-mesh-result]`,
			api.StateFailed, nil, "no compiler"},
		{"takes a free reply", "alpha-1-free", "REPLY:as you like it", api.StateDone, []api.Flag{api.FlagFreeReply}, "as you like it"},
		{"takes a question", "alpha-1-ask", "ASK me", api.StateQuestion, nil, ""},
		{"calls a tool", "alpha-1-tool", "TOOL:echo made > made.txt", api.StateDone, nil, "stub ok"},
		{"survives one 500 of the provider", "alpha-1-500", "FAIL:500:1", api.StateDone, nil, "stub ok"},
		{"reports a provider's refusal", "alpha-1-401", "FAIL:401", api.StateFailed, []api.Flag{api.FlagProviderError}, "stub failure 401"},
		{"reports a full context", "alpha-1-over", "OVERFLOW", api.StateFailed, []api.Flag{api.FlagProviderError, "context_full"}, ""},
		{"rejects a permission and goes on", "alpha-1-perm", "TOOL:cat /etc/hostname", api.StateDone, []api.Flag{api.FlagPermissionRejected}, "stub ok"},
		{"and one that a sub-agent asks for", "alpha-1-subp", `TOOLNAME:task TOOLARGS:{"description":"sub","prompt":"TOOL:cat /etc/hosts","subagent_type":"general"}`,
			api.StateDone, []api.Flag{api.FlagPermissionRejected}, "stub ok"},
		{"reads a reply of 300 KB", "alpha-1-long", "LONG:300", api.StateDone, nil, "stub ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			turn := r.turn(t, c.task, c.body)
			turn.Session.ID = session
			out := run(t, a, turn, newRecords())
			expect(t, out, c.state, "", c.flags...)
			if out.Session != session || out.NewSession {
				t.Errorf("session %s, want %s", out.Session, session)
			}
			if c.summary != "" && !strings.Contains(out.Summary, c.summary) {
				t.Errorf("summary %q", out.Summary)
			}
		})
	}
	if made, err := os.ReadFile(filepath.Join(r.cfg.Workspaces[0].Dir, "made.txt")); err != nil || string(made) != "made\n" {
		t.Errorf("the tool wrote %q, %v", made, err)
	}
	t.Run("shows the provider's retries and cancels a turn that waits for them", func(t *testing.T) {
		host := newRecords()
		done, cancel := begin(t, a, r.turn(t, "alpha-1-429", "FAIL:429"), host)
		host.awaitNote(t, "stub failure 429")
		cancel(agent.ErrCanceled)
		expect(t, settle(t, done), api.StateCanceled, "")
	})
	t.Run("cancels a turn in the middle of a tool, and the tool", func(t *testing.T) {
		host := newRecords()
		done, cancel := begin(t, a, r.turn(t, "alpha-1-canc", "TOOL:sleep "+nap(11)), host)
		eventually(t, "the tool runs", func() bool { return len(withArgument(t, nap(11))) > 0 })
		cancel(agent.ErrCanceled)
		expect(t, settle(t, done), api.StateCanceled, "")
		eventually(t, "the tool is gone", func() bool { return len(withArgument(t, nap(11))) == 0 })
	})
	t.Run("aborts a slow turn at its deadline, and the session goes on", func(t *testing.T) {
		host := newRecords()
		turn := r.turn(t, "alpha-1-slow", "GATE:never")
		done, cancel := begin(t, a, turn, host)
		r.arrived(t, "GATE:never")
		host.awaitSeen(t)
		cancel(agent.ErrDeadline)
		out := settle(t, done)
		expect(t, out, api.StateFailed, api.TaskDeadline)
		next := r.turn(t, "alpha-1-next", "after it")
		next.Session.ID = out.Session
		expect(t, run(t, a, next, newRecords()), api.StateDone, "")
	})
	t.Run("is started again when it dies, and its turn is resumed", func(t *testing.T) {
		host := newRecords()
		done, _ := begin(t, a, r.turn(t, "alpha-1-died", "GATE:died"), host)
		r.arrived(t, "GATE:died")
		host.awaitSeen(t)
		before := r.record(t)
		kill(t, before.Server.PID)
		r.model.Open("died")
		out := settle(t, done)
		expect(t, out, api.StateDone, "", api.FlagResumed)
		after := r.record(t)
		if after.Server.PID == before.Server.PID || running(before.Guard.PID) || running(before.Server.PID) {
			t.Errorf("before %+v, after %+v", before, after)
		}
	})
	t.Run("leaves nothing behind when it is stopped, whatever a tool started", func(t *testing.T) {
		out := run(t, a, r.turn(t, "alpha-1-daem", "TOOL:(setsid sleep "+nap(12)+" >/dev/null 2>&1 &); echo started"), newRecords())
		expect(t, out, api.StateDone, "")
		if len(withArgument(t, nap(12))) != 1 {
			t.Fatal("the tool's process does not run")
		}
		rec := r.record(t)
		stop(t, a)
		if running(rec.Server.PID) || running(rec.Guard.PID) || len(withArgument(t, nap(12))) != 0 {
			t.Errorf("left: server %v, guard %v, tool %v", running(rec.Server.PID), running(rec.Guard.PID), withArgument(t, nap(12)))
		}
		if _, err := os.Stat(filepath.Join(r.cfg.DataDir, "server.json")); !os.IsNotExist(err) {
			t.Errorf("the record is left: %v", err)
		}
	})
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
}

// node runs a turn in a node of its own process until the model has been asked and
// the message is on record as seen.
func (r *real) node(t *testing.T, turn agent.Turn, asked string) (pid int, n nodeFile, ended <-chan struct{}) {
	t.Helper()
	dir := t.TempDir()
	n = nodeFile{Bin: r.cfg.Bin, Guard: r.cfg.GuardCommand, DataDir: r.cfg.DataDir, Env: r.cfg.Env, Workspace: r.cfg.Workspaces[0],
		Turn: turn, Journal: filepath.Join(dir, "journal"), Session: filepath.Join(dir, "session")}
	raw, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "node.json"), string(raw))
	cmd := exec.Command(r.cfg.GuardCommand[0], "node", filepath.Join(dir, "node.json"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	seen := make(chan struct{})
	go func() {
		defer close(gone)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if lines.Text() == "seen" {
				close(seen)
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-gone
	})
	select {
	case <-seen:
	case <-gone:
		t.Fatal("the node ended")
	case <-time.After(testLimit):
		t.Fatal("the node's message was not seen")
	}
	r.arrived(t, asked)
	return cmd.Process.Pid, n, gone
}

// takeUp is the turn as the next process of the node gets it.
func takeUp(t *testing.T, n nodeFile) agent.Turn {
	t.Helper()
	turn := n.Turn
	turn.Resumed = true
	var err error
	if turn.Checkpoint, err = os.ReadFile(n.Journal); err != nil {
		t.Fatal(err)
	}
	session, err := os.ReadFile(n.Session)
	if err != nil {
		t.Fatal(err)
	}
	turn.Session.ID = string(session)
	return turn
}

func TestAfterKill9OfTheNode(t *testing.T) {
	needProc(t)
	r := newReal(t)
	turn := r.turn(t, "alpha-1-kill", "GATE:kill first TOOL:echo once >> runs.txt")
	pid, n, ended := r.node(t, turn, "GATE:kill")
	rec := r.record(t)
	if !running(rec.Server.PID) || !running(rec.Guard.PID) {
		t.Fatalf("not running: %+v", rec)
	}
	kill(t, pid)
	<-ended
	eventually(t, "the guard has ended its server", func() bool { return !running(rec.Server.PID) && !running(rec.Guard.PID) })

	// A new process takes the turn up, and is killed together with its guard while
	// a tool runs: nobody is left to end what was started.
	r.model.Open("kill")
	turn = takeUp(t, n)
	again := turn
	again.Task, again.Text = "alpha-1-tool", envelope("alpha-1-tool", "TOOL:sleep "+nap(13))
	again.Resumed, again.Checkpoint, again.Session = false, nil, agent.Session{Key: "another lane"}
	pid, _, ended = r.node(t, again, "sleep "+nap(13))
	eventually(t, "the tool runs", func() bool { return len(withArgument(t, nap(13))) > 0 })
	rec = r.record(t)
	kill(t, rec.Guard.PID)
	kill(t, pid)
	<-ended
	eventually(t, "the server dies with its guard", func() bool { return !running(rec.Server.PID) })

	a := start(t, r.cfg)
	out := run(t, a, turn, newRecords())
	expect(t, out, api.StateDone, "", api.FlagResumed)
	if out.Session != turn.Session.ID {
		t.Errorf("session %s, want %s", out.Session, turn.Session.ID)
	}
	if left := withArgument(t, nap(13)); len(left) != 0 {
		t.Errorf("the tool of the killed node still runs: %v", left)
	}
	if runs, err := os.ReadFile(filepath.Join(r.cfg.Workspaces[0].Dir, "runs.txt")); err != nil || string(runs) != "once\n" {
		t.Errorf("the tool ran %q, %v", runs, err)
	}
	// Asked again, the answered turn is read, not run.
	requests := len(r.model.Requests())
	expect(t, run(t, a, turn, newRecords()), api.StateDone, "")
	if n := len(r.model.Requests()); n != requests {
		t.Errorf("%d more requests", n-requests)
	}
}

// given starts a server that is not the node's and returns a configuration for it.
func (r *real) given(t *testing.T) opencode.Config {
	t.Helper()
	cmd := exec.Command(r.cfg.Bin, "serve", "--hostname", "127.0.0.1", "--port", "0")
	cmd.Dir = r.cfg.Workspaces[0].Dir
	cmd.Env = append(opencodebin.Env(t, opencodebin.Options{ModelURL: r.model.URL(), Home: r.home}), "OPENCODE_SERVER_PASSWORD=secret")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url := ""
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		_, url, _ = strings.Cut(lines.Text(), "listening on ")
	}
	cfg := r.cfg
	cfg.Bin, cfg.GuardCommand, cfg.DataDir, cfg.URL, cfg.Password = "", nil, "", url, "secret"
	return cfg
}

func TestAGivenRealServer(t *testing.T) {
	needProc(t)
	r := newReal(t)
	cfg := r.given(t)
	cfg.PermissionRules = rules(t, "bash=ask")
	a := start(t, cfg)
	s := awaitHealth(t, a, api.HealthHealthy)
	if len(s.Warnings) != 3 || !strings.Contains(s.Warnings[2], "--permission") || s.Memory != 0 {
		t.Errorf("status %+v", s)
	}
	const which = `TOOLNAME:question TOOLARGS:{"questions":[{"question":"Which?","header":"H","options":[{"label":"main","description":"d"},{"label":"dev","description":"d"}]}` +
		`,{"question":"Why?","header":"W","options":[]}]}`
	t.Run("asks its own questions through the node", func(t *testing.T) {
		host := patient()
		done, _ := begin(t, a, r.turn(t, "alpha-1-ques", which), host)
		q := host.asked(t, 1)
		if q.Kind != api.QuestionText || q.Text != "Which?" || !slices.Equal(q.Options, []string{"main", "dev"}) {
			t.Errorf("asked %+v", q)
		}
		q.answer <- "DEV"
		host.asked(t, 2).answer <- "because of the tests"
		out := settle(t, done)
		expect(t, out, api.StateDone, "")
		if !strings.Contains(out.Reply, `"Which?"="dev"`) || !strings.Contains(out.Reply, `"Why?"="because of the tests"`) {
			t.Errorf("reply %q", out.Reply)
		}
	})
	t.Run("and is told to go on when nobody answers", func(t *testing.T) {
		expect(t, run(t, a, r.turn(t, "alpha-1-nobo", which), newRecords()), api.StateDone, "", api.FlagAssumed)
	})
	t.Run("survives its node, which asks again under the same id", func(t *testing.T) {
		turn := r.turn(t, "alpha-1-surv", "TOOL:cat /etc/hostname && echo read-it")
		host := patient()
		first := start(t, cfg)
		done, cancel := begin(t, first, turn, host)
		id := host.asked(t, 1).id
		crash(t, done, cancel)
		stop(t, first)
		again := patient()
		done, _ = begin(t, start(t, cfg), resumed(turn, host), again)
		q := again.asked(t, 1)
		if q.id != id {
			t.Errorf("asked %s, then %s", id, q.id)
		}
		q.answer <- "once"
		out := settle(t, done)
		expect(t, out, api.StateDone, "")
		if !strings.Contains(out.Reply, "read-it") {
			t.Errorf("reply %q", out.Reply)
		}
	})
	t.Run("does not ask again for what an aborted turn asked", func(t *testing.T) {
		host := patient()
		done, cancel := begin(t, a, r.turn(t, "alpha-1-abrt", "TOOL:cat /etc/hostname"), host)
		host.asked(t, 1)
		cancel(agent.ErrCanceled)
		expect(t, settle(t, done), api.StateCanceled, "")
		next := patient()
		expect(t, run(t, a, r.turn(t, "alpha-1-aftr", "SLOW:0.5"), next), api.StateDone, "")
		if len(next.questions) != 0 {
			t.Errorf("asked %+v", next.questions[0])
		}
	})

	cfg.AgentName, cfg.StallAfter = "nobody", 2*time.Second
	out2 := run(t, start(t, cfg), r.turn(t, "alpha-1-agnt", "x"), newRecords())
	expect(t, out2, api.StateFailed, api.TaskNotStarted)
	if !strings.Contains(out2.Summary, `Agent not found: "nobody"`) {
		t.Errorf("summary %q", out2.Summary)
	}
}
