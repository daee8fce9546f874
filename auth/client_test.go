package auth_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
)

// fakeHub is a TLS server on loopback with an identity of its own.
type fakeHub struct {
	*httptest.Server
	id       *auth.TLSIdentity
	dir      string
	machine  *machine
	requests atomic.Int64
}

func newHub(t *testing.T, handler http.HandlerFunc) *fakeHub {
	t.Helper()
	h := &fakeHub{dir: t.TempDir(), machine: newMachine()}
	h.machine.now = time.Now()
	h.id = must(auth.LoadOrCreateTLS(h.dir, h.machine.options()))(t)
	h.start(t, must(net.Listen("tcp", "127.0.0.1:0"))(t), handler)
	return h
}

// start serves on l, which becomes TLS, until the test ends.
func (h *fakeHub) start(t *testing.T, l net.Listener, handler http.HandlerFunc) {
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.requests.Add(1)
		handler(w, r)
	}))
	h.Listener.Close()
	h.Listener = tls.NewListener(l, h.id.TLSConfig())
	h.Config.ErrorLog = quiet
	h.Start()
	t.Cleanup(h.Close)
}

func (h *fakeHub) address() string { return h.Listener.Addr().String() }

func (h *fakeHub) link(t *testing.T) auth.Link {
	t.Helper()
	return must(auth.ParseLink("mesh://" + h.address() + "?pin=sha256:" + h.id.Pin()))(t)
}

// wrongLink is a link to the hub with the pin of another key.
func (h *fakeHub) wrongLink(t *testing.T) auth.Link {
	t.Helper()
	return must(auth.ParseLink("mesh://" + h.address() + pinQuery))(t)
}

func client(t *testing.T, l auth.Link, caFile string) *http.Client {
	t.Helper()
	hc := must(l.HTTPClient(caFile))(t)
	t.Cleanup(hc.CloseIdleConnections)
	return hc
}

// get returns the body at path of the hub of l.
func get(t *testing.T, hc *http.Client, l auth.Link, path string) (string, error) {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), http.MethodGet, l.BaseURL()+path, nil))(t)
	r.Header.Set("Authorization", "Bearer "+hidden)
	resp, err := hc.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	return string(must(io.ReadAll(resp.Body))(t)), nil
}

func wantPinMismatch(t *testing.T, err error, l auth.Link, got string) {
	t.Helper()
	var e *auth.PinMismatchError
	if !errors.Is(err, auth.ErrPinMismatch) || !errors.As(err, &e) {
		t.Fatalf("got %v, want ErrPinMismatch", err)
	}
	if e.Want != l.Pin || e.Got != got {
		t.Errorf("it names %s and %s, want %s and %s", e.Want, e.Got, l.Pin, got)
	}
}

func hello(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto+" "+r.URL.Path) }

func TestPinnedLinkReachesItsHub(t *testing.T) {
	h := newHub(t, hello)
	if body := must(get(t, client(t, h.link(t), ""), h.link(t), "/x"))(t); body != "HTTP/1.1 /x" {
		t.Errorf("got %q", body)
	}
}

func TestPinMismatchIsItsOwnErrorAndNothingIsSent(t *testing.T) {
	h := newHub(t, hello)
	l := h.wrongLink(t)
	_, err := get(t, client(t, l, ""), l, "/x")
	wantPinMismatch(t, err, l, h.id.Pin())
	var wrapped *url.Error
	if !errors.As(err, &wrapped) {
		t.Errorf("%T is not what net/http returns; the test shows nothing", err)
	}
	if n := h.requests.Load(); n != 0 {
		t.Errorf("%d requests reached the wrong hub", n)
	}
	wantHidden(t, "the error", err.Error())
}

func TestPinIsCheckedOnResumedSessionsToo(t *testing.T) {
	for version, name := range map[uint16]string{tls.VersionTLS12: "TLS 1.2", tls.VersionTLS13: "TLS 1.3"} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, hello)
			good, wrong := must(h.link(t).TLSConfig(""))(t), must(h.wrongLink(t).TLSConfig(""))(t)
			wrong.ClientSessionCache = good.ClientSessionCache
			good.MaxVersion, wrong.MaxVersion = version, version

			// talk makes a connection and reads an answer, with which tickets come.
			talk := func(cfg *tls.Config) (resumed bool, err error) {
				c, err := tls.Dial("tcp", h.address(), cfg)
				if err != nil {
					return false, err
				}
				defer c.Close()
				if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
					return false, err
				}
				_, err = io.ReadAll(c)
				return c.ConnectionState().DidResume, err
			}
			if resumed := must(talk(good))(t); resumed {
				t.Fatal("the first connection was a resumed one")
			}
			if resumed := must(talk(good))(t); !resumed {
				t.Fatal("the second connection was not resumed; the test shows nothing")
			}
			before := h.requests.Load()
			_, err := talk(wrong)
			wantPinMismatch(t, err, h.wrongLink(t), h.id.Pin())
			if h.requests.Load() != before {
				t.Error("a request was sent")
			}
		})
	}
}

