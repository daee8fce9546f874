package proc

import (
	"context"
	"errors"
	"syscall"
)

// errNoEvents says that there is nothing to wait for but by polling.
var errNoEvents = errors.New("no events")

// pidfd does not exist here; openPidfd always returns nil.
type pidfd struct{}

func openPidfd(int) *pidfd                 { return nil }
func (*pidfd) wait(context.Context) error  { return errNoEvents }
func (*pidfd) signal(syscall.Signal) error { return errNoEvents }
func (*pidfd) reap()                       {}
func (*pidfd) close()                      {}
