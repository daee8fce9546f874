package inspect

import (
	"fmt"
	"io"
	"slices"

	"opencode-mesh/protocol/mesh"
)

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	Pass    Status = "pass"
	Fail    Status = "fail"
	Skipped Status = "skipped"
)

// The checks of the reference's suite.
const (
	Handshake     = "handshake"
	FrameValidity = "frame-validity"
	BudgetHonesty = "budget-honesty"
	ShutdownClean = "shutdown-clean"
	Malformed     = "malformed-input-tolerance"
)

// The checks that go beyond it.
const (
	// ExitsOnShutdown: a child ends by itself in time, with exit code 0.
	ExitsOnShutdown = "exits-on-shutdown"
	// ServesAfterShutdown: an address goes on answering.
	ServesAfterShutdown = "serves-after-shutdown"
	// FrameCount: not more frames than max_frames.
	FrameCount = "frame-count"
	// FrameIDs: ids are not blank, and unique in an answer.
	FrameIDs = "frame-ids"
	// NoNullLists: an empty list is [] or absent, never null.
	NoNullLists = "no-null-lists"
	// KindsFilter: kinds that are asked for are all that comes.
	KindsFilter = "kinds-filter"
	// HonestClaims: claims that are at odds with the content by more than two do not hide
	// that it goes beyond max_tokens. ocp/1 leaves the count to the provider; a host does not.
	HonestClaims = "honest-claims"
	// ValidUTF8: all bytes of answers are UTF-8. Hosts may read others as U+FFFD.
	ValidUTF8 = "valid-utf8"
	// StaysInStep: a line that is no message has at most one answer, an error, and each
	// query after it exactly one.
	StaysInStep = "stays-in-step"
	// ExactFrames: the exact token cost and what else contextgraph/1 asks of a frame.
	ExactFrames = "exact-frames"
	// EgressScopes: whoever names a place off the machine declares egress.
	EgressScopes = "egress-scopes"
	// ErrorCode: the error for a line that is no message has the code bad_request.
	ErrorCode = "error-code"
)

// order is that of a report: the suite's checks, ours, and those of contextgraph/1.
var order = []string{
	Handshake, FrameValidity, BudgetHonesty, ShutdownClean, Malformed,
	ExitsOnShutdown, ServesAfterShutdown, FrameCount, FrameIDs, HonestClaims, NoNullLists, ValidUTF8, KindsFilter, StaysInStep,
	ExactFrames, EgressScopes, ErrorCode,
}

// Check is the outcome of one check.
type Check struct {
	Name     string `json:"name"`
	Status   Status `json:"status"`
	Evidence string `json:"evidence"`
}

// Report is the outcome of all checks, in a fixed order.
type Report struct {
	Target string  `json:"target"`
	Checks []Check `json:"checks"`
}

// Conformant reports whether no check failed.
func (r Report) Conformant() bool {
	_, failed, _ := r.Tally()
	return failed == 0
}

// Tally counts the outcomes.
func (r Report) Tally() (passed, failed, skipped int) {
	for _, c := range r.Checks {
		switch c.Status {
		case Pass:
			passed++
		case Fail:
			failed++
		default:
			skipped++
		}
	}
	return passed, failed, skipped
}

// Write writes the report for people.
func (r Report) Write(w io.Writer) {
	fmt.Fprintln(w, mesh.CleanLine(r.Target))
	for _, c := range r.Checks {
		fmt.Fprintf(w, "  %-7s  %-25s  %s\n", c.Status, c.Name, c.Evidence)
	}
	passed, failed, skipped := r.Tally()
	verdict := "conformant"
	if failed > 0 {
		verdict = "not conformant"
	}
	fmt.Fprintf(w, "%s: %d passed, %d failed, %d skipped\n", verdict, passed, failed, skipped)
}

func (r *Report) add(name string, status Status, format string, args ...any) {
	// The provider may have chosen the words.
	evidence := mesh.CleanLine(fmt.Sprintf(format, args...))
	r.Checks = append(r.Checks, Check{Name: name, Status: status, Evidence: evidence})
}

// outcome adds a check that passed if there is no error.
func (r *Report) outcome(name string, err error, format string, args ...any) {
	if err != nil {
		r.add(name, Fail, "%v", err)
		return
	}
	r.add(name, Pass, format, args...)
}

func (r *Report) sort() {
	slices.SortStableFunc(r.Checks, func(a, b Check) int { return slices.Index(order, a.Name) - slices.Index(order, b.Name) })
}
