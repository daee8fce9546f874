package tasks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store/boltdb"
)

const (
	// detachMin and detachMax bound the wait before a turn is taken up again that
	// its agent left although the node goes on.
	detachMin = time.Second
	detachMax = time.Minute
)

// turn is a running turn.
type turn struct {
	rec    *record
	lane   *lane
	clock  *clock // in this process
	ranMS  int64  // in earlier ones
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newTurn(rec *record, l *lane, ranMS int64) *turn {
	t := &turn{rec: rec, lane: l, clock: newClock(), ranMS: ranMS}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	return t
}

// ran is how long the agent had the turn so far, in milliseconds. The time that a
// question of it waited for its answer is not part of it.
func (t *turn) ran() int64 { return t.ranMS + api.Millis(t.clock.elapsed()) }

// execute runs a turn to its end, stores the outcome and has it delivered.
func (r *Runner) execute(t *turn) {
	defer r.wg.Done()
	defer t.cancel(nil)
	if !t.rec.resumed {
		r.journal.mark(t.rec)
	}
	r.reporter.begin(t)
	out, over := r.work(t)
	r.asks.end(t)
	r.reporter.end(t)
	if over {
		r.noteSession(t.rec, &out)
		r.settle(t, out)
	} else {
		r.journal.pause(t.rec, t.ran())
	}
	r.finish(t)
}

// noteSession keeps what the journal knows about sessions in step with a turn that
// ended.
func (r *Runner) noteSession(rec *record, out *api.Outcome) {
	var err error
	switch {
	case rec.Kind != api.TurnDelete:
		err = r.journal.sessionUsed(&rec.spec, out.Session)
	case out.State == api.StateDone:
		err = r.journal.sessionDeleted(r.journal.sessionOf(&rec.spec))
	}
	if err != nil {
		r.log.Warn("session not noted in the journal", "task", rec.Task, "session", out.Session, "err", err)
	}
}

// settle stores how a turn ended, once, with what its artifacts are now, and has it
// delivered.
func (r *Runner) settle(t *turn, out api.Outcome) {
	out.RanMS = t.ran()
	if out.Session == "" && t.rec.Kind == api.TurnResume {
		// However the turn ended: the hub has the session that it made deleted.
		out.Session = r.journal.sessionOf(&t.rec.spec)
	}
	if len(out.Reply) > api.MaxReply {
		r.spill(t.rec, &out)
	}
	fitOutcome(&out)
	if len(out.Artifacts) > 0 && out.State.Settled() {
		r.yield(t)
		out.Files = r.look(t.rec, out.Artifacts)
	}
	if r.journal.settle(t.rec, out, out.RanMS) {
		r.outbox.add(t.rec)
	}
}

// work has the agent execute a turn. over is false when the turn has no outcome
// and is left to a later process.
func (r *Runner) work(t *turn) (out api.Outcome, over bool) {
	at, out, err := r.prepare(t)
	switch {
	case errors.Is(err, boltdb.ErrClosed), errors.Is(err, boltdb.ErrFailed):
		return out, false
	case err != nil:
		return meshFailure(api.TaskNotStarted, "the node could not read its journal: "+err.Error()), true
	case out.State != "":
		return out, true
	}
	total, left := r.deadline(t)
	t.clock.arm(left, func() { t.cancel(agent.ErrDeadline) })
	defer t.clock.disarm()
	returned, watched := make(chan struct{}), make(chan struct{})
	stopWatch := context.AfterFunc(t.ctx, func() {
		defer close(watched)
		r.watch(t, context.Cause(t.ctx), total, returned)
	})
	out, over = r.drive(t, at, total)
	close(returned)
	if !stopWatch() {
		<-watched
	}
	return out, over
}

// drive calls the agent until the turn is over or the node stops.
func (r *Runner) drive(t *turn, at agent.Turn, total time.Duration) (out api.Outcome, over bool) {
	ctx, h := t.ctx, &host{runner: r, turn: t}
	for wait := detachMin; ; wait = min(2*wait, detachMax) {
		out, err := r.call(ctx, at, h)
		switch cause := context.Cause(ctx); {
		case err == nil:
			return checkOutcome(out, r.cfg.Agent.Kind()), true
		case errors.Is(cause, agent.ErrStopping):
			return out, false
		case errors.Is(cause, agent.ErrCanceled), errors.Is(cause, agent.ErrDeadline):
			return causeOutcome(cause, total), true
		case !errors.Is(err, agent.ErrDetached):
			r.log.Warn("turn failed", "task", t.rec.Task, "err", err)
			return meshFailure(api.TaskAgentUnavailable, err.Error()), true
		}
		// The agent let go of the turn although the node goes on: take it up again.
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		at.Resumed = true
		if at.Checkpoint, err = r.journal.checkpointOf(t.rec); err != nil {
			return out, false
		}
	}
}

// call runs the agent once; a panic of it fails the turn and not the node.
func (r *Runner) call(ctx context.Context, at agent.Turn, h agent.Host) (out api.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("agent panicked", "task", at.Task, "panic", p, "stack", string(debug.Stack()))
			out = meshFailure(api.TaskInterrupted, "the agent's driver crashed")
			out.Flags, err = []api.Flag{api.FlagMayHaveRun}, nil
		}
	}()
	return r.cfg.Agent.Run(ctx, at, h)
}

