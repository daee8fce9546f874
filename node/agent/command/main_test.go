//go:build unix

package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/command"
	"opencode-mesh/protocol/api"
)

// The test binary stands in for meshnode: as the shim, and as a whole node.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "shim":
			os.Exit(command.ShimMain(os.Args[2:]))
		case "node":
			os.Exit(nodeMain(os.Args[2]))
		}
	}
	// Shims are race detectors too, and would rest for a second before they end.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	goleak.VerifyTestMain(m)
}

// nodeJob is what a node process of these tests does: one turn, with its
// checkpoint in a file.
type nodeJob struct {
	Config command.Config
	Turn   agent.Turn
	Dir    string // of the files below
}

const (
	checkpointFile = "checkpoint"
	outcomeFile    = "outcome"
)

// nodeMain runs the turn and writes the outcome. It takes the turn up like a
// runner does: with the last checkpoint, resumed unless it is the first try.
func nodeMain(jobFile string) int {
	err := func() error {
		data, err := os.ReadFile(jobFile)
		if err != nil {
			return err
		}
		var job nodeJob
		if err := json.Unmarshal(data, &job); err != nil {
			return err
		}
		a, err := command.New(job.Config)
		if err != nil {
			return err
		}
		if err := a.Start(context.Background()); err != nil {
			return err
		}
		host := &fileHost{path: filepath.Join(job.Dir, checkpointFile)}
		if job.Turn.Checkpoint, err = os.ReadFile(host.path); errors.Is(err, os.ErrNotExist) {
			job.Turn.Checkpoint = nil
		}
		job.Turn.Resumed = job.Turn.Checkpoint != nil
		out, err := a.Run(context.Background(), job.Turn, host)
		if err != nil {
			return err
		}
		if data, err = json.Marshal(out); err != nil {
			return err
		}
		temp := filepath.Join(job.Dir, fmt.Sprint("outcome.", os.Getpid()))
		return errors.Join(os.WriteFile(temp, data, 0o600), os.Rename(temp, filepath.Join(job.Dir, outcomeFile)))
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	return 0
}

// fileHost keeps the checkpoint in a file.
type fileHost struct{ path string }

func (h *fileHost) Checkpoint(_ context.Context, data []byte) error {
	temp := fmt.Sprint(h.path, ".", os.Getpid())
	return errors.Join(os.WriteFile(temp, data, 0o600), os.Rename(temp, h.path))
}
func (h *fileHost) SessionMade(context.Context, string) error { return errors.New("no sessions") }
func (h *fileHost) Progress(api.Activity)                     {}

func (h *fileHost) Ask(context.Context, string, api.Asked) (string, error) {
	return "", agent.ErrNoAnswer
}

// memoryHost keeps the checkpoint in memory.
type memoryHost struct {
	saved chan []byte // the last checkpoint; room for one
	err   error
}

func newHost() *memoryHost { return &memoryHost{saved: make(chan []byte, 1)} }

func (h *memoryHost) Checkpoint(_ context.Context, data []byte) error {
	if h.err != nil {
		return h.err
	}
	select {
	case <-h.saved:
	default:
	}
	h.saved <- data
	return nil
}
func (h *memoryHost) SessionMade(context.Context, string) error { return errors.New("no sessions") }
func (h *memoryHost) Progress(api.Activity)                     {}

func (h *memoryHost) Ask(context.Context, string, api.Asked) (string, error) {
	return "", agent.ErrNoAnswer
}

// testPoll is short, so that the portable fallbacks do not slow the suite down.
const testPoll = 10 * time.Millisecond

// patience is how long a test waits for something that must happen.
const patience = 2 * time.Minute

func triple(task string) api.Triple { return api.Triple{Task: task, Attempt: 1, Turn: 1} }
