package gate_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/access"
	"opencode-mesh/hub/gate"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/bolt"
)

const password = "correct horse"

// newGate is one on a real store.
func newGate(t *testing.T, opts ...func(*gate.Config)) *gate.Gate {
	t.Helper()
	st, err := bolt.Open(bolt.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	verifier, err := auth.NewVerifier(auth.VerifierConfig{Check: func(_, pw string) (bool, error) { return pw == password, nil }})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := auth.NewLimiter(auth.LimiterConfig{PerAddress: 1000, PerName: 1000})
	if err != nil {
		t.Fatal(err)
	}
	acc := access.New(access.Config{Store: st, Verifier: verifier, Limiter: limiter, Now: time.Now, Log: slog.New(slog.DiscardHandler), Failed: func(string) {}})
	if err := acc.SetPassword(context.Background(), password); err != nil {
		t.Fatal(err)
	}
	cfg := gate.Config{Access: acc, Names: []string{"box.lan"}}
	for _, o := range opts {
		o(&cfg)
	}
	return gate.New(cfg)
}

// request is one of a browser to a URL; header pairs follow.
func request(method, url string, header ...string) *http.Request {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// login returns the cookie that a login leaves.
func login(t *testing.T, g *gate.Gate, url string, header ...string) *http.Cookie {
	t.Helper()
	r := request(http.MethodPost, url+"/login", append(header, "Sec-Fetch-Site", "same-origin")...)
	w := httptest.NewRecorder()
	if err := g.Login(w, r, "dashboard", password); err != nil {
		t.Fatalf("login at %s: %v", url, err)
	}
	cookies := w.Result().Cookies()
	if len(cookies) != 1 {
		t.Fatalf("%d cookies", len(cookies))
	}
	return cookies[0]
}

func TestACookieCountsInRequestsOfTheHubsOwnPagesOnly(t *testing.T) {
	g := newGate(t)
	const own = "https://box.lan:8443"
	cookie := login(t, g, own)
	for _, c := range []struct {
		name, method, url string
		header            []string
		ok                bool
	}{
		{"a page's own GET", "GET", own, []string{"Sec-Fetch-Site", "same-origin"}, true},
		{"a typed address", "GET", own, []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, true},
		{"an old browser's GET", "GET", own, nil, true},
		{"a link elsewhere", "GET", own, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, true},
		{"its POST", "POST", own, []string{"Origin", own}, true},
		{"its POST in capitals", "POST", own, []string{"Origin", "HTTPS://BOX.lan:8443"}, true},
		{"its POST without Origin", "POST", own, []string{"Sec-Fetch-Site", "same-origin"}, true},
		{"its DELETE", "DELETE", own, []string{"Origin", own}, true},

		{"a POST that says nothing", "POST", own, nil, false},
		{"a POST typed by nobody", "POST", own, []string{"Sec-Fetch-Site", "none"}, false},
		{"the same host by http", "POST", own, []string{"Origin", "http://box.lan:8443"}, false},
		{"another port", "POST", own, []string{"Origin", "https://box.lan:8444"}, false},
		{"no port", "POST", own, []string{"Origin", "https://box.lan"}, false},
		{"another host", "POST", own, []string{"Origin", "https://evil.example"}, false},
		{"a host that ends alike", "POST", own, []string{"Origin", "https://evil-box.lan:8443"}, false},
		{"a host that begins alike", "POST", own, []string{"Origin", own + ".evil.example"}, false},
		{"no origin of its own", "POST", own, []string{"Origin", "null"}, false},
		{"a lie about the site", "POST", own, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "same-origin"}, false},
		{"the right origin from elsewhere", "POST", own, []string{"Origin", own, "Sec-Fetch-Site", "cross-site"}, false},
		{"a neighbour's GET", "GET", own, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, false},
		{"a neighbour's picture", "GET", own, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, false},
		{"a neighbour's frame", "GET", own, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, false},
		{"a neighbour's WebSocket", "GET", own, []string{"Origin", "https://evil.example", "Upgrade", "websocket", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "websocket"}, false},
		{"a WebSocket that says nothing", "GET", own, []string{"Upgrade", "websocket"}, false},
		{"a GET with a foreign Origin", "GET", own, []string{"Origin", "https://evil.example"}, false},

		{"a name that was pointed here", "GET", "https://evil.example", nil, false},
		{"the same with its own Origin", "POST", "https://evil.example:8443", []string{"Origin", "https://evil.example:8443"}, false},
		{"an address", "GET", "https://192.0.2.7:8443", nil, true},
		{"an address of IPv6", "GET", "https://[::1]:8443", nil, true},
		{"localhost", "GET", "https://localhost", nil, true},
		{"a name that was given", "GET", "https://box.lan", nil, true},
		{"the same with a dot", "GET", "https://box.lan.", nil, true},
		{"a name below localhost's", "GET", "https://localhost.evil.example", nil, false},
		{"a name above one that was given", "GET", "https://lan", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(c.method, c.url, c.header...)
			r.AddCookie(cookie)
			p, err := g.Principal(r)
			switch {
			case c.ok && (err != nil || !p.Operator()):
				t.Errorf("refused: %v", err)
			case !c.ok && api.ErrorCode(err) != api.CodeForbidden:
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTheCookieIsAsStrictAsTheConnectionAllows(t *testing.T) {
	proxy := netip.MustParsePrefix("192.0.2.0/24") // where httptest's requests come from
	for _, c := range []struct {
		name, url string
		set       func(*gate.Config)
		header    []string
		secure    bool
	}{
		{"TLS", "https://box.lan", nil, nil, true},
		{"plain", "http://127.0.0.1:8443", nil, nil, false},
		{"a stranger's word of TLS", "http://127.0.0.1:8443", nil, []string{"X-Forwarded-Proto", "https"}, false},
		{"a trusted proxy's", "http://box.lan", func(c *gate.Config) { c.TrustedProxies = []netip.Prefix{proxy} }, []string{"X-Forwarded-Proto", "https"}, true},
		{"what a client told the proxy", "http://box.lan", func(c *gate.Config) { c.TrustedProxies = []netip.Prefix{proxy} }, []string{"X-Forwarded-Proto", "https, http"}, false},
		{"a public URL", "http://mesh.example", func(c *gate.Config) { c.PublicURL = "https://mesh.example" }, nil, true},
		{"beside a public URL", "http://box.lan", func(c *gate.Config) { c.PublicURL = "https://mesh.example" }, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := c.set
			if set == nil {
				set = func(*gate.Config) {}
			}
			got := login(t, newGate(t, set), c.url, c.header...)
			if got.Secure != c.secure || strings.HasPrefix(got.Name, "__Host-") != c.secure {
				t.Errorf("%+v", got)
			}
			if !got.HttpOnly || got.SameSite != http.SameSiteStrictMode || got.Path != "/" || got.Domain != "" || got.MaxAge != int(access.BrowserLimit/time.Second) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestBehindAProxyTheOriginIsWhatTheBrowserSees(t *testing.T) {
	trust := func(c *gate.Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }
	public := func(c *gate.Config) { c.PublicURL = "https://mesh.example" }
	for _, c := range []struct {
		name   string
		opts   []func(*gate.Config)
		url    string
		header []string
		ok     bool
	}{
		{"a proxy that tells all", []func(*gate.Config){trust}, "http://upstream:1", []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "box.lan", "Origin", "https://box.lan"}, true},
		{"a proxy that keeps the name", []func(*gate.Config){trust}, "http://box.lan", []string{"X-Forwarded-Proto", "https", "Origin", "https://box.lan"}, true},
		{"a foreign name told by it", []func(*gate.Config){trust}, "http://box.lan", []string{"X-Forwarded-Host", "evil.example", "Origin", "http://evil.example"}, false},
		{"a stranger that tells", nil, "http://upstream:1", []string{"X-Forwarded-Host", "box.lan", "Origin", "http://box.lan"}, false},
		{"a public URL that is known", []func(*gate.Config){public}, "http://127.0.0.1:8443", []string{"Origin", "https://mesh.example"}, true},
		{"another origin than the public one", []func(*gate.Config){public}, "http://127.0.0.1:8443", []string{"Origin", "https://mesh.example.evil.example"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := newGate(t, c.opts...).Own(request(http.MethodPost, c.url, c.header...))
			if (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestNobodyIsLoggedInByAnotherPage(t *testing.T) {
	g := newGate(t)
	w := httptest.NewRecorder()
	err := g.Login(w, request(http.MethodPost, "https://box.lan/login", "Origin", "https://evil.example"), "dashboard", password)
	if api.ErrorCode(err) != api.CodeForbidden || len(w.Result().Cookies()) != 0 {
		t.Errorf("got %v, %v", err, w.Result().Cookies())
	}
}

func TestLogoutTakesTheCookieAwayAndNeedsAPageOfTheHub(t *testing.T) {
	g := newGate(t)
	cookie := login(t, g, "https://box.lan")
	foreign := request(http.MethodPost, "https://box.lan/logout", "Origin", "https://evil.example")
	foreign.AddCookie(cookie)
	if err := g.Logout(httptest.NewRecorder(), foreign); api.ErrorCode(err) != api.CodeForbidden {
		t.Fatalf("from elsewhere: %v", err)
	}
	own := request(http.MethodPost, "https://box.lan/logout", "Origin", "https://box.lan")
	own.AddCookie(cookie)
	for range 2 { // who is out already gets the same answer
		w := httptest.NewRecorder()
		if err := g.Logout(w, own); err != nil {
			t.Fatal(err)
		}
		if got := w.Result().Cookies(); len(got) != 1 || got[0].MaxAge >= 0 || got[0].Name != cookie.Name {
			t.Errorf("cookies: %v", got)
		}
	}
	if _, err := g.Principal(own); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("afterwards: %v", err)
	}
}

func TestACookieOfPlainHTTPIsNoneOverTLS(t *testing.T) {
	g := newGate(t)
	plain := login(t, g, "http://127.0.0.1:8443")
	r := request(http.MethodGet, "https://127.0.0.1:8443/")
	r.AddCookie(plain) // a neighbour in the network can set one without the prefix
	if _, err := g.Principal(r); api.ErrorCode(err) != api.CodeUnauthorized {
		t.Errorf("got %v", err)
	}
}

func TestANeighboursCookieOfTheSameNameHidesNoSession(t *testing.T) {
	g := newGate(t)
	const own = "http://127.0.0.1:8443"
	cookie := login(t, g, own)
	r := request(http.MethodGet, own)
	r.Header.Set("Cookie", cookie.Name+"=neighbour; "+cookie.Name+"="+strings.Repeat("A", len(cookie.Value))+"; "+cookie.Name+"="+cookie.Value)
	if p, err := g.Principal(r); err != nil || !p.Operator() {
		t.Errorf("refused: %v", err)
	}
}

func TestLoggingInAgainEndsTheBrowsersOlderSession(t *testing.T) {
	g := newGate(t)
	const own = "https://box.lan"
	old, other := login(t, g, own), login(t, g, own)
	fresh := login(t, g, own, "Cookie", old.Name+"="+old.Value)
	for cookie, ok := range map[*http.Cookie]bool{old: false, other: true, fresh: true} {
		r := request(http.MethodGet, own)
		r.AddCookie(cookie)
		if _, err := g.Principal(r); (err == nil) != ok {
			t.Errorf("old %v, other %v: %v", cookie == old, cookie == other, err)
		}
	}
}
