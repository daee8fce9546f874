//go:build !linux

package bolt_test

import "os"

// datasync is the cheapest call that puts what was written on disk.
func datasync(f *os.File) error { return f.Sync() }