// watch settles a turn whose agent does not let go of it in time. The lane and the
// slot stay taken until it does.
func (r *Runner) watch(t *turn, cause error, total time.Duration, returned <-chan struct{}) {
	if errors.Is(cause, agent.ErrStopping) {
		return
	}
	limit := time.NewTimer(r.cfg.AbortLimit)
	defer limit.Stop()
	select {
	case <-returned:
		return
	case <-r.quit:
		return
	case <-limit.C:
	}
	out := causeOutcome(cause, total)
	out.Flags = append(out.Flags, api.FlagMayHaveRun)
	r.log.Error("agent does not end an aborted turn", "task", t.rec.Task, "after", r.cfg.AbortLimit)
	r.settle(t, out)
}

// prepare puts together what the agent gets. An outcome with a state means that
// the turn ends without it.
func (r *Runner) prepare(t *turn) (agent.Turn, api.Outcome, error) {
	rec := t.rec
	at := agent.Turn{
		Triple: rec.Triple, HubID: r.cfg.HubID, Kind: rec.Kind, Controller: rec.Controller,
		Mode: mesh.Mode(rec.Mode), Token: rec.Token, Resumed: rec.resumed,
		Session: agent.Session{
			Key:        sessionKey(&rec.spec),
			Generation: rec.Binding.Generation,
			ID:         r.journal.sessionOf(&rec.spec),
			Title:      rec.Binding.Title,
			Compaction: rec.Binding.Compaction,
		},
	}
	var err error
	if at.Text, err = r.journal.textOf(rec); err != nil {
		return at, api.Outcome{}, err
	}
	if rec.resumed {
		if at.Checkpoint, err = r.journal.checkpointOf(rec); err != nil {
			return at, api.Outcome{}, err
		}
	}
	ws, problem := r.workspace(rec.Workspace)
	if problem != "" && !rec.resumed {
		return at, meshFailure(api.TaskBadWorkspace, problem), nil
	}
	at.Workspace = ws
	return at, api.Outcome{}, nil
}

// workspace finds the directory for a name, "" meaning the default one.
func (r *Runner) workspace(name string) (ws agent.Workspace, problem string) {
	switch {
	case name == "" && len(r.cfg.Workspaces) == 0:
		return ws, ""
	case name == "":
		ws = r.cfg.Workspaces[0]
	default:
		for _, w := range r.cfg.Workspaces {
			if w.Name == name {
				ws = w
			}
		}
		if ws.Name == "" {
			return ws, fmt.Sprintf("this node has no workspace %q", name)
		}
	}
	if fi, err := os.Stat(ws.Dir); err != nil || !fi.IsDir() {
		return ws, fmt.Sprintf("the directory of workspace %q is not there", ws.Name)
	}
	return ws, ""
}

// deadline is how long the attempt may take in total, and how long this turn may
// run in this process. Only the time that an agent had it counts: not the wait for
// an answer, within a turn or between two, nor a time when no node was there.
func (r *Runner) deadline(t *turn) (total, left time.Duration) {
	total = time.Duration(t.rec.DeadlineMS) * time.Millisecond
	if total <= 0 {
		total = r.cfg.DefaultDeadline
	}
	spent := t.ranMS
	if t.rec.Turn > 1 {
		spent += r.journal.ranBefore(t.rec.Triple)
	}
	return total, total - time.Duration(spent)*time.Millisecond
}

// host is what a turn's agent gets of the runner.
type host struct {
	runner *Runner
	turn   *turn
}

// Checkpoint implements agent.Host.
func (h *host) Checkpoint(ctx context.Context, data []byte) error {
	if err := h.runner.journal.checkpoint(ctx, h.turn.rec, data, h.turn.ran()); err != nil {
		return fmt.Errorf("store checkpoint: %w", err)
	}
	return nil
}

// SessionMade implements agent.Host.
func (h *host) SessionMade(_ context.Context, id string) error {
	if err := h.runner.journal.sessionMade(&h.turn.rec.spec, id); err != nil {
		return fmt.Errorf("store session: %w", err)
	}
	h.runner.reporter.session(h.turn, id)
	return nil
}

// Progress implements agent.Host.
func (h *host) Progress(a api.Activity) { h.runner.reporter.activity(h.turn, a) }

// Ask implements agent.Host.
func (h *host) Ask(ctx context.Context, id string, asked api.Asked) (string, error) {
	return h.runner.asks.ask(ctx, h.turn, id, asked)
}
