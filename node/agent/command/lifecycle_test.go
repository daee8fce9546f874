//go:build unix

package command_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/command"
	"opencode-mesh/protocol/api"
)

func TestCancelEndsTheWholeProcessGroup(t *testing.T) {
	const family = `
sh -c 'trap "" HUP; echo $$ > "$0/grandchild"; sleep 300 & wait' "$0" &
echo partial work
while ! [ -s "$0/grandchild" ]; do sleep 0.02; done
echo $$ > "$0/pid"
`
	for _, c := range []struct {
		name, script string
		cause        error
		state        api.State
		code         string
	}{
		{"when it is canceled", family + "wait", agent.ErrCanceled, api.StateCanceled, ""},
		{"when its time is over", family + "wait", agent.ErrDeadline, api.StateFailed, api.TaskDeadline},
		{"when a descendant ignores the request", `
sh -c 'trap "" TERM; echo $$ > "$0/grandchild"; while :; do sleep 1; done' "$0" > /dev/null 2>&1 &
echo partial work
while ! [ -s "$0/grandchild" ]; do sleep 0.02; done
echo $$ > "$0/pid"; wait`, agent.ErrCanceled, api.StateCanceled, ""},
		{"when it ignores the request", "trap '' TERM\n" + family + "while :; do sleep 1; done", agent.ErrCanceled, api.StateCanceled, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.script)
			g := f.begin(f.agent(func(cfg *command.Config) { cfg.KillGrace = 200 * time.Millisecond }), f.turn("t-1"))
			pids := []int{f.pid("pid"), f.pid("grandchild")}
			g.end(c.cause)
			out := g.outcome()
			expect(t, out, c.state, c.code)
			for _, pid := range pids {
				if alive(pid) {
					t.Errorf("process %d lives", pid)
				}
			}
			if out.Reply != "partial work\n" || out.RanMS <= 0 {
				t.Errorf("reply %q after %d ms", out.Reply, out.RanMS)
			}
		})
	}
}

func TestCanceledProgramMayCleanUpWithinItsGrace(t *testing.T) {
	f := newFixture(t, `trap 'sleep 0.1; echo cleaned > "$0/cleaned"; exit 0' TERM
echo up > "$0/up"
while :; do sleep 0.02; done`)
	g := f.begin(f.agent(), f.turn("t-1"))
	f.file("up")
	g.end(agent.ErrCanceled)
	expect(t, g.outcome(), api.StateCanceled, "")
	if f.file("cleaned") != "cleaned" {
		t.Error("the program did not clean up")
	}
}

func TestCancelBeforeTheStartStartsNothing(t *testing.T) {
	f := newFixture(t, `echo x >> $starts`)
	a := f.agent()
	turn := f.turn("t-1")
	for _, resumed := range []bool{false, true} {
		turn.Resumed = resumed
		g := &going{f: f, host: newHost()}
		ctx, end := withCause(t, agent.ErrCanceled)
		out, err := a.Run(ctx, turn, g.host)
		end()
		if err != nil {
			t.Fatal(err)
		}
		expect(t, out, api.StateCanceled, "")
	}
	if f.starts() != 0 || len(f.left()) > 0 {
		t.Error("something was started")
	}
}

func TestResultThatWasThereBeforeTheCancelStands(t *testing.T) {
	f := newFixture(t, `say done "in time"`)
	a := f.agent()
	g := f.begin(a, f.turn("t-1"))
	expect(t, g.outcome(), api.StateDone, "")
	ctx, end := withCause(t, agent.ErrCanceled)
	defer end()
	turn := f.turn("t-1")
	turn.Resumed, turn.Checkpoint = true, <-g.host.saved
	out, err := a.Run(ctx, turn, newHost())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, out, api.StateDone, "")
}

func TestStoppingNodeLeavesTheProgramToTheNextOne(t *testing.T) {
	f := newFixture(t, `echo x >> $starts; echo up > "$0/up"; `+untilReleased+`say done "went on"`)
	first := f.agent()
	g := f.begin(first, f.turn("t-1"))
	f.file("up")
	g.stop()
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	turn := f.turn("t-1")
	turn.Resumed, turn.Checkpoint = true, <-g.host.saved

	t.Run("which may stop as well", func(t *testing.T) {
		g := f.begin(f.agent(), turn)
		eventually(t, "the second node looks after the run", func() bool {
			return errors.Is(f.agent().Forget(turn.Triple), command.ErrRunning)
		})
		g.stop()
	})
	g = f.begin(f.agent(), turn)
	f.release()
	out := g.outcome()
	expect(t, out, api.StateDone, "")
	if out.Summary != "went on" || f.starts() != 1 {
		t.Errorf("summary %q after %d starts", out.Summary, f.starts())
	}
}

