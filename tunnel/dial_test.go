package tunnel_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"golang.org/x/net/dns/dnsmessage"

	"opencode-mesh/tunnel"
)

func TestDialGoesOverTLSWithHTTP1(t *testing.T) {
	h := newTLSHub(t, tunnel.Config{})
	s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{URL: h.URL, Proxy: noProxy, TLS: h.trust(), Header: http.Header{"X-Name": {"alpha"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	hubSide := receive(t, h.sessions, "the session")
	r := receive(t, h.requests, "the request")
	if r.TLS == nil || r.TLS.NegotiatedProtocol != "http/1.1" || r.ProtoMajor != 1 {
		t.Errorf("the request came by %s, ALPN %+v", r.Proto, r.TLS)
	}
	if r.Header.Get("X-Name") != "alpha" {
		t.Error("the header is missing")
	}
	if r.Header.Get("Sec-Websocket-Extensions") != "" {
		t.Error("compression is offered")
	}
	serve(t, s, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "over TLS") }))
	if got := get(t, client(t, hubSide), "http://node/"); got != "over TLS" {
		t.Errorf("got %q", got)
	}
	_ = hubSide.CloseWith(tunnel.ReasonSuperseded)
	wantEnd(t, s, tunnel.ReasonSuperseded)
}

func TestDialPassesAnErrorOfTheCertificateCheckOn(t *testing.T) {
	h := newTLSHub(t, tunnel.Config{})
	pin := errors.New("the pin does not match")
	cfg := h.trust()
	cfg.VerifyConnection = func(tls.ConnectionState) error { return pin }
	_, err := tunnel.Dial(t.Context(), tunnel.DialConfig{URL: h.URL, Proxy: noProxy, TLS: cfg})
	if !errors.Is(err, pin) {
		t.Errorf("Dial gives %v", err)
	}
}

// tlsHub is a hub that would also speak HTTP/2, like any server of Go's.
type tlsHub struct {
	*httptest.Server
	URL      string
	sessions chan *tunnel.Session
	requests chan *http.Request
}

func newTLSHub(t *testing.T, cfg tunnel.Config) *tlsHub {
	t.Helper()
	h := &tlsHub{sessions: make(chan *tunnel.Session, 4), requests: make(chan *http.Request, 4)}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := tunnel.Accept(w, r, cfg)
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = s.Close() })
		h.requests <- r
		h.sessions <- s
	}))
	h.Server.EnableHTTP2 = true
	h.Server.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}} //nolint:gosec // StartTLS fills in the rest
	h.Server.Config.ErrorLog = quietLog()
	h.Server.StartTLS()
	h.URL = "wss" + strings.TrimPrefix(h.Server.URL, "https")
	t.Cleanup(h.Server.Close)
	return h
}

func (h *tlsHub) trust() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(h.Certificate())
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

func TestRefusalsAreTyped(t *testing.T) {
	const secret = "Bearer very-secret"
	for _, tt := range []struct {
		name      string
		answer    http.HandlerFunc
		want      tunnel.RefusedError
		permanent bool
	}{
		{"a wrong credential", jsonAnswer(401, `{"error":{"code":"unauthorized","message":"no such credential"}}`),
			tunnel.RefusedError{Status: 401, Code: "unauthorized", Message: "no such credential"}, true},
		{"a revoked one", jsonAnswer(401, `{"error":{"code":"revoked","message":"revoked by an operator"}}`),
			tunnel.RefusedError{Status: 401, Code: "revoked", Message: "revoked by an operator"}, true},
		{"a forbidden role", jsonAnswer(403, `{"error":{"code":"forbidden","message":"not a node"}}`),
			tunnel.RefusedError{Status: 403, Code: "forbidden", Message: "not a node"}, true},
		{"an identity that is gone", jsonAnswer(410, `{}`), tunnel.RefusedError{Status: 410}, true},
		{"too many attempts", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			jsonAnswer(429, `{"error":{"code":"rate_limited","message":"slow down"}}`)(w, r)
		}, tunnel.RefusedError{Status: 429, Code: "rate_limited", Message: "slow down", RetryAfter: 7 * time.Second}, false},
		{"a wait that is out of proportion", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "99999999")
			w.WriteHeader(503)
		}, tunnel.RefusedError{Status: 503, RetryAfter: 10 * time.Minute}, false},
		{"a wait that is no time", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "soon")
			w.WriteHeader(503)
		}, tunnel.RefusedError{Status: 503}, false},
		{"a date in the past", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT")
			w.WriteHeader(503)
		}, tunnel.RefusedError{Status: 503}, false},
		{"a page of a proxy", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			_, _ = io.WriteString(w, "<html>"+strings.Repeat("bad gateway ", 10000))
		}, tunnel.RefusedError{Status: 502}, false},
		{"a message that is not fit to print", jsonAnswer(503, `{"error":{"code":"a\u001b[31m","message":"one\ntwo\u0007`+strings.Repeat("x", 600)+`"}}`),
			tunnel.RefusedError{Status: 503, Code: "a[31m", Message: "one two" + strings.Repeat("x", 493) + "…"}, false},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		}, tunnel.RefusedError{Status: 302}, false},
		{"an ordinary page", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, tunnel.RefusedError{Status: 200}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(tt.answer)
			defer srv.Close()
			_, err := tunnel.Dial(t.Context(), tunnel.DialConfig{
				URL: "ws" + strings.TrimPrefix(srv.URL, "http"), Proxy: noProxy,
				Header: http.Header{"Authorization": {secret}},
			})
			refused, ok := errors.AsType[*tunnel.RefusedError](err)
			if !ok {
				t.Fatalf("Dial gives %v", err)
			}
			if *refused != tt.want {
				t.Errorf("got  %+v\nwant %+v", *refused, tt.want)
			}
			if tunnel.IsPermanent(err) != tt.permanent {
				t.Errorf("permanent is %v", !tt.permanent)
			}
			if text := err.Error(); strings.Contains(text, "very-secret") || strings.ContainsAny(text, "\n\x07\x1b") {
				t.Errorf("the error reads %q", text)
			}
		})
	}
}

