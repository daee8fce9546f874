package proc

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNoEvents says that this descriptor cannot be waited for.
var errNoEvents = errors.New("no events")

// pidfd refers to a process whatever becomes of its pid. It sits in the runtime's
// poller, so that a wait costs a goroutine and no thread.
type pidfd struct{ f *os.File }

// openPidfd returns nil where there is no pidfd (before Linux 5.4, or forbidden
// by a sandbox); then the caller polls.
func openPidfd(pid int) *pidfd {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		f.Close()
		return nil
	}
	return &pidfd{f}
}

func (p *pidfd) wait(ctx context.Context) error {
	conn, err := p.f.SyscallConn()
	if err != nil {
		return errNoEvents
	}
	// An earlier wait that was given up has left its deadline behind.
	if err := p.f.SetReadDeadline(time.Time{}); err != nil {
		return errNoEvents
	}
	stop := context.AfterFunc(ctx, func() { _ = p.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var polled error
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil && err != unix.EINTR {
			polled = errNoEvents
			return true
		}
		return n > 0
	})
	switch {
	case err == nil:
		return polled
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return errNoEvents
	}
}

// reap collects an ended child; for any other process it does nothing.
func (p *pidfd) reap() {
	_ = p.control(func(fd int) error {
		return unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
	})
}

func (p *pidfd) signal(sig syscall.Signal) error {
	return p.control(func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
}

func (p *pidfd) control(do func(fd int) error) error {
	conn, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := conn.Control(func(fd uintptr) { result = do(int(fd)) }); err != nil {
		return err
	}
	return result
}

func (p *pidfd) close() { p.f.Close() }
