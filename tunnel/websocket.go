//lint:file-ignore SA1019 nhooyr.io/websocket is the library named by the project's owner; every identifier of its last release is marked deprecated in favour of github.com/coder/websocket, which has the same API. This is the one file that imports it, so moving is one line.

//nolint:staticcheck // SA1019, for the reason given above
package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"nhooyr.io/websocket"
)

// Subprotocol is what the upgrade negotiates: the version of the wire format.
const Subprotocol = "mesh-tunnel.v1"

// Buffers of a hijacked connection, in bytes. They may be small: a full frame is
// written at once by link, from a buffer that it borrows, and the larger part of
// one is read past the buffer. Measured against 16 KiB each: half as much again
// in upload, nothing lost otherwise, less than half the heap of an idle tunnel.
const (
	hijackRead  = 4 << 10
	hijackWrite = 2 << 10
)

// upgrade answers the upgrade request r on w.
func upgrade(w http.ResponseWriter, r *http.Request, stall time.Duration) (*wsConn, error) {
	h := &hijacker{ResponseWriter: w, stall: stall}
	ws, err := websocket.Accept(h, r, &websocket.AcceptOptions{
		Subprotocols:    []string{Subprotocol},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, err
	}
	return newWSConn(ws, h.link), nil
}

// handshake sends the upgrade request over l by way of transport, which hands
// out l as the body of a 101 answer.
func handshake(ctx context.Context, url string, header http.Header, transport http.RoundTripper, l *link) (*wsConn, error) {
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport: transport,
			// Following one would take the credential to another address.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader:      header,
		Subprotocols:    []string{Subprotocol},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, err
	}
	if resp.Header.Get("Sec-WebSocket-Protocol") != Subprotocol {
		_ = ws.CloseNow() // the connection is of no use; its error says nothing more
		return nil, errors.New("the other side speaks WebSocket but not " + Subprotocol)
	}
	return newWSConn(ws, l), nil
}

// hijacker gives the WebSocket library a Hijack that finds its way through
// wrapped response writers and puts a link below.
type hijacker struct {
	http.ResponseWriter
	stall time.Duration
	link  *link
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, old, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.link = newLink(conn, h.stall)
	h.link.tune()
	// The node may have written its first frame behind the request. The library
	// looks at what the reader it gets has buffered and drops everything else, so
	// those bytes must be in the new buffer already.
	early, _ := old.Reader.Peek(old.Reader.Buffered())
	r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(early), h.link), max(hijackRead, len(early)))
	if _, err := r.Peek(len(early)); err != nil {
		h.link.abort()
		return nil, nil, err
	}
	h.link.coalesce = true
	return h.link, bufio.NewReadWriter(r, bufio.NewWriterSize(h.link, hijackWrite)), nil
}

// wsConn is the mux's view of a WebSocket: a net.Conn over binary messages.
//
// It is not websocket.NetConn, whose deadlines are timers that cancel a context:
// one that fires between two writes kills a healthy connection. Here every call
// has a context that never ends, and link keeps deadlines on the socket.
type wsConn struct {
	ws   *websocket.Conn
	link *link
	r    io.Reader // the message being read; belongs to the reader

	// onEnd is told why the connection can no longer be used; set before use. A
	// weak reason is that of a failed write: what the reader finds is better.
	onEnd func(e *CloseError, weak bool)
	// closing is set once this side closes: errors then follow from that.
	closing atomic.Bool
}

func newWSConn(ws *websocket.Conn, l *link) *wsConn {
	// Frames are read as a stream, so a long one takes no memory. The library's
	// default of 32 KiB would close the tunnel at the first full frame.
	ws.SetReadLimit(-1)
	return &wsConn{ws: ws, link: l}
}

var errText = errors.New("text message on a tunnel")

// Read implements net.Conn.
func (c *wsConn) Read(p []byte) (int, error) {
	for {
		if c.r == nil {
			typ, r, err := c.ws.Reader(context.Background())
			if err == nil && typ != websocket.MessageBinary {
				err = errText
			}
			if err != nil {
				c.readFailed(err)
				return 0, err
			}
			c.r = r
		}
		n, err := c.r.Read(p)
		if err == io.EOF {
			c.r = nil
			if n == 0 {
				continue
			}
			err = nil
		}
		if err != nil {
			c.readFailed(err)
		}
		return n, err
	}
}

// readFailed works out what a failed read means.
func (c *wsConn) readFailed(err error) {
	if code := websocket.CloseStatus(err); code != -1 {
		c.onEnd(&CloseError{Reason: reasonOfCode(int(code)), Remote: true, Err: unknownCode(int(code))}, false)
		return
	}
	netErr := c.link.readErr.Load()
	switch {
	case c.closing.Load(): // a consequence
	case c.link.stalled.Load():
		c.onEnd(&CloseError{Reason: ReasonStalled}, false)
	case netErr != nil:
		c.onEnd(&CloseError{Reason: ReasonLost, Err: *netErr}, false)
	default: // the socket is well: the peer sent what is no WebSocket
		c.onEnd(&CloseError{Reason: ReasonProtocol, Err: err}, false)
	}
}

// unknownCode keeps a close code that has no Reason of its own for the log.
func unknownCode(code int) error {
	if reasonOfCode(code) != ReasonLost {
		return nil
	}
	return errors.New("close code " + websocket.StatusCode(code).String())
}

// Write implements net.Conn: p becomes one binary message.
func (c *wsConn) Write(p []byte) (int, error) {
	if err := c.ws.Write(context.Background(), websocket.MessageBinary, p); err != nil {
		if c.link.stalled.Load() {
			c.onEnd(&CloseError{Reason: ReasonStalled, Err: err}, false)
		} else if !c.closing.Load() {
			c.onEnd(&CloseError{Reason: ReasonLost, Err: err}, true)
		}
		return 0, err
	}
	return len(p), nil
}

// goodbye tells the peer why with a close frame and waits for its answer; both
// together may take limit, then the connection is closed anyhow.
func (c *wsConn) goodbye(code int, text string, limit time.Duration) {
	t := time.AfterFunc(limit, func() { _ = c.link.Close() })
	defer t.Stop()
	// Its error is that of a peer that did not answer, or went first.
	_ = c.ws.Close(websocket.StatusCode(code), text)
}

// Close implements net.Conn. It does not wait for the peer.
func (c *wsConn) Close() error {
	c.closing.Store(true)
	err := c.link.Close()
	_ = c.ws.CloseNow() // ends the library's goroutine; the socket is closed already
	return err
}

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
