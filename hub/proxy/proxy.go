// Package proxy passes requests on to the local services of nodes, through their
// tunnels: HTTP with everything that it can do (streams both ways, event streams,
// upgrades, trailers, informational answers), and raw streams.
//
// It guarantees: method, path, query and body arrive as they were sent, byte for
// byte; nothing is buffered beyond a copy buffer; the end of either side reaches
// the other; hop-by-hop headers stay on their hop, and nothing of the mesh's own
// headers, credentials and cookies reaches a service. An answer that a browser
// might take for one of the hub's own cannot act with the hub's rights (semantics
// 23). For opencode it filters what has no business in a mesh (filter.go); that is
// hygiene and no boundary: who may use a service can do there what the service can.
//
// It does not authenticate: package api has done so, and says who calls.
package proxy

import (
	"log"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"opencode-mesh/hub/room"
	"opencode-mesh/protocol/api"
)

const (
	// bufferSize is the size of a copy buffer, in bytes; a request has at most two.
	bufferSize = 32 << 10
	// dialLimit is how long a service may take to accept a connection, the way
	// through the tunnel included.
	dialLimit = 10 * time.Second
	// takenMargin is how much longer the hub waits for the word of a node, which has a
	// limit of its own for the same and knows better what went wrong.
	takenMargin = 2 * time.Second
	// flushLimit is how long a piece of an answer of known length may wait for more of
	// it; those of event streams and of answers without a length do not wait at all.
	flushLimit = 50 * time.Millisecond
	// continueLimit is how long the answer 100 Continue is waited for.
	continueLimit = time.Second
	// maxAnswerHeader is the largest header of a service's answer, in bytes.
	maxAnswerHeader = 256 << 10
	// leftoverLimit is how long the rest of a request's body may take to arrive that
	// the service did not want.
	leftoverLimit = 5 * time.Second
	// maxRewriting is how many bytes of answers of one node are held at a time to be
	// rewritten; further ones wait for room.
	maxRewriting = 2 * api.MaxRewritten
	// maxRewritingAll is the same of all nodes together.
	maxRewritingAll = 128 << 20
	// rewriteWait is how long such an answer waits for room.
	rewriteWait = 10 * time.Second
	// rewriteLimit is how long such an answer may take to arrive.
	rewriteLimit = 30 * time.Second
	// passLimit is how long its client may take to read it.
	passLimit = 2 * time.Minute
	// retryBusy is what a client is asked to wait at the limit of a node.
	retryBusy = time.Second
	// retryRestart is the same when a service does not take the password that the
	// hub was told: its node tells the new one soon.
	retryRestart = 5 * time.Second
)

// Config is what the package needs.
type Config struct {
	// Fail answers a request with an error in the mesh's shape.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// TrustedProxies are the peers whose X-Forwarded headers are passed on.
	TrustedProxies []netip.Prefix
	Log            *slog.Logger
	// RoomTimeout is how long an answer that is rewritten waits for room; 0 means
	// rewriteWait. RewriteTimeout is how long it may take to arrive; 0 means
	// rewriteLimit. PassTimeout is how long its client may take to read it; 0 means
	// passLimit.
	RoomTimeout, RewriteTimeout, PassTimeout time.Duration
}

// Proxy passes requests on. Safe for concurrent use.
type Proxy struct {
	cfg     Config
	quiet   *log.Logger
	room    *room.Room // of answers that are rewritten
	buffers buffers
}

// New makes a Proxy.
func New(cfg Config) *Proxy {
	if cfg.RoomTimeout == 0 {
		cfg.RoomTimeout = rewriteWait
	}
	if cfg.RewriteTimeout == 0 {
		cfg.RewriteTimeout = rewriteLimit
	}
	if cfg.PassTimeout == 0 {
		cfg.PassTimeout = passLimit
	}
	return &Proxy{cfg: cfg, room: room.New(maxRewritingAll, maxRewriting), quiet: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug)}
}

// Caller is who makes a request, and how the hub knows.
type Caller struct {
	ID, Name string // of the identity
	// Apart says that the credential came in Mesh-Authorization: Authorization belongs
	// to the service then, and the client is none that a browser could be made to be.
	Apart bool
	// Hosted says that the service has an origin of its own, by its host name.
	Hosted bool
}

// Serve passes a request on to a service of a node. It returns when the answer, or
// the upgraded connection, has ended; the request's context ends it early.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, n *Node, service string, t Target, by Caller) {
	svc, err := n.admit(service, by)
	if err != nil {
		p.cfg.Fail(w, r, err)
		return
	}
	done, err := n.enter()
	if err != nil {
		p.cfg.Fail(w, r, err)
		return
	}
	defer done()
	// An answer and a body may take as long as they take: the server's limits are for
	// the hub's own requests.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	c := &call{proxy: p, node: n, service: svc, target: t, by: by, in: r}
	if svc.Kind == api.ServiceTCP {
		c.stream(w)
		return
	}
	c.http(w)
}

// buffers is the httputil.BufferPool of all requests.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buf[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buf []byte) { b.pool.Put((*[bufferSize]byte)(buf)) }
