package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v5"
)

const (
	// lingerLimit is how long a stream that this side accepted and closed waits
	// for the other side to close it too, before it is reset.
	lingerLimit = time.Minute
	// lingerBytes is how much the other side may still send meanwhile.
	lingerBytes = 256 << 10
)

// errDeadline is a net.Error whose Timeout is true.
var errDeadline error = os.ErrDeadlineExceeded

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// Stream is one stream of a session, a net.Conn. Read and Write may be called
// concurrently with each other and with everything else.
//
// Close depends on who opened it. The opener's Close is a Reset unless both
// directions have ended (CloseWrite was called and Read gave io.EOF): a caller
// that goes away is to be noticed. The accepting side's Close is that of a TCP
// server: what was written is still delivered, and nothing is read any more.
type Stream struct {
	mux      *yamux.Stream
	session  *Session
	kind     Kind
	accepted bool

	closed atomic.Bool
	fin    atomic.Bool // CloseWrite was called
	eof    atomic.Bool // Read gave io.EOF

	// reading is held by the one Read under way, like the lock inside a net.Conn:
	// it is what linger waits for after it interrupted that Read.
	reading sync.Mutex
	unread  *unread // nil until it was needed; guarded by reading
}

// Kind is what the stream carries.
func (s *Stream) Kind() Kind { return s.kind }

// Session is the tunnel that the stream belongs to.
func (s *Stream) Session() *Session { return s.session }

// Read implements net.Conn. After a reset it gives a *ResetError, after the end
// of the session a *CloseError. A Read of no bytes waits until there is one.
func (s *Stream) Read(p []byte) (int, error) {
	if s.closed.Load() {
		return 0, net.ErrClosed
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	n, err := s.mux.Read(p)
	if n > 0 && n < smallSegment {
		s.tookSmall(n)
	}
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF: //nolint:errorlint // the end of the stream; a lost connection wraps another EOF
		s.eof.Store(true)
		return n, io.EOF
	case s.closed.Load():
		return n, net.ErrClosed
	case n > 0 && isTimeout(err):
		// The data came but the mux lost the window update that goes with it; the
		// writer could wait for it for ever. Better a stream that fails.
		_ = s.mux.Reset()
		return n, nil
	default:
		return n, s.session.streamError(err)
	}
}

// tookSmall counts small frames as read. The caller holds reading.
func (s *Stream) tookSmall(n int) {
	if s.unread == nil {
		s.unread = s.session.conn.sieve.of(s.mux.StreamID())
	}
	if s.unread != nil {
		s.unread.took(n)
	}
}

// Write implements net.Conn. It waits while the other side does not read.
func (s *Stream) Write(p []byte) (int, error) {
	if s.closed.Load() {
		return 0, net.ErrClosed
	}
	n, err := s.mux.Write(p)
	return n, s.session.streamError(err)
}

// ReadFrom implements io.ReaderFrom: whatever sends a body through a stream (io.Copy,
// http.Transport) makes full frames, where its own buffer would make half ones.
func (s *Stream) ReadFrom(r io.Reader) (n int64, err error) {
	buf := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(buf)
	for {
		k, err := r.Read(*buf)
		if k > 0 {
			w, werr := s.Write((*buf)[:k])
			n += int64(w)
			if werr != nil {
				return n, werr
			}
		}
		switch {
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// probeRead reports whether the stream was reset or its session ended. It takes
// no data and may only be called by the goroutine that reads.
func (s *Stream) probeRead() error {
	_ = s.mux.SetReadDeadline(time.Unix(1, 0)) // cannot fail
	_, err := s.Read(nil)
	_ = s.mux.SetReadDeadline(time.Time{})
	if errors.Is(err, io.EOF) || isTimeout(err) {
		return nil
	}
	return err
}

// probeWrite is the same for the goroutine that writes. It also sees a reset
// that came after the other side's FIN, which the mux keeps from the reader.
func (s *Stream) probeWrite() error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	// A write whose deadline has passed fails before anything is queued, with the
	// error of the stream if that has one.
	_ = s.mux.SetWriteDeadline(time.Unix(1, 0)) // cannot fail
	_, err := s.mux.Write([]byte{0})
	_ = s.mux.SetWriteDeadline(time.Time{})
	if isTimeout(err) {
		return nil
	}
	return s.session.streamError(err)
}

// CloseWrite ends the direction from here: the other side reads io.EOF once it
// has read everything.
func (s *Stream) CloseWrite() error {
	s.fin.Store(true)
	return s.session.streamError(s.mux.CloseWrite())
}

// Reset drops the stream both ways at once: the other side loses what it has not
// read yet and gets a *ResetError with this code.
func (s *Stream) Reset(code ResetCode) error {
	s.closed.Store(true)
	return s.session.streamError(s.mux.ResetWithError(uint32(code)))
}

// Close implements net.Conn; see Stream.
func (s *Stream) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	if s.fin.Load() && s.eof.Load() {
		return nil // the mux has let go of it already
	}
	if !s.accepted {
		return s.session.streamError(s.mux.Reset())
	}
	if err := s.mux.CloseWrite(); err != nil {
		_ = s.mux.Reset()
		return nil // reset by the other side, or the session ended: closed is closed
	}
	_ = s.mux.SetReadDeadline(time.Unix(1, 0)) // interrupts a Read; cannot fail
	if !s.session.spawn(s.linger) {
		_ = s.mux.Reset()
	}
	return nil
}

// linger waits until the other side has ended the stream as well, so that it can
// read to the end at its own pace. One that goes on sending is reset, or it would
// fill a window that nobody empties and wait for ever.
func (s *Stream) linger() {
	s.reading.Lock()
	defer s.reading.Unlock()
	_ = s.mux.SetReadDeadline(time.Now().Add(lingerLimit))
	var scrap [512]byte
	for left := lingerBytes; left > 0; {
		n, err := s.mux.Read(scrap[:])
		if err != nil {
			break
		}
		left -= n
	}
	_ = s.mux.Reset()
}

// LocalAddr is the local address of the tunnel's connection.
func (s *Stream) LocalAddr() net.Addr { return s.session.Addr() }

// RemoteAddr is the address of the tunnel's peer.
func (s *Stream) RemoteAddr() net.Addr { return s.session.RemoteAddr() }

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return s.mux.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return s.mux.SetWriteDeadline(t)
}
