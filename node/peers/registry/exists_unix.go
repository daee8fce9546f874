//go:build unix

package registry

import (
	"errors"
	"syscall"
)

// exists says whether there is a process with this id. One that may not be signalled is
// there; 0 is this process's group.
func exists(pid int) bool {
	if pid < 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
