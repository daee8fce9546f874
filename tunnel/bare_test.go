package tunnel_test

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"opencode-mesh/tunnel"
)

// A peer made by hand, for what ours never sends.

const upgradeRequest = "GET /v1/tunnel HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mesh-tunnel.v1\r\n\r\n"

// bareNode opens a tunnel by hand; early goes out together with the request.
func bareNode(t *testing.T, h *hub, early []byte) (conn net.Conn, hubSide *tunnel.Session) {
	t.Helper()
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err = net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	deadline(t, conn)
	if _, err := conn.Write(append([]byte(upgradeRequest), early...)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade gives %v, %v", resp, err)
	}
	return &buffered{conn, r}, h.next(t)
}

// buffered is a conn whose first bytes are in a reader.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// bareHub is a hub by hand, and a node's session with it.
func bareHub(t *testing.T, cfg tunnel.Config) (net.Conn, *tunnel.Session) {
	t.Helper()
	conns := make(chan net.Conn, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Protocol: mesh-tunnel.v1\r\nSec-WebSocket-Accept: %s\r\n\r\n", acceptKey(r))
		conns <- conn
	}))
	t.Cleanup(srv.Close)
	s := dial(t, "ws"+strings.TrimPrefix(srv.URL, "http"), cfg)
	conn := receive(t, conns, "the node")
	t.Cleanup(func() { _ = conn.Close() })
	deadline(t, conn)
	return conn, s
}

// serverFrame is an unmasked binary message.
func serverFrame(payload []byte) []byte {
	return append([]byte{0x82, byte(len(payload))}, payload...)
}

// clientFrame is a message with a masking key of zero.
func clientFrame(opcode byte, payload []byte) []byte {
	b := []byte{0x80 | opcode}
	switch {
	case len(payload) < 126:
		b = append(b, 0x80|byte(len(payload)))
	default:
		b = append(b, 0x80|126, 0, 0)
		binary.BigEndian.PutUint16(b[2:], uint16(len(payload)))
	}
	return append(append(b, 0, 0, 0, 0), payload...)
}

// muxFrame is a mux header.
func muxFrame(typ byte, flags uint16, stream, length uint32) []byte {
	b := []byte{0, typ}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return binary.BigEndian.AppendUint32(b, length)
}

func muxPing(id uint32) []byte { return muxFrame(2, 1, 0, id) }
func muxPong(id uint32) []byte { return muxFrame(2, 2, 0, id) }

func TestRubbishEndsTheSession(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"not a WebSocket frame":            []byte(strings.Repeat("\xff", 16)),
		"a reserved bit":                   append([]byte{0xc2}, clientFrame(2, muxPing(1))[1:]...),
		"an unknown frame":                 clientFrame(3, muxPing(1)),
		"a continuation of nothing":        clientFrame(0, muxPing(1)),
		"a message within a message":       append(pieces(muxPing(1))[:8], clientFrame(2, muxPing(1))...),
		"a ping in pieces":                 append([]byte{0x09}, clientFrame(9, nil)[1:]...),
		"a long ping":                      clientFrame(9, make([]byte, 126)),
		"a length without end":             {0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"half a close code":                clientFrame(8, []byte{3}),
		"an unmasked frame":                serverFrame(muxPing(1)),
		"a text message":                   clientFrame(1, []byte("hello")),
		"an unknown mux version":           clientFrame(2, []byte("HTTP/1.1 200")),
		"an unknown mux frame":             clientFrame(2, muxFrame(9, 0, 0, 0)),
		"a stream id of the other side":    clientFrame(2, muxFrame(1, 1, 2, 0)),
		"more data than the window":        clientFrame(2, append(muxFrame(1, 1, 1, 0), muxFrame(0, 0, 1, 8<<20)...)),
		"the same stream again":            clientFrame(2, append(muxFrame(1, 1, 1, 0), muxFrame(1, 1, 1, 0)...)),
		"a complaint about our own frames": clientFrame(2, muxFrame(3, 0, 0, 1)),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, tunnel.Config{}, nil)
			conn, hubSide := bareNode(t, h, nil)
			if _, err := conn.Write(bytes); err != nil {
				t.Fatal(err)
			}
			e := wantEnd(t, hubSide, tunnel.ReasonProtocol)
			if want := name == "a complaint about our own frames"; e.Remote != want {
				t.Errorf("Remote is %v", e.Remote)
			}
			_, _ = io.Copy(io.Discard, conn) // returns: the hub has closed the connection
		})
	}
}