func jsonAnswer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestDialTellsOtherFailures(t *testing.T) {
	answers := func(raw string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, strings.ReplaceAll(raw, "KEY", acceptKey(r)))
		}))
		t.Cleanup(srv.Close)
		return "ws" + strings.TrimPrefix(srv.URL, "http")
	}
	for name, addr := range map[string]string{
		"no HTTP at all":            answers("SSH-2.0-OpenSSH\r\n\r\n"),
		"nothing":                   answers(""),
		"endless informational":     answers(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20)),
		"an endless header":         answers("HTTP/1.1 101 Switching Protocols\r\nX: " + strings.Repeat("x", 100<<10)),
		"another WebSocket service": answers("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\n\r\n"),
		"a wrong accept key":        answers("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: mesh-tunnel.v1\r\nSec-WebSocket-Accept: x\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{URL: addr, Proxy: noProxy})
			if err == nil {
				_ = s.Close()
				t.Fatal("Dial succeeds")
			}
			if tunnel.IsPermanent(err) {
				t.Errorf("%v is taken for permanent", err)
			}
		})
	}
}

func TestInformationalAnswersBeforeTheTunnelAreSkipped(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		s, err := tunnel.Accept(w, r, tunnel.Config{})
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
		}
	}))
	defer srv.Close()
	dial(t, "ws"+strings.TrimPrefix(srv.URL, "http"), tunnel.Config{})
}

func TestDialConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]tunnel.DialConfig{
		"no URL":             {},
		"another scheme":     {URL: "https://hub/v1/tunnel"},
		"no host":            {URL: "wss:///v1/tunnel"},
		"a password":         {URL: "wss://user:hunter2@hub/"},
		"a URL that is none": {URL: "wss://hunter2\x7f@hub"},
		"a negative timeout": {URL: "wss://hub", Timeout: -1},
		"a bad tunnel part":  {URL: "wss://hub", Config: tunnel.Config{Window: 1}},
	} {
		err := cfg.Validate()
		if err == nil {
			t.Errorf("%s passes", name)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error %q shows the secret", name, err)
		}
		if _, dialErr := tunnel.Dial(t.Context(), cfg); dialErr == nil || dialErr.Error() != err.Error() {
			t.Errorf("%s: Dial gives %v", name, dialErr)
		}
	}
}

func TestDialGivesUpInTime(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, scheme := range []string{"ws", "wss"} {
		t.Run(scheme+" by time-out", func(t *testing.T) {
			_, err := tunnel.Dial(t.Context(), tunnel.DialConfig{URL: scheme + "://" + ln.Addr().String(), Proxy: noProxy, Timeout: 50 * time.Millisecond})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Dial gives %v", err)
			}
		})
		t.Run(scheme+" by its context", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			_, err := tunnel.Dial(ctx, tunnel.DialConfig{URL: scheme + "://" + ln.Addr().String(), Proxy: noProxy})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Dial gives %v", err)
			}
		})
	}
	t.Run("and the context has no effect once it is open", func(t *testing.T) {
		h := newHub(t, tunnel.Config{}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		s, err := tunnel.Dial(ctx, tunnel.DialConfig{URL: h.URL, Proxy: noProxy})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		cancel()
		streamOf(t, h.next(t), s)
	})
}