func TestAdoptedProgramCanBeCanceled(t *testing.T) {
	f := newFixture(t, `echo $$ > "$0/pid"; sleep 300`)
	g := f.begin(f.agent(), f.turn("t-1"))
	pid := f.pid("pid")
	g.stop()
	turn := f.turn("t-1")
	turn.Resumed, turn.Checkpoint = true, <-g.host.saved
	g = f.begin(f.agent(), turn)
	g.end(agent.ErrCanceled)
	expect(t, g.outcome(), api.StateCanceled, "")
	if alive(pid) {
		t.Error("the program lives")
	}
}

func TestKilledShimTakesItsProgramAlong(t *testing.T) {
	const family = `echo x >> $starts
sh -c 'echo $$ > "$0/grandchild"; exec sleep 300' "$0" &
while ! [ -s "$0/grandchild" ]; do sleep 0.02; done
`
	const wait = `
echo $$ > "$0/pid"
sleep 300`
	for _, c := range []struct {
		name, script string
		state        api.State
		code         string
		flags        []api.Flag
	}{
		{"and leaves an interrupted turn", "echo begun" + wait, api.StateFailed, api.TaskInterrupted, []api.Flag{api.FlagMayHaveRun}},
		{"but a complete result block counts", `say done "made it"` + wait, api.StateDone, "", nil},
		{"and half a block does not", `say done "made it" | head -n 4` + wait, api.StateFailed, api.TaskInterrupted, []api.Flag{api.FlagMayHaveRun}},
		{"and a reply without a block does not", `echo "all done"` + wait, api.StateFailed, api.TaskInterrupted, []api.Flag{api.FlagMayHaveRun}},
	} {
		for _, watched := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, watched=%t", c.name, watched), func(t *testing.T) {
				f := newFixture(t, family+c.script)
				g := f.begin(f.agent(), f.turn("t-1"))
				pids := []int{f.pid("pid"), f.pid("grandchild")}
				eventually(t, "the output is in its file", func() bool {
					info, err := os.Stat(f.runFile("t-1", "stdout"))
					return err == nil && info.Size() > 0
				})
				f.awaitRecord("t-1")
				if !watched {
					g.stop()
				}
				kill(t, f.shim("t-1"), syscall.SIGKILL)
				if !watched {
					turn := f.turn("t-1")
					turn.Resumed, turn.Checkpoint = true, <-g.host.saved
					g = f.begin(f.agent(), turn)
				}
				out := g.outcome()
				expect(t, out, c.state, c.code, c.flags...)
				for _, pid := range pids {
					if alive(pid) {
						t.Errorf("process %d lives", pid)
					}
				}
				expect(t, f.resume(f.agent(), f.turn("t-1")), c.state, c.code, c.flags...)
				if f.starts() != 1 {
					t.Errorf("%d starts", f.starts())
				}
			})
		}
	}
}

func TestShimThatIsAskedToEndSaysSo(t *testing.T) {
	f := newFixture(t, `echo up > "$0/up"; sleep 300`)
	g := f.begin(f.agent(), f.turn("t-1"))
	f.file("up")
	kill(t, f.shim("t-1"), syscall.SIGTERM)
	expect(t, g.outcome(), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
}

func TestStoppedShimDoesNotHangACancel(t *testing.T) {
	t.Parallel() // it mostly waits
	f := newFixture(t, `echo $$ > "$0/pid"; sleep 300`)
	g := f.begin(f.agent(func(cfg *command.Config) { cfg.KillGrace = time.Millisecond }), f.turn("t-1"))
	pid := f.pid("pid")
	f.awaitRecord("t-1")
	kill(t, f.shim("t-1"), syscall.SIGSTOP)
	g.end(agent.ErrCanceled)
	expect(t, g.outcome(), api.StateCanceled, "")
	if alive(pid) {
		t.Error("the program lives")
	}
}

// slowShim makes shims that wait for the test before they do anything.
func slowShim(f *fixture) func(*command.Config) {
	return func(cfg *command.Config) {
		cfg.ShimCommand = append([]string{"sh", "-c", untilReleased + `exec "$@"`, f.dir}, cfg.ShimCommand...)
	}
}

func TestUnclaimedAttemptIsClaimedByTheNodeBeforeItRunsAgain(t *testing.T) {
	f := newFixture(t, `echo x >> $starts; say done "once"`)
	turn := f.turn("t-1")
	// Two nodes go away before their shims get to claiming anything.
	for range 2 {
		g := f.begin(f.agent(slowShim(f)), turn)
		turn.Resumed, turn.Checkpoint = true, <-g.host.saved
		g.stop()
	}
	out := f.run(f.agent(), turn)
	expect(t, out, api.StateDone, "")
	f.release() // now the old shims want to start the program
	f.expectNothingLeft()
	if f.starts() != 1 {
		t.Errorf("%d starts", f.starts())
	}
	expect(t, f.run(f.agent(), turn), api.StateDone, "")
}

func TestShimKilledBeforeItsClaimIsReplaced(t *testing.T) {
	f := newFixture(t, `echo x >> $starts; say done "by the next shim"`)
	out := f.run(f.agent(func(cfg *command.Config) {
		cfg.ShimCommand = append([]string{"sh", "-c", `[ -e "$0/killed" ] || { touch "$0/killed"; kill -9 $$; }; exec "$@"`, f.dir}, cfg.ShimCommand...)
	}), f.turn("t-1"))
	expect(t, out, api.StateDone, "")
	if f.starts() != 1 {
		t.Errorf("%d starts", f.starts())
	}
}

func TestCanceledAttemptIsNotStartedByASlowShim(t *testing.T) {
	f := newFixture(t, `echo x >> $starts`)
	turn := f.turn("t-1")
	g := f.begin(f.agent(slowShim(f)), turn)
	turn.Resumed, turn.Checkpoint = true, <-g.host.saved
	g.stop()
	ctx, end := withCause(t, agent.ErrCanceled)
	defer end()
	out, err := f.agent().Run(ctx, turn, newHost())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, out, api.StateCanceled, "")
	f.release()
	f.expectNothingLeft()
	if f.starts() != 0 {
		t.Errorf("%d starts", f.starts())
	}
}

