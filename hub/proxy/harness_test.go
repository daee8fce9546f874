package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/hub/proxy"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a hub's proxy and a node, joined by a real tunnel over loopback.
type bed struct {
	t      *testing.T
	url    string // of the service "web", with a slash at the end
	root   string // of the hub
	hc     *http.Client
	node   *proxy.Node
	hub    *tunnel.Session
	far    *tunnel.Session // the node's end
	caller proxy.Caller
	writes time.Duration // the hub's server's write time-out
	reads  time.Duration // how long its own requests' bodies may take
	http2  bool          // the hub speaks TLS and HTTP/2
	pulse  time.Duration // of the tunnel; 0: as usual
	// roomWait, rewrites and passes are the time limits of answers that are rewritten.
	roomWait, rewrites, passes time.Duration
	thawed                     chan struct{} // closed unless the network is to stand still
	failed                     error         // of every dial to a service
	// dialing makes every dial last until its end, and is told of it.
	dialing chan struct{}

	mu sync.Mutex // guards thawed

	hello   api.Hello
	addrs   map[string]string
	trusted []netip.Prefix
}

// setting changes a bed before it is made.
type setting func(*bed)

// offers adds a service that listens at an address.
func offers(s api.Service, addr string) setting {
	return func(b *bed) {
		b.hello.Services = append(b.hello.Services, s)
		b.addrs[s.Name] = addr
	}
}

// web is an HTTP service of that name.
func web(h http.Handler) setting {
	return func(b *bed) { offers(api.Service{Name: "web", Kind: api.ServiceHTTP}, b.serve(h))(b) }
}

// serve runs an HTTP server and returns its address.
func (b *bed) serve(h http.Handler) string {
	srv := httptest.NewServer(h)
	b.t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func newBed(t *testing.T, settings ...setting) *bed {
	t.Helper()
	b := &bed{t: t, addrs: map[string]string{}, caller: proxy.Caller{ID: "id_desk", Name: "desk"}, thawed: make(chan struct{})}
	close(b.thawed)
	for _, s := range settings {
		s(b)
	}
	p := proxy.New(proxy.Config{Fail: fail, TrustedProxies: b.trusted, Log: slog.New(slog.DiscardHandler), RoomTimeout: b.roomWait, RewriteTimeout: b.rewrites, PassTimeout: b.passes})
	accepted := make(chan *tunnel.Session, 1)
	hub := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tunnel" {
			s, err := tunnel.Accept(w, r, tunnel.Config{Heartbeat: b.pulse, HeartbeatTimeout: b.pulse})
			if err != nil {
				t.Error(err)
			}
			accepted <- s
			return
		}
		_, service, target, ok := proxy.Cut(r)
		if !ok {
			http.NotFound(w, r)
			return
		}
		if b.reads > 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(b.reads))
		}
		if b.writes > 0 { // what a server's write time-out does, but for the handshake of TLS
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(b.writes))
		}
		p.Serve(w, r, b.node, service, target, b.caller)
	}))
	if hub.EnableHTTP2 = b.http2; b.http2 {
		hub.StartTLS()
	} else {
		hub.Start()
	}
	var secure *tls.Config
	if b.http2 {
		secure = hub.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	}
	far, err := tunnel.Dial(context.Background(), tunnel.DialConfig{
		URL: strings.Replace(hub.URL, "http", "ws", 1) + "/tunnel", TLS: secure, Config: tunnel.Config{ServiceDial: b.dial},
		NetDial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &line{c, b}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.hub, b.far = <-accepted, far
	b.node = proxy.NewNode("alpha", b.hub, b.hello)
	b.root, b.url, b.hc = hub.URL, hub.URL+"/v1/nodes/alpha/services/web/", hub.Client()
	t.Cleanup(func() {
		b.node.Close()
		_ = far.Close()
		_ = b.hub.Close()
		hub.CloseClientConnections()
		hub.Close()
	})
	return b
}

func (b *bed) dial(ctx context.Context, name string) (net.Conn, error) {
	if b.failed != nil {
		return nil, b.failed
	}
	if b.dialing != nil {
		b.dialing <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	addr, ok := b.addrs[name]
	if !ok {
		return nil, tunnel.ErrNoService
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// line is the node's connection to the hub, which can stand still without breaking.
type line struct {
	net.Conn
	bed *bed
}

func (l *line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	<-l.bed.gate()
	return n, err
}

func (l *line) Write(p []byte) (int, error) {
	<-l.bed.gate()
	return l.Conn.Write(p)
}

func (b *bed) gate() chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.thawed
}

// freeze stops every byte between hub and node until the test ends.
func (b *bed) freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.thawed = make(chan struct{})
	b.t.Cleanup(sync.OnceFunc(func() { close(b.thawed) }))
}

// fail answers as package api does.
func fail(w http.ResponseWriter, _ *http.Request, err error) {
	var e *api.Error
	if !errors.As(err, &e) {
		e = api.Errorf(api.CodeInternal, "%v", err)
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int(e.RetryAfter.Seconds())))
	}
	http.Error(w, e.Error(), e.Code.Status())
}

// do sends a request.
func (b *bed) do(req *http.Request) *http.Response {
	b.t.Helper()
	resp, err := b.hc.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// get asks the service "web".
func (b *bed) get(path string, header ...string) *http.Response {
	b.t.Helper()
	return b.do(b.request(http.MethodGet, path, nil, header...))
}

func (b *bed) request(method, path string, body io.Reader, header ...string) *http.Request {
	b.t.Helper()
	req, err := http.NewRequest(method, b.url+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return req
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// want demands a refusal.
func want(t *testing.T, resp *http.Response, code api.Code, words ...string) {
	t.Helper()
	body := text(t, resp)
	if resp.StatusCode != code.Status() || !strings.HasPrefix(body, string(code)) {
		t.Errorf("got %d %q, want %s", resp.StatusCode, body, code)
	}
	for _, w := range words {
		if !strings.Contains(body, w) {
			t.Errorf("%q does not say %q", body, w)
		}
	}
}

// raw is a TCP server that hands each connection to f and closes it afterwards.
func raw(t *testing.T, f func(net.Conn, *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			all.Go(func() {
				defer func() {
					_ = c.Close()
					mu.Lock()
					delete(open, c)
					mu.Unlock()
				}()
				f(c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().String()
}

// httpService is an HTTP service "web" at an address.
func httpService(addr string) setting {
	return offers(api.Service{Name: "web", Kind: api.ServiceHTTP}, addr)
}