func TestHubWithANewKeyIsNotTalkedTo(t *testing.T) {
	h := newHub(t, hello)
	l, address := h.link(t), h.address()
	hc := client(t, l, "")
	must(get(t, hc, l, "/"))(t)
	h.Close()

	other := &fakeHub{dir: t.TempDir()}
	other.id = must(auth.LoadOrCreateTLS(other.dir, newMachine().options()))(t)
	other.start(t, must(net.Listen("tcp", address))(t), hello)
	_, err := get(t, hc, l, "/")
	wantPinMismatch(t, err, l, other.id.Pin())
	if other.requests.Load() != 0 {
		t.Error("a request was sent")
	}
}

func TestPinnedClientDoesNotMindANewLeaf(t *testing.T) {
	h := newHub(t, hello)
	hc := client(t, h.link(t), "")
	must(get(t, hc, h.link(t), "/"))(t)
	before := leafOf(t, h.id)
	h.machine.set(func(m *machine) {
		m.now, m.hostname, m.addresses = m.now.Add(400*24*time.Hour), "renamed", nil
	})
	hc.CloseIdleConnections()
	must(get(t, hc, h.link(t), "/"))(t)
	if leafOf(t, h.id).Equal(before) {
		t.Error("the leaf is the old one; the test shows nothing")
	}
}

func TestTrustedLinkVerifiesTheCertificate(t *testing.T) {
	h := newHub(t, hello)
	l := must(auth.ParseLink("https://" + h.address()))(t)
	cert := filepath.Join(h.dir, auth.TLSCertFile)
	if body := must(get(t, client(t, l, cert), l, "/x"))(t); body != "HTTP/1.1 /x" {
		t.Errorf("got %q", body)
	}
	for name, caFile := range map[string]string{
		"the system's authorities": "",
		"another authority":        filepath.Join(newHub(t, hello).dir, auth.TLSCertFile),
	} {
		_, err := get(t, client(t, l, caFile), l, "/")
		var bad *tls.CertificateVerificationError
		if !errors.As(err, &bad) {
			t.Errorf("%s: got %v, want a verification error", name, err)
		}
		if errors.Is(err, auth.ErrPinMismatch) {
			t.Errorf("%s: a pin mismatch without a pin", name)
		}
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	write(t, empty, []byte("nothing"))
	for _, caFile := range []string{empty, filepath.Join(h.dir, "none"), h.dir} {
		if _, err := l.HTTPClient(caFile); err == nil || !strings.Contains(err.Error(), caFile) {
			t.Errorf("certificate file %s gives %v", caFile, err)
		}
	}
}

func TestCAFileThatWouldNotBeUsedIsRefused(t *testing.T) {
	for _, s := range []string{"mesh://hub:1" + pinQuery, "mesh+plain://hub:1"} {
		l := must(auth.ParseLink(s))(t)
		if _, err := l.TLSConfig("ca.pem"); err == nil || !strings.Contains(err.Error(), "https:// link only") {
			t.Errorf("%s: got %v", s, err)
		}
	}
	for _, l := range []auth.Link{{}, {Scheme: auth.SchemePinned, Host: "hub", Port: 1}} {
		if _, err := l.HTTPClient(""); !errors.Is(err, auth.ErrBadLink) {
			t.Errorf("%+v: got %v, want ErrBadLink", l, err)
		}
	}
}

func TestPlainLinkUsesNoTLS(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(hello))
	defer srv.Close()
	l := must(auth.ParseLink("mesh+plain://" + srv.Listener.Addr().String()))(t)
	if cfg := must(l.TLSConfig(""))(t); cfg != nil {
		t.Error("it has a TLS configuration")
	}
	if body := must(get(t, client(t, l, ""), l, "/x"))(t); body != "HTTP/1.1 /x" {
		t.Errorf("got %q", body)
	}
}

func TestRedirectsStayAtTheHub(t *testing.T) {
	var foreign atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { foreign.Add(1) }))
	defer other.Close()
	var h *fakeHub
	h = newHub(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/local":
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/downgrade":
			http.Redirect(w, r, "http://"+h.address()+"/", http.StatusTemporaryRedirect)
		case "/foreign":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		default:
			hello(w, r)
		}
	})
	l := h.link(t)
	hc := client(t, l, "")
	if body := must(get(t, hc, l, "/local"))(t); body != "HTTP/1.1 /there" {
		t.Errorf("a redirect within the hub gives %q", body)
	}
	for _, path := range []string{"/foreign", "/downgrade"} {
		_, err := get(t, hc, l, path)
		if !errors.Is(err, auth.ErrForeignRedirect) {
			t.Errorf("%s: got %v, want ErrForeignRedirect", path, err)
		}
		if err != nil {
			wantHidden(t, "the error", err.Error())
		}
	}
	if foreign.Load() != 0 {
		t.Error("the other host was asked")
	}
	if _, err := get(t, hc, l, "/loop"); err == nil {
		t.Error("an endless redirect ended well")
	}
	if n := h.requests.Load(); n > 12 {
		t.Errorf("%d requests, so the loop was followed for long", n)
	}
}

