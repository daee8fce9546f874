package relay

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// Bounds of what a node may put into a task's record, in bytes unless it says
// otherwise. What is longer is cut; the reply, which is kept apart, has the whole.
const (
	maxRecordSummary = 8 << 10
	maxQuestionText  = 16 << 10
	maxOptions       = 32 // of a question
	maxOption        = 512
	maxArtifactPath  = 1024
	maxArtifactPaths = 64 << 10 // all paths of a result
	maxErrorText     = 4 << 10
	maxSessionID     = 256
	maxWord          = 64 // a flag, an error's code
	// maxClaim is the longest duration that a node is believed.
	maxClaim = 366 * 24 * time.Hour
	// maxTokens is the highest count that a node is believed.
	maxTokens = 1 << 40
)

// failed makes the outcome of a task that the mesh ended.
func failed(code, message string, flags ...api.Flag) api.Outcome {
	return api.Outcome{State: api.StateFailed, Flags: flags, Error: &api.TaskError{Code: code, Message: message}}
}

// canceled makes the outcome of a task that never ran.
func canceled(code, message string) api.Outcome {
	o := api.Outcome{State: api.StateCanceled}
	if code != "" {
		o.Error = &api.TaskError{Code: code, Message: message}
	}
	return o
}

// settle ends a task.
func settle(t store.Task, o api.Outcome, now time.Time) store.Task {
	o.Reply = ""
	t.Outcome = &o
	t.Question, t.Asking, t.Answer = nil, "", nil
	t.EndedAt = now
	t.RanMS += o.RanMS
	if t.StartedAt.IsZero() && o.RanMS > 0 {
		t.StartedAt = now.Add(-time.Duration(o.RanMS) * time.Millisecond)
	}
	t.Flags = mergeFlags(t.Flags, o.Flags)
	t.CancelAt, t.ExpireAt = time.Time{}, time.Time{}
	return become(t, o.State, now)
}

func mergeFlags(a, b []api.Flag) []api.Flag {
	out := slices.Clone(a)
	for _, f := range b {
		if !slices.Contains(out, f) && len(out) < api.MaxFlags {
			out = append(out, f)
		}
	}
	return out
}

// tidy refuses an outcome that a node must not send, and bounds and cleans what it
// may: all of it is shown to people (semantics 17), and kept.
func tidy(o *api.Outcome) error {
	switch {
	case !o.State.Settled() && o.State != api.StateQuestion:
		return api.Errorf(api.CodeBadRequest, "%q is not an outcome", shown.Cut(string(o.State), maxWord))
	case o.State == api.StateQuestion && (o.Question == nil || o.Question.Text == ""):
		return api.Errorf(api.CodeBadRequest, "a question without text")
	case len(o.Reply) > api.MaxReply:
		return api.Errorf(api.CodeTooLarge, "the reply is larger than %d bytes", api.MaxReply)
	case len(o.Artifacts) > api.MaxArtifacts || len(o.Flags) > api.MaxFlags:
		return api.Errorf(api.CodeTooLarge, "more than %d artifacts or %d flags", api.MaxArtifacts, api.MaxFlags)
	}
	flags := shown.Lines(o.Flags, api.MaxFlags, maxWord)
	if len(o.Summary) > maxRecordSummary {
		o.Summary = shown.Cut(o.Summary, maxRecordSummary)
		flags = mergeFlags(flags, []api.Flag{api.FlagSummaryTooLong})
	}
	paths := tidyPaths(o.Artifacts)
	if len(paths) < len(o.Artifacts) {
		flags = mergeFlags(flags, []api.Flag{api.FlagTruncated})
	}
	o.Artifacts, o.Files, o.Flags = paths, tidyFiles(paths, o.Files), flags
	o.Session = shown.Line(o.Session, maxSessionID)
	o.RanMS = claimed(o.RanMS).Milliseconds()
	o.Tokens = tidyTokens(o.Tokens)
	if e := o.Error; e != nil {
		o.Error = &api.TaskError{Code: shown.Line(e.Code, maxWord), Message: shown.Text(e.Message, maxErrorText)}
	}
	if o.State != api.StateQuestion {
		o.Question = nil
	} else {
		o.Question = tidyQuestion(*o.Question)
	}
	return nil
}

// tidyPaths keeps the artifact paths that fit.
func tidyPaths(paths []string) []string {
	kept := make([]string, 0, len(paths))
	room := maxArtifactPaths
	for _, p := range paths {
		if p = mesh.CleanLine(p); p != "" && len(p) <= maxArtifactPath && len(p) <= room {
			kept = append(kept, p)
			room -= len(p)
		}
	}
	return kept
}

func tidyTokens(k *api.Tokens) *api.Tokens {
	if k == nil {
		return nil
	}
	return &api.Tokens{Total: min(max(k.Total, 0), maxTokens), Limit: min(max(k.Limit, 0), maxTokens)}
}

func tidyQuestion(q api.Asked) *api.Asked {
	out := &api.Asked{Kind: api.QuestionText, Text: shown.Text(q.Text, maxQuestionText)}
	if q.Kind == api.QuestionPermission {
		out.Kind = q.Kind
	}
	if out.Text == "" {
		out.Text = "(a question without visible text)"
	}
	for _, o := range q.Options[:min(len(q.Options), maxOptions)] { // an empty one keeps its number
		out.Options = append(out.Options, shown.Line(o, maxOption))
	}
	return out
}

// claimed is a duration that a node tells, in milliseconds, within reason.
func claimed(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), maxClaim.Milliseconds())) * time.Millisecond
}

func outcomeHash(o api.Outcome) string {
	b, err := json.Marshal(o)
	if err != nil { // our own type always marshals
		return ""
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}
