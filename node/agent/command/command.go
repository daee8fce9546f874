package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/internal/proc"
	"opencode-mesh/protocol/api"
)

// ErrRunning is returned by Forget for a turn whose program still runs.
var ErrRunning = errors.New("the run is not over")

// removedPrefix begins the names of run directories that are being removed. No
// task id begins like this.
const removedPrefix = ".removed-"

// Agent runs a program per turn. Its methods are safe for concurrent use.
type Agent struct {
	cfg Config
}

var _ agent.Agent = (*Agent)(nil)

// New makes an Agent. It touches nothing on disk; Start does.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults().resolved()
	if err != nil {
		return nil, err
	}
	return &Agent{cfg: cfg}, nil
}

// Kind implements agent.Agent.
func (a *Agent) Kind() string { return "command" }

// HasSessions implements agent.Agent: every turn is a process of its own.
func (a *Agent) HasSessions() bool { return false }

// Start makes the directory for runs and finishes removals that were cut short.
// Runs, going on or over, are left for Run and Forget.
func (a *Agent) Start(context.Context) error {
	if err := os.MkdirAll(a.cfg.RunsDir, 0o700); err != nil {
		return fmt.Errorf("command agent: directory for runs: %w", err)
	}
	entries, err := os.ReadDir(a.cfg.RunsDir)
	if err != nil {
		return fmt.Errorf("command agent: directory for runs: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), removedPrefix) {
			if err := os.RemoveAll(filepath.Join(a.cfg.RunsDir, e.Name())); err != nil {
				a.cfg.Log.Warn("cannot remove an old run", "error", err)
			}
		}
	}
	return nil
}

// Stop implements agent.Agent. There is nothing to end: the runner ends the turns,
// and shims go on.
func (a *Agent) Stop(context.Context) error { return nil }

// Status says whether the program can be found.
func (a *Agent) Status(context.Context) api.AgentStatus {
	st := api.AgentStatus{Kind: a.Kind(), Health: api.HealthHealthy}
	if _, err := a.program(); err != nil {
		st.Health, st.Detail = api.HealthUnreachable, err.Error()
	}
	return st
}

// program finds the program to run.
func (a *Agent) program() (string, error) {
	path, err := exec.LookPath(a.cfg.Command[0])
	if err != nil {
		var le *exec.Error
		if errors.As(err, &le) {
			err = le.Err
		}
		return "", fmt.Errorf("the program %q cannot be run: %w", a.cfg.Command[0], err)
	}
	return path, nil
}

// Forget removes what is on disk about a turn. The runner calls it once the
// turn's outcome is acknowledged and its id may be forgotten, before it drops its
// own record: a forgotten turn would run again. Nothing there is no error. While
// somebody looks after the run or its program runs it is ErrRunning, to be tried
// again later.
func (a *Agent) Forget(t api.Triple) error {
	name, err := dirName(t)
	if err != nil {
		return err
	}
	dir := runDir(filepath.Join(a.cfg.RunsDir, name))
	if _, err := os.Stat(string(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	owner, err := proc.TryLock(dir.path(fileOwner))
	if err != nil {
		return forgetError(name, err)
	}
	defer owner.Release()
	p, err := dir.look()
	if err != nil {
		return forgetError(name, err)
	}
	if p.claimed {
		lock, err := proc.TryLock(dir.launchPath(fileLock, p.launch))
		if err != nil {
			return forgetError(name, err)
		}
		lock.Release()
	}
	// In one step: a directory without its claims would look like a fresh one.
	if runtime.GOOS == "windows" {
		owner.Release() // a directory with an open file in it cannot be moved there
	}
	removed := filepath.Join(a.cfg.RunsDir, removedPrefix+name)
	if err := errors.Join(os.RemoveAll(removed), os.Rename(string(dir), removed)); err != nil {
		return forgetError(name, err)
	}
	if err := os.RemoveAll(removed); err != nil {
		return forgetError(name, err)
	}
	return nil
}

func forgetError(name string, err error) error {
	if errors.Is(err, proc.ErrLocked) {
		err = ErrRunning
	}
	return fmt.Errorf("forget run %s: %w", name, err)
}

// shimCommand is the command line of a launch.
func (a *Agent) shimCommand(dir runDir, launch int) []string {
	return append(slices.Clone(a.cfg.ShimCommand), string(dir), fmt.Sprint(launch))
}
