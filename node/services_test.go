package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// serving is an agent with a server of its own.
type serving struct {
	*worker

	mu            sync.Mutex // guards the following fields
	url, password string
	changed       chan struct{} // nil: it tells of no changes
}

// Changed implements agent.Notifier.
func (s *serving) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *serving) Server() (url, username, password string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url, "opencode", s.password, s.url != ""
}

func (s *serving) restart(url, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.url, s.password = url, password
	if s.changed != nil {
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// named answers with a name, so that a test sees who answered.
func named(t *testing.T, name string) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
	t.Cleanup(srv.Close)
	return srv
}

// through asks a service through the tunnel for its page.
func through(t *testing.T, c *linktest.Conn, service string) (string, error) {
	t.Helper()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return c.Session.Open(ctx, tunnel.Service(service))
	}}}
	resp, err := hc.Get("http://service/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestTheAgentsOwnServerIsTheServiceOpencode(t *testing.T) {
	first, second, other := named(t, "first"), named(t, "second"), named(t, "other")
	own := api.Service{Name: api.ServiceOpencode, Kind: api.ServiceHTTP, Filter: true, Username: "opencode", Password: "p1"}
	plain := own
	plain.Username, plain.Password = "", ""
	unfiltered := own
	unfiltered.Filter = false
	for name, c := range map[string]struct {
		change func(*node.Config)
		want   []api.Service
		answer string
	}{
		"by itself":                       {func(*node.Config) {}, []api.Service{own}, "first"},
		"without the filter":              {func(c *node.Config) { c.NoFilter = true }, []api.Service{unfiltered}, "first"},
		"not at all":                      {func(c *node.Config) { c.NoOpencode = true }, nil, ""},
		"unless another is named":         {func(c *node.Config) { c.Services = map[string]string{"opencode": other.URL} }, []api.Service{plain}, "other"},
		"which counts without it as well": {func(c *node.Config) { c.NoOpencode = true; c.Services = map[string]string{"opencode": other.URL} }, []api.Service{plain}, "other"},
	} {
		t.Run(name, func(t *testing.T) {
			hub := linktest.New(t, tunnel.Config{})
			a := &serving{worker: newWorker(), url: first.URL, password: "p1"}
			launch(t, hub, t.TempDir(), func(cfg *node.Config) {
				cfg.Agent, cfg.ReportInterval, cfg.AcceptFrom = a, time.Millisecond, []string{"desk"}
				c.change(cfg)
			})
			conn := linktest.Await(t, hub.Conns, "the connection")
			if !slices.Equal(conn.Hello.Services, c.want) || !slices.Equal(conn.Hello.AcceptFrom, []string{"desk"}) {
				t.Fatalf("hello %+v", conn.Hello)
			}
			got, err := through(t, conn, api.ServiceOpencode)
			if got != c.answer || (err == nil) != (c.answer != "") {
				t.Errorf("it answers %q, %v", got, err)
			}
			if c.answer != "first" {
				return
			}
			// It is started again, with another password at another place.
			a.restart(second.URL, "p2")
			report := linktest.Await(t, hub.Reports, "a report")
			want := c.want[0]
			want.Password = "p2"
			if !slices.Equal(report.Services, []api.Service{want}) {
				t.Errorf("report %+v", report)
			}
			if got, err := through(t, conn, api.ServiceOpencode); got != "second" {
				t.Errorf("after the restart it answers %q, %v", got, err)
			}
			a.restart("", "")
			var reset *tunnel.ResetError
			if _, err := through(t, conn, api.ServiceOpencode); !errors.As(err, &reset) || reset.Code != tunnel.ResetUnreachable {
				t.Errorf("while it is down: %v", err)
			}
		})
	}
}

// TestThePasswordOfARestartedServerIsToldAtOnce has a node that does not look by itself
// for an hour.
func TestThePasswordOfARestartedServerIsToldAtOnce(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	a := &serving{worker: newWorker(), url: named(t, "it").URL, password: "p0", changed: make(chan struct{})}
	launch(t, hub, t.TempDir(), func(cfg *node.Config) { cfg.Agent, cfg.ReportInterval = a, time.Hour })
	linktest.Await(t, hub.Conns, "the connection")
	for i := range 3 {
		want := fmt.Sprint("p", i+1)
		a.restart(a.url, want)
		if got := linktest.Await(t, hub.Reports, "a report"); len(got.Services) != 1 || got.Services[0].Password != want {
			t.Errorf("report %+v", got)
		}
	}
}

func TestServicesWithPasswordAndTLS(t *testing.T) {
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto, " ", r.TLS != nil) }))
	defer secure.Close()
	hub := linktest.New(t, tunnel.Config{})
	launch(t, hub, t.TempDir(), func(c *node.Config) {
		c.Services = map[string]string{"sec": secure.URL, "api": "http://me:own%2Fword@127.0.0.1:1/"}
	})
	c := linktest.Await(t, hub.Conns, "the connection")
	want := []api.Service{{Name: "api", Kind: api.ServiceHTTP, Username: "me", Password: "own/word"}, {Name: "sec", Kind: api.ServiceHTTP}}
	if !slices.Equal(c.Hello.Services, want) {
		t.Errorf("hello %+v", c.Hello.Services)
	}
	if got, err := through(t, c, "sec"); got != "HTTP/1.1 true" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestTheCertificateOfAServiceElsewhereIsChecked uses another address of this
// machine, if it has one.
func TestTheCertificateOfAServiceElsewhereIsChecked(t *testing.T) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && !n.IP.IsLoopback() && n.IP.To4() != nil
	})
	host := "127.0.0.1"
	if i >= 0 {
		host = addrs[i].(*net.IPNet).IP.String()
	}
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	_ = secure.Listener.Close()
	secure.Listener = l
	secure.StartTLS()
	defer secure.Close()
	hub := linktest.New(t, tunnel.Config{})
	launch(t, hub, t.TempDir(), func(c *node.Config) { c.Services = map[string]string{"sec": secure.URL} })
	c := linktest.Await(t, hub.Conns, "the connection")
	if _, err := through(t, c, "sec"); (err == nil) != (host == "127.0.0.1") {
		t.Errorf("on %s: %v", host, err)
	}
}
