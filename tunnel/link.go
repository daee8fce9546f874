package tunnel

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

const (
	// frameSize is the largest mux frame, header included, in bytes.
	frameSize = 64 << 10
	// notSentLowat is how much may wait unsent in the kernel, in bytes. A small
	// request then waits behind that much of a bulk transfer, not behind megabytes.
	notSentLowat = 64 << 10
	// deadlineSlack is the part of a write's time-out by which its deadline may be
	// older than the write: it is set again once this much has passed.
	deadlineSlack = 4
)

// link is the connection below the WebSocket: the socket, or TLS over it. It
// counts what passes, notes when a byte last came in, and bounds every write by a
// deadline on the socket.
//
// Read and Write may each be called by one goroutine at a time.
type link struct {
	conn   net.Conn // what the WebSocket reads and writes
	socket net.Conn // the bottom of conn, closed directly: TLS would try to say goodbye
	stall  time.Duration

	start    time.Time    // origin of lastRecv
	lastRecv atomic.Int64 // when a byte last came in, nanoseconds after start
	bytesIn  atomic.Uint64
	bytesOut atomic.Uint64

	readErr atomic.Pointer[error] // first error of conn.Read
	stalled atomic.Bool           // a write ran into its deadline

	armed time.Time // write deadline in force; belongs to the writer
}

func newLink(conn net.Conn, stall time.Duration) *link {
	return &link{conn: conn, socket: socketOf(conn), stall: stall, start: time.Now()}
}

// socketOf returns what lies below TLS (twice, with an https proxy), or conn
// itself. A listener's own wrapper stays on: its Close may count.
func socketOf(conn net.Conn) net.Conn {
	for {
		t, ok := conn.(*tls.Conn)
		if !ok {
			return conn
		}
		conn = t.NetConn()
	}
}

// Read implements net.Conn.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.conn.Read(p)
	if n > 0 {
		l.bytesIn.Add(uint64(n))
		l.lastRecv.Store(int64(time.Since(l.start)))
	}
	if err != nil {
		l.readErr.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Write implements net.Conn. It bounds the write by the write time-out; running
// into it cuts the connection so that the other side notices too.
func (l *link) Write(p []byte) (int, error) {
	if now := time.Now(); l.armed.Sub(now) < l.stall {
		l.armed = now.Add(l.stall + l.stall/deadlineSlack)
		if err := l.conn.SetWriteDeadline(l.armed); err != nil {
			return 0, err
		}
	}
	n, err := l.conn.Write(p)
	l.bytesOut.Add(uint64(n))
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		l.stalled.Store(true)
		l.abort()
	}
	return n, err
}

// silence is the time since a byte last came in.
func (l *link) silence() time.Duration {
	return time.Since(l.start) - time.Duration(l.lastRecv.Load())
}

// Close closes the socket: what was written is still delivered.
func (l *link) Close() error { return l.socket.Close() }

// abort drops the connection at once, with what was not delivered yet.
func (l *link) abort() {
	if t, ok := tcpOf(l.socket); ok {
		_ = t.SetLinger(0) // fails only on a closed socket
	}
	_ = l.socket.Close()
}

// tcpOf finds the TCP connection below what a listener may have wrapped.
func tcpOf(conn net.Conn) (*net.TCPConn, bool) {
	for {
		switch c := conn.(type) {
		case *net.TCPConn:
			return c, true
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil, false
		}
	}
}

// tune sets the socket options of both ends. What an OS does not have, or a
// connection that is no TCP connection, does without.
func (l *link) tune() {
	t, ok := tcpOf(l.socket)
	if !ok {
		return
	}
	_ = t.SetNoDelay(true)
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { setNotSentLowat(fd, notSentLowat) })
}

func (l *link) LocalAddr() net.Addr                { return l.conn.LocalAddr() }
func (l *link) RemoteAddr() net.Addr               { return l.conn.RemoteAddr() }
func (l *link) SetDeadline(t time.Time) error      { return l.conn.SetDeadline(t) }
func (l *link) SetReadDeadline(t time.Time) error  { return l.conn.SetReadDeadline(t) }
func (l *link) SetWriteDeadline(t time.Time) error { return l.conn.SetWriteDeadline(t) }
