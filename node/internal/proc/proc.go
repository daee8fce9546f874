// Package proc handles processes that outlive the one that started them: an
// identity that survives pid reuse, waiting for a process that need not be a
// child, process groups, and locks that end with their holder.
//
// Nothing here signals a process whose identity was not verified first, and no
// wait holds an operating system thread that its context cannot free.
//
// It knows nothing of tasks. On Linux waiting is an event (pidfd); elsewhere, and
// on kernels without pidfd, it polls at the interval that the caller gives.
package proc

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrGone means that no process with this identity exists.
	ErrGone = errors.New("the process is gone")
	// ErrLocked means that another process, or another holder in this one, has the lock.
	ErrLocked = errors.New("the lock is held")
)

// DefaultPoll is the polling interval for a zero one.
const DefaultPoll = 100 * time.Millisecond

// ID identifies a process for good: a pid comes back, the pair does not.
type ID struct {
	PID int `json:"pid"`
	// Start is when the process started, in a form of the operating system that is
	// only compared. On Linux it includes the boot.
	Start string `json:"start"`
}

// Valid reports whether id may name a process to be signalled: pids 0 and 1 and
// negative ones stand for groups, everything or init.
func (id ID) Valid() bool { return id.PID > 1 && id.Start != "" }

// poll calls ended until it returns true or ctx ends.
func poll(ctx context.Context, interval time.Duration, ended func() bool) error {
	if interval <= 0 {
		interval = DefaultPoll
	}
	if ended() {
		return nil
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if ended() {
				return nil
			}
		}
	}
}

// WaitUnlocked returns once nobody holds the lock at path, or ctx ended. It
// polls: the holder is not known.
func WaitUnlocked(ctx context.Context, path string, interval time.Duration) error {
	var failed error
	err := poll(ctx, interval, func() bool {
		l, err := TryLock(path)
		if errors.Is(err, ErrLocked) {
			return false
		}
		if err != nil {
			failed = err
			return true
		}
		l.Release()
		return true
	})
	if err != nil {
		return err
	}
	return failed
}
