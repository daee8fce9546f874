package hub_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// offering is a node with services, which all lead to one address.
func (b *box) offering(name, addr string, services ...api.Service) *peer {
	b.t.Helper()
	p, err := b.dialWith(b.enroll("join", name), tunnel.Config{ServiceDial: func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}})
	if err != nil {
		b.t.Fatal(err)
	}
	h := hello("j-"+name, 1)
	h.Services = services
	if status, e := p.call(http.MethodPost, "/v1/hello", h, nil); status != http.StatusOK {
		b.t.Fatalf("hello: %d %v", status, e)
	}
	return p
}

// ask requests a path of the hub with some headers.
func (b *box) ask(ctx context.Context, path string, header ...string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.hub.URL()+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := b.hc.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func basic(user, password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, password)
	return r.Header.Get("Authorization")
}

var webService = api.Service{Name: "web", Kind: api.ServiceHTTP}

const webPath = "/v1/nodes/beta/services/web/"

func TestWhoMayCallAService(t *testing.T) {
	b := start(t, config(t.TempDir()))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Authorization")) }))
	defer srv.Close()
	b.offering("beta", srv.Listener.Addr().String(), webService)
	desk, gone, op := b.enroll("login", "desk"), b.enroll("login", "gone"), b.enroll("login", "boss", operator)
	b.revoke(op, "gone")
	waysIn := map[string]struct {
		header []string
		status int
		body   string // of 200
	}{
		"nobody":                             {nil, 401, ""},
		"a credential as bearer":             {[]string{"Authorization", "Bearer " + desk}, 200, ""},
		"as password of HTTP Basic":          {[]string{"Authorization", basic("whoever", desk)}, 200, ""},
		"apart":                              {[]string{"Mesh-Authorization", "Bearer " + desk}, 200, ""},
		"apart, beside one for the service":  {[]string{"Mesh-Authorization", "Bearer " + desk, "Authorization", "Digest x"}, 200, "Digest x"},
		"apart and wrong, beside a good one": {[]string{"Mesh-Authorization", "Bearer wrong", "Authorization", "Bearer " + desk}, 401, ""},
		"apart as Basic":                     {[]string{"Mesh-Authorization", basic("whoever", desk)}, 401, ""},
		"as user of HTTP Basic":              {[]string{"Authorization", basic(desk, "")}, 401, ""},
		"the mesh's password":                {[]string{"Authorization", basic("opencode", password)}, 401, ""},
		"a cookie":                           {[]string{"Cookie", "mesh_session=" + desk + "; session=" + desk}, 401, ""},
		"a revoked credential":               {[]string{"Authorization", "Bearer " + gone}, 401, ""},
		"apart and twice, the first counts":  {[]string{"Mesh-Authorization", "Bearer wrong", "Mesh-Authorization", "Bearer " + desk}, 401, ""},
		"apart and empty":                    {[]string{"Mesh-Authorization", "", "Authorization", "Bearer " + desk}, 401, ""},
		"under a name that looks like it":    {[]string{"Mesh_Authorization", "Bearer " + desk}, 401, ""},
	}
	for name, c := range waysIn {
		t.Run(name, func(t *testing.T) {
			resp := b.ask(t.Context(), webPath, c.header...)
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || resp.StatusCode == 200 && string(body) != c.body {
				t.Errorf("got %d %s", resp.StatusCode, body)
			}
			if resp.StatusCode == 401 && strings.Contains(resp.Header.Get("WWW-Authenticate"), "Basic") {
				t.Error("a browser is asked for a password")
			}
		})
	}
	t.Run("the same ways at every route of services", func(t *testing.T) {
		for name, c := range waysIn {
			for _, route := range [][2]string{
				{"GET", "/v1/nodes/beta/services"}, {"GET", "/v1/nodes/beta/services/web"}, {"HEAD", webPath}, {"POST", webPath + "a/b"}, {"Odd", webPath},
				{"POST", webPath + "handover"},
			} {
				req, err := http.NewRequest(route[0], b.hub.URL()+route[1], nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i+1 < len(c.header); i += 2 {
					req.Header.Add(c.header[i], c.header[i+1])
				}
				resp, err := b.hc.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != c.status {
					t.Errorf("%s at %s %s: %d, want %d", name, route[0], route[1], resp.StatusCode, c.status)
				}
			}
		}
	})
	t.Run("Basic is taken nowhere else, and neither is the header of services", func(t *testing.T) {
		for _, h := range [][]string{{"Authorization", basic("x", desk)}, {"Mesh-Authorization", "Bearer " + desk}} {
			for _, path := range []string{"/v1/whoami", "/v1/nodes", "/v1/tasks", "/v1/audit"} {
				if resp := b.ask(t.Context(), path, h...); resp.StatusCode != 401 {
					t.Errorf("%s with %s: %d", path, h[0], resp.StatusCode)
				}
			}
		}
	})
	t.Run("nodes that are not there are named", func(t *testing.T) {
		b.enroll("join", "gamma")
		for path, code := range map[string]api.Code{
			"/v1/nodes/gamma/services/web/": api.CodeNodeOffline, "/v1/nodes/delta/services/web/": api.CodeUnknownTarget, "/v1/nodes/desk/services/web/": api.CodeUnknownTarget,
			"/v1/nodes/beta/services/other/": api.CodeNotFound, "/v1/nodes/gamma/services": api.CodeNodeOffline,
		} {
			status, e, _ := b.call(http.MethodGet, path, desk, nil)
			want(t, status, e, code.Status(), code)
			if name := strings.Split(path, "/")[3]; !strings.Contains(e.Message, name) {
				t.Errorf("%s: %s", path, e.Message)
			}
		}
	})
}

// TestThePasswordOfAServiceIsInMemoryOnly looks for it in all that a hub writes and
// says.
func TestThePasswordOfAServiceIsInMemoryOnly(t *testing.T) {
	const secret, renewed = "first-own-password", "second-own-password"
	b := start(t, config(t.TempDir()))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, p, _ := r.BasicAuth()
		fmt.Fprint(w, p)
	}))
	defer srv.Close()
	own := webService
	own.Username, own.Password = "me", secret
	p := b.offering("beta", srv.Listener.Addr().String(), own, api.Service{Name: "db", Kind: api.ServiceTCP})
	op := b.enroll("login", "boss", operator)
	events, stop := b.events(op, "")
	defer stop()
	added := func() string {
		_, _, body := b.call(http.MethodGet, webPath, op, nil)
		return string(body)
	}
	if got := added(); got != secret {
		t.Errorf("the hub adds %q", got)
	}
	own.Password = renewed
	report := api.NodeReport{Agent: api.AgentStatus{Kind: "opencode", Health: api.HealthHealthy, Version: "2"}, Services: []api.Service{own, {Name: "new", Kind: api.ServiceHTTP}}}
	if status, e := p.call(http.MethodPut, "/v1/status", report, nil); status != http.StatusNoContent {
		t.Fatalf("%d %v", status, e)
	}
	if got := added(); got != renewed {
		t.Errorf("after a report the hub adds %q", got)
	}
	if n := b.node(op, "beta"); !slices.Equal(n.Services, []string{"web", "new"}) {
		t.Errorf("nodes shows %q", n.Services)
	}
	var list api.ServiceList
	_, _, body := b.call(http.MethodGet, "/v1/nodes/beta/services", op, nil)
	if err := json.Unmarshal(body, &list); err != nil || !slices.Equal(list.Services, []api.ServiceInfo{{Name: "web", Kind: "http"}, {Name: "new", Kind: "http"}}) {
		t.Errorf("services %+v, %v", list, err)
	}
	said := string(body)
	for e := range events {
		said += string(e.Data)
		if strings.Contains(string(e.Data), `"version":"2"`) {
			break
		}
	}
	for _, path := range []string{"/v1/nodes", "/v1/audit", "/v1/credentials"} {
		_, _, body := b.call(http.MethodGet, path, op, nil)
		said += string(body)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(b.dir, "*"))
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && bytes.Contains(data, []byte("own-password")) {
			t.Errorf("the password is in %s", f)
		}
	}
	if len(files) == 0 || strings.Contains(said, "own-password") {
		t.Errorf("the hub said it: %s", said)
	}
}

