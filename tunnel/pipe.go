package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// serviceDialLimit bounds one call of Config.ServiceDial.
	serviceDialLimit = 10 * time.Second
	// copySize is the size of a copy buffer, in bytes: one full mux frame.
	copySize = frameSize - 12
	// resetCheck is how long a write to the local server may take before the pipe
	// starts to look, at this interval, whether the stream was reset meanwhile. It may
	// be up to deadlineSlack less.
	resetCheck = 250 * time.Millisecond
)

// copyBufs holds copy buffers. A pipe takes one only while there is something to
// copy: thousands of idle keep-alive connections hold none.
var copyBufs = sync.Pool{New: func() any {
	b := make([]byte, copySize)
	return &b
}}

// takenByte is the first of a stream whose opener wants to know that the local server
// has taken the connection.
const takenByte = 1

// OpenTaken opens a pipe to the named local server of the other side and returns when
// that has taken the connection: for whoever must know, and would else learn it from
// the server's first byte. Errors are those of Open, a *ResetError that says why it was
// not taken, and that of ctx.
func (s *Session) OpenTaken(ctx context.Context, name string) (net.Conn, error) {
	conn, err := s.Open(ctx, taken(name))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	var said [1]byte
	_, err = io.ReadFull(conn, said[:])
	switch {
	case !stop():
		err = ctx.Err()
	case err == nil && said[0] != takenByte:
		err = errors.New("the other side does not say that the service took the connection")
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// serveService joins an incoming service stream to its local server. With says its
// opener is told that the server took the connection.
func (s *Session) serveService(st *Stream, name string, says bool) {
	if s.cfg.ServiceDial == nil {
		_ = st.Reset(ResetNoService)
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, serviceDialLimit)
	local, err := s.cfg.ServiceDial(ctx, name)
	cancel()
	if err != nil {
		s.cfg.Log.Debug("tunnel service refused", "service", name, "error", err)
		code := ResetUnreachable
		switch {
		case errors.Is(err, ErrNoService):
			code = ResetNoService
		case isTimeout(err):
			code = ResetTimeout
		}
		_ = st.Reset(code)
		return
	}
	setLinger(local, 0) // until both directions have ended: see pipe
	p := &pipe{st: st, local: local}
	if says {
		if _, err := st.Write([]byte{takenByte}); err != nil {
			p.kill()
			return
		}
	}
	p.run()
}

// pipe joins a stream to a connection of a local server. Whatever closes that before both
// directions have ended, even the end of a killed process, is a TCP reset: half of what
// was sent must not look like the whole.
type pipe struct {
	st    *Stream
	local net.Conn
	once  sync.Once // guards kill

	armed time.Time // deadline in force for writing to local; belongs to the inward copy

	// watch asks the outward copy to look every resetCheck whether the stream was
	// reset: the inward copy does not read from it just now, or has read its end.
	watch atomic.Bool
}

// run copies both ways until both directions have ended, or one failed.
func (p *pipe) run() {
	var inward sync.WaitGroup
	inward.Go(func() {
		if err := p.copyIn(); err != nil {
			p.kill()
		}
	})
	if err := p.copyOut(); err != nil {
		p.kill()
	}
	inward.Wait()
	setLinger(p.local, -1) // what the server has not taken yet is still delivered
	_ = p.local.Close()    // closed already after kill, like the stream
	_ = p.st.Close()
}

// kill ends both legs so that both peers see a failure, not an end.
func (p *pipe) kill() {
	p.once.Do(func() {
		setLinger(p.local, 0)
		_ = socketOf(p.local).Close() // a TCP reset, before which TLS would say goodbye
		_ = p.st.Reset(ResetBroken)   // second: it may wait for a place in the queue
	})
}

// setLinger says what a close does with a TCP connection: 0 resets it, a negative value
// is the usual one.
func setLinger(conn net.Conn, seconds int) {
	if t, ok := socketOf(conn).(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(seconds) // fails only on a closed socket
	}
}

// copyIn copies from the tunnel to the local server and passes the end on.
func (p *pipe) copyIn() error {
	for {
		_, err := p.st.Read(nil) // waits for data without a buffer to put it in
		if err == nil {
			err = p.copyInOnce()
		}
		switch {
		case errors.Is(err, io.EOF):
			// A server that cannot be told ends by itself; one that is gone already
			// shows in the other direction.
			if cw, ok := p.local.(interface{ CloseWrite() error }); ok {
				_ = cw.CloseWrite()
			}
			return p.startWatch()
		case err != nil:
			return err
		}
	}
}

func (p *pipe) copyInOnce() error {
	buf := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(buf)
	n, err := p.st.Read(*buf)
	if n == 0 {
		return err
	}
	if err := p.writeLocal((*buf)[:n]); err != nil {
		return err
	}
	return err
}

// writeLocal writes b to the local server. If that is stuck, both copies watch
// for a reset: before the opener's FIN it shows to the reader of the stream, after
// it only to the writer.
func (p *pipe) writeLocal(b []byte) error {
	defer p.watch.Store(false)
	for {
		if now := time.Now(); p.armed.Sub(now) < resetCheck-resetCheck/deadlineSlack {
			p.armed = now.Add(resetCheck)
			if err := p.local.SetWriteDeadline(p.armed); err != nil {
				return err
			}
		}
		n, err := p.local.Write(b)
		if err == nil || !isTimeout(err) {
			return err
		}
		b = b[n:]
		if err := errors.Join(p.startWatch(), p.st.probeRead()); err != nil {
			return err
		}
	}
}

// startWatch has the outward copy watch, and wakes it from a read.
func (p *pipe) startWatch() error {
	p.watch.Store(true)
	return p.local.SetReadDeadline(time.Unix(1, 0))
}

// rearm sets the next deadline for reading the local server.
func (p *pipe) rearm() error {
	// In this order a startWatch in between is never lost.
	err := p.local.SetReadDeadline(time.Time{})
	if p.watch.Load() {
		err = p.local.SetReadDeadline(time.Now().Add(resetCheck))
	}
	return err
}

// copyOut copies from the local server to the tunnel and passes the end on.
func (p *pipe) copyOut() error {
	r := newLazyReader(p.local)
	for {
		buf, n, err := r.read()
		if n > 0 {
			_, werr := p.st.Write((*buf)[:n])
			copyBufs.Put(buf)
			if werr != nil {
				return werr
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return p.st.CloseWrite()
		case isTimeout(err):
			if err := errors.Join(p.rearm(), p.st.probeWrite()); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// readEager reads with a buffer taken beforehand. The buffer is the caller's to
// give back when n > 0, and nil otherwise.
func readEager(conn net.Conn) (*[]byte, int, error) {
	buf := copyBufs.Get().(*[]byte)
	n, err := conn.Read(*buf)
	if n == 0 {
		copyBufs.Put(buf)
		return nil, 0, err
	}
	return buf, n, err
}
