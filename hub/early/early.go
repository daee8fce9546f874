// Package early takes connections over from HTTP servers for an upgrade without losing
// what the client sent behind its request: net/http has read some of that ahead, and
// httputil.ReverseProxy reads past it.
package early

import (
	"bufio"
	"net"
	"net/http"
)

// Conn is a connection after an upgrade. Safe as a net.Conn is.
type Conn struct {
	net.Conn
	ahead *bufio.Reader // what was read ahead; nil once it is used up
}

// Hijack takes the connection of a request over, like http.Hijacker; the connection is
// a *Conn.
func Hijack(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &Conn{Conn: conn, ahead: rw.Reader}, rw, nil
}

// Read implements io.Reader.
func (c *Conn) Read(p []byte) (int, error) {
	if c.ahead != nil {
		if n := c.ahead.Buffered(); n > 0 {
			return c.ahead.Read(p[:min(n, len(p))])
		}
		c.ahead = nil
	}
	return c.Conn.Read(p)
}

// Abort breaks the connection, so that its client does not take it for ended.
func (c *Conn) Abort() {
	conn := c.Conn
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn() // TLS would say goodbye
	}
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = tcp.SetLinger(0) // a TCP reset
	}
	_ = conn.Close()
}

// CloseWrite passes the end of one direction on: TCP and TLS both can.
func (c *Conn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return c.Close()
}
