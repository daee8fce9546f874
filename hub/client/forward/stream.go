package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"opencode-mesh/hub/client"
)

// serveTCP joins every connection to a stream of its own.
func (f *Forward) serveTCP(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err == nil:
			conns.Go(func() { f.join(ctx, conn) })
		case !pause(ctx, err):
			return err
		}
	}
}

// acceptPause is how long Accept waits after a failure that passes, such as too many
// open files.
const acceptPause = 50 * time.Millisecond

// pause waits after a failed Accept; it returns false when there is nothing to wait
// for.
func pause(ctx context.Context, err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(acceptPause):
	}
	return true
}

// join copies both ways until both directions have ended, or one failed.
func (f *Forward) join(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	setLinger(conn, 0) // until both directions have ended: a killed process leaves no end behind
	stream, err := f.cfg.Service.Dial(ctx)
	if ctx.Err() == nil {
		f.report(err)
	}
	if err != nil {
		abort(conn)
		return
	}
	defer stream.Close()
	cut := func() { abort(conn); _ = stream.Close() }
	defer context.AfterFunc(ctx, cut)()
	var outward sync.WaitGroup
	outward.Go(func() {
		if pass(stream, conn) != nil {
			cut()
		}
	})
	if pass(conn.(client.Stream), stream) != nil {
		cut()
	}
	outward.Wait()
	setLinger(conn, -1) // what the other side has not taken yet is still delivered
}

// pass copies one direction and hands its end on.
func pass(dst client.Stream, src io.Reader) error {
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	return dst.CloseWrite()
}

// abort closes a connection so that its peer sees a failure, not an end.
func abort(conn net.Conn) {
	setLinger(conn, 0)
	_ = conn.Close()
}

// setLinger says what a close does with a connection: 0 resets it, a negative value is
// the usual one.
func setLinger(conn net.Conn, seconds int) {
	if t, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(seconds)
	}
}
