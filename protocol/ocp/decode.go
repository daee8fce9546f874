package ocp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"opencode-mesh/protocol/mesh"
)

const (
	// MaxMessage is the largest message, in bytes, without the line's end.
	MaxMessage = 16 << 20
	// MaxDepth is how deeply a message may be nested, as in the reference decoders.
	MaxDepth = 127
	// maxErrorPath is how much of a path an error shows, in bytes.
	maxErrorPath = 200
)

// DecodeError says why a message cannot be read. It holds none of its texts.
type DecodeError struct {
	Path   string // of the member, such as /result/frames/2/score; "" for the whole
	Reason string
	Offset int64 // in bytes
}

func (e *DecodeError) Error() string {
	where := "byte " + strconv.FormatInt(e.Offset, 10)
	if e.Path != "" {
		where = e.Path + ", " + where
	}
	return "not a message: " + e.Reason + " (" + where + ")"
}

// NullList reports whether null stands where a list must.
func (e *DecodeError) NullList() bool { return e.Reason == nullList }

// nullList is the reason for null where a list must stand, see scalar.
const nullList = "is null and not a list"

// Decode reads one message of either family; an error is a *DecodeError. Use it while
// the peer's version is not known, and DecodeFor then.
//
// Members that are not known are passed over; the JSON around and in them is checked
// all the same. Bytes that are no UTF-8 become U+FFFD. Lists that are absent, or
// empty, are nil; null for a list is an error, as it is for everything that must be
// there. Numbers beyond float32 become the largest.
func Decode(line []byte) (Envelope, error) { return decode(line, both, true) }

// DecodeFor is Decode as the decoders of a version do it: with the messages and
// members of its family only, content of frames demanded by ocp/1, and kinds of frames
// that are not known refused, unless by the frozen contextgraph/1.
func DecodeFor(version string, line []byte) (Envelope, error) {
	family, ok := FamilyOf(version)
	if !ok {
		return Decode(line)
	}
	return decode(line, family, frozen(version))
}

func decode(line []byte, family Family, anyKind bool) (Envelope, error) {
	if len(line) > MaxMessage {
		return Envelope{}, &DecodeError{Reason: fmt.Sprintf("larger than %d bytes", MaxMessage), Offset: MaxMessage}
	}
	if !utf8.Valid(line) {
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	name, err := typeOf(line)
	if err != nil {
		return Envelope{}, err
	}
	r := &reader{dec: jsontext.NewDecoder(bytes.NewBuffer(line)), family: family, anyKind: anyKind}
	var e Envelope
	if name == "" { // the list form
		e.Shutdown = true
		return e, r.end(r.skip())
	}
	m := messageNamed(name)
	if m == nil || m.in&family == 0 {
		return Envelope{}, &DecodeError{Path: "/type", Reason: "no message has this type"}
	}
	m.begin(&e)
	if err := r.end(readRecord(r, m.fields, &e)); err != nil {
		return Envelope{}, err
	}
	return e, nil
}

// typeOf finds the type of a message, which may stand anywhere in it: without one the
// members cannot be understood. Where it comes first nothing else is read. It is ""
// for the list ["shutdown"], which the reference decoders take.
func typeOf(line []byte) (name string, err error) {
	r := &reader{dec: jsontext.NewDecoder(bytes.NewBuffer(line))}
	switch r.dec.PeekKind() {
	case '{':
	case '[':
		if list, err := readList(r, readText[string]); err == nil && len(list) == 1 && list[0] == "shutdown" {
			return "", nil
		}
		return "", r.fail("a list, not an object")
	default:
		if err := r.skip(); err != nil {
			return "", err
		}
		return "", r.fail("no object")
	}
	if err := r.token(); err != nil {
		return "", err
	}
	for r.dec.PeekKind() != '}' {
		t, err := r.dec.ReadToken()
		if err != nil {
			return "", r.syntax(err)
		}
		if t.String() == "type" {
			err := readText(r, &name)
			if err == nil && name == "" {
				err = r.fail("is empty")
			}
			return name, err
		}
		if err := r.skip(); err != nil {
			return "", err
		}
	}
	return "", r.fail("type is missing")
}

// reader reads the tokens of a message.
type reader struct {
	dec    *jsontext.Decoder
	family Family // whose messages and members are known
	// anyKind takes kinds of frames that are not known.
	anyKind bool
}

func (r *reader) fail(format string, args ...any) error {
	return &DecodeError{Path: shortPath(r.dec.StackPointer()), Reason: fmt.Sprintf(format, args...), Offset: r.dec.InputOffset()}
}

// syntax is an error of the JSON itself.
func (r *reader) syntax(err error) error {
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF) && r.dec.InputOffset() == 0:
		return &DecodeError{Reason: "empty"}
	case errors.As(err, &syntactic):
		return &DecodeError{Path: shortPath(syntactic.JSONPointer), Reason: syntactic.Err.Error(), Offset: syntactic.ByteOffset}
	default:
		return &DecodeError{Reason: err.Error(), Offset: r.dec.InputOffset()}
	}
}

