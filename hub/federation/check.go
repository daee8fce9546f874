package federation

import (
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// check refuses a query that makes no sense, and fills in its budget.
func check(q *api.ContextQuery) error {
	if q.MaxTokens == 0 {
		q.MaxTokens = api.DefaultContextTokens
	}
	if q.MaxFrames == 0 {
		q.MaxFrames = api.DefaultContextFrames
	}
	q.Goal, q.QueryText = ocp.Clean(q.Goal), ocp.Clean(q.QueryText)
	switch {
	case strings.TrimSpace(q.Goal) == "":
		return api.Errorf(api.CodeBadRequest, "the query has no goal: say what the context is for")
	case len(q.Goal) > api.MaxContextGoal || len(q.QueryText) > api.MaxContextGoal:
		return api.Errorf(api.CodeTooLarge, "the goal is longer than %d bytes", api.MaxContextGoal)
	case q.MaxTokens > api.MaxContextTokens:
		return api.Errorf(api.CodeBadRequest, "max_tokens is at most %d", api.MaxContextTokens)
	case q.MaxFrames > api.MaxContextFrames:
		return api.Errorf(api.CodeBadRequest, "max_frames is at most %d", api.MaxContextFrames)
	case len(q.Nodes) > api.MaxContextNodes:
		return api.Errorf(api.CodeBadRequest, "a query asks at most %d nodes", api.MaxContextNodes)
	case len(q.Anchors) > api.MaxContextAnchors:
		return api.Errorf(api.CodeBadRequest, "a query has at most %d anchors", api.MaxContextAnchors)
	case len(q.Embedding) > 0 || len(q.RepresentationPreferences) > 0:
		return api.Errorf(api.CodeBadRequest, "embeddings and representations are not supported: ask with words")
	}
	for i, anchor := range q.Anchors {
		if len(anchor) > api.MaxContextAnchor {
			return api.Errorf(api.CodeBadRequest, "an anchor is longer than %d bytes", api.MaxContextAnchor)
		}
		q.Anchors[i] = ocp.Clean(anchor)
	}
	for _, k := range q.Kinds {
		if !k.Known() {
			return api.Errorf(api.CodeBadRequest, "there is no kind %q of frames: snippet, symbol, fact, doc, memory, episode and graph are", k)
		}
	}
	if q.AsOf != "" {
		at, err := time.Parse(time.RFC3339, q.AsOf)
		if err != nil {
			return api.Errorf(api.CodeBadRequest, "as_of is a time such as 2026-01-31T12:00:00Z, not %q", q.AsOf)
		}
		q.AsOf = at.UTC().Format("2006-01-02T15:04:05Z")
	}
	return nil
}
