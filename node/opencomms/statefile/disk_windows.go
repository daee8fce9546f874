package statefile

import (
	"errors"

	"golang.org/x/sys/windows"
)

// openFlags: there are no pipes in a directory of Windows.
const openFlags = 0

// lockBusy says that an error of making the lock means that it is there: a file
// that is removed while somebody has it open stays as one that nobody may open.
func lockBusy(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_DELETE_PENDING) || errors.Is(err, windows.ERROR_ACCESS_DENIED)
}

// syncDir: directories cannot be synced there.
func syncDir(string) error { return nil }
