package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

const (
	// maxSummary bounds the summary and question kept with an outcome, in bytes.
	// The whole of it stands in the reply.
	maxSummary = 64 << 10
	// maxPath is the longest artifact path that is kept, in bytes.
	maxPath = 4 << 10
	// maxOptions is how many options of a question are kept.
	maxOptions = 64
	// errorTail is how much of the error output goes into a summary, in bytes.
	errorTail = 2 << 10
	// artifactDir is where replies that are too long go, inside the workspace.
	artifactDir = ".opencode-mesh"
)

// settle turns what is on record about an ended run into its outcome.
func (r *run) settle(ctx context.Context) (api.Outcome, error) {
	end, err := r.dir.readExit()
	if err != nil {
		return api.Outcome{}, fmt.Errorf("command agent: %w", err)
	}
	if end == nil {
		r.endLeftovers()
		return r.settleDead(ctx)
	}
	switch end.Reason {
	case endedUnstarted:
		if err := checkDir(r.turn.Workspace.Dir); err != nil {
			return r.badWorkspace(err), nil
		}
		return r.failed(api.TaskAgentUnavailable, "the program could not be started: "+mesh.CleanLine(end.Message)), nil
	case endedStopped:
		if stopState(ctx) != "" {
			return r.ended(ctx, end), nil
		}
	}
	out, err := r.output()
	if err != nil {
		return api.Outcome{}, fmt.Errorf("command agent: %w", err)
	}
	out.outcome.RanMS = api.Millis(end.Ran)
	r.judge(&out, end)
	return out.outcome, nil
}

// judge decides on the outcome of a program that ended.
func (r *run) judge(out *output, end *exit) {
	fail := func(code, message string) {
		out.outcome.State = api.StateFailed
		out.outcome.Question = nil
		if out.kind != mesh.KindResult { // the reply is not what it was taken for
			out.outcome.Flags = slices.DeleteFunc(out.outcome.Flags, func(f api.Flag) bool { return f != api.FlagTruncated })
		}
		out.outcome.Error = &api.TaskError{Code: code, Message: message}
	}
	hasBlock := out.kind == mesh.KindResult
	switch {
	case end.Reason == endedFlooded:
		fail(api.TaskOutputLimit, fmt.Sprintf("the program wrote more than %d bytes and was stopped", r.a.cfg.OutputCap))
		out.summarize("it wrote more than it may and was stopped")
	case hasBlock:
	case end.Reason == endedStopped:
		fail(api.TaskInterrupted, "the program was asked to end from outside the mesh, and it may have done part of its work")
		out.summarize("the program was asked to end from outside the mesh")
		out.flag(api.FlagMayHaveRun)
	case end.OutputError != "":
		fail(api.TaskOutputLimit, "the program's output could not be kept: "+mesh.CleanLine(end.OutputError))
		out.summarize("the program's output could not be kept")
	case end.Code != 0:
		how := fmt.Sprintf("the program ended with exit code %d", end.Code)
		if end.Signal != "" {
			how = "the program was ended by a signal: " + end.Signal
		}
		fail(api.TaskExitCode, how)
		out.summarize(how)
		if tail := r.errorTail(); tail != "" {
			out.outcome.Summary = tail
		}
	case out.kind == mesh.KindFree && out.outcome.Summary == "":
		out.outcome.Summary = "the program ended without output"
	}
	if mesh.SummaryTooLong(out.outcome.Summary) {
		out.flag(api.FlagSummaryTooLong)
	}
}

