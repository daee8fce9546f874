package ocp

import (
	"slices"
	"strings"
)

// Fields with rules of their own, and what the schemas ask of what is written.

// kind is the kind of a frame, of a closed set but for the frozen successor.
func kind[T any](name string, get func(*T) *FrameKind) field[T] {
	f := text(name, both, get)
	f.read = func(r *reader, rec *T) error { return readKind(r, get(rec)) }
	return f.unless(func(rec *T, f Family) string { return unknownKind(f, *get(rec)) })
}

func kinds[T any](name string, get func(*T) *[]FrameKind) field[T] {
	f := texts(name, both, false, get)
	f.read = func(r *reader, rec *T) (err error) {
		*get(rec), err = readList(r, readKind)
		return err
	}
	return f.unless(func(rec *T, f Family) string { return unknownKind(f, *get(rec)...) })
}

// unknownKind refuses what ocp/1 cannot carry. The frozen successor passes unknown
// kinds on.
func unknownKind(f Family, kinds ...FrameKind) string {
	for _, k := range kinds {
		switch {
		case k == "":
			return "is empty"
		case f == FamilyOCP && !k.Known():
			return "is a kind that " + majorOCP + " does not have"
		}
	}
	return ""
}

// instant is an optional time: free text in ocp/1, RFC 3339 in UTC in the successor.
func instant[T any](name string, get func(*T) *string) field[T] {
	return optionalText(name, both, get).unless(func(rec *T, f Family) string {
		if f == FamilyContextgraph && *get(rec) != "" && !timePattern.MatchString(*get(rec)) {
			return "is no time in UTC such as 2026-01-31T12:00:00Z"
		}
		return ""
	})
}

// content is always written, but for a reference, which has none.
func content() field[Frame] {
	f := text("content", both, func(f *Frame) *string { return &f.Content })
	f.needed = FamilyOCP
	write := f.write
	f.write = func(w *writer, f *Frame) bool {
		return f.Representation != RepresentationReference && write(w, f)
	}
	return f.unless(func(f *Frame, family Family) string {
		if f.Representation == RepresentationReference && family == FamilyOCP {
			return "of a reference is not here, and " + majorOCP + " has no references"
		}
		return onlyInline(f, f.Content != "")
	})
}

func score() field[Frame] {
	return field[Frame]{
		name: "score", in: both, needed: both,
		read: func(r *reader, f *Frame) error { return readFloat(r, &f.Score) },
		write: func(w *writer, f *Frame) bool {
			w.float(f.Score)
			return true
		},
	}.unless(func(f *Frame, _ Family) string {
		if !(f.Score >= 0 && f.Score <= 1) {
			return "is not between 0 and 1"
		}
		return ""
	})
}

// onlyInline refuses what a reference, having no content, may not have.
func onlyInline(f *Frame, set bool) string {
	if set && f.Representation == RepresentationReference {
		return "does not go with a reference, which has no content"
	}
	return ""
}

// representable tells what a frame lacks for its representation.
func representable(f *Frame, _ Family) string {
	if fault := unknownRepresentation(f.Representation); f.Representation != "" && fault != "" {
		return fault
	}
	var lacks []string
	need := func(name string, there bool) {
		if !there {
			lacks = append(lacks, name)
		}
	}
	switch f.Representation {
	case RepresentationCompact:
		need("content_digest", f.ContentDigest != "")
		need("transform", f.Transform != nil)
		fallthrough
	case RepresentationReference:
		need("canonical_content_hash", f.CanonicalContentHash != "")
		need("content_ref", f.ContentRef != nil)
	}
	if len(lacks) > 0 {
		return string(f.Representation) + " needs " + strings.Join(lacks, ", ")
	}
	return ""
}

var (
	fidelities         = []string{"exact", "normalized", "summarized", "omitted"}
	verdicts           = []string{"valid", "stale", "gone", "unknown"}
	inlineRequirements = []string{"required", "resolvable_reference_allowed"}
)

func unknownRepresentation(list ...Representation) string {
	for _, r := range list {
		switch r {
		case RepresentationFull, RepresentationCompact, RepresentationReference:
		default:
			return "is not full, compact or reference"
		}
	}
	return ""
}

// oneOf refuses a value that is not of a set. An empty one is left out, hence fine.
func oneOf(value string, set []string) string {
	if value == "" || slices.Contains(set, value) {
		return ""
	}
	return "is not one of " + strings.Join(set, ", ")
}
