package tunnel

import (
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"
)

// receive finds out what an incoming stream carries and hands it on. It runs in
// a goroutine of its own, so a stream that is slow to say its kind holds up no
// other; there are at most MaxIncomingStreams of them.
func (s *Session) receive(stream *yamux.Stream) {
	_ = stream.SetReadDeadline(time.Now().Add(s.cfg.PreambleTimeout))
	kind, err := readPreamble(stream)
	if err != nil {
		s.cfg.Log.Debug("tunnel stream refused", "error", err)
		s.refuse(stream, ResetBadPreamble)
		return
	}
	_ = stream.SetReadDeadline(time.Time{})

	st := &Stream{mux: stream, session: s, kind: kind, accepted: true}
	if kind == kindGoAway {
		s.markDraining()
		_ = st.Close()
		return
	}
	if s.leaving.Load() {
		s.refuse(stream, ResetGoingAway)
		return
	}
	name, says, isService := kind.piped()
	switch {
	case kind == KindAPI:
		s.offer(st)
	case isService:
		s.serveService(st, name, says)
	default:
		s.cfg.Log.Debug("tunnel stream refused", "kind", kind)
		s.refuse(stream, ResetUnknownKind)
	}
}

func (s *Session) refuse(stream *yamux.Stream, code ResetCode) {
	_ = stream.ResetWithError(uint32(code)) // fails only with the session
}

// offer gives an api stream to whoever is in Accept.
func (s *Session) offer(st *Stream) {
	taker, closed := s.incoming, (chan struct{})(nil)
	if in := s.cfg.Inbox; in != nil {
		taker, closed = in.streams, in.closed
	}
	if s.refusing.Load() {
		s.refuse(st.mux, ResetGoingAway)
		return
	}
	t := time.NewTimer(s.cfg.PreambleTimeout)
	defer t.Stop()
	select {
	case taker <- st:
	case <-s.done:
	case <-closed:
		s.refuse(st.mux, ResetGoingAway)
	case <-t.C:
		s.refuse(st.mux, ResetBusy)
	}
}

// Accept waits for the next api stream of the other side. Its error is the
// session's *CloseError.
func (s *Session) Accept() (net.Conn, error) { return s.accept(nil) }

func (s *Session) accept(closed <-chan struct{}) (net.Conn, error) {
	select {
	case c := <-s.incoming:
		return c, nil
	case <-closed:
		return nil, net.ErrClosed
	case <-s.done:
		return nil, s.ending()
	}
}

// Listener returns a listener of the same streams whose Close only ends the
// accepting: streams that come in later are reset with ResetGoingAway, open ones
// go on. It is what an http.Server that is to shut down gently wants.
func (s *Session) Listener() net.Listener {
	return &listener{session: s, closed: make(chan struct{})}
}

type listener struct {
	session *Session
	once    sync.Once
	closed  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) { return l.session.accept(l.closed) }
func (l *listener) Addr() net.Addr            { return l.session.Addr() }

func (l *listener) Close() error {
	l.once.Do(func() {
		l.session.refusing.Store(true)
		close(l.closed)
	})
	return nil
}

// Inbox is a net.Listener of the api streams of many sessions: one http.Server on
// it serves a whole hub, where one per tunnel would cost each idle tunnel another
// goroutine. Which tunnel a connection belongs to says Stream.Session, for an
// http.Server in ConnContext.
type Inbox struct {
	streams chan net.Conn // unbuffered, like Session.incoming
	closed  chan struct{}
	once    sync.Once
}

// NewInbox makes an Inbox, for Config.Inbox of any number of sessions.
func NewInbox() *Inbox {
	return &Inbox{streams: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept waits for the next stream of any session.
func (in *Inbox) Accept() (net.Conn, error) {
	select {
	case c := <-in.streams:
		return c, nil
	case <-in.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the accepting: streams that come in later are reset with
// ResetGoingAway. It does not touch any session.
func (in *Inbox) Close() error {
	in.once.Do(func() { close(in.closed) })
	return nil
}

// Addr is a name only: the streams come by way of many connections.
func (in *Inbox) Addr() net.Addr { return inboxAddr{} }

type inboxAddr struct{}

func (inboxAddr) Network() string { return "tunnel" }
func (inboxAddr) String() string  { return "inbox" }
