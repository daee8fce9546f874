// Package api is the hub's HTTP: the public interface under /v1, health and
// metrics, the interface that nodes reach inside their tunnels, and the one that
// the local admin socket serves. Handlers translate; what things mean is decided
// in access, relay and registry.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/events"
	"opencode-mesh/hub/federation"
	"opencode-mesh/hub/gate"
	"opencode-mesh/hub/mail"
	"opencode-mesh/hub/metrics"
	"opencode-mesh/hub/proxy"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/relay"
	"opencode-mesh/hub/room"
	"opencode-mesh/hub/roster"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

const (
	// bodyLimitTime is how long a request's body may take to arrive.
	bodyLimitTime = 30 * time.Second
	// MaxHeader is the largest header of a request, in bytes.
	MaxHeader = 32 << 10
	// maxArriving is how many bytes of bodies one node may have under way into the hub
	// inside its tunnels; further ones wait for room.
	maxArriving = 4 * api.MaxTunnelBody
	// maxArrivingAll is the same of all nodes together.
	maxArrivingAll = 256 << 20
	// roomLimit is how long a body waits for room.
	roomLimit = 30 * time.Second
	// helloTimeout is how long a new tunnel may take to say hello.
	helloTimeout = 15 * time.Second
)

// Config is what the handlers stand on.
type Config struct {
	Access   *access.Access
	Store    store.Store
	Relay    *relay.Relay
	Mail     *mail.Office
	Registry *registry.Registry
	Bus      *events.Bus
	Metrics  *metrics.Metrics
	Now      func() time.Time
	Log      *slog.Logger
	Version  string
	// TrustedProxies are the peers whose X-Forwarded-For counts.
	TrustedProxies []netip.Prefix
	// Tunnel tunes accepted tunnels; its heartbeat is told to the nodes.
	Tunnel tunnel.Config
	// ServiceDomain is the domain below which services have origins of their own, as
	// SERVICE.NODE.DOMAIN; "": they have none. BaseURL is how clients reach the hub.
	ServiceDomain string
	BaseURL       func() string
	// Gate recognises browsers; nil: there are none. Pages are what they are shown: all
	// that is not below /v1 and no route of its own.
	Gate  *gate.Gate
	Pages http.Handler
	// JoinLink is what `meshhub link` prints.
	JoinLink func() string
	// BodyTimeout is how long a request's body may take to arrive; 0 means
	// bodyLimitTime.
	BodyTimeout time.Duration
	// RoomTimeout is how long a body inside a tunnel waits for room; 0 means roomLimit.
	RoomTimeout time.Duration
	// EventTimeout is how long one event of a stream may take to be written; 0 means
	// eventWriteLimit.
	EventTimeout time.Duration
	// ArtifactStall is how long a file that is passed on may stand still, at the node
	// or at the client; 0 means artifactStall.
	ArtifactStall time.Duration
}

// Server holds the handlers. Close ends every stream and tunnel.
type Server struct {
	cfg     Config
	public  http.Handler
	admin   http.Handler
	inner   *http.Server // serves every tunnel
	ctx     context.Context
	stop    context.CancelFunc
	inbox   *tunnel.Inbox
	berths  sync.Map  // *tunnel.Session → *berth
	open    *openings // tunnels and streams
	proxy   *proxy.Proxy
	room    *room.Room // of bodies inside tunnels
	visits  *visits
	roster  *roster.Roster // of agents that nodes show each other
	context *federation.Federation
	curves  curves
	serving sync.WaitGroup // the inner server
}

