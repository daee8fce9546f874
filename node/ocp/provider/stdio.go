package provider

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"opencode-mesh/protocol/ocp"
)

// Serve answers the host at the other end of two streams, one request after the other,
// until it says shutdown or closes in; neither is an error. Each line gets one line in
// answer, one that is no message an error; blank lines get none. Nothing else is written
// to out. When ctx ends, queries do; Serve returns once in is closed.
func (p *Provider) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	s := &stream{p: p, family: ocp.FamilyOCP}
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(r)
		if len(line) > 0 || errors.Is(err, errLong) {
			answer, last := s.line(ctx, line, err)
			if last {
				return nil
			}
			if _, err := out.Write(append(answer, '\n')); err != nil {
				return fmt.Errorf("answer the host: %w", err)
			}
		}
		switch {
		case err == nil, errors.Is(err, errLong):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("read from the host: %w", err)
		}
	}
}

// stream is what is known of the host of a connection.
type stream struct {
	p       *Provider
	version string // "" before the handshake
	family  ocp.Family
}

// line answers a line, or one that was not read because of err; last is the end.
func (s *stream) line(ctx context.Context, line []byte, err error) (answer []byte, last bool) {
	var e ocp.Envelope
	switch {
	case err != nil && !errors.Is(err, io.EOF):
	case s.version == "":
		e, err = ocp.Decode(line)
	default:
		// A host may greet again, in another version.
		if e, err = ocp.DecodeFor(s.version, line); err != nil {
			if again, problem := ocp.Decode(line); problem == nil && again.Handshake != nil {
				e, err = again, nil
			}
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return s.p.encode(ocp.Envelope{Error: refusal(err.Error())}, s.family), false
	}
	if e.Shutdown {
		return nil, true
	}
	a := s.p.answer(ctx, e)
	if a.HandshakeAck != nil {
		s.version = a.HandshakeAck.ProtocolVersion
		s.family, _ = ocp.FamilyOf(s.version)
	}
	return s.p.encode(a, s.family), false
}

// errLong is a line that is longer than any message.
var errLong = fmt.Errorf("the message has more than %d bytes", ocp.MaxMessage)

// readLine is the next line without blanks at its end; the last one may lack its end, and
// comes with io.EOF. One that is too long is passed over whole, and is errLong.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > ocp.MaxMessage+2; long { // "\r\n"
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		}
		line = bytes.TrimRight(line, " \t\r\n")
		if long || len(line) > ocp.MaxMessage {
			return nil, errLong
		}
		return line, err
	}
}