func TestManyShimsOfOneLaunchStartTheProgramOnce(t *testing.T) {
	f := newFixture(t, `echo x >> $starts; `+untilReleased+`say done "once"`)
	g := f.begin(f.agent(), f.turn("t-1"))
	eventually(t, "the program runs", func() bool { return f.starts() > 0 })
	var rivals sync.WaitGroup
	for range 5 {
		rivals.Go(func() {
			rival := exec.Command(f.cfg.ShimCommand[0], "shim", filepath.Dir(f.runFile("t-1", "x")), "1")
			var exit *exec.ExitError
			if err := rival.Run(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
				t.Errorf("a second shim ended with %v", err)
			}
		})
	}
	rivals.Wait()
	f.release()
	expect(t, g.outcome(), api.StateDone, "")
	if f.starts() != 1 {
		t.Errorf("%d starts", f.starts())
	}
}

func TestRunnersThatRaceForOneAttemptStartItOnce(t *testing.T) {
	f := newFixture(t, `echo x >> $starts; sleep 0.05; say done "once"`)
	var racing []*going
	for range 6 {
		racing = append(racing, f.begin(f.agent(), f.turn("t-1")))
	}
	for _, g := range racing {
		out := g.outcome()
		expect(t, out, api.StateDone, "")
		if out.Summary != "once" {
			t.Errorf("summary %q", out.Summary)
		}
	}
	if f.starts() != 1 {
		t.Errorf("%d starts", f.starts())
	}
}

func TestHundredsOfTurnsAtOnceEachRunOnce(t *testing.T) {
	const turns, atOnce = 200, 32
	f := newFixture(t, `echo x >> $starts; task=$(sed -n 's/^task: //p'); say done "$task"`)
	a := f.agent()
	free := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range turns {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			task := fmt.Sprintf("t-%d", i)
			out, err := a.Run(t.Context(), f.turn(task), newHost())
			if err != nil || out.State != api.StateDone || out.Summary != task {
				t.Errorf("%s: %+v, %v", task, out, err)
			}
		})
	}
	all.Wait()
	if f.starts() != turns {
		t.Errorf("%d starts of %d", f.starts(), turns)
	}
}