// settleDead is the outcome of a run whose shim is dead and left no end.
func (r *run) settleDead(ctx context.Context) (api.Outcome, error) {
	// Called off for good: whatever is settled here must stay true.
	calledOff := r.dir.makeClaim(r.launch, claim{By: byNode})
	if calledOff != nil && !errors.Is(calledOff, fs.ErrExist) {
		return api.Outcome{}, fmt.Errorf("command agent: %w", calledOff)
	}
	if stopState(ctx) != "" {
		return r.ended(ctx, nil), nil
	}
	if calledOff == nil {
		return api.Outcome{}, errUnclaimed
	}
	out, err := r.output()
	if err != nil {
		return api.Outcome{}, fmt.Errorf("command agent: %w", err)
	}
	if out.kind == mesh.KindResult && !slices.Contains(out.outcome.Flags, api.FlagUnterminated) {
		return out.outcome, nil
	}
	lost := r.interrupted("its shim was killed")
	lost.Reply = out.outcome.Reply
	return lost, nil
}

// failed is an outcome without any output.
func (r *run) failed(code, message string) api.Outcome {
	return api.Outcome{
		State:   api.StateFailed,
		Summary: message,
		Error:   &api.TaskError{Code: code, Message: message},
	}
}

func (r *run) badWorkspace(err error) api.Outcome {
	return r.failed(api.TaskBadWorkspace, fmt.Sprintf("the workspace %q cannot be used: %v", r.turn.Workspace.Name, err))
}

// interrupted is the outcome of a turn that may have run and cannot go on.
func (r *run) interrupted(why string) api.Outcome {
	o := r.failed(api.TaskInterrupted, "the run was interrupted ("+why+") and may have done part of its work")
	o.Flags = []api.Flag{api.FlagMayHaveRun}
	return o
}

// unstarted settles a turn that nothing was started for: because its context
// ended, or because of err.
func (r *run) unstarted(ctx context.Context, err error) (api.Outcome, error) {
	switch {
	case stopState(ctx) != "":
		return r.ended(ctx, nil), nil
	case ctx.Err() != nil:
		return api.Outcome{}, agent.ErrDetached
	default:
		return api.Outcome{}, fmt.Errorf("command agent: %w", err)
	}
}

// ended is the outcome of a turn whose context ended for a reason of the turn's.
// end is nil when the program's end is not on record.
func (r *run) ended(ctx context.Context, end *exit) api.Outcome {
	o := api.Outcome{State: stopState(ctx), Summary: "canceled"}
	if o.State == api.StateFailed {
		o = r.failed(api.TaskDeadline, "the program ran out of time and was stopped")
	}
	if end != nil {
		o.RanMS = api.Millis(end.Ran)
	}
	if r.launch == 0 {
		return o
	}
	if out, err := r.output(); err == nil {
		o.Reply, o.Artifacts = out.outcome.Reply, out.spilled
		if len(out.spilled) > 0 {
			o.Flags = []api.Flag{api.FlagTruncated}
		}
	}
	return o
}

// output is what a program said, and the outcome that this makes by itself.
type output struct {
	kind    mesh.ReplyKind
	outcome api.Outcome
	// spilled is the path of the artifact that holds a reply that is too long.
	spilled []string
}

func (o *output) flag(f api.Flag) {
	if !slices.Contains(o.outcome.Flags, f) {
		o.outcome.Flags = append(o.outcome.Flags, f)
	}
}

// summarize sets a summary unless the agent gave one in a block.
func (o *output) summarize(text string) {
	if o.kind != mesh.KindResult {
		o.outcome.Summary = text
	}
}

