package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/windows"
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
	err = windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, new(windows.Overlapped))
	switch err {
	case nil:
		return &Lock{f}, nil
	case windows.ERROR_LOCK_VIOLATION, windows.ERROR_IO_PENDING:
		f.Close()
		return nil, ErrLocked
	default:
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
}

// Release gives the lock back. The file stays.
func (l *Lock) Release() { l.f.Close() }