func TestClientWaitsForNothingWithoutABound(t *testing.T) {
	tr, ok := must(must(auth.ParseLink("https://hub"))(t).HTTPClient(""))(t).Transport.(*http.Transport)
	if !ok || tr.TLSHandshakeTimeout <= 0 || tr.IdleConnTimeout <= 0 || tr.MaxResponseHeaderBytes <= 0 {
		t.Errorf("a bound is missing: %+v", tr)
	}
	if tr.ResponseHeaderTimeout <= api.MaxWait {
		t.Errorf("a long poll of %v would fail after %v", api.MaxWait, tr.ResponseHeaderTimeout)
	}
}

// connectProxy passes every CONNECT on to target and writes down what was asked.
type connectProxy struct {
	target string
	piping sync.WaitGroup

	mu    sync.Mutex // guards the following
	asked []string
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.mu.Unlock()
	up, err := net.Dial("tcp", p.target)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusOK)
	down, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		up.Close()
		return
	}
	pipe := func(to net.Conn, from io.Reader) {
		_, _ = io.Copy(to, from)
		up.Close()
		down.Close()
	}
	p.piping.Go(func() { pipe(up, rw) })
	p.piping.Go(func() { pipe(down, up) })
}

func TestClientHonoursHTTPSProxyAndPinsThroughIt(t *testing.T) {
	h := newHub(t, hello)
	proxy := &connectProxy{target: h.address()}
	srv := httptest.NewUnstartedServer(proxy)
	srv.Listener.Close()
	srv.Listener = proxyListener
	srv.Start()
	t.Cleanup(func() { // for the next run of this test in this process
		proxyListener = must(net.Listen("tcp", proxyListener.Addr().String()))(t)
	})
	t.Cleanup(proxy.piping.Wait)
	t.Cleanup(srv.Close)

	l := must(auth.ParseLink("mesh://hub.test:8443?pin=sha256:" + h.id.Pin()))(t)
	if body := must(get(t, client(t, l, ""), l, "/x"))(t); body != "HTTP/1.1 /x" {
		t.Errorf("got %q", body)
	}
	if len(proxy.asked) != 1 || proxy.asked[0] != "CONNECT hub.test:8443" {
		t.Errorf("the proxy was asked %q", proxy.asked)
	}
	wrong := must(auth.ParseLink("mesh://hub.test:8443" + pinQuery))(t)
	_, err := get(t, client(t, wrong, ""), wrong, "/x")
	wantPinMismatch(t, err, wrong, h.id.Pin())
}

func TestTLSProxyIsRefusedInWordsForPinnedLinks(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "https://hub:1/", nil)
	env := func(s string) func(*http.Request) (*url.URL, error) {
		return func(*http.Request) (*url.URL, error) { return url.Parse(s) }
	}
	pinned, trusted := must(auth.ParseLink("mesh://hub:1"+pinQuery))(t), must(auth.ParseLink("https://hub"))(t)
	if _, err := pinned.ProxyFrom(env("https://proxy:3128"))(r); err == nil || !strings.Contains(err.Error(), "HTTPS_PROXY") {
		t.Errorf("got %v", err)
	}
	for l, proxy := range map[auth.Link]string{pinned: "http://proxy:3128", trusted: "https://proxy:3128"} {
		if u := must(l.ProxyFrom(env(proxy))(r))(t); u.String() != proxy {
			t.Errorf("%v: proxy %v, want %s", l, u, proxy)
		}
	}
	none := func(*http.Request) (*url.URL, error) { return nil, nil }
	if u := must(pinned.ProxyFrom(none)(r))(t); u != nil {
		t.Errorf("got %v without a proxy", u)
	}
}

func TestOldTLSVersionsAreRefused(t *testing.T) {
	h := newHub(t, hello)
	cfg := must(h.link(t).TLSConfig(""))(t)
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if c, err := tls.Dial("tcp", h.address(), cfg); err == nil {
		c.Close()
		t.Error("the hub speaks TLS 1.1")
	}
	if must(h.link(t).TLSConfig(""))(t).MinVersion != tls.VersionTLS12 {
		t.Error("the client speaks TLS 1.1")
	}
}

func TestHubKeyDoesNotStandInItsCertificateFile(t *testing.T) {
	h := newHub(t, hello)
	if data := must(os.ReadFile(filepath.Join(h.dir, auth.TLSCertFile)))(t); bytes.Contains(data, []byte("PRIVATE")) {
		t.Error("tls.crt, which others may read, holds a private key")
	}
}
