package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

// link is one open tunnel of a node.
type link struct {
	who     access.Principal
	session *tunnel.Session
	drain   bool        // delivers results only, does not take the name
	hello   *time.Timer // closes a tunnel that says nothing; nil when draining

	// mu guards the following fields.
	mu     sync.Mutex
	conn   *registry.Conn // after the hello
	detach func()         // after the relay has taken it up
	over   bool
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
	p := who(r)
	switch {
	case p.Role != api.RoleNode:
		s.fail(w, r, api.Errorf(api.CodeForbidden, "only nodes open tunnels; join with meshnode join"))
		return
	case s.ctx.Err() != nil:
		s.fail(w, r, store.ErrClosed)
		return
	}
	session, err := tunnel.Accept(w, r, s.cfg.Tunnel)
	if err != nil {
		s.cfg.Log.Info("a tunnel was not opened", "node", p.Identity.Name, "err", err)
		return // Accept has answered
	}
	l := &link{who: p, session: session, drain: r.Header.Get("Mesh-Tunnel") == "drain"}
	s.begin(l)
}

// begin makes a tunnel's link known and sees to its end. A link that is idle has
// no goroutine here: the session's end, the hub's end and the time limit of the
// hello each run what is to be done then.
func (s *Server) begin(l *link) {
	s.links.Add(1)
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
		defer s.links.Done()
		stopping()
		if l.hello != nil {
			l.hello.Stop()
		}
		_ = l.session.Close() // waits for its goroutines
		s.berths.Delete(l.session)
		s.left(l)
	})
}

// left notes that a node is gone, unless a newer connection has its name.
func (s *Server) left(l *link) {
	l.mu.Lock()
	c, detach := l.conn, l.detach
	l.over = true
	l.mu.Unlock()
	if c == nil {
		return
	}
	if detach != nil {
		detach()
	}
	if !s.cfg.Registry.Unregister(c) || s.ctx.Err() != nil {
		return
	}
	why := ""
	if err := l.session.Err(); err != nil {
		why = err.Error()
	}
	s.cfg.Log.Info("node offline", "node", c.Identity.Name, "reason", why)
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

func (s *Server) innerRoutes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.recover, s.withLink)
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed)
	r.Route("/v1", func(r chi.Router) {
		r.Post("/hello", s.hello)
		r.Put("/status", s.nodeStatus)
		r.Put("/tasks/{id}/result", s.result)
		r.Put("/tasks/{id}/progress", s.progress)
		s.controllerRoutes(r)
	})
	return r
}

// hello makes a tunnel the node's connection.
func (s *Server) hello(w http.ResponseWriter, r *http.Request) {
	l := linkOf(r)
	var h api.Hello
	if err := decode(w, r, api.MaxTunnelBody, &h); err != nil {
		s.fail(w, r, err)
		return
	}
	switch {
	case l.drain:
		s.fail(w, r, api.Errorf(api.CodeSuperseded, "a draining tunnel takes no name"))
		return
	case h.Protocol != api.ProtocolVersion:
		s.fail(w, r, api.Errorf(api.CodeUnsupportedVersion, "this hub speaks version %d between hub and node, the node %d; update the older one", api.ProtocolVersion, h.Protocol))
		return
	case h.JournalID == "" || h.Epoch == 0:
		s.fail(w, r, api.Errorf(api.CodeBadRequest, "a hello needs a journal id and an epoch"))
		return
	}
	if err := s.welcome(r.Context(), l, h); err != nil {
		s.fail(w, r, err)
		return
	}
	info := s.cfg.Store.Info()
	reply(w, http.StatusOK, api.Welcome{
		HubID: info.HubID, Generation: info.Generation, Name: l.who.Identity.Name, IdentityID: l.who.Identity.ID,
		Version: s.cfg.Version, HeartbeatMS: api.Millis(s.cfg.Tunnel.Heartbeat),
	})
}

