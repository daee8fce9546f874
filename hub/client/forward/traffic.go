package forward

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Traffic counts the connections of a Forward and what passes over them, as it is on
// the wire. Safe for concurrent use.
type Traffic struct {
	open, total, in, out atomic.Int64
}

// Counts is what Traffic has counted.
type Counts struct {
	// Open is how many connections there are now, Total how many there were.
	Open, Total int64
	// In is how many bytes came from the local side, Out how many went to it.
	In, Out int64
}

// Counts returns the counts of now.
func (t *Traffic) Counts() Counts {
	return Counts{Open: t.open.Load(), Total: t.total.Load(), In: t.in.Load(), Out: t.out.Load()}
}

type countingListener struct {
	net.Listener
	traffic *Traffic
}

// Accept implements net.Listener.
func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.traffic.open.Add(1)
	l.traffic.total.Add(1)
	return &countingConn{TCPConn: c.(*net.TCPConn), traffic: l.traffic}, nil
}

// countingConn counts. It has CloseWrite, and counts on the ways around Read and
// Write too.
type countingConn struct {
	*net.TCPConn
	traffic *Traffic
	once    sync.Once
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.traffic.in.Add(int64(n))
	return n, err
}

func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.traffic.out.Add(int64(n))
	return n, err
}

// ReadFrom counts as it goes: what comes may be endless.
func (c *countingConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

// WriteTo is the same the other way.
func (c *countingConn) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}

// Close implements net.Conn.
func (c *countingConn) Close() error {
	c.once.Do(func() { c.traffic.open.Add(-1) })
	return c.TCPConn.Close()
}
