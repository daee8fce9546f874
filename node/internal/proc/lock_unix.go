//go:build unix

package proc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Lock is an exclusive lock on a file. The system drops it when its holder ends,
// however that happens.
type Lock struct{ f *os.File }

// TryLock takes the lock at path, making the file, or returns ErrLocked at once.
func TryLock(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err == nil:
		return &Lock{f}, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		f.Close()
		return nil, ErrLocked
	default:
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
}

// Release gives the lock back. The file stays.
func (l *Lock) Release() { l.f.Close() }