// New builds the handlers.
func New(cfg Config) *Server {
	if cfg.BodyTimeout == 0 {
		cfg.BodyTimeout = bodyLimitTime
	}
	if cfg.RoomTimeout == 0 {
		cfg.RoomTimeout = roomLimit
	}
	if cfg.EventTimeout == 0 {
		cfg.EventTimeout = eventWriteLimit
	}
	if cfg.ArtifactStall == 0 {
		cfg.ArtifactStall = artifactStall
	}
	s := &Server{cfg: cfg, open: newOpenings(cfg.Access.Live), inbox: tunnel.NewInbox(), room: room.New(maxArrivingAll, maxArriving)}
	s.visits, s.roster = newVisits(cfg.Now), roster.New()
	s.context = federation.New(federation.Config{Store: cfg.Store, Nodes: contextNodes{s}, Now: cfg.Now, Log: cfg.Log})
	s.curves.by = map[store.BindingKey]curve{}
	s.proxy = proxy.New(proxy.Config{Fail: s.fail, TrustedProxies: cfg.TrustedProxies, Log: cfg.Log})
	s.cfg.Tunnel.Inbox = s.inbox
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.public = s.publicRoutes()
	s.admin = s.adminRoutes()
	s.inner = &http.Server{
		Handler:           s.innerRoutes(),
		ReadHeaderTimeout: bodyLimitTime,
		MaxHeaderBytes:    MaxHeader,
		ConnContext:       sessionContext,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		BaseContext:       baseContext(s.ctx),
	}
	s.serving.Go(func() { _ = s.inner.Serve(s.inbox) })
	cfg.Access.OnRetire(s.retired)
	cfg.Access.OnLogout(s.open.logout)
	return s
}

// Public is the handler of the hub's listener.
func (s *Server) Public() http.Handler { return s.public }

// Admin is the handler of the local admin socket; whoever can open it is an
// operator.
func (s *Server) Admin() http.Handler { return s.admin }

// Inner is the handler of the interface that nodes reach inside their tunnels. It
// serves connections of those tunnels only, which say who the caller is.
func (s *Server) Inner() http.Handler { return s.inner.Handler }

// Close tells every node that the hub stops, ends streams and waits until all of
// it has ended or ctx is over.
func (s *Server) Close(ctx context.Context) {
	s.open.close()
	s.stop()
	s.cfg.Bus.Close()
	_ = s.inbox.Close()
	done := make(chan struct{})
	go func() {
		s.open.wait()
		s.serving.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	_ = s.inner.Close()
	<-done
}

// retired ends what a revoked or replaced identity has open and settles its
// tasks (semantics 15).
func (s *Server) retired(id store.Identity, code string) {
	s.open.end(id.ID)
	s.visits.end(id.ID)
	ctx := context.WithoutCancel(s.ctx)
	var err error
	if id.Role == api.RoleNode {
		err = s.cfg.Relay.RevokeTarget(ctx, id.ID, code)
		if code != api.TaskTargetReplaced { // else the name goes on, and mail is for names
			s.cfg.Mail.Retire(id.Name)
		}
	}
	err = errors.Join(err, s.cfg.Relay.RevokeController(ctx, id.ID))
	if err != nil {
		s.cfg.Log.Error("not every task of a revoked identity could be settled yet", "name", id.Name, "err", err)
	}
}

func (s *Server) publicRoutes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.measure, s.recover, s.arriving, s.byHost)
	r.NotFound(s.others)
	r.MethodNotAllowed(s.otherMethods)
	s.serviceRoutes(r)
	s.ownRoutes(r)
	return r
}

// serviceRoutes lead to the services of nodes and authenticate by themselves.
func (s *Server) serviceRoutes(r chi.Router) {
	r.Get("/v1/nodes/{node}/services", s.serviceList)
	r.Get(serviceRoute, s.services)
	r.Get(servicesBelow, s.services)
	r.Head(servicesBelow, s.services)
	r.Post(servicesBelow, s.services)
	r.Put(servicesBelow, s.services)
	r.Patch(servicesBelow, s.services)
	r.Delete(servicesBelow, s.services)
	r.Options(servicesBelow, s.services)
	r.Post(serviceRoute+"/handover", s.handover)
}

// pageRoute names the dashboard's pages in metrics.
const pageRoute = "page"

// others are the requests that no route is for: pages, if it may be a browser that asks.
func (s *Server) others(w http.ResponseWriter, r *http.Request) {
	asks := slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost}, r.Method) && r.Header.Get("Authorization") == ""
	if s.cfg.Pages == nil || !asks || r.URL.Path == "/v1" || strings.HasPrefix(r.URL.Path, "/v1/") {
		notFound(w, r)
		return
	}
	chi.RouteContext(r.Context()).RoutePatterns = []string{pageRoute}
	s.cfg.Pages.ServeHTTP(w, r)
}

// otherMethods are those that no route has, or that the router has no name for. A
// service may have any.
func (s *Server) otherMethods(w http.ResponseWriter, r *http.Request) {
	if _, _, _, ok := proxy.Cut(r); ok {
		chi.RouteContext(r.Context()).RoutePatterns = []string{servicesBelow}
		s.services(w, r)
		return
	}
	methodNotAllowed(w, r)
}

