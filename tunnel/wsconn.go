package tunnel

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// readBuffer joins the small reads of headers, in bytes; the larger part of a large
// frame is read past it.
const readBuffer = 4 << 10

// wsConn is the mux's view of a WebSocket: a net.Conn over binary messages. One
// goroutine at a time may read, any number write.
//
// Deadlines are link's, on the socket. The mux's own would only be in the way.
type wsConn struct {
	link  *link
	out   *outgoing
	sieve *sieve // reads what this reads, before the mux

	// The following belongs to the reader.
	in   *bufio.Reader
	left uint64  // of the payload of the frame being read, in bytes
	key  maskKey // for it; all zero at a client, to whom nothing is masked
	more bool    // another frame of the message follows

	// onEnd is told why the connection can no longer be used; set before use. A
	// weak reason is that of a failed write: what the reader finds is better.
	onEnd func(e *CloseError, weak bool)
	// closing is set once this side closes: errors then follow from that.
	closing  atomic.Bool
	over     chan struct{} // closed once a read failed, or there will be no more
	overOnce sync.Once
}

// newWSConn makes a wsConn; early is what had already been read of l.
func newWSConn(l *link, early []byte, client bool) *wsConn {
	var r io.Reader = l
	if len(early) > 0 {
		r = io.MultiReader(bytes.NewReader(bytes.Clone(early)), l)
	}
	c := &wsConn{link: l, out: newOutgoing(l, client), in: bufio.NewReaderSize(r, readBuffer), over: make(chan struct{})}
	c.sieve = &sieve{in: payload{c}, open: map[uint32]*unread{}}
	return c
}

// peerClosed is the error of a read after the other side's close frame.
type peerClosed struct{ code int }

func (e *peerClosed) Error() string {
	return fmt.Sprintf("closed by the other side with code %d", e.code)
}

// badFrame is the error of a read that found what RFC 6455 or a tunnel forbids.
type badFrame struct{ err error }

func (e *badFrame) Error() string { return "WebSocket: " + e.err.Error() }
func (e *badFrame) Unwrap() error { return e.err }

// Read implements net.Conn.
func (c *wsConn) Read(p []byte) (int, error) { return c.sieve.Read(p) }

// payload is what the messages of a wsConn hold.
type payload struct{ *wsConn }

// Read implements io.Reader.
func (c payload) Read(p []byte) (int, error) {
	for c.left == 0 {
		if err := c.next(); err != nil {
			return 0, c.readFailed(err)
		}
	}
	n, err := c.in.Read(p[:min(uint64(len(p)), c.left)])
	if !c.out.masks {
		c.key.apply(p[:n])
	}
	c.left -= uint64(n)
	if err != nil {
		return n, c.readFailed(err)
	}
	return n, nil
}

// next reads up to the payload of the next data frame.
func (c *wsConn) next() error {
	for {
		h, err := readFrameHead(c.in)
		if err != nil {
			return asBadFrame(err)
		}
		switch {
		case h.masked == c.out.masks:
			return &badFrame{errors.New("masked by the hub, or not masked by the node")}
		case h.op == opBinary && !c.more, h.op == opContinuation && c.more:
			c.more, c.left, c.key = !h.fin, h.length, h.key
			return nil
		case h.op < opClose || h.op > opPong:
			return &badFrame{fmt.Errorf("no place for a frame of type %d in a tunnel", h.op)}
		}
		if err := c.control(h); err != nil {
			return err
		}
	}
}

// control answers a control frame.
func (c *wsConn) control(h frameHead) error {
	var b [maxControl]byte
	payload := b[:h.length]
	if _, err := io.ReadFull(c.in, payload); err != nil {
		return err
	}
	if h.masked {
		h.key.apply(payload)
	}
	switch h.op {
	case opPing:
		return c.out.pong(payload)
	case opPong:
		return nil
	}
	code := 1005 // none was given
	switch len(payload) {
	case 0:
	case 1:
		return &badFrame{errors.New("half a close code")}
	default:
		code = int(binary.BigEndian.Uint16(payload))
		payload = payload[:2]
	}
	c.sayClose(payload) // the same code
	return &peerClosed{code}
}

