package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

// link is one open tunnel of a node.
type link struct {
	who     access.Principal
	session *tunnel.Session
	drain   bool        // delivers results only, does not take the name
	hello   *time.Timer // closes a tunnel that says nothing; nil when draining
	opening *opening

	// mu guards the following fields.
	mu       sync.Mutex
	greeting bool           // a hello is being looked at, or was taken
	conn     *registry.Conn // after the hello
	detach   func()         // after the relay has taken it up
	over     bool
	work     sync.WaitGroup // hands the node to the relay; begun while it is not over
}

// registered is the link's place among the connected nodes, nil before its hello.
func (l *link) registered() *registry.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// berth is where a tunnel's requests find its link. The first stream may come in
// before the handler that accepted the tunnel has its link ready; it waits here.
type berth struct {
	ready chan struct{} // closed once link is set
	link  *link
}

func (s *Server) berth(session *tunnel.Session) *berth {
	b, _ := s.berths.LoadOrStore(session, &berth{ready: make(chan struct{})})
	return b.(*berth)
}

type sessionKey struct{}

// sessionContext notes which tunnel a stream came through.
func sessionContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, sessionKey{}, c.(*tunnel.Stream).Session())
}

type linkKey struct{}

// withLink gives a request from inside a tunnel its link and its principal.
func (s *Server) withLink(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		session := r.Context().Value(sessionKey{}).(*tunnel.Session)
		b := s.berth(session)
		select {
		case <-b.ready:
		case <-session.Done():
			s.berths.Delete(session)
			return // nobody is there to answer
		}
		ctx := context.WithValue(context.WithValue(r.Context(), linkKey{}, b.link), principalKey{}, b.link.who)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func linkOf(r *http.Request) *link { return r.Context().Value(linkKey{}).(*link) }

// tunnel upgrades a node's connection. The handler returns at once; Close waits
// for the link's end.
func (s *Server) tunnel(w http.ResponseWriter, r *http.Request) {
	l := &link{who: who(r), drain: r.Header.Get("Mesh-Tunnel") == "drain"}
	if l.who.Role != api.RoleNode {
		s.fail(w, r, api.Errorf(api.CodeForbidden, "only nodes open tunnels; join with meshnode join"))
		return
	}
	upgraded := make(chan struct{}) // closed once session is set, or is not to be
	l.opening = &opening{kind: tunnels, by: l.who, end: func() {
		if <-upgraded; l.session != nil {
			_ = l.session.CloseWith(tunnel.ReasonRevoked)
		}
	}}
	if err := s.open.add(r.Context(), l.opening); err != nil {
		close(upgraded)
		s.fail(w, r, err)
		return
	}
	session, err := tunnel.Accept(w, r, s.cfg.Tunnel)
	l.session = session
	close(upgraded)
	if err != nil {
		s.open.remove(l.opening)
		s.cfg.Log.Info("a tunnel was not opened", "node", l.who.Identity.Name, "err", err)
		return // Accept has answered
	}
	s.begin(l)
}

// begin makes a tunnel's link known and sees to its end. A link that is idle has
// no goroutine here: the session's end, the hub's end and the time limit of the
// hello each run what is to be done then.
func (s *Server) begin(l *link) {
	if !l.drain { // a draining one says no hello: it lives until it has delivered
		l.hello = time.AfterFunc(helloTimeout, func() {
			s.cfg.Log.Warn("a node opened a tunnel and said no hello", "node", l.who.Identity.Name)
			_ = l.session.Close()
		})
	}
	stopping := context.AfterFunc(s.ctx, func() { _ = l.session.CloseWith(tunnel.ReasonShutdown) })
	b := s.berth(l.session)
	b.link = l
	close(b.ready)
	context.AfterFunc(l.session.Context(), func() {
		defer s.open.remove(l.opening)
		stopping()
		if l.hello != nil {
			l.hello.Stop()
		}
		_ = l.session.Close() // waits for its goroutines
		s.berths.Delete(l.session)
		s.left(l)
	})
}

// left sees to what a link's end leaves behind.
func (s *Server) left(l *link) {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.work.Wait()
	l.mu.Lock()
	c, detach := l.conn, l.detach
	l.mu.Unlock()
	if detach != nil {
		detach()
	}
	if c != nil {
		s.roster.Leave(l.owner())
		c.Client.Close()
		c.Services.Close()
		s.depart(l, c)
	}
}

// depart notes that a node is gone, unless a newer connection has its name.
func (s *Server) depart(l *link, c *registry.Conn) {
	if !s.cfg.Registry.Unregister(c) || s.ctx.Err() != nil {
		return
	}
	why := ""
	if err := l.session.Err(); err != nil {
		why = shown.Line(err.Error(), maxDetail)
	}
	s.cfg.Log.Info("node offline", "node", c.Identity.Name, "reason", why)
	if err := l.session.Err(); tunnel.IsReason(err, tunnel.ReasonNone) || tunnel.IsReason(err, tunnel.ReasonShutdown) {
		why = "" // it stopped, which is no error
	}
	rec, err := s.changeNode(context.WithoutCancel(s.ctx), c.Identity.ID, func(rec *store.NodeRecord) error {
		rec.OfflineAt, rec.LastError = s.cfg.Now(), why
		return nil
	})
	if err != nil {
		s.cfg.Log.Warn("a node's departure was not noted", "node", c.Identity.Name, "err", err)
		return
	}
	s.cfg.Bus.Node(s.nodeView(c.Identity, rec))
}
