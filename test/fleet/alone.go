package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// Alone keeps the nodes of this process and of its children away from the peers of the
// user who runs the tests: what all peers of a machine share is in a directory of the
// tests' own, which end removes. It is for a TestMain.
func Alone() (end func() error, err error) {
	// Sockets need short paths.
	dir, err := os.MkdirTemp("", "alone")
	if err == nil {
		err = errors.Join(os.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data")), os.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run")))
	}
	if err != nil {
		return nil, fmt.Errorf("keep the tests' nodes alone: %w", err)
	}
	return func() error { return os.RemoveAll(dir) }, nil
}

// Verify runs a package's tests, whose nodes are alone, and looks for goroutines that
// they left.
func Verify(m *testing.M) {
	end, err := Alone()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = end()
		os.Exit(code)
	}))
}
