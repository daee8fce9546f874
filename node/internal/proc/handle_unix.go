//go:build unix

package proc

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Handle refers to one process. Not for concurrent use, except that Wait may be
// called while another goroutine signals.
type Handle struct {
	id       ID
	child    bool
	interval time.Duration
	fd       *pidfd // nil: poll
}

// Identify returns the identity of the process that has pid now, or ErrGone.
func Identify(pid int) (ID, error) {
	st, err := inspect(pid)
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, Start: st.start}, nil
}

// Open returns a handle on the process with this identity, or ErrGone. interval
// is how often Wait looks where the system has no event; 0 means DefaultPoll.
func Open(id ID, interval time.Duration) (*Handle, error) {
	if !id.Valid() {
		return nil, ErrGone
	}
	// The descriptor first and the comparison after it: what passes then is the
	// process that the descriptor refers to.
	h := &Handle{id: id, interval: interval, fd: openPidfd(id.PID)}
	if err := h.verify(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// OpenChild returns a handle on a child that was started and not yet waited for,
// and takes over the waiting: cmd.Wait must not be called any more.
func OpenChild(cmd *exec.Cmd, interval time.Duration) *Handle {
	pid := cmd.Process.Pid
	h := &Handle{id: ID{PID: pid}, child: true, interval: interval, fd: openPidfd(pid)}
	// Release fails on a process that was waited for only.
	_ = cmd.Process.Release()
	return h
}

// Wait returns nil once the process ended, or the cause of ctx. A child is reaped.
func (h *Handle) Wait(ctx context.Context) error {
	if h.fd != nil {
		err := h.fd.wait(ctx)
		if err == nil {
			h.fd.reap()
		}
		if !errors.Is(err, errNoEvents) {
			return err
		}
	}
	return poll(ctx, h.interval, h.ended)
}

// ended looks whether the process is over, and reaps it if it was a child.
func (h *Handle) ended() bool {
	if !h.child {
		if h.verify() != nil {
			return true
		}
		if st, err := inspect(h.id.PID); err != nil || !st.zombie {
			return err != nil
		}
	}
	// Own children keep their pid until they are reaped here. A zombie that is not
	// ours has ended too, and ECHILD says so.
	pid, err := unix.Wait4(h.id.PID, nil, unix.WNOHANG, nil)
	return pid == h.id.PID || err == unix.ECHILD
}

// verify returns nil if the pid still belongs to the process.
func (h *Handle) verify() error {
	if h.child {
		return nil
	}
	st, err := inspect(h.id.PID)
	if err != nil {
		return err
	}
	if st.start != h.id.Start {
		return ErrGone
	}
	return nil
}

// Terminate asks the process to end; nil if it is gone.
func (h *Handle) Terminate() error { return h.signal(syscall.SIGTERM) }

// Kill ends the process; nil if it is gone.
func (h *Handle) Kill() error { return h.signal(syscall.SIGKILL) }

func (h *Handle) signal(sig syscall.Signal) error {
	var err error
	if h.fd != nil {
		err = h.fd.signal(sig)
	} else if err = h.verify(); err == nil {
		err = unix.Kill(h.id.PID, sig)
	}
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, ErrGone) {
		return nil
	}
	return fmt.Errorf("signal process %d: %w", h.id.PID, err)
}

// Close frees the handle. Idempotent.
func (h *Handle) Close() {
	if h.fd != nil {
		h.fd.close()
	}
}

// killed reports what kill returned: whether there was somebody to signal.
func killed(err error) bool { return err == nil || errors.Is(err, unix.EPERM) }