func TestRequestsToServicesEndWithTheirCallerAndWithTheHub(t *testing.T) {
	b := start(t, config(t.TempDir()))
	ended := make(chan struct{}, 4)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "begun\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	defer srv.Close()
	b.offering("beta", srv.Listener.Addr().String(), webService, api.Service{Name: "db", Kind: api.ServiceTCP})
	op := b.enroll("login", "boss", operator)
	open := func(secret string) {
		t.Helper()
		c, err := net.Dial("tcp", strings.TrimPrefix(b.hub.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		fmt.Fprintf(c, "GET /v1/nodes/beta/services/db HTTP/1.1\r\nHost: x\r\nMesh-Authorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: mesh-stream\r\n\r\n\x00\x00\x00\x1bGET / HTTP/1.1\r\nHost: x\r\n\r\n", secret)
		stream := bufio.NewReader(c)
		for _, r := range []*bufio.Reader{stream, bufio.NewReader(b.ask(t.Context(), webPath, "Authorization", "Bearer "+secret).Body)} {
			for line := ""; strings.TrimSpace(line) != "begun"; {
				if line, err = r.ReadString('\n'); err != nil {
					t.Fatalf("%q, %v", line, err)
				}
			}
		}
	}
	open(b.enroll("login", "desk"))
	open(op)
	b.revoke(op, "desk")
	<-ended
	<-ended
	select {
	case <-ended:
		t.Error("somebody else's request ended too")
	default:
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	<-ended
	<-ended
}
