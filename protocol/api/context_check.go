package api

import (
	"strings"
	"time"

	"opencode-mesh/protocol/ocp"
)

// CheckContextQuery refuses a query that makes no sense or has more than the limits, as
// *Error, and fills in a budget that was left out. Texts are made valid UTF-8 and times
// UTC.
func CheckContextQuery(q *ocp.Query) error {
	if q.MaxTokens == 0 {
		q.MaxTokens = DefaultContextTokens
	}
	if q.MaxFrames == 0 {
		q.MaxFrames = DefaultContextFrames
	}
	q.Goal, q.QueryText = ocp.Clean(q.Goal), ocp.Clean(q.QueryText)
	switch {
	case strings.TrimSpace(q.Goal) == "":
		return Errorf(CodeBadRequest, "the query has no goal: say what the context is for")
	case len(q.Goal) > MaxContextGoal || len(q.QueryText) > MaxContextGoal:
		return Errorf(CodeTooLarge, "the goal is longer than %d bytes", MaxContextGoal)
	case q.MaxTokens > MaxContextTokens:
		return Errorf(CodeBadRequest, "max_tokens is at most %d", MaxContextTokens)
	case q.MaxFrames > MaxContextFrames:
		return Errorf(CodeBadRequest, "max_frames is at most %d", MaxContextFrames)
	case len(q.Anchors) > MaxContextAnchors:
		return Errorf(CodeBadRequest, "a query has at most %d anchors", MaxContextAnchors)
	case len(q.Embedding) > 0 || len(q.RepresentationPreferences) > 0:
		return Errorf(CodeBadRequest, "embeddings and representations are not supported: ask with words")
	}
	for i, anchor := range q.Anchors {
		if len(anchor) > MaxContextAnchor {
			return Errorf(CodeBadRequest, "an anchor is longer than %d bytes", MaxContextAnchor)
		}
		q.Anchors[i] = ocp.Clean(anchor)
	}
	for _, k := range q.Kinds {
		if !k.Known() {
			return Errorf(CodeBadRequest, "there is no kind %q of frames: snippet, symbol, fact, doc, memory, episode and graph are", k)
		}
	}
	if q.AsOf != "" {
		at, err := time.Parse(time.RFC3339, q.AsOf)
		if err != nil {
			return Errorf(CodeBadRequest, "as_of is a time such as 2026-01-31T12:00:00Z, not %q", q.AsOf)
		}
		q.AsOf = at.UTC().Format("2006-01-02T15:04:05Z")
	}
	return nil
}
