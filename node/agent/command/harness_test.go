//go:build unix

package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/command"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// fixture is a node directory with a workspace, for programs written in sh.
type fixture struct {
	t         *testing.T
	dir       string // everything of the test is below it
	runs      string
	workspace string
	cfg       command.Config
}

// newFixture prepares for a program: a script that runs in the workspace, which
// finds the following there: $starts, a file for its starts; say, a function that
// prints a result block.
func newFixture(t *testing.T, script string) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{t: t, dir: dir, runs: filepath.Join(dir, "runs"), workspace: filepath.Join(dir, "ws")}
	if err := os.Mkdir(f.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f.cfg = command.Config{
		Command:      []string{"sh", "-c", prelude + script, dir},
		RunsDir:      f.runs,
		ShimCommand:  []string{exe, "shim"},
		KillGrace:    2 * time.Second,
		PollInterval: testPoll,
	}
	t.Cleanup(f.expectNothingLeft)
	return f
}

// prelude is what every script begins with. $0 is the test's directory, so that
// its processes are found by their command line.
const prelude = `starts=$0/starts
say() { printf '[opencode-mesh-result v1]\ntask: %s\nstatus: %s\nsummary: %s\n[/opencode-mesh-result]\n' "$task" "$1" "$2"; }
task=t-1
`

