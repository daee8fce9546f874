package host

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"slices"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// audit takes an answer into a leg if it keeps to the budget, and says loudly if it does
// not.
func (m *member) audit(leg *api.ContextAnswerLeg, result ocp.Result, q ocp.Query) {
	leg.Found = len(result.Frames)
	var lie *ocp.BudgetError
	var flood *ocp.FloodError
	err := result.Audit(q)
	switch {
	case errors.As(err, &lie):
		leg.Outcome, leg.Claimed = api.ContextLiar, lie.Claimed
	case errors.As(err, &flood):
		leg.Outcome, leg.Claimed = api.ContextFlood, result.TotalCost()
	case err != nil:
		leg.Outcome = api.ContextFailed
	}
	if err != nil {
		leg.Error = err.Error()
		m.log.Warn("a context provider does not keep to the budget: its frames were dropped", "frames", leg.Found, "err", err)
		return
	}
	frames, fault := valid(result.Frames, q)
	if fault != nil {
		leg.Error = ocp.Line(fault.Error(), maxText)
		m.log.Warn("frames of a context provider were dropped: they are not as they should be", "dropped", leg.Found-len(frames), "err", fault)
	}
	leg.Result.Frames = withinWeight(frames, q.MaxTokens)
	leg.Result.Truncated = result.Truncated || len(leg.Result.Frames) < len(frames)
	leg.Result.DroppedEstimate = result.DroppedEstimate
	leg.Used = len(leg.Result.Frames)
	for i := range leg.Result.Frames {
		leg.Tokens += leg.Result.Frames[i].Weight()
	}
}

// valid returns the frames that were asked for and can be cited, each id once, without
// embeddings, which nobody here compares; err is what is wrong with the first of the others.
func valid(frames []ocp.Frame, q ocp.Query) (out []ocp.Frame, err error) {
	seen := make(map[string]bool, len(frames))
	for _, f := range frames {
		fault := f.CheckFor(q)
		if fault == nil && seen[f.ID] {
			fault = &ocp.FrameError{ID: f.ID, Field: "id", Reason: "was there before"}
		}
		if fault != nil {
			err = cmp.Or(err, fault)
			continue
		}
		seen[f.ID] = true
		f.Embedding = nil
		out = append(out, f)
	}
	return out, err
}

// withinWeight returns the frames that a budget takes by their real weight, the best
// first: a provider of ocp/1 may count tokens in another way, and is no liar for that.
func withinWeight(frames []ocp.Frame, maxTokens uint32) []ocp.Frame {
	order := make([]int, len(frames))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(frames[b].Score, frames[a].Score) })
	left := uint64(maxTokens)
	keep := make([]bool, len(frames))
	for _, i := range order {
		if w := frames[i].Weight(); w <= left {
			keep[i], left = true, left-w
		}
	}
	out := []ocp.Frame{}
	for i, f := range frames {
		if keep[i] {
			out = append(out, f)
		}
	}
	return out
}

// maxText is the longest error of a leg or provider, in bytes.
const maxText = 512

// maxLogged is how much of a line of a program's stderr is logged, in bytes.
const maxLogged = 1 << 10

// stderr logs what a program writes there, line by line. For one goroutine.
type stderr struct {
	log  *slog.Logger
	line []byte
}

// Write never fails.
func (s *stderr) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		part, rest, ended := bytes.Cut(b, []byte{'\n'})
		s.line = append(s.line, part[:min(len(part), maxLogged+1-len(s.line))]...)
		if ended {
			s.log.Debug("a context provider says", "line", ocp.Line(string(s.line), maxLogged))
			s.line = s.line[:0]
		}
		b = rest
	}
	return n, nil
}