// ownRoutes are what the hub answers itself.
func (s *Server) ownRoutes(r chi.Router) {
	r.Get("/healthz", plain("ok\n"))
	r.Get("/readyz", s.readyz)
	r.Get("/metrics", s.metrics)
	r.Route("/v1", func(r chi.Router) {
		r.Use(unstored)
		r.Post("/login", s.login)
		r.Post("/join", s.join)
		r.With(s.authenticate(s.principal)).Get("/tunnel", s.tunnel)
		r.Group(func(r chi.Router) {
			r.Use(s.authenticate(s.browserOr))
			s.controllerRoutes(r)
			r.Group(func(r chi.Router) {
				r.Use(operatorsOnly)
				s.operatorRoutes(r)
			})
		})
	})
}

// controllerRoutes are the same on the public interface and inside a tunnel.
func (s *Server) controllerRoutes(r chi.Router) {
	r.Get("/whoami", s.whoami)
	r.Get("/nodes", s.nodes)
	r.Post("/tasks", s.dispatch)
	r.Get("/tasks", s.tasks)
	r.Get("/tasks/{id}", s.task)
	r.Post("/tasks/{id}/cancel", s.cancel)
	r.Post("/tasks/{id}/answer", s.answer)
	r.Post("/tasks/{id}/retry", s.retry)
	r.Get("/tasks/{id}/events", s.taskEvents)
	r.Get("/tasks/{id}/artifacts", s.artifacts)
	r.Get("/tasks/{id}/artifacts/file", s.artifact)
	r.Get("/bindings", s.bindings)
	r.Get("/bindings/{controller}/{target}", s.binding)
	r.Post("/bindings/{controller}/{target}/compact", s.operate(api.OpCompact))
	r.Post("/bindings/{controller}/{target}/clear", s.operate(api.OpClear))
	r.Post("/bindings/{controller}/{target}/reset", s.operate(api.OpReset))
	r.Get("/digests", s.digests)
	r.Post("/envelopes", s.envelope)
	r.Get("/events", s.events)
	r.Post("/context/query", s.contextQuery)
	r.Get("/context/providers", s.contextProviders)
	r.Get("/context/queries", s.contextQueries)
	for _, path := range []string{"/context/consents/{node}", "/context/consents/{node}/{provider}"} {
		r.Put(path, s.contextConsent)
		r.Delete(path, s.contextRevoke)
	}
}

func (s *Server) operatorRoutes(r chi.Router) {
	r.Post("/tasks/{id}/abandon", s.abandon)
	r.Get("/credentials", s.credentials)
	r.Post("/revoke/{name}", s.revoke)
	r.Get("/audit", s.audit)
	r.Get("/peers", s.peers)
	r.Get("/nodes/{node}/peers", s.nodePeers)
	r.Get("/nodes/{node}/channels", s.channels)
	r.Get("/nodes/{node}/channels/{id}/messages", s.channelMessages)
}

// unstored keeps answers, which are one caller's, out of caches.
func unstored(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// plain answers with a fixed text.
func plain(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(text))
	}
}

// readyz says whether the hub takes work, and nothing more.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if s.ctx.Err() != nil || s.cfg.Store.Writable() != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("not ready\n"))
		return
	}
	plain("ok\n")(w, r)
}

// forwarded are the headers by which proxies show that they are there.
var forwarded = []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Via", "X-Forwarded-Host", "X-Forwarded-Proto"}

// metrics is open to loopback peers only; others need a credential, and so do
// those behind a proxy, which is a loopback peer itself if it runs on this machine.
// A browser on this machine is a loopback peer as well: a page elsewhere that had a name
// pointed here does not get them.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	var err error
	if !s.local(r) {
		_, err = s.principal(r)
	} else if s.cfg.Gate != nil {
		err = s.cfg.Gate.Host(r)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.cfg.Metrics.Handler().ServeHTTP(w, r)
}

// local reports whether a request comes from this machine itself.
func (s *Server) local(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := peer.Addr().Unmap()
	proxied := slices.ContainsFunc(s.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr) }) ||
		slices.ContainsFunc(forwarded, func(h string) bool { return r.Header.Get(h) != "" })
	return addr.IsLoopback() && !proxied
}