func TestNamesAreResolvedAtEachDial(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	dns := newDNS(t)
	_, port, _ := net.SplitHostPort(h.Listener.Addr().String())
	cfg := tunnel.DialConfig{
		URL: "ws://hub.example.:" + port + "/v1/tunnel", Proxy: noProxy,
		NetDial: (&net.Dialer{Resolver: &net.Resolver{PreferGo: true, Dial: dns.dial}}).DialContext,
	}
	if _, err := tunnel.Dial(t.Context(), cfg); err == nil {
		t.Fatal("a name without an address is reached")
	}
	asked := dns.queries.Load()
	if asked == 0 {
		t.Fatal("nobody asked for the name")
	}
	// The hub moves to where the name now points: the next dial finds it there.
	dns.exists.Store(true)
	for range 2 {
		s, err := tunnel.Dial(t.Context(), cfg)
		if err != nil {
			t.Fatalf("after the name got its address: %v", err)
		}
		_ = s.Close()
		if now := dns.queries.Load(); now == asked {
			t.Error("the name was not looked up again")
		} else {
			asked = now
		}
	}
}

// fakeDNS knows one address for every name, once it exists.
type fakeDNS struct {
	conn    net.PacketConn
	exists  atomic.Bool
	queries atomic.Int32
}

func newDNS(t *testing.T) *fakeDNS {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeDNS{conn: conn}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.serve()
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return d
}

func (d *fakeDNS) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var nd net.Dialer
	return nd.DialContext(ctx, "udp", d.conn.LocalAddr().String())
}

func (d *fakeDNS) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		d.queries.Add(1)
		q := m.Questions[0]
		m.Header.Response, m.Header.Authoritative = true, true
		m.Additionals = nil
		if !d.exists.Load() {
			m.Header.RCode = dnsmessage.RCodeNameError
		} else if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 3600},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = d.conn.WriteTo(out, from)
		}
	}
}

// connectProxy is an HTTP proxy that leads every CONNECT to the given address.
type connectProxy struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // "host:port authorization"
}

func newConnectProxy(t *testing.T, to string, overTLS bool) *connectProxy {
	t.Helper()
	p := new(connectProxy)
	var wg sync.WaitGroup
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen = append(p.seen, r.Method+" "+r.Host+" "+r.Header.Get("Proxy-Authorization")+r.Header.Get("Authorization"))
		p.mu.Unlock()
		if strings.Contains(r.Header.Get("Proxy-Authorization"), "d3Jvbmc") { // "wrong"
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		wg.Add(1) // before Hijack, from where on the server no longer waits for it
		in, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			wg.Done()
			return
		}
		_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
		wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		_, _ = io.Copy(out, in)
		_ = out.Close()
		wg.Done()
	}))
	if overTLS {
		p.Server.StartTLS()
	} else {
		p.Server.Start()
	}
	t.Cleanup(func() { p.Server.Close(); wg.Wait() })
	return p
}

