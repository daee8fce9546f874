// Package services sends requests through a whole hub and a whole node, both in the
// test's own process so that what they hold in memory can be measured.
package services

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub"
	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

func TestMain(m *testing.M) { fleet.Verify(m) }

const password = "correct horse battery staple"

// idle is an agent that is never asked for anything.
type idle struct{}

func (idle) Kind() string                { return "idle" }
func (idle) HasSessions() bool           { return false }
func (idle) Start(context.Context) error { return nil }
func (idle) Stop(context.Context) error  { return nil }
func (idle) Status(context.Context) api.AgentStatus {
	return api.AgentStatus{Kind: "idle", Health: api.HealthHealthy}
}
func (idle) Run(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
	return api.Outcome{State: api.StateDone}, nil
}

// mesh is a hub with a node that offers the service "web".
type mesh struct {
	t      *testing.T
	url    string // of the service
	direct string // the service itself
	secret string // of a controller
	hc     *http.Client
	stop   func() // ends the node
}

var quiet = slog.New(slog.DiscardHandler)

func enroll(t *testing.T, link auth.Link, path string, l api.Login) auth.Profile {
	t.Helper()
	hc, err := link.HTTPClient("")
	if err != nil {
		t.Fatal(err)
	}
	defer hc.CloseIdleConnections()
	l.Password = password
	is, err := auth.Enroll(t.Context(), hc, link, path, l)
	if err != nil {
		t.Fatal(err)
	}
	return auth.NewProfile(link, "", is)
}

func newMesh(t *testing.T, web http.HandlerFunc) *mesh {
	t.Helper()
	origin := httptest.NewServer(web)
	t.Cleanup(origin.Close)
	h, err := hub.Open(t.Context(), hub.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", TLS: hub.TLSOff, Password: password, Log: quiet, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, h.Serve)
	link, err := auth.ParseLink(h.JoinLink())
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.New(node.Config{
		DataDir: filepath.Join(t.TempDir(), "node"), Profile: enroll(t, link, auth.EnrollJoin, api.Login{Name: "alpha"}), Agent: idle{},
		Workspaces: []agent.Workspace{{Name: "main", Dir: t.TempDir()}}, Services: map[string]string{"web": origin.URL}, Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &mesh{
		t: t, url: h.URL() + "/v1/nodes/alpha/services/web/", secret: enroll(t, link, auth.EnrollLogin, api.Login{Name: "desk"}).Credential.Reveal(),
		direct: origin.URL + "/",
		hc:     &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true}},
	}
	m.stop = run(t, n.Run)
	t.Cleanup(m.hc.CloseIdleConnections)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		resp, err := m.hc.Do(m.request(http.MethodGet, "", nil))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadGateway {
			return m
		}
		if time.Now().After(deadline) {
			t.Fatal("the node did not come online")
		}
	}
}

// run runs something until the returned function is called or the test ends.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func (m *mesh) request(method, path string, body io.Reader) *http.Request {
	m.t.Helper()
	req, err := http.NewRequest(method, m.url+path, body)
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Mesh-Authorization", "Bearer "+m.secret)
	return req
}

func (m *mesh) do(req *http.Request) *http.Response {
	m.t.Helper()
	resp, err := m.hc.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		m.t.Fatalf("%d %s", resp.StatusCode, body)
	}
	return resp
}

// heap is what live and not yet collected objects take, in bytes.
func heap() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// peak watches the heap until stop, which returns the largest size seen.
func peak() (stop func() int64) {
	var most atomic.Int64
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				most.Store(max(most.Load(), heap()))
			}
		}
	}()
	return func() int64 {
		close(quit)
		<-done
		return most.Load()
	}
}
