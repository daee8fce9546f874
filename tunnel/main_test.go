package tunnel_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// childEnv makes the test binary act as a process of its own in a test; its
// value names the part.
const childEnv = "TUNNEL_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		goleak.VerifyTestMain(m)
	case "dial":
		os.Exit(childDial())
	case "idle":
		os.Exit(childIdle())
	case "pipe":
		os.Exit(childPipe())
	default:
		os.Exit(2)
	}
}
