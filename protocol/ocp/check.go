package ocp

import (
	"fmt"
	"regexp"
	"strings"
)

// How long what stands around a frame's content may be, in bytes. The budget does not
// count it, so it is bounded by itself: Check refuses more, and Compose shows at most
// MaxShown of each.
const (
	// MaxFrameText is the longest id, title and citation label.
	MaxFrameText = 1 << 10
	// MaxFrameURI is the longest URI.
	MaxFrameURI = 4 << 10
	// MaxFrameRest bounds everything else beside the content together: kind, times,
	// provenance, relations, embedding and what contextgraph/1 says of the content.
	MaxFrameRest = 32 << 10
	// MaxShown is how much of a title, a label, a URI and a name stands in a quote and in
	// its Usage.
	MaxShown = 256
)

// FrameError says what is wrong with a frame.
type FrameError struct {
	ID     string // of the frame, its first MaxShown bytes; may be empty
	Field  string // as on the wire
	Reason string
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("frame %q: %s %s", e.ID, e.Field, e.Reason)
}

func (f *Frame) fault(field, format string, args ...any) error {
	return &FrameError{ID: Cut(f.ID, MaxShown), Field: field, Reason: fmt.Sprintf(format, args...)}
}

// Check tells what makes a frame invalid in either family, as *FrameError: a score
// outside of 0 to 1, a blank title or citation label, and beyond the protocol a blank
// id, by which nothing could be cited or de-duplicated, and more around the content than
// may be there.
func (f *Frame) Check() error {
	switch {
	case !(f.Score >= 0 && f.Score <= 1): // not a number is neither
		return f.fault("score", "is %v, not between 0 and 1", f.Score)
	case isBlank(f.Title):
		return f.fault("title", "is blank")
	case isBlank(f.CitationLabel):
		return f.fault("citation_label", "is missing or blank")
	case isBlank(f.ID): // last: the protocol does not mind
		return f.fault("id", "is blank")
	}
	return f.checkRest()
}

// checkRest tells whether what stands around the content is within its bounds.
func (f *Frame) checkRest() error {
	for _, v := range []struct {
		field, value string
		most         int
	}{{"id", f.ID, MaxFrameText}, {"title", f.Title, MaxFrameText}, {"citation_label", f.CitationLabel, MaxFrameText}, {"uri", f.URI, MaxFrameURI}} {
		if len(v.value) > v.most {
			return f.fault(v.field, "has %d bytes, at most %d may be", len(v.value), v.most)
		}
	}
	if n := f.restBytes(); n > MaxFrameRest {
		return f.fault("provenance", "and what else stands beside its content have %d bytes, at most %d may be", n, MaxFrameRest)
	}
	return nil
}

// restBytes is how much else stands beside the content.
func (f *Frame) restBytes() int {
	n := 0
	add := func(texts ...string) {
		for _, t := range texts {
			n += len(t)
		}
	}
	add(string(f.Kind), f.ValidFrom, f.ValidTo, f.RecordedAt, f.ContentDigest)
	add(string(f.Representation), f.ContentFidelity, f.CanonicalContentHash, f.MinimumContentFidelity, f.InlineContentRequirement, f.TokenizerRef)
	for _, p := range f.Provenance {
		add(p.Type, p.URI, p.Range, p.Digest, p.Method, p.By)
	}
	for _, r := range f.Relations {
		add(r.Rel, r.TargetURI, r.DisplayName)
	}
	if e := f.Embedding; e != nil {
		add(e.Fingerprint)
		n += len(e.Vector) * 4 // a float32
	}
	if c := f.ContentRef; c != nil {
		add(c.ProviderID, c.URI, c.ExpiresAt)
	}
	if t := f.Transform; t != nil {
		add(t.Method, t.Implementation, t.Version)
	}
	return n
}

// CheckExact tells, as *FrameError, where a frame breaks the rules that
// contextgraph/1 added: the exact token cost, times in UTC, ranges and digests of
// files, names of relations. It comes after Check.
func (f *Frame) CheckExact() error {
	if want := TokenCost(f.Content); f.TokenCost != want {
		return f.fault("token_cost", "is %d and not %d, a quarter of the content's %d bytes", f.TokenCost, want, len(f.Content))
	}
	for _, t := range []struct{ field, value string }{
		{"valid_from", f.ValidFrom}, {"valid_to", f.ValidTo}, {"recorded_at", f.RecordedAt},
	} {
		if t.value != "" && !timePattern.MatchString(t.value) {
			return f.fault(t.field, "is no time in UTC such as 2026-01-31T12:00:00Z")
		}
	}
	for i, p := range f.Provenance {
		field := fmt.Sprintf("provenance[%d]", i)
		switch {
		case p.Type != "file":
		case !digestPattern.MatchString(p.Digest):
			return f.fault(field+".digest", "of a file is not sha256: and 64 small hex digits")
		case p.Range != "" && !rangePattern.MatchString(p.Range):
			return f.fault(field+".range", "is not like L1 or L1-40")
		}
	}
	for i, r := range f.Relations {
		if isBlank(r.DisplayName) {
			return f.fault(fmt.Sprintf("relations[%d].display_name", i), "is missing or blank")
		}
	}
	return nil
}

// Patterns of contextgraph/1.
var (
	timePattern        = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z$`)
	digestPattern      = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	rangePattern       = regexp.MustCompile(`^L[1-9][0-9]*(-[1-9][0-9]*)?$`)
	fingerprintPattern = regexp.MustCompile(`^[^/]+/[0-9]+(/[^/]+)?$`)
)

func isBlank(s string) bool { return strings.TrimSpace(s) == "" }
