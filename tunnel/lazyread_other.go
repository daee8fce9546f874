//go:build !unix

package tunnel

import "net"

// lazyReader on an OS without non-blocking reads holds its buffer while it waits.
type lazyReader struct{ conn net.Conn }

func newLazyReader(conn net.Conn) *lazyReader { return &lazyReader{conn} }

func (r *lazyReader) read() (buf *[]byte, n int, err error) { return readEager(r.conn) }
