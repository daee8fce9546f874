package tasks

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unicode/utf8"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

const (
	// cutText is what is left of a summary or a question in a result that would not
	// fit into a request otherwise, in bytes.
	cutText = 64 << 10
	// maxPath is the longest artifact path that is passed on, in bytes, and maxPaths
	// what all paths of a result may have together.
	maxPath  = 1024
	maxPaths = 64 << 10
	// maxErrorText is the longest message of a TaskError, in bytes.
	maxErrorText = 4096
)

// meshFailure is the outcome of a turn that the mesh, not the agent, settled.
func meshFailure(code, message string) api.Outcome {
	return api.Outcome{State: api.StateFailed, Error: &api.TaskError{Code: code, Message: message}}
}

// causeOutcome is the outcome of a turn that was aborted.
func causeOutcome(cause error, deadline time.Duration) api.Outcome {
	if errors.Is(cause, agent.ErrDeadline) {
		return meshFailure(api.TaskDeadline, fmt.Sprintf("the attempt reached its deadline of %s", deadline))
	}
	return api.Outcome{State: api.StateCanceled}
}

// checkOutcome replaces an outcome that no agent may give.
func checkOutcome(out api.Outcome, kind string) api.Outcome {
	switch out.State {
	case api.StateDone, api.StatePartial, api.StateFailed, api.StateCanceled:
		return out
	case api.StateQuestion:
		if out.Question != nil {
			return out
		}
	}
	return meshFailure(api.TaskAgentUnavailable, fmt.Sprintf("the %s agent gave an outcome in state %q that makes no sense", kind, out.State))
}

// fitOutcome cuts what does not fit, so that the result can travel: a reply to
// api.MaxReply, lists to their limits (semantics 14).
func fitOutcome(out *api.Outcome) {
	cut := false
	limit := func(s *string, n int) {
		if len(*s) > n {
			*s = cutString(*s, n)
			cut = true
		}
	}
	limit(&out.Reply, api.MaxReply)
	if len(out.Artifacts) > api.MaxArtifacts {
		out.Artifacts, cut = out.Artifacts[:api.MaxArtifacts], true
	}
	kept, room := out.Artifacts[:0:0], maxPaths
	for _, p := range out.Artifacts {
		if len(p) <= min(maxPath, room) {
			kept = append(kept, p)
			room -= len(p)
		}
	}
	if len(kept) < len(out.Artifacts) {
		out.Artifacts, cut = kept, true
	}
	if out.Error != nil {
		e := *out.Error
		limit(&e.Message, maxErrorText)
		out.Error = &e
	}
	if out.Question != nil && len(out.Question.Text) > cutText {
		q := *out.Question
		limit(&q.Text, cutText)
		out.Question = &q
	}
	// JSON may need six bytes for one of a summary that is the whole reply.
	if len(out.Summary) > cutText && len(encodeOutcome(out)) > api.MaxTunnelBody-cutText {
		limit(&out.Summary, cutText)
	}
	if len(out.Flags) > api.MaxFlags {
		out.Flags = out.Flags[:api.MaxFlags]
	}
	if cut {
		out.Flags = addFlag(out.Flags, api.FlagTruncated)
	}
}

// spillDir holds, below a workspace, the replies that were too long for a result.
const spillDir = ".opencode-mesh"

// spill writes a reply that does not fit into a file of the workspace, whole, and
// names it as the first artifact. Without a workspace, or when it cannot be
// written, the reply is only cut.
func (r *Runner) spill(rec *record, out *api.Outcome) {
	ws, problem := r.workspace(rec.Workspace)
	if ws.Dir == "" || problem != "" {
		return
	}
	// The directory belongs to the agent: a link in it must not lead out.
	root, err := os.OpenRoot(ws.Dir)
	if err == nil {
		defer root.Close()
		err = root.MkdirAll(spillDir, 0o700)
	}
	name := fmt.Sprintf("%s/%s.%d.%d.reply.txt", spillDir, rec.Task, rec.Attempt, rec.Turn)
	if err == nil {
		err = root.WriteFile(name, []byte(out.Reply), 0o600)
	}
	if err != nil {
		r.log.Warn("long reply not kept whole", "task", rec.Task, "err", err)
		return
	}
	out.Artifacts = append([]string{name}, out.Artifacts...)
}

// addFlag adds a flag once, keeping the limit.
func addFlag(flags []api.Flag, flag api.Flag) []api.Flag {
	for _, f := range flags {
		if f == flag {
			return flags
		}
	}
	if len(flags) >= api.MaxFlags {
		flags = flags[:api.MaxFlags-1]
	}
	return append(flags[:len(flags):len(flags)], flag)
}

// cutString cuts to at most n bytes without splitting a character.
func cutString(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
