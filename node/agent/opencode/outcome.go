package opencode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

const (
	// maxSummary is the longest summary in an outcome, in bytes: the whole text of a
	// free reply stands in the reply already.
	maxSummary = 64 << 10
	// abortLimit bounds the ending of a turn that was canceled or ran out of time.
	abortLimit = 15 * time.Second
	// abortPoll is how often an aborted session is looked at.
	abortPoll = 100 * time.Millisecond
	// abortSettle is how long an aborted session must be idle if nothing of the turn
	// shows: a prompt that was taken may be about to start.
	abortSettle = time.Second
	// abortReason is how long the event may take that says why a turn was aborted: the
	// history shows the abort, and may be read sooner.
	abortReason = time.Second
	// overflowDir is where a reply that does not fit is kept, below the workspace.
	overflowDir = ".opencode-mesh"
)

// The finish reasons that matter; providers have others, which end a turn.
const (
	finishToolCalls = "tool-calls"
	finishUnknown   = "unknown"
	finishLength    = "length"
	finishError     = "error"
)

// finished reports whether this was the last step of a turn.
func (a answer) finished() bool {
	return a.finish != "" && a.finish != finishToolCalls && a.finish != finishUnknown
}

// aborted reports whether somebody or something stopped the turn here. An abort
// while the provider is waited for leaves no error.
func (a answer) aborted() bool {
	if a.fault != nil {
		return a.fault.name == "MessageAbortedError"
	}
	return a.completed && a.finish == ""
}

// text joins what the assistant said in all steps of a turn.
func (a answers) text() string {
	var all []string
	for _, x := range a.list {
		all = append(all, x.texts...)
	}
	return strings.Join(all, "\n")
}

// answered is the outcome of a turn that came to its end.
func (r *run) answered(turn answers) *api.Outcome {
	last := turn.list[len(turn.list)-1]
	if last.finish == finishError {
		return r.providerFailed(turn, fault{name: finishError, message: "the provider failed"})
	}
	text := turn.text()
	reply := mesh.ReadReply(r.turn.Task, text)
	out := &api.Outcome{}
	for _, f := range reply.Flags {
		r.flags[f] = true
	}
	switch reply.Kind {
	case mesh.KindQuestion:
		out.State = api.StateQuestion
		out.Question = &api.Asked{Kind: api.QuestionText, Text: reply.Question.Text, Options: reply.Question.Options}
	default:
		out.State = api.State(reply.Result.Status)
		out.Summary = reply.Result.Summary
		out.Artifacts = reply.Result.Artifacts
		free := reply.Kind == mesh.KindFree
		if last.finish == finishLength && (free || r.flags[api.FlagUnterminated]) {
			r.flags[api.FlagTruncated] = true
			out.State = partialUnlessFailed(out.State)
		}
		if free && turn.overtaken {
			out.State = partialUnlessFailed(out.State)
		}
	}
	return r.partly(turn, out)
}

func partialUnlessFailed(s api.State) api.State {
	if s == api.StateFailed {
		return s
	}
	return api.StatePartial
}

// providerFailed is the outcome of a turn that the model's provider failed. It is
// the agent's failure, not the mesh's.
func (r *run) providerFailed(turn answers, f fault) *api.Outcome {
	r.flags[api.FlagProviderError] = true
	if f.name == "ContextOverflowError" {
		r.flags[api.FlagContextFull] = true
	}
	return r.partly(turn, &api.Outcome{State: api.StateFailed, Summary: f.message})
}

// failed is an outcome that the mesh decided on.
func (r *run) failed(code, message string) *api.Outcome {
	return &api.Outcome{State: api.StateFailed, Summary: message, Error: &api.TaskError{Code: code, Message: message}}
}

// interrupted is the outcome of a turn that may have run and is not run again.
func (r *run) interrupted(message string) *api.Outcome {
	r.flags[api.FlagMayHaveRun] = true
	return r.failed(api.TaskInterrupted, message)
}

// partly adds to an outcome what a turn said and what its context holds.
func (r *run) partly(turn answers, out *api.Outcome) *api.Outcome {
	out.Reply = turn.text()
	for _, a := range turn.list {
		if a.tokens > 0 {
			m, _ := r.models.find(a.provider, a.model)
			out.Tokens = &api.Tokens{Total: a.tokens, Limit: m.context}
		}
	}
	return out
}