func (p *connectProxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

func proxyAt(t *testing.T, scheme, user, addr string) func(*http.Request) (*url.URL, error) {
	t.Helper()
	u, err := url.Parse(scheme + "://" + user + addr)
	if err != nil {
		t.Fatal(err)
	}
	return http.ProxyURL(u)
}

func TestDialGoesThroughProxies(t *testing.T) {
	plain := newHub(t, tunnel.Config{}, nil)
	secure := newTLSHub(t, tunnel.Config{})
	header := http.Header{"Authorization": {"Bearer for-the-hub-only"}}

	t.Run("ws by CONNECT, with a password", func(t *testing.T) {
		p := newConnectProxy(t, plain.Listener.Addr().String(), false)
		s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{
			URL: "ws://hub.example/v1/tunnel", Header: header, Proxy: proxyAt(t, "http", "me:right@", p.Listener.Addr().String()),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		streamOf(t, plain.next(t), s)
		if got := fmt.Sprint(p.requests()); got != "[CONNECT hub.example:80 Basic bWU6cmlnaHQ=]" {
			t.Errorf("the proxy saw %s", got)
		}
	})
	t.Run("wss by CONNECT, TLS from end to end", func(t *testing.T) {
		p := newConnectProxy(t, secure.Listener.Addr().String(), false)
		s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{
			URL: "wss://example.com/v1/tunnel", Header: header, TLS: secure.trust(), Proxy: proxyAt(t, "http", "", p.Listener.Addr().String()),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		streamOf(t, receive(t, secure.sessions, "the session"), s)
		if got := fmt.Sprint(p.requests()); got != "[CONNECT example.com:443 ]" {
			t.Errorf("the proxy saw %s", got)
		}
	})
	t.Run("by SOCKS", func(t *testing.T) {
		addr, asked := newSOCKS(t, plain.Listener.Addr().String())
		s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{
			URL: "ws://hub.example:8080/v1/tunnel", Proxy: proxyAt(t, "socks5", "", addr),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		streamOf(t, plain.next(t), s)
		if got := receive(t, asked, "the proxy's request"); got != "hub.example:8080" {
			t.Errorf("the proxy was asked for %s", got)
		}
	})
	t.Run("and names the proxy, not its password, when that fails", func(t *testing.T) {
		p := newConnectProxy(t, "127.0.0.1:1", false)
		bad := newConnectProxy(t, "127.0.0.1:1", true) // a certificate that nobody trusts
		bad.Config.ErrorLog = quietLog()
		for name, f := range map[string]func(*http.Request) (*url.URL, error){
			"407":              proxyAt(t, "http", "me:wrong@", p.Listener.Addr().String()),
			"502":              proxyAt(t, "http", "me:right@", p.Listener.Addr().String()),
			"tls handshake":    proxyAt(t, "https", "me:right@", bad.Listener.Addr().String()),
			"connection refus": proxyAt(t, "http", "me:right@", "127.0.0.1:1"),
			"socks connect":    proxyAt(t, "socks5", "me:right@", "127.0.0.1:1"),
			"scheme":           proxyAt(t, "gopher", "me:right@", "127.0.0.1:1"),
			"no idea":          func(*http.Request) (*url.URL, error) { return nil, errors.New("no idea") },
		} {
			_, err := tunnel.Dial(t.Context(), tunnel.DialConfig{URL: "wss://hub.example/", Proxy: f})
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "proxy") {
				t.Errorf("%s: the error is %v", name, err)
			}
			if err != nil && (strings.Contains(err.Error(), "right") || strings.Contains(err.Error(), "wrong")) {
				t.Errorf("the error %v shows the password", err)
			}
			if tunnel.IsPermanent(err) {
				t.Errorf("%v is taken for permanent", err)
			}
		}
	})
}

func TestTheEnvironmentChoosesTheProxy(t *testing.T) {
	t.Parallel() // it mostly waits
	// In a process of its own: net/http reads the environment once.
	h := newTLSHub(t, tunnel.Config{})
	p := newConnectProxy(t, h.Listener.Addr().String(), false)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childEnv+"=dial", "TUNNEL_TEST_URL=wss://hub.example/v1/tunnel",
		"HTTPS_PROXY=http://"+p.Listener.Addr().String(), "NO_PROXY=", "no_proxy=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the child: %v\n%s", err, out)
	}
	if got := fmt.Sprint(p.requests()); got != "[CONNECT hub.example:443 ]" {
		t.Errorf("the proxy saw %s", got)
	}
}

// childDial opens a tunnel the way that the environment says.
func childDial() int {
	s, err := tunnel.Dial(context.Background(), tunnel.DialConfig{
		URL: os.Getenv("TUNNEL_TEST_URL"),
		TLS: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the test is about the way there
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	_ = s.Close()
	return 0
}

// newSOCKS is a SOCKS5 proxy (RFC 1928) for one connection without a password.
func newSOCKS(t *testing.T, to string) (addr string, asked <-chan string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		in, err := ln.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		r := bufio.NewReader(in)
		head := make([]byte, 2)
		_, _ = io.ReadFull(r, head)
		_, _ = io.CopyN(io.Discard, r, int64(head[1]))
		_, _ = in.Write([]byte{5, 0})
		req := make([]byte, 5) // version, command, reserved, a name, its length
		_, _ = io.ReadFull(r, req)
		rest := make([]byte, int(req[4])+2)
		_, _ = io.ReadFull(r, rest)
		target <- fmt.Sprintf("%s:%d", rest[:req[4]], int(rest[len(rest)-2])<<8|int(rest[len(rest)-1]))
		out, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer out.Close()
		_, _ = in.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		wg.Go(func() { _, _ = io.Copy(out, r); _ = out.Close() })
		_, _ = io.Copy(in, out)
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return ln.Addr().String(), target
}

// onlyUnwrap is a response writer of middleware that knows Unwrap but not Hijack.
type onlyUnwrap struct{ inner http.ResponseWriter }

func (o onlyUnwrap) Header() http.Header         { return o.inner.Header() }
func (o onlyUnwrap) Write(b []byte) (int, error) { return o.inner.Write(b) }
func (o onlyUnwrap) WriteHeader(code int)        { o.inner.WriteHeader(code) }
func (o onlyUnwrap) Unwrap() http.ResponseWriter { return o.inner }

func TestAcceptWorksBehindMiddleware(t *testing.T) {
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"that offers Unwrap only": func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(onlyUnwrap{onlyUnwrap{w}}, r) })
		},
		"of chi": func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(middleware.NewWrapResponseWriter(w, r.ProtoMajor), r)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, tunnel.Config{}, wrap)
			nodeSide := dial(t, h.URL, tunnel.Config{})
			streamOf(t, h.next(t), nodeSide)
		})
	}
}

