package proxy

import (
	"bufio"
	"net"
	"net/http"
)

// upgradable gives the reverse proxy connections whose first bytes are not lost: it
// reads a hijacked connection past what the server had read ahead.
type upgradable struct{ http.ResponseWriter }

// Unwrap serves http.ResponseController.
func (u *upgradable) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// Hijack implements http.Hijacker.
func (u *upgradable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &hijacked{Conn: conn, early: rw.Reader}, rw, nil
}

// hijacked is a client's connection after an upgrade.
type hijacked struct {
	net.Conn
	early *bufio.Reader // what was read ahead; nil once it is used up
}

// Read implements io.Reader.
func (h *hijacked) Read(p []byte) (int, error) {
	if h.early != nil {
		if n := h.early.Buffered(); n > 0 {
			return h.early.Read(p[:min(n, len(p))])
		}
		h.early = nil
	}
	return h.Conn.Read(p)
}

// abort breaks the connection, so that its client does not take it for ended.
func (h *hijacked) abort() {
	conn := h.Conn
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn() // TLS would say goodbye
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a TCP reset
	}
	_ = conn.Close()
}

// CloseWrite passes the end of one direction on: TCP and TLS both can.
func (h *hijacked) CloseWrite() error {
	if cw, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return h.Conn.Close()
}
