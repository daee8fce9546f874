package ocp

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Encode writes a message as one line without its end, as a family's JSON Schema wants
// it: lists always, even where the reference leaves empty ones out, and members of the
// other family never. What the schema refuses is an error and not written: an empty
// goal, id or title, a score outside of 0 to 1, in contextgraph/1 also a time that is
// not in UTC. Kinds of frames that are not known pass in contextgraph/1 alone, as its
// frozen version asks, though its draft schema does not have them.
//
// Texts must be UTF-8: Clean changes what content costs, and so comes before it.
func Encode(e Envelope, f Family) ([]byte, error) {
	if f != FamilyOCP && f != FamilyContextgraph {
		return nil, errors.New("encode: " + f.String())
	}
	name := e.Type()
	m := messageNamed(name)
	switch {
	case m == nil:
		return nil, errors.New("encode: the envelope holds no message")
	case m.in&f == 0:
		return nil, fmt.Errorf("encode: %s has no message %s", f, name)
	}
	w := &writer{family: f}
	w.buf = append(w.buf, `{"type":`...)
	w.text(name)
	writeMembers(w, m.fields, &e)
	w.buf = append(w.buf, '}')
	switch {
	case w.err != nil:
		return nil, fmt.Errorf("encode %s: %w", name, w.err)
	case len(w.buf) > MaxMessage:
		return nil, fmt.Errorf("encode %s: larger than %d bytes; ask for less", name, MaxMessage)
	}
	return w.buf, nil
}

// writer appends a message. After an error, which err keeps, what it appends does not
// matter.
type writer struct {
	family Family
	buf    []byte
	path   []string // of the member that is being written
	err    error
}

func (w *writer) fail(reason string) {
	if w.err == nil {
		w.err = errors.New(strings.Join(w.path, ".") + " " + reason)
	}
}

func (w *writer) text(s string) {
	var err error
	if w.buf, err = jsontext.AppendQuote(w.buf, s); err != nil {
		w.fail("is not UTF-8; clean it before its cost is counted")
	}
}

func (w *writer) float(n float32) {
	if n != n || n-n != 0 {
		w.fail("is no finite number")
		return
	}
	w.buf = strconv.AppendFloat(w.buf, float64(n), 'g', -1, 32)
}

func writeRecord[T any](w *writer, fields []field[T], rec *T) {
	w.buf = append(w.buf, '{')
	writeMembers(w, fields, rec)
	w.buf = append(w.buf, '}')
}

func writeMembers[T any](w *writer, fields []field[T], rec *T) {
	for i := range fields {
		f := &fields[i]
		if f.in&w.family == 0 {
			continue
		}
		w.path = append(w.path, f.name)
		if f.fault != nil {
			if reason := f.fault(rec, w.family); reason != "" {
				w.fail(reason)
			}
		}
		start := len(w.buf)
		if w.buf[start-1] != '{' {
			w.buf = append(w.buf, ',')
		}
		w.buf = append(w.buf, '"')
		w.buf = append(w.buf, f.name...)
		w.buf = append(w.buf, '"', ':')
		if !f.write(w, rec) {
			w.buf = w.buf[:start]
		}
		w.path = w.path[:len(w.path)-1]
	}
}

func writeList[V any](w *writer, list []V, write func(*writer, *V)) {
	w.buf = append(w.buf, '[')
	for i := range list {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.path = append(w.path, strconv.Itoa(i))
		write(w, &list[i])
		w.path = w.path[:len(w.path)-1]
	}
	w.buf = append(w.buf, ']')
}
