// Package framed carries the bytes of a raw stream between a hub and its client, in
// frames over the connection that was upgraded for it (api.UpgradeStream).
//
// It guarantees that the end of a direction is one that the other side has said: a
// connection that just ends, as that of a killed process does, is a failure, and half of
// something never passes for the whole. It also ends one direction where the connection
// in between, such as that of a proxy, has no half-close.
//
// A frame is its length, 4 bytes with the most significant first, and so many bytes, at
// most MaxFrame. One of no bytes ends the direction.
package framed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

const (
	// MaxFrame is the most that one frame carries, in bytes. A longer one is an error.
	MaxFrame = 32 << 10
	header   = 4
	// readAhead is how much of the connection is read ahead, in bytes: enough for the
	// header of a frame, while its bytes mostly go to the reader at once.
	readAhead = 4 << 10
)

// buffers hold one frame each. A stream takes one only while it writes.
var buffers = sync.Pool{New: func() any { return new([header + MaxFrame]byte) }}

// ErrBroken is what Read gives when the connection ended before the direction did. It
// matches io.ErrUnexpectedEOF.
var ErrBroken = fmt.Errorf("the stream broke off: %w", io.ErrUnexpectedEOF)

var errTooLong = errors.New("a frame is longer than allowed")

// Stream is a raw stream. One goroutine may read and one write at a time; Close may be
// called by any.
type Stream struct {
	conn io.WriteCloser
	in   *bufio.Reader
	left int   // bytes of the frame that is being read
	end  error // of reading; nil before
}

// New carries a stream over conn.
func New(conn io.ReadWriteCloser) *Stream {
	return &Stream{conn: conn, in: bufio.NewReaderSize(conn, readAhead)}
}

// Read implements io.Reader. io.EOF is the end that the other side has said.
func (s *Stream) Read(p []byte) (int, error) {
	if s.end == nil && s.left == 0 {
		s.left, s.end = s.next()
	}
	if s.end != nil {
		return 0, s.end
	}
	n, err := s.in.Read(p[:min(len(p), s.left)])
	s.left -= n
	if err == io.EOF {
		err = ErrBroken
	}
	s.end = err
	return n, err
}

// next reads the length of a frame.
func (s *Stream) next() (int, error) {
	var b [header]byte
	switch _, err := io.ReadFull(s.in, b[:]); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, ErrBroken
	case err != nil:
		return 0, err
	}
	switch n := binary.BigEndian.Uint32(b[:]); {
	case n == 0:
		return 0, io.EOF
	case n > MaxFrame:
		return 0, errTooLong
	default:
		return int(n), nil
	}
}

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) {
	buf := buffers.Get().(*[header + MaxFrame]byte)
	defer buffers.Put(buf)
	done := 0
	for done < len(p) {
		n := copy(buf[header:], p[done:])
		binary.BigEndian.PutUint32(buf[:header], uint32(n))
		if _, err := s.conn.Write(buf[:header+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// CloseWrite ends the direction from here.
func (s *Stream) CloseWrite() error {
	_, err := s.conn.Write(make([]byte, header))
	return err
}

// Close closes the connection. A direction that was not ended before breaks off.
func (s *Stream) Close() error { return s.conn.Close() }
