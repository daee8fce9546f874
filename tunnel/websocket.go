//lint:file-ignore SA1019 nhooyr.io/websocket is the library named by the project's owner; every identifier of its last release is marked deprecated in favour of github.com/coder/websocket, which has the same API. This is the one file that imports it, so moving is one line.

//nolint:staticcheck // SA1019, for the reason given above
package tunnel

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"nhooyr.io/websocket"
)

// Subprotocol is what the upgrade negotiates: the version of the wire format.
const Subprotocol = "mesh-tunnel.v1"

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
	return h.conn.take(ws, false), nil
}

// handshake sends the upgrade request by way of u.
func handshake(ctx context.Context, url string, header http.Header, u *upgrader) (*wsConn, error) {
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport: u,
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
	return u.body.take(ws, true), nil
}

// handed is a link in the hands of the WebSocket library, for the handshake.
type handed struct {
	*link
	early []byte // what the other side had sent behind the handshake
	kept  bool   // the library is done with it
}

// Close implements io.Closer.
func (h *handed) Close() error {
	if h.kept {
		return nil
	}
	return h.link.Close()
}

// take takes the link back. The library's own connection has a goroutine, through
// which every frame would take six hand-overs of a channel: a large part of what a
// small request costs. It is ended before it has read or written anything.
func (h *handed) take(ws *websocket.Conn, client bool) *wsConn {
	h.kept = true
	_ = ws.CloseNow() // of what has not begun
	return newWSConn(h.link, h.early, client)
}

// hijacker gives the WebSocket library a Hijack that finds its way through
// wrapped response writers and puts a link below.
type hijacker struct {
	http.ResponseWriter
	stall time.Duration
	conn  *handed
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, old, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	l := newLink(conn, h.stall)
	l.tune()
	// The node may have written its first frame behind the request.
	early, _ := old.Reader.Peek(old.Reader.Buffered())
	h.conn = &handed{link: l, early: early}
	// The library wants buffers, but has no use for them.
	return h.conn, bufio.NewReadWriter(bufio.NewReaderSize(h.conn, 0), bufio.NewWriterSize(h.conn, 16)), nil
}
