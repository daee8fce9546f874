package opencodebin

import (
	"os/exec"
	"syscall"
)

// bind lets a process die with the thread that starts it.
func bind(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