// pieces is a message of one byte and the rest, with a ping between them.
func pieces(payload []byte) []byte {
	first, rest := clientFrame(2, payload[:1]), clientFrame(0, payload[1:])
	first[0] &^= 0x80
	return append(append(first, clientFrame(9, []byte("still there?"))...), rest...)
}

func TestAMessageInPiecesIsReadAndAPingBetweenThemAnswered(t *testing.T) {
	h := newHub(t, tunnel.Config{Heartbeat: patience}, nil)
	conn, _ := bareNode(t, h, nil)
	if _, err := conn.Write(pieces(muxPing(77))); err != nil {
		t.Fatal(err)
	}
	var got []byte
	buf := make([]byte, 256)
	pong := append([]byte{0x8a, 12}, "still there?"...)
	for !bytes.Contains(got, serverFrame(muxPong(77))) || !bytes.Contains(got, pong) {
		n, err := conn.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
	}
}

func TestANodeTakesNothingMasked(t *testing.T) {
	conn, s := bareHub(t, tunnel.Config{})
	if _, err := conn.Write(clientFrame(2, muxPing(1))); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, s, tunnel.ReasonProtocol)
	_, _ = io.Copy(io.Discard, conn) // returns: the node has closed the connection
}

func TestWhoSendsWhatIsNoFrameIsToldSo(t *testing.T) {
	h := newHub(t, tunnel.Config{Heartbeat: patience}, nil)
	conn, _ := bareNode(t, h, nil)
	if _, err := conn.Write(clientFrame(1, []byte("hello"))); err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(conn)
	if !bytes.Contains(got, []byte{1002 >> 8, 1002 & 0xff}) {
		t.Errorf("the hub says %q", got)
	}
}

func TestFramesBehindTheUpgradeRequestAreNotLost(t *testing.T) {
	h := newHub(t, tunnel.Config{Heartbeat: patience}, nil)
	conn, hubSide := bareNode(t, h, clientFrame(2, muxPing(77)))
	want := serverFrame(muxPong(77))
	var got []byte
	buf := make([]byte, 256)
	for !bytes.Contains(got, want) {
		n, err := conn.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("the ping is not answered: %q, %v, %v", got, err, hubSide.Err())
		}
	}
}

func TestCloseCodesOfOthersAreUnderstood(t *testing.T) {
	for code, want := range map[uint16]tunnel.Reason{
		1000: tunnel.ReasonNone,
		1001: tunnel.ReasonShutdown,
		1012: tunnel.ReasonShutdown,
		1011: tunnel.ReasonLost,
		4999: tunnel.ReasonLost,
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			h := newHub(t, tunnel.Config{}, nil)
			conn, hubSide := bareNode(t, h, nil)
			if _, err := conn.Write(clientFrame(8, binary.BigEndian.AppendUint16(nil, code))); err != nil {
				t.Fatal(err)
			}
			if e := wantEnd(t, hubSide, want); !e.Remote {
				t.Error("Remote is not set")
			}
		})
	}
}

func TestAPeerThatDoesNotAnswerTheCloseFrameHoldsNothingUp(t *testing.T) {
	t.Parallel() // it mostly waits
	h := newHub(t, tunnel.Config{}, nil)
	conn, hubSide := bareNode(t, h, nil)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = hubSide.CloseWith(tunnel.ReasonShutdown)
	}()
	// The frame arrives, and then the connection ends although nobody answers.
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Contains(got, []byte{0x88, 10, 1012 >> 8, 1012 & 0xff}) {
		t.Errorf("the peer reads %q, %v", got, err)
	}
	receive(t, closed, "CloseWith to return")
	wantEnd(t, hubSide, tunnel.ReasonShutdown)
}

// acceptKey is the answer to the request's key (RFC 6455, 4.2.2).
func acceptKey(r *http.Request) string {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}
