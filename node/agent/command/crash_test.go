//go:build unix

package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// withCause is a context that has ended already.
func withCause(t *testing.T, cause error) (context.Context, func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	return ctx, func() { cancel(nil) }
}

// holdLock locks a file as a shim would.
func holdLock(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return f
}

// node starts a node process for a turn and returns it.
func (f *fixture) node(turn agent.Turn) *exec.Cmd {
	f.t.Helper()
	data, err := json.Marshal(nodeJob{Config: f.cfg, Turn: turn, Dir: f.dir})
	if err != nil {
		f.t.Fatal(err)
	}
	file := filepath.Join(f.dir, "node.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(f.cfg.ShimCommand[0], "node", file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	return cmd
}

// settled reads the outcome that a node process left, nil if there is none.
func (f *fixture) settled() *api.Outcome {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, outcomeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var out api.Outcome
	if err := errors.Join(err, json.Unmarshal(data, &out)); err != nil {
		f.t.Fatal(err)
	}
	return &out
}

func TestKilledNodeLeavesItsProgramToTheNextOne(t *testing.T) {
	f := newFixture(t, `echo x >> $starts; echo up > "$0/up"; `+untilReleased+`say done "went on"; exit 0`)
	node := f.node(f.turn("t-1"))
	f.file("up")
	kill(t, node.Process.Pid, syscall.SIGKILL)
	_ = node.Wait()
	f.release()
	out := f.resume(f.agent(), f.turn("t-1"))
	expect(t, out, api.StateDone, "")
	if out.Summary != "went on" || f.starts() != 1 {
		t.Errorf("summary %q after %d starts", out.Summary, f.starts())
	}
}

func TestResultIsCollectedWhenNodeAndProgramEndedMeanwhile(t *testing.T) {
	f := newFixture(t, `echo up > "$0/up"; `+untilReleased+`say done "alone"`)
	node := f.node(f.turn("t-1"))
	f.file("up")
	kill(t, node.Process.Pid, syscall.SIGKILL)
	_ = node.Wait()
	f.release()
	f.expectNothingLeft()
	out := f.resume(f.agent(), f.turn("t-1"))
	expect(t, out, api.StateDone, "")
	if out.Summary != "alone" {
		t.Errorf("summary %q", out.Summary)
	}
}

// crashUntilSettled lets nodes work on a turn and kills each at a random moment,
// until one has left an outcome. harm is done together with each kill.
func (f *fixture) crashUntilSettled(random *rand.Rand, harm func()) api.Outcome {
	f.t.Helper()
	const nodes = 100
	for i := range nodes {
		node := f.node(f.turn("t-1"))
		ended := make(chan struct{})
		go func() { defer close(ended); _ = node.Wait() }()
		// Later nodes get more time, so that a slow machine comes to an end as well.
		window := 40*time.Millisecond + time.Duration(i)*10*time.Millisecond
		select {
		case <-ended:
		case <-time.After(time.Duration(random.Int64N(int64(window)))):
			_ = node.Process.Kill()
			harm()
			<-ended
		}
		if out := f.settled(); out != nil {
			return *out
		}
	}
	f.t.Fatalf("not settled by %d nodes", nodes)
	return api.Outcome{}
}

const crashScript = `echo x >> $starts; sleep 0.1; say done "survived"`

func TestNodesKilledAtAnyMomentNeitherLoseNorRepeatATurn(t *testing.T) {
	t.Parallel() // it mostly waits
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for range 12 {
		f := newFixture(t, crashScript)
		out := f.crashUntilSettled(random, func() {})
		if out.State != api.StateDone || f.starts() != 1 {
			t.Fatalf("seed %d: %d starts, outcome %+v", seed, f.starts(), out)
		}
	}
}

func TestShimsKilledAtAnyMomentLeaveDoneOrInterruptedTurns(t *testing.T) {
	t.Parallel() // it mostly waits
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for range 8 {
		f := newFixture(t, crashScript)
		out := f.crashUntilSettled(random, func() {
			for _, p := range f.left() {
				if strings.Contains(p.command, " shim ") {
					_ = syscall.Kill(p.pid, syscall.SIGKILL)
				}
			}
		})
		done := out.State == api.StateDone && f.starts() == 1
		interrupted := out.State == api.StateFailed && out.Error != nil && out.Error.Code == api.TaskInterrupted &&
			len(out.Flags) == 1 && out.Flags[0] == api.FlagMayHaveRun && f.starts() <= 1
		if !done && !interrupted {
			t.Fatalf("seed %d: %d starts, outcome %+v", seed, f.starts(), out)
		}
	}
}