// complete fills in what every outcome has and keeps it within its limits.
func (r *run) complete(out api.Outcome) api.Outcome {
	out.Session = r.session
	out.NewSession = r.cp.New && r.session != ""
	if r.cp.Resumes > 0 {
		r.flags[api.FlagResumed] = true
	}
	if r.cp.Replaced {
		r.flags[api.FlagSessionReplaced] = true
	}
	if !r.began.IsZero() {
		out.RanMS = api.Millis(time.Since(r.began))
	}
	if len(out.Reply) > r.cfg.MaxReply {
		r.flags[api.FlagTruncated] = true
		name, err := r.keepReply(out.Reply)
		if err != nil {
			r.log.Warn("the rest of a long reply could not be kept", "error", err)
		} else {
			out.Artifacts = append(out.Artifacts, name)
		}
		out.Reply = cut(out.Reply, r.cfg.MaxReply)
	}
	out.Summary = cut(out.Summary, maxSummary)
	if len(out.Artifacts) > api.MaxArtifacts {
		out.Artifacts = out.Artifacts[len(out.Artifacts)-api.MaxArtifacts:]
	}
	out.Flags = r.flagList()
	return out
}

// keepReply writes a whole reply into the workspace and returns its path there.
// Nothing that the agent put in the way leads out of the workspace.
func (r *run) keepReply(text string) (string, error) {
	if r.turn.Task == "" || strings.ContainsAny(r.turn.Task, `/\`) || r.turn.Task[0] == '.' {
		return "", fmt.Errorf("task id %q is no directory name", r.turn.Task)
	}
	root, err := os.OpenRoot(r.turn.Workspace.Dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	dir := path.Join(overflowDir, r.turn.Task)
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Not for the project's history.
	if err := root.WriteFile(path.Join(overflowDir, ".gitignore"), []byte("*\n"), 0o644); err != nil {
		return "", err
	}
	name := path.Join(dir, "reply.txt")
	if err := root.WriteFile(name, []byte(text), 0o644); err != nil {
		return "", err
	}
	return name, nil
}

// cutShort ends a turn whose context ended.
func (r *run) cutShort(cause error) (api.Outcome, error) {
	var out api.Outcome
	switch {
	case errors.Is(cause, agent.ErrCanceled):
		out = api.Outcome{State: api.StateCanceled}
	case errors.Is(cause, agent.ErrDeadline):
		out = *r.failed(api.TaskDeadline, "the deadline was reached")
	default:
		return api.Outcome{}, agent.ErrDetached
	}
	r.withdraw()
	if !r.begun() {
		return r.complete(out), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), abortLimit)
	defer cancel()
	turn, err := r.stopTurn(ctx)
	if err != nil {
		r.log.Error("a turn may go on in opencode", "session", r.session, "error", err)
		r.flags[api.FlagMayHaveRun] = true
	}
	return r.complete(*r.partly(turn, &out)), nil
}

// stopTurn aborts the turn and waits until it has ended. It returns what the turn
// had said.
func (r *run) stopTurn(ctx context.Context) (answers, error) {
	var turn answers
	var idle time.Time
	for {
		stopped, err := r.tryStop(ctx, &turn, &idle)
		if stopped {
			return turn, nil
		}
		select {
		case <-ctx.Done():
			return turn, errors.Join(ctx.Err(), err)
		case <-time.After(abortPoll):
		}
	}
}

// tryStop reports whether the turn has ended, and aborts it if not. idle is since
// when the session was seen idle.
func (r *run) tryStop(ctx context.Context, turn *answers, idle *time.Time) (bool, error) {
	s, err := r.rest.ready(ctx, 0)
	if err != nil {
		return false, err
	}
	at, err := s.client.session(ctx, r.session)
	if errors.Is(err, errNotFound) {
		return true, nil // and so is what ran in it
	}
	if err != nil {
		return false, err
	}
	if *turn, err = s.client.answers(ctx, r.session, r.cp.Message); err != nil {
		return false, err
	}
	if n := len(turn.list); n > 0 {
		last := turn.list[n-1]
		if last.id != r.ignore && (last.finished() || last.fault != nil || last.aborted()) {
			return true, nil
		}
	}
	if r.sent == 0 {
		// Only an earlier process may have sent it. If it did not, what runs in the
		// session is somebody else's.
		stored, err := s.client.stored(ctx, r.session, r.cp.Message)
		if err != nil || !stored {
			return err == nil, err
		}
	}
	if err := s.client.abort(ctx, r.session); err != nil {
		return false, err
	}
	statuses, err := s.client.statuses(ctx, at.dir)
	if err != nil {
		return false, err
	}
	if _, busy := statuses[r.session]; busy {
		*idle = time.Time{}
		return false, nil
	}
	if idle.IsZero() {
		*idle = time.Now()
	}
	return time.Since(*idle) >= abortSettle, nil
}
