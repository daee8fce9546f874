package hub_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"opencode-mesh/auth/local"
	"opencode-mesh/protocol/api"
)

// browser is a client with cookies that finds every name at the hub.
type browser struct {
	t    *testing.T
	hc   *http.Client
	port string
}

func (b *box) browser() *browser {
	b.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	addr := strings.TrimPrefix(b.hub.URL(), "http://")
	_, port, _ := net.SplitHostPort(addr)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &browser{t: b.t, hc: &http.Client{Transport: tr, Jar: jar}, port: port}
}

// at is an origin below the domain.
func (b *browser) at(host string) string { return "http://" + host + ".mesh.test:" + b.port }

func (b *browser) do(method, url string, header ...string) (*http.Response, string) {
	b.t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.hc.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp, string(body)
}

// handover asks for a URL that lets a browser in.
func (b *box) handover(secret, node, service string) string {
	b.t.Helper()
	status, e, body := b.call(http.MethodPost, "/v1/nodes/"+node+"/services/"+service+"/handover", secret, nil)
	var h api.Handover
	if err := json.Unmarshal(body, &h); err != nil || status != http.StatusOK {
		b.t.Fatalf("%d %v %s", status, e, body)
	}
	return h.URL
}

// domained is a hub whose services have origins of their own, with two nodes that
// offer the services web and api.
func domained(t *testing.T) *box {
	t.Helper()
	cfg := config(t.TempDir())
	cfg.ServiceDomain = "mesh.test"
	b := start(t, cfg)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			fmt.Fprint(w, "begun\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "own", Value: "1", Path: "/"})
		http.SetCookie(w, &http.Cookie{Name: "wide", Value: "1", Domain: "mesh.test"})
		http.SetCookie(w, &http.Cookie{Name: "mesh_service", Value: "forged"})
		w.Header().Set("Content-Security-Policy", "default-src 'self'")
		fmt.Fprintf(w, "%s %s %s cookies %v auth %q", r.Method, r.Host, r.RequestURI, r.Header["Cookie"], r.Header.Get("Authorization"))
	}))
	t.Cleanup(srv.Close)
	for _, name := range []string{"alpha", "beta"} {
		b.offering(name, srv.Listener.Addr().String(), webService, api.Service{Name: "api", Kind: api.ServiceHTTP}, api.Service{Name: "db", Kind: api.ServiceTCP})
	}
	return b
}