func (f *fixture) agent(change ...func(*command.Config)) *command.Agent {
	f.t.Helper()
	cfg := f.cfg
	for _, c := range change {
		c(&cfg)
	}
	a, err := command.New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := a.Start(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return a
}

func (f *fixture) turn(task string) agent.Turn {
	f.t.Helper()
	text, err := mesh.Envelope{From: "alpha", Task: task, Mode: mesh.ModeOneShot, Reply: mesh.ReplyResultBlock, Body: "do it\n"}.Format()
	if err != nil {
		f.t.Fatal(err)
	}
	return agent.Turn{
		Triple:    triple(task),
		Kind:      api.TurnTask,
		Workspace: agent.Workspace{Name: "main", Dir: f.workspace},
		Mode:      mesh.ModeOneShot,
		Text:      text,
		Token:     "token-of-" + task,
	}
}

// run runs a turn to its outcome.
func (f *fixture) run(a *command.Agent, turn agent.Turn) api.Outcome {
	f.t.Helper()
	out, err := a.Run(f.t.Context(), turn, newHost())
	if err != nil {
		f.t.Fatalf("run: %v", err)
	}
	return out
}

// resume runs a turn as one that an earlier process had begun.
func (f *fixture) resume(a *command.Agent, turn agent.Turn) api.Outcome {
	f.t.Helper()
	turn.Resumed, turn.Checkpoint = true, []byte(`{}`)
	return f.run(a, turn)
}

// going is a turn that runs in the background.
type going struct {
	f    *fixture
	end  context.CancelCauseFunc
	host *memoryHost
	done chan struct{}
	out  api.Outcome
	err  error
}

func (f *fixture) begin(a *command.Agent, turn agent.Turn) *going {
	ctx, cancel := context.WithCancelCause(f.t.Context())
	g := &going{f: f, end: cancel, host: newHost(), done: make(chan struct{})}
	go func() {
		defer close(g.done)
		g.out, g.err = a.Run(ctx, turn, g.host)
	}()
	return g
}

// outcome waits for the turn's outcome.
func (g *going) outcome() api.Outcome {
	g.f.t.Helper()
	if err := g.wait(); err != nil {
		g.f.t.Fatalf("run: %v", err)
	}
	return g.out
}

func (g *going) wait() error {
	g.f.t.Helper()
	select {
	case <-g.done:
		return g.err
	case <-time.After(patience):
		g.f.t.Fatal("the turn does not end")
		return nil
	}
}

// stop ends the turn as a stopping node does.
func (g *going) stop() {
	g.f.t.Helper()
	g.end(agent.ErrStopping)
	if err := g.wait(); !errors.Is(err, agent.ErrDetached) {
		g.f.t.Fatalf("run of a stopping node returned %v", err)
	}
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

// file waits for a file with a complete line in it and returns it without the
// line's end.
func (f *fixture) file(name string) string {
	f.t.Helper()
	var text string
	eventually(f.t, "file "+name, func() bool {
		data, err := os.ReadFile(filepath.Join(f.dir, name))
		text = string(data)
		return err == nil && strings.HasSuffix(text, "\n")
	})
	return strings.TrimSuffix(text, "\n")
}

func (f *fixture) pid(name string) int {
	f.t.Helper()
	pid, err := strconv.Atoi(f.file(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return pid
}

// starts is how often the program recorded its start.
func (f *fixture) starts() int {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, "starts"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	return strings.Count(string(data), "\n")
}

// release lets a program go on that waits for the file "go".
func (f *fixture) release() {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, "go"), nil, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// untilReleased is a piece of script that waits for release.
const untilReleased = `while ! [ -e "$0/go" ]; do sleep 0.02; done
`

// runFile is the path of a file of the run directory of a task.
func (f *fixture) runFile(task, name string) string {
	f.t.Helper()
	dir, err := command.DirName(triple(task))
	if err != nil {
		f.t.Fatal(err)
	}
	return filepath.Join(f.runs, dir, name)
}

// awaitRecord waits until the shim has put its program on record, which it does
// while the program runs already.
func (f *fixture) awaitRecord(task string) {
	f.t.Helper()
	eventually(f.t, "the program is on record", func() bool {
		_, err := os.Stat(f.runFile(task, "program"))
		return err == nil
	})
}

// shim is the pid of the shim that claimed a task's first launch.
func (f *fixture) shim(task string) int {
	f.t.Helper()
	var c struct {
		By string
		ID struct{ PID int }
	}
	data, err := os.ReadFile(f.runFile(task, "started"))
	if err != nil {
		f.t.Fatal(err)
	}
	if err := json.Unmarshal(data, &c); err != nil || c.By != "shim" || c.ID.PID < 2 {
		f.t.Fatalf("claim %s: %v", data, err)
	}
	return c.ID.PID
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

func alive(pid int) bool {
	for _, p := range processes() {
		if p.pid == pid {
			return true
		}
	}
	return false
}

type process struct {
	pid     int
	command string
}

// processes lists the live processes of the machine; zombies do not count.
func processes() []process {
	var list []process
	if runtime.GOOS == "linux" {
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if i := strings.LastIndexByte(string(stat), ')'); err != nil || strings.HasPrefix(string(stat[i+1:]), " Z") {
				continue
			}
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			list = append(list, process{pid, strings.ReplaceAll(string(line), "\x00", " ")})
		}
		return list
	}
	out, _ := exec.Command("ps", "-A", "-o", "pid=,stat=,command=").Output()
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if pid, err := strconv.Atoi(f[0]); err == nil && !strings.HasPrefix(f[1], "Z") {
			list = append(list, process{pid, strings.Join(f[2:], " ")})
		}
	}
	return list
}

// left lists the processes of this test: its directory stands in their command
// line.
func (f *fixture) left() []process {
	var left []process
	for _, p := range processes() {
		if strings.Contains(p.command, f.dir) {
			left = append(left, p)
		}
	}
	return left
}

// expectNothingLeft fails the test if processes of it live on, and ends them.
func (f *fixture) expectNothingLeft() {
	deadline := time.Now().Add(patience)
	for len(f.left()) > 0 && time.Now().Before(deadline) && !f.t.Failed() {
		time.Sleep(testPoll) // there is no event for strangers' ends
	}
	for _, p := range f.left() {
		f.t.Errorf("process %d is left: %s", p.pid, p.command)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}

// expect compares what matters of an outcome.
func expect(t *testing.T, out api.Outcome, state api.State, code string, flags ...api.Flag) {
	t.Helper()
	got := ""
	if out.Error != nil {
		got = out.Error.Code
	}
	if out.State != state || got != code || fmt.Sprint(out.Flags) != fmt.Sprint(flags) {
		t.Fatalf("outcome is %s, error %q, flags %v; want %s, %q, %v\n%+v", out.State, got, out.Flags, state, code, flags, out)
	}
}
