package bolt_test

import (
	"os"

	"golang.org/x/sys/unix"
)

// datasync is the cheapest call that puts what was written on disk.
func datasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
