//go:build unix

package proc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/internal/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "owner" {
		own(os.Args[2])
	}
	goleak.VerifyTestMain(m)
}

// own starts a group of two, writes their pids to a file and waits to be killed.
func own(file string) {
	runtime.LockOSThread()
	group := exec.Command("sh", "-c", `sleep 300 & echo $$ $! > "$0.tmp"; mv "$0.tmp" "$0"; wait`, file)
	proc.Group(group)
	if err := group.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}

const (
	interval = 5 * time.Millisecond
	patience = 2 * time.Minute
)

// child starts a sleeper that is ended with the test.
func child(t *testing.T, setUp ...func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	for _, f := range setUp {
		f(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	t.Cleanup(func() {
		// Reaped or not, it is this process's child and its pid not given away, or it
		// was reaped by the test.
		if id, err := proc.Identify(pid); err == nil && id.PID == pid {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	})
	return cmd
}

func identify(t *testing.T, pid int) proc.ID {
	t.Helper()
	id, err := proc.Identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// withAndWithoutEvents runs a test on handles as they are and on ones that poll.
func withAndWithoutEvents(t *testing.T, test func(t *testing.T, prepare func(*proc.Handle))) {
	t.Run("by event", func(t *testing.T) { test(t, func(*proc.Handle) {}) })
	t.Run("by polling", func(t *testing.T) { test(t, proc.WithoutEvents) })
}

func TestHandleWaitsForItsProcessAndReapsIt(t *testing.T) {
	withAndWithoutEvents(t, func(t *testing.T, prepare func(*proc.Handle)) {
		for _, own := range []bool{true, false} {
			cmd := child(t)
			pid := cmd.Process.Pid
			var h *proc.Handle
			if own {
				h = proc.OpenChild(cmd, interval)
			} else { // a child, but not of this handle's making
				var err error
				if h, err = proc.Open(identify(t, pid), interval); err != nil {
					t.Fatal(err)
				}
			}
			defer h.Close()
			prepare(h)
			given := errors.New("given up")
			for range 2 { // a wait that was given up leaves the handle usable
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(interval, func() { cancel(given) })
				if err := h.Wait(ctx); !errors.Is(err, given) {
					t.Fatalf("wait returned %v", err)
				}
			}
			if err := h.Terminate(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := h.Wait(ctx); err != nil {
				t.Fatalf("wait returned %v", err)
			}
			if _, err := proc.Identify(pid); !errors.Is(err, proc.ErrGone) {
				t.Errorf("own=%t: the process was not reaped: %v", own, err)
			}
			if err := errors.Join(h.Terminate(), h.Kill(), h.Wait(ctx)); err != nil {
				t.Errorf("own=%t: after the end: %v", own, err)
			}
		}
	})
}

func TestOpenRefusesAProcessThatMerelyHasThePid(t *testing.T) {
	id := identify(t, child(t).Process.Pid)
	other := identify(t, os.Getpid())
	for _, wrong := range []proc.ID{
		{PID: id.PID, Start: other.Start + "0"},
		{PID: id.PID},
		{PID: 0, Start: id.Start},
		{PID: 1, Start: identify(t, 1).Start},
		{PID: -1, Start: id.Start},
		{PID: -id.PID, Start: id.Start},
	} {
		if h, err := proc.Open(wrong, 0); !errors.Is(err, proc.ErrGone) {
			t.Errorf("%+v: %v, %v", wrong, h, err)
		}
	}
}

func TestHandleWithoutEventsDoesNotSignalASuccessor(t *testing.T) {
	id := identify(t, child(t).Process.Pid)
	h := proc.HandleOf(proc.ID{PID: id.PID, Start: id.Start + "0"}, interval)
	if err := errors.Join(h.Terminate(), h.Kill(), h.Wait(t.Context())); err != nil {
		t.Fatal(err)
	}
	if now := identify(t, id.PID); now != id {
		t.Fatal("the successor is gone")
	}
}

func TestLeftoversOfADeadOwnerAreEnded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	owner := exec.Command(os.Args[0], "owner", file)
	proc.Detach(owner)
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var leader, member int
	wait(t, "the group", func() bool {
		data, err := os.ReadFile(file)
		_, _ = fmt.Sscan(string(data), &leader, &member)
		return err == nil
	})
	ownerID, leaderID, memberID := identify(t, owner.Process.Pid), identify(t, leader), identify(t, member)
	_ = owner.Process.Kill()
	_ = owner.Wait()

	stranger := identify(t, child(t).Process.Pid)
	for _, wrong := range []proc.ID{
		{PID: leaderID.PID, Start: leaderID.Start + "0"},
		{PID: leaderID.PID, Start: "another boot/1"},
		{PID: stranger.PID, Start: leaderID.Start},
		{},
	} {
		if err := proc.KillLeftovers(ownerID, wrong, patience); err != nil {
			t.Fatal(err)
		}
	}
	if identify(t, member) != memberID || !proc.GroupAlive(leader) {
		t.Fatal("a wrong identity ended the group")
	}
	if err := proc.KillLeftovers(ownerID, leaderID, patience); err != nil {
		t.Fatal(err)
	}
	wait(t, "the group's end", func() bool { return !proc.GroupAlive(leader) })
	if err := proc.KillLeftovers(ownerID, leaderID, patience); err != nil {
		t.Fatalf("nothing left: %v", err)
	}
	identify(t, stranger.PID)
}

func TestGroupsThatAreNoneAreNeverSignalled(t *testing.T) {
	for _, pid := range []int{-1, 0, 1} {
		if proc.GroupAlive(pid) {
			t.Errorf("%d is a group", pid)
		}
		proc.TerminateGroup(pid) // would end this test, or worse
	}
}

func TestLockHasOneHolderAndEndsWithIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := proc.TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proc.TryLock(path); !errors.Is(err, proc.ErrLocked) {
		t.Fatalf("second holder: %v", err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), interval, proc.ErrLocked)
	defer cancel()
	if err := proc.WaitUnlocked(ctx, path, interval); !errors.Is(err, proc.ErrLocked) {
		t.Fatalf("waiting for a held lock: %v", err)
	}
	time.AfterFunc(interval, l.Release)
	if err := proc.WaitUnlocked(t.Context(), path, 0); err != nil {
		t.Fatalf("waiting for a lock: %v", err)
	}
	if err := proc.WaitUnlocked(t.Context(), filepath.Join(path, "x"), interval); err == nil {
		t.Fatal("waiting for what cannot be a lock succeeded")
	}
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}
