package proxy

import (
	"bufio"
	"net"
	"net/http"
	"net/textproto"
	"strings"
)

// passesUpgrade reports whether a service is told that a client would change the
// protocol. After the change nothing is read or taken out any more, so that one by
// which further requests travel, HTTP/2, would be a way around all of this package;
// and opencode knows WebSockets only.
func (c *call) passesUpgrade(protocol string) bool {
	if c.opencode() {
		return strings.EqualFold(protocol, "websocket")
	}
	for p := range strings.SplitSeq(protocol, ",") {
		name, _, _ := strings.Cut(textproto.TrimString(p), "/")
		switch strings.ToLower(name) {
		case "h2c", "h2", "http", "tls":
			return false
		}
	}
	return true
}

// answering is where the reverse proxy writes an answer.
type answering struct {
	http.ResponseWriter
	call *call
}

// Unwrap serves http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter. Informational answers come here without
// having been looked at.
func (a *answering) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		h := a.Header()
		a.call.clean(h)
		for _, name := range hops {
			delete(h, name)
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Hijack implements http.Hijacker. The first bytes of the connection are not lost: it
// is read past what the server had read ahead.
func (a *answering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
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