func (s *Server) welcome(ctx context.Context, l *link, h api.Hello) error {
	now := s.cfg.Now()
	id := l.who.Identity
	rec, err := s.changeNode(ctx, id.ID, func(rec *store.NodeRecord) error { return greet(rec, h, now) })
	if api.ErrorCode(err) == api.CodeJournalForked {
		s.cfg.Metrics.Forked()
		s.cfg.Log.Error("a copied or restored node directory said hello; it gets a journal of its own", "node", id.Name, "journal", h.JournalID)
		_, aerr := s.changeNode(ctx, id.ID, func(rec *store.NodeRecord) error {
			rec.Alarms = alarm(rec.Alarms, "journal_forked: the node's directory was copied or restored ("+now.Format(time.RFC3339)+")")
			return nil
		})
		return errors.Join(err, aerr)
	}
	if err != nil {
		return err
	}
	conn := &registry.Conn{Identity: id, Session: l.session, Instance: h.Instance, Since: now}
	l.mu.Lock()
	if l.conn != nil {
		l.mu.Unlock()
		return api.Errorf(api.CodeConflict, "this tunnel has said hello already")
	}
	l.conn = conn
	l.mu.Unlock()
	if _, superseded := s.cfg.Registry.Register(conn); superseded {
		s.cfg.Metrics.Superseded()
		s.cfg.Log.Warn("a second process took a node's name over", "node", id.Name)
		if rec, err = s.changeNode(ctx, id.ID, func(rec *store.NodeRecord) error {
			rec.Superseded++
			return nil
		}); err != nil {
			return err
		}
	}
	// A revocation between the upgrade and here found nothing to close.
	if live, err := s.cfg.Store.Identity(ctx, id.ID); err == nil && !live.Live() {
		s.cfg.Registry.Close(id.ID, tunnel.ReasonRevoked)
		return api.Errorf(api.CodeRevoked, "the credential of %s was revoked", id.Name)
	}
	s.cfg.Log.Info("node online", "node", id.Name, "version", h.Version, "platform", h.OS+"/"+h.Arch)
	l.hello.Stop()
	s.links.Go(func() { s.attach(l, relay.Link{Identity: id, Node: registry.NewClient(l.session), Hello: h}) })
	s.cfg.Bus.Node(s.nodeView(id, rec))
	return nil
}

// attach hands a greeted node to the relay. It runs beside the answer to the
// hello, because the relay calls the node back.
func (s *Server) attach(l *link, rl relay.Link) {
	fail := func(err error) {
		if l.session.Context().Err() == nil {
			s.cfg.Log.Warn("a node's tunnel is closed", "node", rl.Identity.Name, "err", err)
		}
		_ = l.session.Close()
	}
	detach, err := s.cfg.Relay.Attach(l.session.Context(), rl, fail)
	if err != nil {
		fail(err)
		return
	}
	l.mu.Lock()
	over := l.over
	l.detach = detach
	l.mu.Unlock()
	if over {
		detach()
	}
}

// greet checks the fencing epoch and notes the hello (semantics 5).
func greet(rec *store.NodeRecord, h api.Hello, now time.Time) error {
	forked := api.Errorf(api.CodeJournalForked, "this hub has seen epoch %d of the journal already: the node's directory is a copy or was restored", h.Epoch)
	switch {
	case rec.JournalID == h.JournalID:
		if h.Epoch <= rec.Epoch {
			return forked
		}
	default:
		i := slices.IndexFunc(rec.Epochs, func(e store.JournalEpoch) bool { return e.JournalID == h.JournalID })
		if i >= 0 && h.Epoch <= rec.Epochs[i].Epoch {
			return forked
		}
		if i >= 0 {
			rec.Epochs = slices.Delete(rec.Epochs, i, i+1)
		}
		if rec.JournalID != "" {
			rec.Epochs = append(rec.Epochs, store.JournalEpoch{JournalID: rec.JournalID, Epoch: rec.Epoch})
			if n := len(rec.Epochs) - store.MaxFormerJournals; n > 0 {
				rec.Epochs = rec.Epochs[n:]
			}
		}
	}
	rec.JournalID, rec.Epoch = h.JournalID, h.Epoch
	rec.Agent, rec.OnlineAt = h.Agent, now
	h.Bound = nil // goes to the bindings, not here
	rec.Hello = h
	return nil
}

// maxAlarms bounds a node's alarms, newest kept.
const maxAlarms = 8

func alarm(list []string, text string) []string {
	list = append(list, text)
	return list[max(0, len(list)-maxAlarms):]
}

func (s *Server) nodeStatus(w http.ResponseWriter, r *http.Request) {
	l := linkOf(r)
	var n api.NodeReport
	if err := decode(w, r, api.MaxBody, &n); err != nil {
		s.fail(w, r, err)
		return
	}
	id := l.who.Identity
	n.Agent.Detail = mesh.CleanLine(n.Agent.Detail)
	rec, err := s.changeNode(r.Context(), id.ID, func(rec *store.NodeRecord) error {
		rec.Agent = n.Agent
		return nil
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.cfg.Bus.Node(s.nodeView(id, rec))
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) result(w http.ResponseWriter, r *http.Request) {
	var res api.Result
	if err := decode(w, r, api.MaxTunnelBody, &res); err != nil {
		s.fail(w, r, err)
		return
	}
	res.Task = chi.URLParam(r, "id")
	if err := s.cfg.Relay.Result(context.WithoutCancel(r.Context()), linkOf(r).who.Identity, res); err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, struct{}{})
}

func (s *Server) progress(w http.ResponseWriter, r *http.Request) {
	var p api.Progress
	if err := decode(w, r, api.MaxBody, &p); err != nil {
		s.fail(w, r, err)
		return
	}
	p.Task = chi.URLParam(r, "id")
	p.Note = mesh.CleanLine(p.Note)
	if err := s.cfg.Relay.ProgressFrom(r.Context(), linkOf(r).who.Identity, p); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
