package boltdb

import (
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

// fullErrnos say that there is no room. The numbers of package syscall are not
// Windows's own; they are what a FaultInjector uses on all systems.
var fullErrnos = []error{
	windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_QUOTA_EXCEEDED,
	syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG,
}

// readOnlyErrnos say that writing is not allowed at present.
var readOnlyErrnos = []error{
	windows.ERROR_WRITE_PROTECT, windows.ERROR_ACCESS_DENIED,
	syscall.EROFS, syscall.EACCES, syscall.EPERM,
}

// freeBytes returns the room left for this user where path lives.
func freeBytes(path string) (int64, error) {
	dir, err := windows.UTF16PtrFromString(filepath.Dir(path))
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(dir, &free, nil, nil); err != nil {
		return 0, err
	}
	return int64(free), nil
}

// syncDir does nothing: directories cannot be synced here.
func syncDir(string) error { return nil }
