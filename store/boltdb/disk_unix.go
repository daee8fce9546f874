//go:build unix

package boltdb

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fullErrnos say that there is no room; EFBIG is a file size limit.
var fullErrnos = []error{unix.ENOSPC, unix.EDQUOT, unix.EFBIG}

// readOnlyErrnos say that writing is not allowed at present.
var readOnlyErrnos = []error{unix.EROFS, unix.EACCES, unix.EPERM}

// freeBytes returns the room left for this user where path lives.
func freeBytes(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // the types differ between systems
}

// syncDir makes a file's creation, renaming or removal durable.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
