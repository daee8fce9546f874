package ocp

import (
	"fmt"
	"slices"
	"strings"
)

// bytesPerToken is the rule by which content is counted.
const bytesPerToken = 4

// TokenCost is what content costs: a quarter of its bytes, rounded up. contextgraph/1
// demands exactly this; ocp/1 takes any honest count. Content that may not be UTF-8
// goes through Clean first.
func TokenCost(content string) uint32 {
	return uint32((uint64(len(content)) + bytesPerToken - 1) / bytesPerToken)
}

// Clean makes text valid UTF-8, as the encoder demands: each run of other bytes
// becomes one U+FFFD, which is longer. So it comes before cost and digest.
func Clean(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// Weight is what a budget of ours counts for the frame: what its provider says, but at
// least TokenCost, so that a claim below the truth buys nothing, and at most the
// content's bytes, since no token is shorter: a claim beyond the truth would leave others
// without their share.
func (f *Frame) Weight() uint64 {
	return max(min(uint64(f.TokenCost), uint64(len(f.Content))), uint64(TokenCost(f.Content)))
}

// TotalCost is the sum of what the frames say they cost.
func (r Result) TotalCost() uint64 {
	var sum uint64
	for i := range r.Frames {
		sum += uint64(r.Frames[i].TokenCost)
	}
	return sum
}

// Audit checks an answer against the budget of its query, by what the provider says:
// *BudgetError for too many tokens, *FloodError for too many frames. Equal is within.
// The frames of a result that fails are dropped as a whole and never cut to fit.
func (r Result) Audit(q Query) error {
	if sum := r.TotalCost(); sum > uint64(q.MaxTokens) {
		return &BudgetError{Claimed: sum, Max: q.MaxTokens, Dropped: len(r.Frames)}
	}
	if len(r.Frames) > int(q.MaxFrames) {
		return &FloodError{Frames: len(r.Frames), Max: q.MaxFrames}
	}
	return nil
}

// Wants reports whether a query asks for frames of a kind: of any, if it names none.
func (q *Query) Wants(k FrameKind) bool { return len(q.Kinds) == 0 || slices.Contains(q.Kinds, k) }

// CheckFor is Check for a frame that answers a query: its kinds are a filter, whatever the
// provider makes of them.
func (f *Frame) CheckFor(q Query) error {
	if err := f.Check(); err != nil {
		return err
	}
	if !q.Wants(f.Kind) {
		return f.fault("kind", "is not one that was asked for")
	}
	return nil
}

// BudgetError is the answer of a provider that does not keep to the tokens.
type BudgetError struct {
	Claimed uint64 // tokens, the sum of all frames
	Max     uint32 // tokens
	Dropped int    // frames
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("the provider broke the budget: its frames cost %d tokens of %d; all %d were dropped", e.Claimed, e.Max, e.Dropped)
}

// FloodError is the answer of a provider that does not keep to the number of frames.
type FloodError struct {
	Frames int
	Max    uint32
}

func (e *FloodError) Error() string {
	return fmt.Sprintf("the provider broke the budget: it sent %d frames of at most %d; all were dropped", e.Frames, e.Max)
}