func TestAcceptAnswersWhatIsNoTunnel(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	web := "http" + strings.TrimPrefix(h.URL, "ws")
	for name, tt := range map[string]struct {
		header http.Header
		status int
		body   string
	}{
		"a browser's visit":         {nil, 400, `"code":"bad_request"`},
		"another WebSocket":         {http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, 400, `"code":"unsupported_version"`},
		"an upgrade without a key":  {http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"x, mesh-tunnel.v1"}}, 400, ""},
		"a page of another address": {http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {tunnel.Subprotocol}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Origin": {"https://evil.example"}}, 403, ""},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(within(t), http.MethodGet, web, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range tt.header {
				req.Header[k] = v
			}
			resp, err := h.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.status || !strings.Contains(string(b), tt.body) {
				t.Errorf("the answer is %d %s", resp.StatusCode, b)
			}
		})
	}
	t.Run("a bad configuration of its own", func(t *testing.T) {
		w := httptest.NewRecorder()
		if _, err := tunnel.Accept(w, httptest.NewRequest(http.MethodGet, "/", nil), tunnel.Config{Window: 1}); err == nil || w.Code != 500 {
			t.Errorf("got %v and %d", err, w.Code)
		}
	})
}

// writeSizes is a connection that notes how large its writes are.
type writeSizes struct {
	net.Conn
	mu    sync.Mutex
	sizes []int
}

func (w *writeSizes) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.sizes = append(w.sizes, len(p))
	w.mu.Unlock()
	return w.Conn.Write(p)
}

func TestAFrameIsOneWrite(t *testing.T) {
	t.Run("of the node", func(t *testing.T) {
		var w *writeSizes
		h := newHub(t, tunnel.Config{}, nil)
		s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{
			URL: h.URL, Proxy: noProxy, Config: tunnel.Config{Heartbeat: patience},
			NetDial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				w = &writeSizes{Conn: c}
				return w, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		checkWrites(t, w, s, h.next(t))
	})
	t.Run("of the hub", func(t *testing.T) {
		hijacked := make(chan *writeSizes, 1)
		h := newHub(t, tunnel.Config{Heartbeat: patience}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(spy{w, hijacked}, r) })
		})
		s := dial(t, h.URL, tunnel.Config{})
		checkWrites(t, receive(t, hijacked, "the connection"), h.next(t), s)
	})
}

// spy is a response writer whose hijacked connection notes its writes.
type spy struct {
	http.ResponseWriter
	hijacked chan *writeSizes
}

func (s spy) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(s.ResponseWriter).Hijack()
	w := &writeSizes{Conn: c}
	s.hijacked <- w
	return w, rw, err
}

func checkWrites(t *testing.T, w *writeSizes, from, to *tunnel.Session) {
	t.Helper()
	opener, acceptor := streamOf(t, from, to)
	// From nothing to a full frame, past every size of the library's own buffer and
	// of its headers.
	for _, size := range []int{1, 100, 125 - 12, 126 - 12, 4082, 4083, 4096, 8192, 65523 - 12, 65524} {
		w.mu.Lock()
		w.sizes = nil
		w.mu.Unlock()
		if _, err := opener.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, acceptor, int64(size)); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		whole := 0
		for _, n := range w.sizes {
			if n >= size+12+2 && n <= size+12+14 {
				whole++
			} else if n > 40 { // pings and window updates are smaller
				t.Errorf("%d bytes went out in writes of %v", size, w.sizes)
			}
		}
		if whole == 0 {
			t.Errorf("%d bytes went out in writes of %v", size, w.sizes)
		}
		w.mu.Unlock()
	}
}
