package proxy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"opencode-mesh/hub/proxy"
	"opencode-mesh/protocol/api"
)

// seen is what an echo service got.
type seen struct {
	Host   string
	Header http.Header
}

// echo answers with what it got.
func echo(w http.ResponseWriter, r *http.Request) {
	_ = json.NewEncoder(w).Encode(seen{r.Host, r.Header})
}

func (b *bed) echoed(header ...string) seen {
	b.t.Helper()
	var s seen
	if err := json.Unmarshal([]byte(text(b.t, b.get("", header...))), &s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

func TestNothingOfTheMeshReachesAService(t *testing.T) {
	const secret = "hub-credential"
	sent := []string{
		"Authorization", "Bearer " + secret, "Mesh-Authorization", "Bearer " + secret, "Mesh-Task-Token", secret, "Mesh-Anything", secret,
		"Cookie", "mesh_session=" + secret + "; theme=dark", "Cookie", "__Host-mesh_service=" + secret, "Cookie", " MESH_x=" + secret + ";a=b ;__Secure-mesh_y=1",
		"Proxy-Authorization", secret,
	}
	for name, c := range map[string]struct {
		caller   proxy.Caller
		password string
		auth     string
	}{
		"the credential came in Authorization":         {caller: proxy.Caller{}},
		"it came apart, and so does the service's own": {caller: proxy.Caller{Apart: true}, auth: "Bearer " + secret},
		"the service has an origin of its own":         {caller: proxy.Caller{Hosted: true}, auth: "Bearer " + secret},
		"the hub knows the service's password":         {caller: proxy.Caller{}, password: "own", auth: "Basic bWU6b3du"},
		"and it wins over the client's":                {caller: proxy.Caller{Apart: true}, password: "own", auth: "Basic bWU6b3du"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, func(b *bed) {
				offers(api.Service{Name: "web", Kind: api.ServiceHTTP, Username: "me", Password: c.password}, b.serve(http.HandlerFunc(echo)))(b)
			})
			b.caller = c.caller
			got := b.echoed(sent...)
			if got.Header.Get("Authorization") != c.auth {
				t.Errorf("Authorization is %q", got.Header["Authorization"])
			}
			if want := []string{"theme=dark", "a=b"}; !reflect.DeepEqual(trimmed(got.Header["Cookie"]), want) {
				t.Errorf("cookies %q, want %q", got.Header["Cookie"], want)
			}
			got.Header.Del("Authorization")
			if all := fmt.Sprint(got.Header); strings.Contains(all, secret) || strings.Contains(all, "Mesh-") {
				t.Errorf("the service got %s", all)
			}
		})
	}
}

func trimmed(list []string) (out []string) {
	for _, s := range list {
		out = append(out, strings.TrimSpace(s))
	}
	return out
}

// TestHopByHopHeadersStayOnTheirHop has golang/go#50580 in it: a client that names a
// header of the proxy's in Connection.
func TestHopByHopHeadersStayOnTheirHop(t *testing.T) {
	b := newBed(t, func(b *bed) {
		// Raw, because a server of net/http has a mind of its own about Connection, and
		// without "close" beside the name, because then its client forgets the name.
		offers(api.Service{Name: "web", Kind: api.ServiceHTTP, Username: "me", Password: "own"}, raw(b.t, func(c net.Conn, r *bufio.Reader) {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nConnection: X-Answer-Hop\r\nX-Answer-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nProxy-Connection: close\r\n\r\n")
			_ = json.NewEncoder(c).Encode(seen{req.Host, req.Header}) // to the end of the connection
		}))(b)
	})
	resp := b.get("", "Connection", "Authorization, X-Forwarded-For, X-Hop, Mesh-Authorization", "X-Hop", "1", "Te", "gzip", "Keep-Alive", "1",
		"Proxy-Connection", "x", "Trailer", "X", "X-Kept", "yes")
	var got seen
	if err := json.Unmarshal([]byte(text(t, resp)), &got); err != nil {
		t.Fatal(err)
	}
	if got.Header.Get("Authorization") != "Basic bWU6b3du" || got.Header.Get("X-Forwarded-For") != "127.0.0.1" || got.Header.Get("X-Kept") != "yes" {
		t.Errorf("the service got %v", got.Header)
	}
	for _, name := range []string{"Connection", "X-Hop", "Te", "Keep-Alive", "Proxy-Connection", "Trailer"} {
		if got.Header.Get(name) != "" {
			t.Errorf("the service got %s: %s", name, got.Header.Get(name))
		}
	}
	for _, name := range []string{"X-Answer-Hop", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection"} {
		if resp.Header.Get(name) != "" {
			t.Errorf("the client got %s: %s", name, resp.Header.Get(name))
		}
	}
}

