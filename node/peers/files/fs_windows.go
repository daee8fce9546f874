package files

import (
	"errors"

	"golang.org/x/sys/windows"
)

// openFlags: there are no pipes in a directory of Windows.
const openFlags = 0

// busy says that a rename failed because somebody has the file open.
func busy(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_ACCESS_DENIED)
}

// unnameable says that a path is too long to be one.
func unnameable(err error) bool {
	return errors.Is(err, windows.ERROR_FILENAME_EXCED_RANGE) || errors.Is(err, windows.ERROR_INVALID_NAME)
}

// syncDir: directories cannot be synced there.
func syncDir(string) error { return nil }
