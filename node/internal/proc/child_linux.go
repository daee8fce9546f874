package proc

import (
	"os/exec"
	"syscall"
)

// Group makes cmd lead a process group of its own and die with this process. The
// kernel ties it to the thread that starts it: the caller must hold its thread
// (runtime.LockOSThread) from before cmd.Start until cmd ended. It does not reach
// what cmd starts in turn, nor a program that is set-uid.
func Group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
