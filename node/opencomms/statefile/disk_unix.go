//go:build unix

package statefile

import (
	"errors"
	"os"
	"syscall"
)

// openFlags keep an open from waiting for the other end of a pipe that came in
// place of the file, and from following a link.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOFOLLOW

// lockBusy says that an error of making the lock means that it is there.
func lockBusy(error) bool { return false }

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