// asBadFrame marks what is wrong with a frame; other errors are the connection's.
func asBadFrame(err error) error {
	for _, bad := range []error{errReserved, errLength, errControl} {
		if errors.Is(err, bad) {
			return &badFrame{err}
		}
	}
	return err
}

// readFailed works out what a failed read means.
func (c *wsConn) readFailed(err error) error {
	defer c.end()
	var closed *peerClosed
	var bad *badFrame
	netErr := c.link.readErr.Load()
	switch {
	case errors.As(err, &closed):
		c.onEnd(&CloseError{Reason: reasonOfCode(closed.code), Remote: true, Err: unknownCode(closed)}, false)
	case c.closing.Load(): // a consequence
	case c.link.stalled.Load():
		c.onEnd(&CloseError{Reason: ReasonStalled}, false)
	case errors.As(err, &bad): // the socket is well: the peer sent what is no WebSocket
		c.onEnd(&CloseError{Reason: ReasonProtocol, Err: err}, false)
		c.sayClose(closePayload(ReasonProtocol.closeCode(), bad.err.Error()))
	case netErr != nil:
		c.onEnd(&CloseError{Reason: ReasonLost, Err: *netErr}, false)
	default:
		c.onEnd(&CloseError{Reason: ReasonLost, Err: err}, false)
	}
	return err
}

// unknownCode keeps a close code that has no Reason of its own for the log.
func unknownCode(e *peerClosed) error {
	if reasonOfCode(e.code) != ReasonLost {
		return nil
	}
	return e
}

// Write implements net.Conn: p becomes one binary message.
func (c *wsConn) Write(p []byte) (int, error) {
	c.sieve.wrote(p)
	err := c.out.write(opBinary, p)
	switch {
	case err == nil:
		return len(p), nil
	case errors.Is(err, errSaid):
		return len(p), nil // whoever closes waits for the other side, not for the mux
	case c.link.stalled.Load():
		c.onEnd(&CloseError{Reason: ReasonStalled, Err: err}, false)
	case !c.closing.Load():
		c.onEnd(&CloseError{Reason: ReasonLost, Err: err}, true)
	}
	return 0, err
}

func closePayload(code int, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(code))
	return append(b, text[:min(len(text), maxControl-len(b))]...)
}

// sayClose sends a close frame, unless one was sent, and waits until it is out. Its
// error is that of a peer that went first.
func (c *wsConn) sayClose(payload []byte) {
	_ = c.out.write(opClose, payload)
	c.out.settled()
}

// goodbye tells the peer why with a close frame and waits for its answer; both
// together may take limit, then the connection is closed anyhow.
func (c *wsConn) goodbye(code int, text string, limit time.Duration) {
	t := time.AfterFunc(limit, func() { _ = c.link.Close() })
	defer t.Stop()
	c.sayClose(closePayload(code, text))
	<-c.over
}

// Close implements net.Conn. It does not wait for the peer.
func (c *wsConn) Close() error {
	c.closing.Store(true)
	err := c.link.Close()
	c.out.settled()
	c.end()
	return err
}

// end says that nothing more is read.
func (c *wsConn) end() { c.overOnce.Do(func() { close(c.over) }) }

// LocalAddr implements net.Conn.
func (c *wsConn) LocalAddr() net.Addr { return c.link.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *wsConn) RemoteAddr() net.Addr { return c.link.RemoteAddr() }

// SetDeadline does nothing, like the two below: the mux would only set what link
// sets better.
func (c *wsConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing.
func (c *wsConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (c *wsConn) SetWriteDeadline(time.Time) error { return nil }
