package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/internal/proc"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

const (
	// shimMargin is how long a shim that was asked to end its program may take
	// beyond the grace, before the node ends program and shim itself.
	shimMargin = 5 * time.Second
	// maxTries is how many shims may end without a claim before the turn fails.
	maxTries = 3
	// reapTime is how long killed processes may take to be gone.
	reapTime = 2 * time.Second
)

// checkpoint is what the journal keeps for a turn: that its run directory had
// been made. A turn with it and without the directory may have run.
type checkpoint struct {
	Dir string `json:"dir"`
}

// Run implements agent.Agent.
func (a *Agent) Run(ctx context.Context, turn agent.Turn, host agent.Host) (api.Outcome, error) {
	name, err := dirName(turn.Triple)
	if err != nil {
		return api.Outcome{}, fmt.Errorf("command agent: %w", err)
	}
	r := &run{a: a, turn: turn, host: host, dir: runDir(filepath.Join(a.cfg.RunsDir, name))}
	if err := os.MkdirAll(string(r.dir), 0o700); err != nil {
		return api.Outcome{}, fmt.Errorf("command agent: run directory: %w", err)
	}
	out, err := r.owned(ctx)
	if err == nil || errors.Is(err, agent.ErrDetached) || !r.mayHaveRun() {
		return out, err
	}
	// The disk fails, say. That is no reason to claim that nothing ran.
	a.cfg.Log.Error("a run cannot be looked after any more", "task", turn.Task, "attempt", turn.Attempt, "turn", turn.Turn, "error", err)
	return r.interrupted("what is on record about it cannot be read"), nil
}

// run is one call of Run.
type run struct {
	a    *Agent
	turn agent.Turn
	host agent.Host
	dir  runDir
	// launch is the one whose program this is about; 0 while there is none.
	launch int
}

// mayHaveRun says, without looking at the disk, whether a shim may have been
// started.
func (r *run) mayHaveRun() bool { return r.launch > 0 || r.turn.Checkpoint != nil }

// owned runs the turn once nobody else does.
func (r *run) owned(ctx context.Context) (api.Outcome, error) {
	owner, err := r.own(ctx)
	if err != nil {
		return r.unstarted(ctx, err)
	}
	defer owner.Release()
	return r.run(ctx)
}

// own makes this call the one that looks after the run. Deciding about launches
// is safe only when nobody else does.
func (r *run) own(ctx context.Context) (*proc.Lock, error) {
	path := r.dir.path(fileOwner)
	for {
		lock, err := proc.TryLock(path)
		if !errors.Is(err, proc.ErrLocked) {
			return lock, err
		}
		if err := proc.WaitUnlocked(ctx, path, r.a.cfg.PollInterval); err != nil {
			return nil, err
		}
	}
}

func (r *run) run(ctx context.Context) (api.Outcome, error) {
	for {
		p, err := r.dir.look()
		if err != nil {
			return api.Outcome{}, fmt.Errorf("command agent: %w", err)
		}
		switch {
		case p.claimed:
			return r.adopt(ctx, p)
		case !p.prepared && r.turn.Checkpoint != nil:
			return r.interrupted("its run directory is gone"), nil
		case !p.prepared:
			return r.start(ctx, p.launch)
		}
		if detached(ctx) {
			return api.Outcome{}, agent.ErrDetached
		}
		// A shim of an earlier process may be about to claim. One of the two gets the
		// launch: if it is the node, that shim never starts the program.
		err = r.dir.makeClaim(p.launch, claim{By: byNode})
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return api.Outcome{}, fmt.Errorf("command agent: %w", err)
		}
		return r.start(ctx, p.launch+1)
	}
}

// adopt takes up a run whose program was started, or was about to be.
func (r *run) adopt(ctx context.Context, p progress) (api.Outcome, error) {
	r.launch = p.launch
	lockPath := r.dir.launchPath(fileLock, p.launch)
	lock, err := proc.TryLock(lockPath)
	switch {
	case err == nil:
		lock.Release()
		return r.settle(ctx)
	case !errors.Is(err, proc.ErrLocked):
		return api.Outcome{}, fmt.Errorf("command agent: %w", err)
	}
	r.a.cfg.Log.Info("adopting a run", "task", r.turn.Task, "attempt", r.turn.Attempt, "turn", r.turn.Turn)
	r.host.Progress(api.Activity{Note: "taken up again, the program went on"})
	shim, err := proc.Open(p.claim.ID, r.a.cfg.PollInterval)
	if err == nil {
		defer shim.Close()
		return r.attend(ctx, shim)
	}
	// It is just ending, or this process cannot see it (another pid namespace).
	if err := proc.WaitUnlocked(ctx, lockPath, r.a.cfg.PollInterval); err != nil {
		if detached(ctx) {
			return api.Outcome{}, agent.ErrDetached
		}
		r.a.cfg.Log.Warn("a run cannot be ended: its shim is not to be found", "task", r.turn.Task, "pid", p.claim.ID.PID)
		return r.ended(ctx, nil), nil
	}
	return r.settle(ctx)
}

// errUnclaimed: the shim ended before it claimed its launch, which is called off
// now.
var errUnclaimed = errors.New("the shim ended before it started the program")

// start makes a launch that nobody can have made before. Shims that are killed
// before they claim it cost nothing but another launch.
func (r *run) start(ctx context.Context, launch int) (api.Outcome, error) {
	for try := 1; ; try++ {
		out, err := r.tryStart(ctx, launch)
		if !errors.Is(err, errUnclaimed) {
			return out, err
		}
		if try == maxTries {
			message := errUnclaimed.Error()
			if tail := readTail(r.dir.path(fileShimLog), errorTail); tail != "" {
				message += ": " + mesh.CleanLine(tail)
			}
			return r.failed(api.TaskNotStarted, message), nil
		}
		launch++
	}
}

