package proc

import (
	"os/exec"
	"syscall"
)

// Group makes cmd lead a process group of its own. Nothing here ends it with this
// process; it is found again by its identity (KillLeftovers).
func Group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
