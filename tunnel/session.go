package tunnel

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v5"
)

const (
	// muxBacklog is how many streams may be opened and not yet answered; Open
	// waits beyond it. Each slot costs every tunnel 8 bytes.
	muxBacklog = 256
	// muxPatience is how long the mux itself would wait for a pong or a write; see
	// liveness.go for who decides instead.
	muxPatience = 24 * time.Hour
	// rttHeartbeats is how many heartbeat intervals pass between measurements of
	// the round trip, which lets windows grow.
	rttHeartbeats = 4
	// goodbyeLimit bounds the exchange of close frames.
	goodbyeLimit = time.Second
)

// Session is one tunnel. All methods may be called concurrently.
//
// It is a net.Listener of the api streams that the other side opens. Its Close
// ends the whole session; Listener gives one whose Close does not.
type Session struct {
	cfg    Config
	conn   *wsConn
	mux    *yamux.Session
	watch  *watchdog
	opened time.Time

	ctx    context.Context // ends with the session, after done
	cancel context.CancelFunc

	incoming chan net.Conn // unbuffered; a stream that nobody takes is reset
	opening  chan struct{} // slots of muxBacklog, taken by Open

	done  chan struct{} // closed when the session is over
	gone  chan struct{} // closed when its goroutines have ended as well
	drain chan struct{} // closed once either side said GoAway

	leaving  atomic.Bool // this side said GoAway
	refusing atomic.Bool // the Listener was closed
	useful   atomic.Bool

	closeOnce sync.Once
	drainOnce sync.Once
	workers   sync.WaitGroup // see spawn

	mu    sync.Mutex
	cause *CloseError // why it ended or is about to; the first one counts
	guess *CloseError // the same as far as a failed write can tell
	over  bool        // no further workers
}

// newSession runs a session over c. The dialing side is the mux's client.
func newSession(c *wsConn, cfg Config, dialer bool) (*Session, error) {
	s := &Session{
		cfg:      cfg,
		conn:     c,
		opened:   time.Now(),
		incoming: make(chan net.Conn),
		opening:  make(chan struct{}, muxBacklog),
		done:     make(chan struct{}),
		gone:     make(chan struct{}),
		drain:    make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	c.onEnd = s.noteEnd
	c.sieve.flooded = func(stream uint32) {
		cfg.Log.Debug("tunnel stream reset: too many small frames of it are unread", "stream", stream)
		s.spawn(func() { _, _ = c.Write(resetFrame(stream, ResetFragments)) })
	}
	s.watch = newWatchdog(c.link, cfg)
	s.watch.onDead = func(silence time.Duration) {
		s.abort(&CloseError{Reason: ReasonLost, Err: errors.New("nothing received for " + silence.Round(time.Millisecond).String())})
	}
	s.watch.onJump = func() {
		// The ping is only to make the peer send something; its outcome is the
		// pulse's to judge.
		s.spawn(func() { _, _ = s.mux.Ping() })
	}

	mc := &yamux.Config{
		AcceptBacklog:           muxBacklog,
		PingBacklog:             32,
		EnableKeepAlive:         true,
		KeepAliveInterval:       cfg.Heartbeat,
		MeasureRTTInterval:      rttHeartbeats * cfg.Heartbeat,
		ConnectionWriteTimeout:  muxPatience,
		MaxIncomingStreams:      uint32(cfg.MaxIncomingStreams),
		InitialStreamWindowSize: MinWindow,
		MaxStreamWindowSize:     cfg.Window,
		LogOutput:               muxLog{cfg.Log},
		ReadBufSize:             0, // wsConn has one
		MaxMessageSize:          frameSize,
	}
	start := yamux.Server
	if dialer {
		start = yamux.Client
	}
	mux, err := start(c, mc, nil)
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.mux = mux
	s.watch.start()
	go s.run()
	return s, nil
}

// muxLog passes the mux's log lines on.
type muxLog struct{ log *slog.Logger }

func (m muxLog) Write(p []byte) (int, error) {
	m.log.Debug("tunnel mux", "line", strings.TrimSpace(string(p)))
	return len(p), nil
}

// run takes in streams until the session is over, and then cleans up. It is the
// owner of every other goroutine of the session.
func (s *Session) run() {
	defer close(s.gone)
	for {
		stream, err := s.mux.AcceptStream()
		if err != nil {
			_ = s.mux.Close() // waits for the mux's two loops, so all that can be known is
			s.settle(err)
			break
		}
		if !s.spawn(func() { s.receive(stream) }) {
			_ = stream.Reset()
		}
	}
	close(s.done)
	s.cancel()
	s.watch.stop()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.workers.Wait()
}

// settle fixes why the session ended, given what the mux says.
func (s *Session) settle(muxErr error) {
	s.mu.Lock()
	guess := s.guess
	s.mu.Unlock()
	if guess == nil {
		// The connection below had no part in it: the peer's frames are wrong, or it
		// says that ours are.
		var away *yamux.GoAwayError
		guess = &CloseError{Reason: ReasonProtocol, Remote: errors.As(muxErr, &away) && away.Remote, Err: muxErr}
	}
	s.setCause(guess)
}

// spawn runs f in a goroutine that Close waits for; false once it is too late.
func (s *Session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.workers.Go(f)
	return true
}

func (s *Session) setCause(e *CloseError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		s.cause = e
	}
}