// shortPath makes a path, of which a peer may have chosen the names, fit to be shown.
func shortPath(p jsontext.Pointer) string {
	path := string(p)
	if len(path) > maxErrorPath {
		path = strings.ToValidUTF8(path[:maxErrorPath], "") + "…"
	}
	return mesh.CleanLine(path)
}

// end makes sure that nothing follows, unless there is an error already.
func (r *reader) end(err error) error {
	if err != nil {
		return err
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return r.fail("more after the message")
	}
	return nil
}

func (r *reader) null() bool { return r.dec.PeekKind() == 'n' }

// token passes a token.
func (r *reader) token() error {
	if _, err := r.dec.ReadToken(); err != nil {
		return r.syntax(err)
	}
	return nil
}

// skip passes a value.
func (r *reader) skip() error {
	depth := r.dec.StackDepth()
	for {
		if err := r.token(); err != nil {
			return err
		}
		switch now := r.dec.StackDepth(); {
		case now > MaxDepth:
			return r.fail("nested more than %d deep", MaxDepth)
		case now == depth:
			return nil
		}
	}
}

// scalar reads a token of a kind.
func (r *reader) scalar(kind jsontext.Kind, what string) (jsontext.Token, error) {
	t, err := r.dec.ReadToken()
	if err != nil {
		return t, r.syntax(err)
	}
	if t.Kind() != kind {
		return t, r.fail("is %s and not %s", t.Kind(), what)
	}
	return t, nil
}

func readText[S ~string](r *reader, out *S) error {
	t, err := r.scalar('"', "a string")
	if err == nil {
		*out = S(t.String())
	}
	return err
}

func readKind(r *reader, out *FrameKind) error {
	if err := readText(r, out); err != nil {
		return err
	}
	if !r.anyKind && !out.Known() {
		return r.fail("no kind of frame")
	}
	return nil
}

func readBool(r *reader, out *bool) error {
	t, err := r.dec.ReadToken()
	if err != nil {
		return r.syntax(err)
	}
	if k := t.Kind(); k != 't' && k != 'f' {
		return r.fail("is %s and not true or false", k)
	}
	*out = t.Bool()
	return nil
}

// readUint32 takes digits alone: no sign, fraction or exponent.
func readUint32(r *reader, out *uint32) error {
	t, err := r.scalar('0', "a number")
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(t.String(), 10, 32)
	if err != nil {
		return r.fail("is no whole number from 0 to %d", uint32(math.MaxUint32))
	}
	*out = uint32(n)
	return nil
}

// readFloat reads a float32 by way of a float64, as the reference decoders do. What
// they make infinite, and cannot write any more, is the largest number here.
func readFloat(r *reader, out *float32) error {
	t, err := r.scalar('0', "a number")
	if err != nil {
		return err
	}
	n, err := strconv.ParseFloat(t.String(), 64)
	if err != nil {
		return r.fail("is a number out of range")
	}
	*out = float32(min(max(n, -math.MaxFloat32), math.MaxFloat32))
	return nil
}

func readList[V any](r *reader, read func(*reader, *V) error) ([]V, error) {
	if _, err := r.scalar('[', "a list"); err != nil {
		return nil, err
	}
	var list []V
	for r.dec.PeekKind() != ']' {
		var v V
		if err := read(r, &v); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, r.token()
}

func readRecord[T any](r *reader, fields []field[T], rec *T) error {
	if _, err := r.scalar('{', "an object"); err != nil {
		return err
	}
	var seen uint64
	for r.dec.PeekKind() != '}' {
		name, err := r.dec.ReadToken()
		if err != nil {
			return r.syntax(err)
		}
		i := indexOf(fields, name.String(), r.family)
		if i < 0 {
			err = r.skip()
		} else {
			seen |= 1 << i
			err = fields[i].read(r, rec)
		}
		if err != nil {
			return err
		}
	}
	for i := range fields {
		in := fields[i].in & r.family
		if in != 0 && fields[i].needed&in == in && seen&(1<<i) == 0 {
			return r.fail("%s is missing", fields[i].name)
		}
	}
	return r.token()
}

// indexOf finds the member that a family knows by a name; the case counts.
func indexOf[T any](fields []field[T], name string, family Family) int {
	for i := range fields {
		if fields[i].name == name && fields[i].in&family != 0 {
			return i
		}
	}
	return -1
}