func TestForwardedHeadersSayWhatTheHubKnows(t *testing.T) {
	claims := []string{"X-Forwarded-For", "10.9.9.9", "X-Forwarded-Host", "claimed.example", "X-Forwarded-Proto", "https", "X-Real-Ip", "10.9.9.9", "Forwarded", "for=10.9.9.9", "Mesh-Host", "localhost:4000"}
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	for name, c := range map[string]struct {
		trusted               []netip.Prefix
		apart                 bool
		from, host, at, by    string
		realIP, forwardedLine string
	}{
		"of a client":                {nil, false, "127.0.0.1", "hub", "hub", "http", "", ""},
		"of a program of the mesh":   {nil, true, "127.0.0.1", "localhost:4000", "localhost:4000", "https", "", ""},
		"of a proxy that is trusted": {loopback, false, "10.9.9.9, 127.0.0.1", "hub", "claimed.example", "https", "10.9.9.9", "for=10.9.9.9"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, web(http.HandlerFunc(echo)), func(b *bed) { b.trusted = c.trusted })
			b.caller.Apart = c.apart
			got := b.echoed(claims...)
			hub := strings.TrimPrefix(b.root, "http://")
			want := []string{c.from, strings.Replace(c.at, "hub", hub, 1), c.by, c.realIP, c.forwardedLine}
			h := got.Header
			if is := []string{h.Get("X-Forwarded-For"), h.Get("X-Forwarded-Host"), h.Get("X-Forwarded-Proto"), h.Get("X-Real-Ip"), h.Get("Forwarded")}; !reflect.DeepEqual(is, want) {
				t.Errorf("got %q, want %q", is, want)
			}
			if got.Host != strings.Replace(c.host, "hub", hub, 1) {
				t.Errorf("Host is %s", got.Host)
			}
		})
	}
}

func TestAnAnswerCannotActForTheHubsOrigin(t *testing.T) {
	own := map[string][]string{
		"Set-Cookie":                {"a=1; Path=/", "b=2; Domain=hub.example", "mesh_session=3", "__Host-mesh_service=4", "=mesh_session=5", " = __Host-mesh_session=6"},
		"Content-Security-Policy":   {"default-src 'self'"},
		"X-Content-Type-Options":    {"odd"},
		"Clear-Site-Data":           {`"*"`},
		"Strict-Transport-Security": {"max-age=1"},
		"Alt-Svc":                   {`h3=":1"`},
		"Service-Worker-Allowed":    {"/"},
		"Nel":                       {`{"report_to":"x","include_subdomains":true}`},
		"Report-To":                 {`{"group":"x"}`},
		"Accept-Ch":                 {"Sec-Ch-Ua-Model"},
		"Set-Login":                 {"logged-out"},
		"Public-Key-Pins":           {"max-age=1"},
		"Origin-Agent-Cluster":      {"?0"},

		"Expect-Ct":                   {"max-age=1"},
		"Use-As-Dictionary":           {`match="/*"`},
		"Secure-Session-Registration": {`(ES256);path="/x"`},
		"Sec-Session-Registration":    {`(ES256);path="/x"`},
	}
	b := newBed(t, web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, v := range own {
			w.Header()[name] = v
		}
		w.Header().Set("Mesh-Original-Set-Cookie", "forged=1")
		w.Header().Set("Mesh-Task-State", "forged")
		w.Header().Set("X-Kept", "yes")
		w.WriteHeader(http.StatusTeapot)
	})))
	check := func(t *testing.T, want map[string][]string) {
		t.Helper()
		h := b.get("").Header
		for name, v := range want {
			if !reflect.DeepEqual(h[http.CanonicalHeaderKey(name)], v) {
				t.Errorf("%s is %q, want %q", name, h[http.CanonicalHeaderKey(name)], v)
			}
		}
		if h.Get("X-Kept") != "yes" || h.Get("Mesh-Task-State") != "" {
			t.Errorf("got %v", h)
		}
	}
	confined := map[string][]string{"Content-Security-Policy": {"sandbox"}, "X-Content-Type-Options": {"nosniff"}}
	for name := range own {
		if confined[name] == nil {
			confined[name] = nil
		}
	}
	t.Run("and what it says is taken out", func(t *testing.T) {
		gone := map[string][]string{"Mesh-Original-Set-Cookie": nil}
		for name, v := range confined {
			gone[name] = v
		}
		check(t, gone)
	})
	t.Run("a program of the mesh gets it under other names", func(t *testing.T) {
		b.caller = proxy.Caller{Apart: true}
		kept := map[string][]string{}
		for name, v := range own {
			kept[api.HeaderOriginal+name] = v
			kept[name] = confined[name]
		}
		// Cookies know no ports: one of a forwarded port would be the hub's on this machine.
		kept["Mesh-Original-Set-Cookie"] = own["Set-Cookie"][:2]
		check(t, kept)
	})
	t.Run("a service with an origin of its own keeps it, but for what reaches further", func(t *testing.T) {
		b.caller = proxy.Caller{Hosted: true}
		kept := map[string][]string{}
		for name, v := range own {
			kept[name] = v
		}
		kept["Set-Cookie"], kept["Clear-Site-Data"] = []string{"a=1; Path=/"}, nil
		check(t, kept)
	})
}

func TestTheHeadersOfAnUpgradeAreCleanedToo(t *testing.T) {
	b := newBed(t, httpService(raw(t, func(c net.Conn, r *bufio.Reader) {
		if req, err := http.ReadRequest(r); err == nil && req.Header.Get("Mesh-Authorization") == "" {
			fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: X-Hop, Upgrade\r\nUpgrade: echo\r\nX-Hop: 1\r\nSet-Cookie: a=1\r\nKeep-Alive: 1\r\nMesh-X: 1\r\n\r\n")
		}
	})))
	resp := b.get("", "Connection", "Upgrade", "Upgrade", "echo", "Mesh-Authorization", "x")
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "echo" || resp.Header.Get("Connection") != "Upgrade" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	for _, name := range []string{"X-Hop", "Set-Cookie", "Keep-Alive", "Mesh-X"} {
		if resp.Header.Get(name) != "" {
			t.Errorf("the client got %s", name)
		}
	}
}
