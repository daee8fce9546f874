//go:build unix

package files

import (
	"errors"
	"os"
	"syscall"
)

// openFlags keep an open from waiting for the other end of a pipe that came in place of
// the file, and from following a link.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOFOLLOW

// busy says that a rename failed because somebody has the file open.
func busy(error) bool { return false }

// unnameable says that a path is too long to be one.
func unnameable(err error) bool { return errors.Is(err, syscall.ENAMETOOLONG) }

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