// noteEnd takes the connection's word for why it ended.
func (s *Session) noteEnd(e *CloseError, weak bool) {
	if !weak {
		s.setCause(e)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guess == nil {
		s.guess = e
	}
}

// abort ends the session without a word to the other side, at once.
func (s *Session) abort(e *CloseError) {
	s.setCause(e)
	s.conn.link.abort()
}

// Done is closed when the session is over: its streams fail from then on, and
// Err says why. Goroutines may still be ending; Close waits for those.
func (s *Session) Done() <-chan struct{} { return s.done }

// Context ends when the session is over. It spares who waits for that a goroutine
// (context.AfterFunc).
func (s *Session) Context() context.Context { return s.ctx }

// Err is nil until Done is closed and then a *CloseError.
func (s *Session) Err() error {
	select {
	case <-s.done:
		return s.ending()
	default:
		return nil
	}
}

// ending is why the session ended, which it has or is about to.
func (s *Session) ending() error {
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Close ends the session with ReasonNone. It returns when every goroutine of the
// session has ended, at most a second or two later, so it must not be called from
// within ServiceDial. Further calls wait for the first.
func (s *Session) Close() error { return s.CloseWith(ReasonNone) }

// CloseWith ends the session and tells the other side why: its Err then has this
// reason and Remote set. ReasonStalled and ReasonLost do not travel; with them
// the connection is just dropped. Otherwise like Close. A session that has ended
// keeps its first reason.
func (s *Session) CloseWith(r Reason) error {
	s.closeOnce.Do(func() {
		code := r.closeCode()
		if code == 0 {
			s.abort(&CloseError{Reason: r})
			return
		}
		s.setCause(&CloseError{Reason: r})
		s.conn.goodbye(code, r.String(), goodbyeLimit)
		_ = s.mux.Close()
	})
	<-s.gone
	return nil
}

// GoAway ends the opening of streams in both directions and lets open ones
// finish: Open fails here at once and at the other side as soon as it hears of
// it, and streams that still come in are reset. The session stays up until it is
// closed. An error means that the session is over.
func (s *Session) GoAway() error {
	if s.leaving.Swap(true) {
		return nil
	}
	st, err := s.open(context.Background(), kindGoAway)
	s.markDraining()
	if err != nil {
		return err
	}
	return st.CloseWrite()
}

// Draining is closed once either side has called GoAway.
func (s *Session) Draining() <-chan struct{} { return s.drain }

func (s *Session) markDraining() { s.drainOnce.Do(func() { close(s.drain) }) }

// MarkUseful notes that the tunnel did what it is for, beyond opening. Keep
// resets its back-off for such a session.
func (s *Session) MarkUseful() { s.useful.Store(true) }

// Addr is the local address of the connection.
func (s *Session) Addr() net.Addr { return s.conn.LocalAddr() }

// RemoteAddr is the address of the peer, or of the proxy before it.
func (s *Session) RemoteAddr() net.Addr { return s.conn.RemoteAddr() }

// Stats is a reading of a session's counters.
type Stats struct {
	BytesIn, BytesOut uint64        // WebSocket framing included, TLS not
	LastReceived      time.Time     // when a byte last came in
	RTT               time.Duration // smoothed round trip; 0 until it was measured
	Streams           int           // open now, both ways
	Opened            time.Time
}

// Stats reads the counters.
func (s *Session) Stats() Stats {
	l := s.conn.link
	return Stats{
		BytesIn:      l.bytesIn.Load(),
		BytesOut:     l.bytesOut.Load(),
		LastReceived: l.start.Add(time.Duration(l.lastRecv.Load())),
		RTT:          s.mux.RTT(),
		Streams:      s.mux.NumStreams(),
		Opened:       s.opened,
	}
}

// Open opens a stream of the given kind. It does not wait for the other side to
// agree: a refusal shows as a *ResetError of the first Read. It fails with
// ErrGoingAway after GoAway, with a *CloseError after the end, and waits, within
// ctx, while 256 opened streams are unanswered.
func (s *Session) Open(ctx context.Context, kind Kind) (net.Conn, error) {
	if !kind.openable() {
		return nil, ErrBadKind
	}
	select {
	case <-s.drain:
		return nil, ErrGoingAway
	default:
	}
	st, err := s.open(ctx, kind)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// DialContext opens an api stream; network and address are ignored. It fits
// http.Transport.
func (s *Session) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	return s.Open(ctx, KindAPI)
}

func (s *Session) open(ctx context.Context, kind Kind) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case s.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.done:
		return nil, s.ending()
	}
	if ctx.Done() == nil {
		defer func() { <-s.opening }()
		return s.openNow(kind)
	}
	// The mux forgets a stream in its tables when the context ends while its first
	// frame waits in the queue, so it gets one that does not end, and a stream that
	// comes too late for ctx is reset.
	type result struct {
		st  *Stream
		err error
	}
	opened := make(chan result)
	ok := s.spawn(func() {
		defer func() { <-s.opening }()
		st, err := s.openNow(kind)
		select {
		case opened <- result{st, err}:
		case <-ctx.Done():
			if err == nil {
				_ = st.Reset(ResetCanceled)
			}
		}
	})
	if !ok {
		<-s.opening
		return nil, s.ending()
	}
	select {
	case r := <-opened:
		return r.st, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// openNow opens a stream and says its kind.
func (s *Session) openNow(kind Kind) (*Stream, error) {
	stream, err := s.mux.OpenStream(context.Background())
	if err != nil {
		return nil, s.streamError(err)
	}
	if _, err := stream.Write(appendPreamble(nil, kind)); err != nil {
		_ = stream.Reset()
		return nil, s.streamError(err)
	}
	return &Stream{mux: stream, session: s, kind: kind}, nil
}

// streamError turns an error of the mux into one of this package.
func (s *Session) streamError(err error) error {
	var reset *yamux.StreamError
	switch {
	case err == nil:
		return nil
	case err == io.EOF: //nolint:errorlint // as the mux gives it at the end of a stream; a lost connection wraps another
		return io.EOF
	case errors.As(err, &reset):
		return &ResetError{Code: ResetCode(reset.ErrorCode), Remote: reset.Remote}
	case s.mux.IsClosed():
		return s.ending()
	case isTimeout(err):
		return errDeadline
	case errors.Is(err, yamux.ErrStreamClosed):
		return net.ErrClosed
	case errors.Is(err, yamux.ErrStreamReset):
		return &ResetError{Code: ResetCanceled, Remote: true}
	default:
		return err
	}
}