// output reads the program's output.
func (r *run) output() (output, error) {
	text, err := readText(r.dir.launchPath(fileStdout, r.launch), r.a.cfg.OutputCap)
	if err != nil {
		return output{}, fmt.Errorf("read output: %w", err)
	}
	reply := mesh.ReadReply(r.turn.Task, text)
	out := output{kind: reply.Kind}
	for _, f := range reply.Flags {
		out.flag(f)
	}
	// What is kept is copied: the parsed strings hold on to the whole text.
	out.outcome.Reply = keep(text, int(r.a.cfg.MaxOutput))
	switch reply.Kind {
	case mesh.KindQuestion:
		q := &api.Asked{Kind: api.QuestionText, Text: keep(reply.Question.Text, maxSummary)}
		for _, option := range reply.Question.Options[:min(len(reply.Question.Options), maxOptions)] {
			q.Options = append(q.Options, keep(option, maxPath))
		}
		out.outcome.State, out.outcome.Question = api.StateQuestion, q
	default:
		out.outcome.State = api.State(reply.Result.Status)
		out.outcome.Summary = keep(reply.Result.Summary, maxSummary)
		for _, path := range reply.Result.Artifacts {
			if len(path) > maxPath || len(out.outcome.Artifacts) == api.MaxArtifacts {
				out.flag(api.FlagTruncated)
				continue
			}
			out.outcome.Artifacts = append(out.outcome.Artifacts, keep(path, maxPath))
		}
	}
	if int64(len(text)) > r.a.cfg.MaxOutput {
		out.flag(api.FlagTruncated)
		if path, err := r.spill(); err != nil {
			r.a.cfg.Log.Warn("a reply that is too long could not be put into the workspace", "task", r.turn.Task, "error", err)
		} else {
			out.spilled = []string{path}
			rest := out.outcome.Artifacts[:min(len(out.outcome.Artifacts), api.MaxArtifacts-1)]
			out.outcome.Artifacts = append([]string{path}, rest...)
		}
	}
	return out, nil
}

// spill copies the whole output into the workspace and returns its path there,
// with slashes. Links in the workspace that lead out of it are not followed.
func (r *run) spill() (string, error) {
	root, err := os.OpenRoot(r.turn.Workspace.Dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if err := root.Mkdir(artifactDir, 0o700); err == nil {
		// Not work of the agent's: version control should not offer it.
		if err := root.WriteFile(filepath.Join(artifactDir, ".gitignore"), []byte("*\n"), 0o600); err != nil {
			return "", err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	from, err := os.Open(r.dir.launchPath(fileStdout, r.launch))
	if err != nil {
		return "", err
	}
	defer from.Close()
	name := filepath.Base(string(r.dir)) + ".reply.txt"
	to, err := root.OpenFile(filepath.Join(artifactDir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, io.LimitReader(from, r.a.cfg.OutputCap))
	if err := errors.Join(err, to.Close()); err != nil {
		return "", err
	}
	return artifactDir + "/" + name, nil
}

// errorTail is the end of the program's error output, on whole lines where it can
// be.
func (r *run) errorTail() string {
	text := readTail(r.dir.launchPath(fileStderr, r.launch), errorTail)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = mesh.CleanLine(lines[i])
	}
	return strings.Join(lines, "\n")
}

// readText reads the first limit bytes of a file into a string without a second
// copy; "" if it is missing.
func readText(path string, limit int64) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b strings.Builder
	if info, err := f.Stat(); err == nil {
		b.Grow(int(min(info.Size(), limit)))
	}
	_, err = io.Copy(&b, io.LimitReader(f, limit))
	return b.String(), err
}

// readTail reads at most the last n bytes of a file and drops the line that is
// cut; "" if it cannot be read.
func readTail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(info.Size()-n, 0)
	data, err := io.ReadAll(io.NewSectionReader(f, from, n))
	if err != nil {
		return ""
	}
	text := string(data)
	if from > 0 {
		if _, rest, ok := strings.Cut(text, "\n"); ok && strings.TrimSpace(rest) != "" {
			text = rest
		}
	}
	return text
}

// keep copies at most limit bytes of text, as valid UTF-8, cut between
// characters.
func keep(text string, limit int) string {
	text = strings.ToValidUTF8(cut(text, limit), "\uFFFD")
	return strings.Clone(cut(text, limit)) // replacing bytes may have made it longer
}

func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	at := limit
	for at > 0 && at > limit-utf8.UTFMax && !utf8.RuneStart(text[at]) {
		at--
	}
	return text[:at]
}
