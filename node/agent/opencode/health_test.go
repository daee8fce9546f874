package opencode_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
)

func TestHealthOfAGivenServer(t *testing.T) {
	t.Run("is reported with its version, its address and no warnings", func(t *testing.T) {
		f := newFake(t)
		a := start(t, forFake(f, t.TempDir()))
		s := awaitHealth(t, a, api.HealthHealthy)
		if s.Kind != "opencode" || s.Version != "1.18.33" || len(s.Warnings) != 0 {
			t.Errorf("status %+v", s)
		}
		url, user, password, ok := a.Server()
		if !ok || url != f.srv.URL || user != "opencode" || password != "secret" {
			t.Errorf("server %q %q %q %v", url, user, password, ok)
		}
	})
	t.Run("flips after two failures and recovers with one success", func(t *testing.T) {
		f := newFake(t)
		var failures atomic.Int64 // to come
		var healthy atomic.Int64
		f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/global/health" {
				return false
			}
			if failures.Add(-1) >= 0 {
				panic(http.ErrAbortHandler)
			}
			healthy.Add(1)
			return false
		}
		cfg := forFake(f, t.TempDir())
		cfg.HealthInterval = 5 * time.Millisecond
		var log *logged
		cfg.Log, log = newLog(t)
		a := start(t, cfg)
		awaitHealth(t, a, api.HealthHealthy)
		failures.Store(1)
		after := healthy.Load() + 3
		eventually(t, "probes after a failure", func() bool { return healthy.Load() >= after })
		if strings.Contains(log.String(), "unreachable") {
			t.Error("one failure changed the health")
		}
		failures.Store(2)
		eventually(t, "two failures in a row", func() bool { return strings.Contains(log.String(), "unreachable") })
		awaitHealth(t, a, api.HealthHealthy)
	})
	t.Run("with a wrong password is auth_failed, and turns fail at once", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		cfg := forFake(f, turn.Workspace.Dir)
		cfg.Password, cfg.ReadyWait = "wrong-password", time.Hour
		a := start(t, cfg)
		s := awaitHealth(t, a, api.HealthAuthFailed)
		if strings.Contains(s.Detail, "wrong-password") {
			t.Errorf("detail %q", s.Detail)
		}
		done, _ := begin(t, a, turn, newRecords())
		if e := <-done; e.err == nil || strings.Contains(e.err.Error(), "wrong-password") {
			t.Errorf("outcome %+v, error %v", e.out, e.err)
		}
	})
	t.Run("that answers with a web page is unhealthy: 200 alone says nothing", func(t *testing.T) {
		srv := page(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprint(w, "<html>")
		})
		a := start(t, opencode.Config{URL: srv, Workspaces: workspaces(t)})
		awaitHealth(t, a, api.HealthUnhealthy)
		if _, _, _, ok := a.Server(); ok {
			t.Error("it is offered as a server")
		}
	})
	t.Run("of the next major version is unhealthy and says so", func(t *testing.T) {
		srv := page(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api/info" {
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprint(w, `{"version":"2.0.18"}`)
				return
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprint(w, "<html>")
		})
		s := awaitHealth(t, start(t, opencode.Config{URL: srv, Workspaces: workspaces(t)}), api.HealthUnhealthy)
		if !strings.Contains(s.Detail, "2.0.18") {
			t.Errorf("detail %q", s.Detail)
		}
	})
	t.Run("tells of each change, so that nobody need ask in between", func(t *testing.T) {
		f := newFake(t)
		turn := newTurn(t, "alpha-1-aaaa", "x")
		cfg := forFake(f, turn.Workspace.Dir)
		a, err := opencode.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for a.Status(t.Context()).Health != api.HealthHealthy {
			news := a.Changed()
			if len(told) == 0 {
				if err := a.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			told = append(told, a.Status(t.Context()).Health)
			select {
			case <-news:
			case <-time.After(2 * time.Minute):
				t.Fatalf("nobody told that it is healthy: %v", told)
			}
		}
		if _, _, _, ok := a.Server(); !ok {
			t.Error("it is healthy and no server")
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("that is not there is unreachable, and a turn fails after its wait", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		url := "http://" + ln.Addr().String()
		_ = ln.Close()
		turn := newTurn(t, "alpha-1-aaaa", "x")
		a := start(t, opencode.Config{URL: url, Workspaces: workspaces(t), ReadyWait: 50 * time.Millisecond})
		awaitHealth(t, a, api.HealthUnreachable)
		host := newRecords()
		done, _ := begin(t, a, turn, host)
		if e := <-done; e.err == nil || len(host.saved) != 0 {
			t.Errorf("outcome %+v, saved %q", e.out, host.saved)
		}
		host.awaitNote(t, "waiting for the opencode server")
	})
	t.Run("that never answers a connection of its start-up is found by a fresh one", func(t *testing.T) {
		f := newFake(t)
		var connections atomic.Int64
		hung := make(chan struct{})
		proxy := page(t, func(w http.ResponseWriter, r *http.Request) {
			if connections.Add(1) == 1 {
				<-hung // accepted while starting up, never answered
				return
			}
			f.ServeHTTP(w, r)
		})
		t.Cleanup(func() { close(hung) })
		cfg := forFake(f, t.TempDir())
		cfg.URL = proxy
		awaitHealth(t, start(t, cfg), api.HealthHealthy)
	})
	t.Run("lists what a node could not set", func(t *testing.T) {
		f := newFake(t)
		f.password = ""
		f.config = map[string]any{"model": "stub/one", "permission": "allow"}
		s := awaitHealth(t, start(t, forFake(f, t.TempDir())), api.HealthHealthy)
		all := strings.Join(s.Warnings, "\n")
		for _, want := range []string{"no password", "auto-compaction", "question tool"} {
			if !strings.Contains(all, want) {
				t.Errorf("no warning of %q in %q", want, all)
			}
		}
	})
}

func TestAProxysPrefixIsKept(t *testing.T) {
	f := newFake(t)
	proxy := page(t, func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix("/n/alpha/opencode", f).ServeHTTP(w, r)
	})
	turn := newTurn(t, "alpha-1-aaaa", "x")
	cfg := forFake(f, turn.Workspace.Dir)
	cfg.URL = proxy + "/n/alpha/opencode/"
	expect(t, run(t, start(t, cfg), turn, newRecords()), api.StateDone, "")
}

func TestConfigIsChecked(t *testing.T) {
	dir := t.TempDir()
	good := opencode.Config{URL: "http://127.0.0.1:1", Workspaces: []agent.Workspace{{Name: "main", Dir: dir}}}
	for _, c := range []struct {
		name   string
		change func(c *opencode.Config)
		want   string
	}{
		{"workspaces", func(c *opencode.Config) { c.Workspaces = nil }, "no workspace"},
		{"relative workspace", func(c *opencode.Config) { c.Workspaces[0].Dir = "x" }, "absolute"},
		{"model", func(c *opencode.Config) { c.Model = "gpt" }, "provider/model"},
		{"guard", func(c *opencode.Config) { c.URL = "" }, "guard"},
		{"data directory", func(c *opencode.Config) { c.URL, c.GuardCommand = "", []string{"x"} }, "data directory"},
		{"duration", func(c *opencode.Config) { c.StallAfter = -1 }, "negative"},
		{"reply limit", func(c *opencode.Config) { c.MaxReply = -1 }, "negative"},
		{"URL scheme", func(c *opencode.Config) { c.URL = "ftp://x" }, "http://host:port"},
		{"password in the URL", func(c *opencode.Config) { c.URL = "http://u:hunter2@x" }, "apart"},
		{"token in the URL", func(c *opencode.Config) { c.URL = "http://x?auth_token=hunter2" }, "http://host:port"},
		{"URL that cannot be read", func(c *opencode.Config) { c.URL = "http://hunter2\x00" }, "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := good
			cfg.Workspaces = []agent.Workspace{{Name: "main", Dir: filepath.Clean(dir)}}
			c.change(&cfg)
			_, err := opencode.New(cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestStopIsIdempotentAndWorksWithoutStart(t *testing.T) {
	a, err := opencode.New(opencode.Config{URL: "http://127.0.0.1:1", Workspaces: workspaces(t)})
	if err != nil {
		t.Fatal(err)
	}
	stop(t, a)
	stop(t, a)
}

func workspaces(t *testing.T) []agent.Workspace {
	t.Helper()
	return []agent.Workspace{{Name: "main", Dir: t.TempDir()}}
}

// page serves a handler on a loopback port until the end of the test.
func page(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL
}

// eventually polls, where nothing can be waited for.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.After(testLimit)
	for !cond() {
		select {
		case <-limit:
			t.Fatalf("never happened: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
