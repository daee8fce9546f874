//go:build unix

package proc

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Detach makes cmd lead a session of its own: it survives its parent, and no
// terminal's signals reach it.
func Detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

// Contain ties what this process starts to its life where only the process itself
// can do that; see Group for the rest.
func Contain() error { return nil }

// TerminateGroup asks every process of a group to end. The caller must not have
// reaped the group's leader, or know that the group has members.
func TerminateGroup(leader int) { signalGroup(leader, unix.SIGTERM) }

// KillGroup ends every process of a group; for the caller see TerminateGroup.
func KillGroup(leader int) { signalGroup(leader, unix.SIGKILL) }

// GroupAlive reports whether the group has members that are not zombies, where
// the system lets one tell. The kernel does not give a group's number away while
// it has members of any kind.
func GroupAlive(leader int) bool {
	return leader > 1 && killed(unix.Kill(-leader, 0)) && groupLives(leader)
}

func signalGroup(leader int, sig unix.Signal) {
	if leader > 1 {
		// The group may have ended by itself.
		_ = unix.Kill(-leader, sig)
	}
}

// KillLeftovers ends the process group that leader began in the session of owner,
// both of which may be gone, and waits up to limit until it is empty. A number
// that belongs to somebody else by now is not touched.
func KillLeftovers(owner, leader ID, limit time.Duration) error {
	n, err := groupOf(owner, leader)
	if err != nil || n == 0 {
		return err
	}
	KillGroup(leader.PID)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	const look = 10 * time.Millisecond
	if poll(ctx, look, func() bool {
		n, err = groupOf(owner, leader)
		return err != nil || n == 0
	}) != nil {
		return fmt.Errorf("process group %d does not end", leader.PID)
	}
	return err
}
