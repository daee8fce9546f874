//go:build unix

package tunnel

import (
	"io"
	"net"
	"os"
	"syscall"
)

// lazyReader reads from a connection and takes a copy buffer only once there is
// something to read.
type lazyReader struct {
	conn net.Conn
	raw  syscall.RawConn // nil when the connection has no descriptor
	try  func(fd uintptr) bool

	buf *[]byte
	n   int
	err error
}

func newLazyReader(conn net.Conn) *lazyReader {
	r := &lazyReader{conn: conn}
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			r.raw = raw
		}
	}
	// One closure for the life of the connection, not one per read.
	r.try = r.tryRead
	return r
}

// read waits for data. The buffer is the caller's to give back when n > 0, and
// nil otherwise.
func (r *lazyReader) read() (buf *[]byte, n int, err error) {
	if r.raw == nil {
		return readEager(r.conn)
	}
	r.buf, r.n, r.err = nil, 0, nil
	if err := r.raw.Read(r.try); err != nil {
		return nil, 0, err
	}
	return r.buf, r.n, r.err
}

// tryRead reads without blocking; false sends the caller back to waiting.
func (r *lazyReader) tryRead(fd uintptr) bool {
	buf := copyBufs.Get().(*[]byte)
	n, err := syscall.Read(int(fd), *buf)
	for err == syscall.EINTR {
		n, err = syscall.Read(int(fd), *buf)
	}
	if n > 0 {
		r.buf, r.n = buf, n
		return true
	}
	copyBufs.Put(buf)
	switch err {
	case syscall.EAGAIN:
		return false
	case nil:
		r.err = io.EOF
	default:
		r.err = os.NewSyscallError("read", err)
	}
	return true
}