func (r *run) tryStart(ctx context.Context, launch int) (api.Outcome, error) {
	if ctx.Err() != nil {
		return r.unstarted(ctx, context.Cause(ctx))
	}
	program, err := r.a.program()
	if err != nil {
		return r.failed(api.TaskAgentUnavailable, err.Error()), nil
	}
	if err := checkDir(r.turn.Workspace.Dir); err != nil {
		return r.badWorkspace(err), nil
	}
	if err := r.prepare(program); err != nil {
		return api.Outcome{}, fmt.Errorf("command agent: prepare run: %w", err)
	}
	record, err := json.Marshal(checkpoint{Dir: filepath.Base(string(r.dir))})
	if err != nil {
		return api.Outcome{}, err
	}
	if err := r.host.Checkpoint(ctx, record); err != nil {
		return r.unstarted(ctx, fmt.Errorf("record run: %w", err))
	}
	r.launch = launch
	shim, err := r.startShim()
	if err != nil {
		return r.failed(api.TaskNotStarted, err.Error()), nil
	}
	defer shim.Close()
	return r.attend(ctx, shim)
}

// prepare writes what the shim needs. Everything is on disk when it returns.
func (r *run) prepare(program string) error {
	input := r.turn.Text
	switch {
	case r.a.cfg.Stdin == StdinBody:
		e, err := mesh.ParseEnvelope(input)
		if err != nil {
			return err
		}
		input = e.Body
	case r.a.cfg.Conduct:
		input = mesh.Conduct() + "\n" + input
	}
	data, err := json.Marshal(job{
		Path:      program,
		Args:      r.a.cfg.Command,
		Dir:       r.turn.Workspace.Dir,
		OutputCap: r.a.cfg.OutputCap,
		KillGrace: r.a.cfg.KillGrace,
	})
	if err != nil {
		return err
	}
	if err := r.dir.replace(fileStdin, []byte(input)); err != nil {
		return err
	}
	if err := r.dir.replace(fileJob, data); err != nil {
		return err
	}
	if err := syncDir(string(r.dir)); err != nil {
		return err
	}
	return syncDir(r.a.cfg.RunsDir)
}

func (r *run) startShim() (*proc.Handle, error) {
	log, err := os.OpenFile(r.dir.path(fileShimLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start shim: %w", err)
	}
	defer log.Close()
	line := r.a.shimCommand(r.dir, r.launch)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = r.a.cfg.RunsDir
	cmd.Stderr = log
	env := r.a.cfg.Env
	if env == nil {
		env = os.Environ()
	}
	cmd.Env = childEnv(env, r.turn.Token)
	proc.Detach(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start shim: %w", err)
	}
	return proc.OpenChild(cmd, r.a.cfg.PollInterval), nil
}

// attend waits for a shim's end, and brings it about when the turn's context
// ends.
func (r *run) attend(ctx context.Context, shim *proc.Handle) (api.Outcome, error) {
	if shim.Wait(ctx) != nil {
		if detached(ctx) {
			return api.Outcome{}, agent.ErrDetached
		}
		r.end(shim)
	}
	return r.settle(ctx)
}

// end has the shim end its program, or ends both if it does not. It is bounded.
func (r *run) end(shim *proc.Handle) {
	log := r.a.cfg.Log.With("task", r.turn.Task, "attempt", r.turn.Attempt, "turn", r.turn.Turn)
	if err := shim.Terminate(); err != nil {
		log.Warn("cannot ask a shim to end", "error", err)
	}
	if waitFor(shim, r.a.cfg.KillGrace+shimMargin) {
		return
	}
	log.Warn("a shim did not end its program, killing both")
	r.endLeftovers()
	if err := shim.Kill(); err != nil {
		log.Warn("cannot kill a shim", "error", err)
	}
	if !waitFor(shim, reapTime) {
		log.Warn("a killed shim does not end")
	}
}

func waitFor(h *proc.Handle, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return h.Wait(ctx) == nil
}

// endLeftovers ends the program of a shim that cannot do it.
func (r *run) endLeftovers() {
	var shim claim
	var program started
	if r.dir.readJSON(filepath.Base(r.dir.launchPath(fileClaim, r.launch)), &shim) != nil ||
		r.dir.readJSON(fileProgram, &program) != nil {
		return // it never got that far
	}
	if program.Place != proc.Place(r.dir.launchPath(fileLock, r.launch)) {
		r.a.cfg.Log.Warn("the directory of a run was copied; the program of the original is left alone", "task", r.turn.Task)
		return
	}
	if err := proc.KillLeftovers(shim.ID, program.ID, reapTime); err != nil {
		r.a.cfg.Log.Warn("cannot end what a dead shim left", "task", r.turn.Task, "error", err)
	}
}

// detached reports whether ctx ended for a reason that is not the turn's: the
// node is stopping, and the work goes on.
func detached(ctx context.Context) bool { return ctx.Err() != nil && stopState(ctx) == "" }

// stopState is the state that a turn settles in because its context ended: ""
// if it did not, or for a reason that is not the turn's.
func stopState(ctx context.Context) api.State {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, agent.ErrCanceled):
		return api.StateCanceled
	case errors.Is(cause, agent.ErrDeadline), errors.Is(cause, context.DeadlineExceeded):
		return api.StateFailed
	default:
		return ""
	}
}

func checkDir(path string) error {
	if path == "" {
		return errors.New("it has no directory")
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", path)
	}
	return nil
}
