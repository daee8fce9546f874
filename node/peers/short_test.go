package peers

import (
	"os"
	"testing"
)

// shortDir is a directory whose sockets have paths that every system takes.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "ocp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
