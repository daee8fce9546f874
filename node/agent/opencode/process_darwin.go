package opencode

import (
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

const stateZombie = 5 // SZOMB of sys/proc.h

func fromKernel(k *unix.KinfoProc) process {
	return process{
		PID:    int(k.Proc.P_pid),
		Start:  fmt.Sprintf("%d.%06d", k.Proc.P_starttime.Sec, k.Proc.P_starttime.Usec),
		parent: int(k.Eproc.Ppid),
		zombie: k.Proc.P_stat == stateZombie,
	}
}

// lookup returns the process that has a pid now.
func lookup(pid int) (process, bool) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(k.Proc.P_pid) != pid {
		return process{}, false
	}
	return fromKernel(k), true
}

// processes lists all processes.
func processes() ([]process, error) {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	out := make([]process, len(list))
	for i := range list {
		out[i] = fromKernel(&list[i])
	}
	return out, nil
}

// carries is not known here: only processes still in the tree are found.
func carries(int, string) bool { return false }

// residentSize is not measured here.
func residentSize(process) int64 { return 0 }

// ownSession lets a guard survive what ends its node's terminal or group.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// bound cannot tie the server to the guard's death here; what is left is reaped
// at the next start.
func bound(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate asks a process to end.
func terminate(p process) error { return p.signal(syscall.SIGTERM) }

// enclose has nothing to do here: a guard knows its family by other means.
func enclose() error { return nil }
