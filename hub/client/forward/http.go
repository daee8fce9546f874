package forward

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"opencode-mesh/hub/client"
	"opencode-mesh/hub/early"
	"opencode-mesh/protocol/api"
)

const (
	// headerTimeout is how long a request's header may take to arrive.
	headerTimeout = 30 * time.Second
	// idleTimeout is how long a connection may wait for its next request.
	idleTimeout = 2 * time.Minute
	// leftoverTimeout is how long the rest of a body may take to arrive that the
	// service did not want.
	leftoverTimeout = 5 * time.Second
	// maxHeader is the largest header of a request, in bytes.
	maxHeader = 64 << 10
	// copyBuffer is the size of the buffers that bodies pass through, in bytes.
	copyBuffer = 32 << 10
)

// serveHTTP is the reverse proxy.
func (f *Forward) serveHTTP(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var requests gate
	silent := log.New(io.Discard, "", 0) // what a browser aborted is no news
	proxy := &httputil.ReverseProxy{
		Transport: f.cfg.Service, Rewrite: f.rewrite, BufferPool: &buffers{}, ErrorLog: silent,
		ErrorHandler: f.failed, ModifyResponse: func(*http.Response) error { f.report(nil); return nil },
	}
	names := namesOf(l.Addr())
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !requests.enter() {
				panic(http.ErrAbortHandler)
			}
			defer requests.leave()
			if e := f.admit(r, names); e != nil {
				if e.Code == api.CodeUnauthorized {
					w.Header().Set("WWW-Authenticate", `Basic realm="meshctl"`)
				}
				refuse(w, e)
				return
			}
			rc := http.NewResponseController(w)
			// The service may answer before it has read everything.
			_ = rc.EnableFullDuplex()
			if r.ContentLength != 0 {
				defer func() { _ = rc.SetReadDeadline(time.Now().Add(leftoverTimeout)) }()
			}
			proxy.ServeHTTP(&answering{w, r}, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: silent,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	err := server.Serve(l)
	stop()
	cancel()           // ends what was hijacked
	_ = server.Close() // ends the rest, also if it was the listener that failed
	requests.close()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// answering is where the reverse proxy writes an answer.
type answering struct {
	http.ResponseWriter
	in *http.Request
}

// Unwrap serves http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter. A client of HTTP/1.0 would take an
// informational answer for the answer (RFC 9110, 15.2).
func (a *answering) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols && !a.in.ProtoAtLeast(1, 1) {
		return
	}
	a.ResponseWriter.WriteHeader(status)
}

// Hijack implements http.Hijacker: of the connection of an upgrade nothing is lost.
func (a *answering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return early.Hijack(a.ResponseWriter)
}

// gate counts the requests inside: the server's Close does not wait for them, and
// knows nothing of connections that were hijacked.
type gate struct {
	mu     sync.Mutex // guards closed, and that nobody enters while it is waited for
	closed bool
	inside sync.WaitGroup
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.inside.Add(1)
	}
	return !g.closed
}

func (g *gate) leave() { g.inside.Done() }

// close lets nobody in any more and waits until all have left.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

// rewrite directs a request to the hub. Path and query go as they came, the Host
// too; only what was for this proxy alone is taken out.
func (f *Forward) rewrite(p *httputil.ProxyRequest) {
	path, query, hasQuery := strings.Cut(p.In.RequestURI, "?")
	p.Out.URL = f.cfg.Service.URL(path, query, hasQuery)
	p.Out.Trailer = p.In.Trailer // filled in while the body is read
	p.Out.Header.Set("X-Forwarded-Proto", "http")
	if !p.In.ProtoAtLeast(1, 1) { // it has no upgrades (RFC 9110, 7.8)
		p.Out.Header.Del("Upgrade")
		p.Out.Header.Del("Connection")
	}
	if f.cfg.Password != "" {
		p.Out.Header.Del("Authorization")
	}
}

// admit decides whether a request is served at all.
func (f *Forward) admit(r *http.Request, names []string) *api.Error {
	if e := fromHere(r, names); e != nil {
		return e
	}
	if !strings.HasPrefix(r.RequestURI, "/") {
		return api.Errorf(api.CodeBadRequest, "this is no proxy for other addresses: ask for a path")
	}
	if f.cfg.Password == "" {
		return nil
	}
	name, password, _ := r.BasicAuth()
	if !equal(name, Username) || !equal(password, f.cfg.Password) {
		return api.Errorf(api.CodeUnauthorized, "this port is for the program that meshctl started alone")
	}
	return nil
}

// equal compares without telling by its time how much is right.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// failed answers a request that got no answer from the hub.
func (f *Forward) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody waits for it
	}
	code := api.CodeInternal
	if errors.Is(err, client.ErrUnreachable) {
		code = api.CodeUnavailable
		f.report(err)
		w.Header().Set("Retry-After", "1")
	}
	refuse(w, api.Errorf(code, "%v", err))
}

func refuse(w http.ResponseWriter, e *api.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(e.Code.Status())
	_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: e})
}

// buffers is the proxy's httputil.BufferPool.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[copyBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, copyBuffer)
}

func (b *buffers) Put(p []byte) { b.pool.Put((*[copyBuffer]byte)(p)) }