func TestLostRunDirectoryIsNotTakenForAFreshOne(t *testing.T) {
	f := newFixture(t, `echo x >> $starts`)
	expect(t, f.resume(f.agent(), f.turn("t-1")), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
	if err := os.MkdirAll(f.runFile("t-2", ""), 0o700); err != nil {
		t.Fatal(err)
	}
	expect(t, f.resume(f.agent(), f.turn("t-2")), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
	if f.starts() != 0 {
		t.Errorf("%d starts", f.starts())
	}
}

func TestUnreadableRecordIsNotTakenForARunThatNeverWas(t *testing.T) {
	f := newFixture(t, `echo x >> $starts`)
	if err := os.MkdirAll(f.runFile("t-1", "started"), 0o700); err != nil { // no file
		t.Fatal(err)
	}
	expect(t, f.resume(f.agent(), f.turn("t-1")), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
	if _, err := f.agent().Run(t.Context(), f.turn("t-1"), newHost()); err == nil || errors.Is(err, agent.ErrDetached) {
		t.Errorf("a turn that never began: %v", err)
	}
	if f.starts() != 0 {
		t.Errorf("%d starts", f.starts())
	}
}

func TestNothingStartsWithoutACheckpoint(t *testing.T) {
	f := newFixture(t, `echo x >> $starts`)
	host := newHost()
	host.err = errors.New("journal is full")
	a := f.agent()
	if _, err := a.Run(t.Context(), f.turn("t-1"), host); !errors.Is(err, host.err) {
		t.Fatalf("error %v", err)
	}
	f.expectNothingLeft()
	if f.starts() != 0 {
		t.Fatalf("%d starts", f.starts())
	}
	// The journal has room again: the turn runs.
	expect(t, f.run(a, f.turn("t-1")), api.StateDone, "", api.FlagFreeReply)
}

func TestReusedPidIsNeverSignalled(t *testing.T) {
	f := newFixture(t, `echo up > "$0/up"; sleep 300`)
	bystander := exec.Command("sleep", "300")
	bystander.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = bystander.Wait() }()
	defer func() { kill(t, bystander.Process.Pid, syscall.SIGKILL); <-ended }()

	g := f.begin(f.agent(), f.turn("t-1"))
	f.file("up")
	f.awaitRecord("t-1")
	g.stop()
	// The shim dies unseen, and the pids on record now belong to somebody else.
	kill(t, f.shim("t-1"), syscall.SIGKILL)
	f.expectNothingLeft()
	for _, name := range []string{"started", "program"} {
		var record map[string]any
		data, err := os.ReadFile(f.runFile("t-1", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &record); err != nil {
			t.Fatal(err)
		}
		id := record
		if name == "started" {
			id = record["id"].(map[string]any)
		}
		id["pid"] = bystander.Process.Pid
		id["start"] = id["start"].(string) + "1" // start times may be equal by chance here
		if data, err = json.Marshal(record); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.runFile("t-1", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, f.resume(f.agent(), f.turn("t-1")), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)

	// The same with a shim that seems to live: its lock is held.
	lock := holdLock(t, f.runFile("t-1", "lock"))
	turn := f.turn("t-1")
	turn.Resumed, turn.Checkpoint = true, []byte(`{}`)
	g = f.begin(f.agent(), turn)
	g.end(agent.ErrCanceled)
	expect(t, g.outcome(), api.StateCanceled, "")
	g = f.begin(f.agent(), turn)
	lock.Close()
	expect(t, g.outcome(), api.StateFailed, api.TaskInterrupted, api.FlagMayHaveRun)
	select {
	case <-ended:
		t.Fatal("the bystander was ended")
	default:
	}
}

func TestForgetRemovesRunsThatAreOver(t *testing.T) {
	f := newFixture(t, `echo up > "$0/up"; `+untilReleased)
	a := f.agent()
	g := f.begin(a, f.turn("t-1"))
	f.file("up")
	if err := a.Forget(triple("t-1")); !errors.Is(err, command.ErrRunning) {
		t.Fatalf("forgetting a watched run: %v", err)
	}
	g.stop()
	if err := f.agent().Forget(triple("t-1")); !errors.Is(err, command.ErrRunning) {
		t.Fatalf("forgetting a detached run: %v", err)
	}
	f.release()
	expect(t, f.resume(f.agent(), f.turn("t-1")), api.StateDone, "", api.FlagFreeReply)
	for range 2 { // there or not
		if err := a.Forget(triple("t-1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Forget(api.Triple{Task: "../ws", Attempt: 1, Turn: 1}); err == nil {
		t.Fatal("forgot something that is no run")
	}
	entries, err := os.ReadDir(f.runs)
	if err != nil || len(entries) > 0 {
		t.Fatalf("left %v, %v", entries, err)
	}
}

func TestStartFinishesRemovalsAndLeavesRunsAlone(t *testing.T) {
	f := newFixture(t, "")
	for _, name := range []string{".removed-t-1.1.1/stdout", "t-2.1.1/started"} {
		path := filepath.Join(f.runs, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	f.agent()
	entries, err := os.ReadDir(f.runs)
	if err != nil || len(entries) != 1 || entries[0].Name() != "t-2.1.1" {
		t.Fatalf("runs %v, %v", entries, err)
	}
}

func TestShimRefusesArgumentsThatAreNotAnodes(t *testing.T) {
	f := newFixture(t, "")
	for _, args := range [][]string{{}, {f.dir}, {f.dir, "0"}, {f.dir, "x"}, {f.dir, "1"}} {
		out, err := exec.Command(f.cfg.ShimCommand[0], append([]string{"shim"}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "shim: ") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}