func TestABrowserUsesAServiceAtItsOwnOrigin(t *testing.T) {
	b := domained(t)
	br := b.browser()
	desk := b.enroll("login", "desk")
	web := br.at("web.alpha")
	if resp, body := br.do("GET", web+"/"); resp.StatusCode != 401 || !strings.Contains(body, "handover") {
		t.Fatalf("uninvited: %d %s", resp.StatusCode, body)
	}
	invited := b.handover(desk, "alpha", "web")
	if !strings.HasPrefix(invited, web+"/") {
		t.Fatalf("the URL is %s", invited)
	}
	resp, body := br.do("GET", invited)
	if resp.StatusCode != 200 || !strings.Contains(body, `url=/"`) || resp.Header.Get("Cache-Control") != "no-store" || resp.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	if c := resp.Header.Get("Set-Cookie"); !strings.Contains(c, "HttpOnly") || !strings.Contains(c, "SameSite=Strict") || strings.Contains(c, "Domain") || strings.Contains(invited, strings.SplitN(strings.SplitN(c, "=", 2)[1], ";", 2)[0]) {
		t.Errorf("cookie %s", c)
	}
	t.Run("at the root, byte for byte, with its own headers and cookies", func(t *testing.T) {
		for range 2 {
			resp, body := br.do("GET", web+"/a%2Fb/../c?x=%zz", "Authorization", "Own x")
			if !strings.HasPrefix(body, "GET web.alpha.mesh.test:"+br.port+" /a%2Fb/../c?x=%zz ") || !strings.HasSuffix(body, `auth "Own x"`) || strings.Contains(body, "mesh_") {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if c := resp.Header["Set-Cookie"]; len(c) != 1 || c[0] != "own=1; Path=/" || resp.Header.Get("Content-Security-Policy") != "default-src 'self'" {
				t.Errorf("%v", resp.Header)
			}
		}
		if _, body := br.do("GET", web+"/"); !strings.Contains(body, "cookies [own=1]") {
			t.Errorf("its own cookie does not come back: %s", body)
		}
	})
	t.Run("the URL works once", func(t *testing.T) {
		if resp, body := b.browser().do("GET", invited); resp.StatusCode != 401 || len(resp.Cookies()) != 0 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("and only at its own place", func(t *testing.T) {
		for _, host := range []string{"api.alpha", "web.beta"} {
			u, _ := url.Parse(b.handover(desk, "alpha", "web"))
			if resp, body := br.do("GET", br.at(host)+u.RequestURI()); resp.StatusCode != 401 {
				t.Errorf("%s: %d %s", host, resp.StatusCode, body)
			}
		}
	})
	t.Run("the cookie is none of the hub's, and none of another service's", func(t *testing.T) {
		cookie := ""
		u, _ := url.Parse(web)
		for _, c := range br.hc.Jar.Cookies(u) {
			cookie += c.Name + "=" + c.Value + "; "
		}
		for _, to := range []string{b.hub.URL() + webPath, b.hub.URL() + "/v1/nodes", br.at("api.alpha") + "/", br.at("web.beta") + "/"} {
			if resp, body := br.do("GET", to, "Cookie", cookie); resp.StatusCode != 401 {
				t.Errorf("%s: %d %s", to, resp.StatusCode, body)
			}
		}
	})
	t.Run("programs use the origin with their credential", func(t *testing.T) {
		if _, body := b.browser().do("POST", web+"/x", "Mesh-Authorization", "Bearer "+desk); !strings.HasPrefix(body, "POST ") {
			t.Errorf("got %s", body)
		}
		if resp, _ := b.browser().do("GET", web+"/", "Authorization", "Bearer "+desk); resp.StatusCode != 401 {
			t.Errorf("Authorization, which is the service's, let it in: %d", resp.StatusCode)
		}
	})
}

func TestARequestThatAnotherOriginCausedIsRefused(t *testing.T) {
	b := domained(t)
	br := b.browser()
	br.do("GET", b.handover(b.enroll("login", "desk"), "alpha", "web"))
	web := br.at("web.alpha")
	for _, c := range []struct {
		what   string
		method string
		header []string
		ok     bool
	}{
		{"a page's own GET", "GET", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}, true},
		{"its POST", "POST", []string{"Origin", web, "Sec-Fetch-Site", "same-origin"}, true},
		{"in other case", "POST", []string{"Origin", strings.ToUpper(web)}, true},
		{"an address that was typed", "GET", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, true},
		{"a link on a neighbour's page", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, true},
		{"a POST that does not say", "POST", nil, false},
		{"a DELETE that does not say", "DELETE", nil, false},
		{"a neighbour's POST", "POST", []string{"Origin", br.at("web.beta"), "Sec-Fetch-Site", "same-site"}, false},
		{"another port's", "POST", []string{"Origin", "http://web.alpha.mesh.test:1"}, false},
		{"another scheme's", "POST", []string{"Origin", strings.Replace(web, "http", "https", 1)}, false},
		{"an origin that is none", "POST", []string{"Origin", "null"}, false},
		{"a neighbour's GET with CORS", "GET", []string{"Origin", br.at("web.beta")}, false},
		{"a neighbour's picture", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, false},
		{"a neighbour's frame", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, false},
		{"a neighbour's form", "POST", []string{"Origin", br.at("web.beta"), "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, false},
		{"a WebSocket that does not say", "GET", []string{"Connection", "Upgrade", "Upgrade", "websocket"}, false},
		{"a neighbour's WebSocket", "GET", []string{"Connection", "Upgrade", "Upgrade", "websocket", "Origin", br.at("web.beta")}, false},
		{"its own WebSocket", "GET", []string{"Connection", "Upgrade", "Upgrade", "websocket", "Origin", web}, true},
	} {
		if resp, body := br.do(c.method, web+"/x", c.header...); (resp.StatusCode == 200) != c.ok || !c.ok && resp.StatusCode != 403 {
			t.Errorf("%s: %d %s", c.what, resp.StatusCode, body)
		}
	}
}

func TestAVisitEndsWithItsIdentityAndWithThePassword(t *testing.T) {
	for name, end := range map[string]func(b *box, op string){
		"its identity is revoked": func(b *box, op string) { b.revoke(op, "desk") },
		"the password changes": func(b *box, _ string) {
			admin := local.Client(b.dir)
			defer admin.CloseIdleConnections()
			resp, err := admin.Post("http://local/v1/passwd", "application/json", strings.NewReader(`{"password":"another password"}`))
			if err != nil || resp.StatusCode != http.StatusNoContent {
				b.t.Fatal(resp, err)
			}
			_ = resp.Body.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := domained(t)
			br := b.browser()
			op, desk := b.enroll("login", "boss", operator), b.enroll("login", "desk")
			br.do("GET", b.handover(desk, "alpha", "web"))
			waiting := b.handover(desk, "alpha", "web")
			req, _ := http.NewRequest("GET", br.at("web.alpha")+"/wait", nil)
			resp, err := br.hc.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			r := bufio.NewReader(resp.Body)
			if line, err := r.ReadString('\n'); line != "begun\n" {
				t.Fatalf("%q %v", line, err)
			}
			end(b, op)
			if _, err := r.ReadByte(); err == nil || err == io.EOF {
				t.Errorf("what was open ended with %v", err)
			}
			if resp, _ := br.do("GET", br.at("web.alpha")+"/"); resp.StatusCode != 401 {
				t.Errorf("the cookie still works: %d", resp.StatusCode)
			}
			if resp, _ := br.do("GET", waiting); resp.StatusCode != 401 {
				t.Errorf("the URL still works: %d", resp.StatusCode)
			}
		})
	}
}

func TestNamesBelowTheDomainAreServicesOrNothing(t *testing.T) {
	b := domained(t)
	br := b.browser()
	desk := b.enroll("login", "desk")
	for host, status := range map[string]int{
		"alpha": 404, "x.web.alpha": 404, "web.-alpha": 404, "WEB.Alpha": 200, "web.delta": 404, "none.alpha": 404, "db.alpha": 400,
	} {
		if resp, body := br.do("GET", br.at(host)+"/", "Mesh-Authorization", "Bearer "+desk); resp.StatusCode != status {
			t.Errorf("%s: %d %s", host, resp.StatusCode, body)
		}
		if resp, body := br.do("GET", br.at(host)+"/v1/whoami", "Authorization", "Bearer "+desk); resp.StatusCode == 200 {
			t.Errorf("%s is the hub: %s", host, body)
		}
	}
	for path, code := range map[string]api.Code{"alpha/services/db": api.CodeBadRequest, "alpha/services/none": api.CodeNotFound, "gamma/services/web": api.CodeUnknownTarget} {
		status, e, _ := b.call(http.MethodPost, "/v1/nodes/"+path+"/handover", desk, nil)
		want(t, status, e, code.Status(), code)
	}
	t.Run("without a domain the path is the service's own", func(t *testing.T) {
		b := start(t, config(t.TempDir()))
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Method, r.URL.Path) }))
		defer srv.Close()
		b.offering("beta", srv.Listener.Addr().String(), webService)
		if _, _, body := b.call(http.MethodPost, "/v1/nodes/beta/services/web/handover", b.enroll("login", "desk"), nil); string(body) != "POST/handover" {
			t.Errorf("got %s", body)
		}
	})
	for _, domain := range []string{"Mesh.test", "mesh.test:80", "*.mesh.test", ".mesh.test", "mesh..test", "-a.test", "http://mesh.test"} {
		cfg := config(t.TempDir())
		cfg.ServiceDomain = domain
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "--service-domain") {
			t.Errorf("%s: %v", domain, err)
		}
	}
}
