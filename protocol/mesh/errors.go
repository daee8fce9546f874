package mesh

import (
	"errors"
	"strconv"
)

// Limits of the text protocol.
const (
	// MaxTextBytes is the largest text that a parser reads or a Format method
	// writes, in bytes. ReadReply and FindDigest take longer ones, because the
	// block that counts stands at the end of a reply.
	MaxTextBytes = 1 << 20
	// MaxHeaderBytes bounds the four mandatory lines of an envelope (from, task,
	// mode, reply) with their line ends, in bytes. Every node name of 32 bytes with
	// every valid task id fits. The marker, the closing line and the additive keys
	// (env, via, unknown ones) are not counted; they have MaxFieldBytes and
	// MaxExtraFields.
	MaxHeaderBytes = 160
	// MaxFieldBytes bounds key and value together of an additive or unknown key.
	MaxFieldBytes = 1024
	// MaxExtraFields is how many unknown keys a block may carry. Envelope and
	// digest with more are refused; in a result or question the rest is dropped,
	// because a reply must stay readable.
	MaxExtraFields = 32
	// MaxVia is how many hops the via key may name.
	MaxVia = 4
	// MaxFacts is how many facts a digest may hold.
	MaxFacts = 4096
	// MaxSummaryChars is how many characters of a summary are displayed; a longer
	// one is kept whole and flagged.
	MaxSummaryChars = 300
)

// Code says what is wrong with a text. The set is closed.
type Code string

// The codes.
const (
	// CodeNoMarker: the text does not begin with the marker of the wanted block, or
	// holds no such block.
	CodeNoMarker Code = "no_marker"
	// CodeUnsupportedVersion: the marker is of v2 or above (or v0).
	CodeUnsupportedVersion Code = "unsupported_version"
	// CodeMalformed: the structure is broken, for example a header without its
	// closing line or text after a block.
	CodeMalformed Code = "malformed"
	// CodeUnterminated: a digest without its closing tag.
	CodeUnterminated Code = "unterminated"
	// CodeMissingKey: a mandatory key is absent or has no value.
	CodeMissingKey Code = "missing_key"
	// CodeBadValue: a value outside its rules, or one that would not parse back.
	CodeBadValue Code = "bad_value"
	// CodeTooLarge: one of the limits of this package is exceeded.
	CodeTooLarge Code = "too_large"
	// CodeHopLimit: via names more than MaxVia hops.
	CodeHopLimit Code = "hop_limit"
	// CodeWrongTask: a digest for another task than the one at hand.
	CodeWrongTask Code = "wrong_task"
	// CodeWrongGeneration: a digest of another generation than the one asked for.
	CodeWrongGeneration Code = "wrong_generation"
)

// SyntaxError is the error of every parser and Format method of this package.
type SyntaxError struct {
	// Line is 1-based; 0 when the fault is in a value to format, or in the text as
	// a whole.
	Line int
	Code Code
	Msg  string
}

// Error gives line, message and code on one line.
func (e *SyntaxError) Error() string {
	s := "mesh text"
	if e.Line > 0 {
		s += " line " + strconv.Itoa(e.Line)
	}
	return s + ": " + e.Msg + " (" + string(e.Code) + ")"
}

// CodeOf returns the code of the SyntaxError in err's chain, "" if there is none.
func CodeOf(err error) Code {
	var se *SyntaxError
	if errors.As(err, &se) {
		return se.Code
	}
	return ""
}

// fault is a SyntaxError whose line is not counted yet. Readers of long replies
// meet many and report one, and counting lines for each would be quadratic.
type fault struct {
	off  int
	code Code
	msg  string
}

// in makes the error for the text that off refers to.
func (f *fault) in(text string) error {
	return &SyntaxError{lineAt(text, f.off), f.code, f.msg}
}

// refuse makes the error of a Format method.
func refuse(code Code, msg string) error {
	return &SyntaxError{Code: code, Msg: msg}
}

// excerptChars is how much of a foreign value an error message quotes.
const excerptChars = 40

// excerpt quotes a foreign value for an error message: cut, and on one line.
func excerpt(s string) string {
	return strconv.Quote(cutChars(s, excerptChars))
}
