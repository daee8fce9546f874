package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

var peer = netip.MustParseAddr("192.0.2.1")

func TestMetricsOfThisMachineAreNotForANameThatSomebodyPointedHere(t *testing.T) {
	s := newShop(t, withBrowsers)
	for host, status := range map[string]int{"127.0.0.1:8443": 200, "localhost:8443": 200, "[::1]:8443": 200, "evil.example": 403} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.RemoteAddr, r.Host = "127.0.0.1:99", host
		w := httptest.NewRecorder()
		s.api.Public().ServeHTTP(w, r)
		if w.Code != status {
			t.Errorf("%s: got %d, want %d", host, w.Code, status)
		}
	}
}

func TestNoAnswerOfTheInterfaceIsStored(t *testing.T) {
	s := newShop(t)
	alice := s.enroll(login("alice", false))
	for _, path := range []string{"/v1/nodes", "/v1/whoami", "/v1/tasks/nothing"} {
		for _, secret := range []string{alice, ""} {
			resp := s.open(http.MethodGet, path, secret, nil)
			_ = resp.Body.Close()
			if resp.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %v", path, resp.Header)
			}
		}
	}
}

func TestMetricsAreForThisMachineAndThoseWithACredential(t *testing.T) {
	s := newShop(t, func(c *hubapi.Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")} })
	alice := s.enroll(login("alice", false))
	for name, c := range map[string]struct {
		remote, header, secret string
		status                 int
	}{
		"this machine":                         {"127.0.0.1:99", "", "", 200},
		"this machine by IPv6":                 {"[::1]:99", "", "", 200},
		"this machine, mapped":                 {"[::ffff:127.0.0.1]:99", "", "", 200},
		"another machine":                      {"192.0.2.7:99", "", "", 401},
		"another machine with a credential":    {"192.0.2.7:99", "", alice, 200},
		"another machine with a wrong one":     {"192.0.2.7:99", "", "wrong", 401},
		"behind nginx":                         {"127.0.0.1:99", "X-Forwarded-For", "", 401},
		"behind a proxy of the newer standard": {"127.0.0.1:99", "Forwarded", "", 401},
		"behind a proxy that says so little":   {"127.0.0.1:99", "Via", "", 401},
		"behind a proxy that was named":        {"127.0.0.9:99", "", "", 401},
		"behind one, with a credential":        {"127.0.0.1:99", "X-Forwarded-For", alice, 200},
		"nobody knows from where":              {"@", "", "", 401},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.RemoteAddr = c.remote
			if c.header != "" {
				r.Header.Set(c.header, "127.0.0.1")
			}
			if c.secret != "" {
				r.Header.Set("Authorization", "bearer "+c.secret)
			}
			w := httptest.NewRecorder()
			s.api.Public().ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("got %d, want %d", w.Code, c.status)
			}
		})
	}
}

func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	s := newShop(t, func(c *hubapi.Config) { c.BodyTimeout = 20 * time.Millisecond })
	alice := s.enroll(login("alice", false))
	for name, head := range map[string]string{
		"by a handler that reads it":     "POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\nAuthorization: Bearer " + alice,
		"by a handler that does not":     "POST /v1/tasks/t1/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\nAuthorization: Bearer " + alice,
		"of a stranger":                  "POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 100000",
		"of a stranger who logs in":      "POST /v1/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked",
		"of a stranger at an empty path": "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
			fmt.Fprintf(c, "%s\r\n\r\n", head)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if err == nil {
					_, err = c.Read(make([]byte, 1))
				}
			}
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Error("the hub still waits")
			}
		})
	}
}

func TestALongPollOutlivesTheTimeOfABody(t *testing.T) {
	s := newShop(t, func(c *hubapi.Config) { c.BodyTimeout = 20 * time.Millisecond })
	alice := s.enroll(login("alice", false))
	s.enroll(join("beta"))
	d := api.Dispatch{Text: "x", Targets: []api.DispatchTarget{{Name: "beta", ID: "t1"}}}
	if status, _, data := s.call(http.MethodPost, "/v1/tasks", alice, d); status != http.StatusCreated {
		t.Fatalf("%d %s", status, data)
	}
	// On the same connection, after a body.
	if status, _, data := s.call(http.MethodGet, "/v1/tasks/t1?wait=200ms", alice, nil); status != http.StatusOK {
		t.Errorf("%d %s", status, data)
	}
	for _, wait := range []string{"", "-1s", "soon", "9999999999h"} {
		if status, e, _ := s.call(http.MethodGet, "/v1/tasks/t1?wait="+wait, alice, nil); status != http.StatusBadRequest {
			t.Errorf("wait=%s: %d %v", wait, status, e)
		}
	}
}

func TestEveryTroubleOfTheStoreHasItsAnswer(t *testing.T) {
	s := newShop(t)
	alice := s.enroll(login("alice", false))
	for _, c := range []struct {
		err    error
		status int
		code   api.Code
		again  bool
	}{
		{store.ErrFull, 507, api.CodeDiskFull, true},
		{store.ErrReadOnly, 503, api.CodeReadOnly, true},
		{store.ErrBusy, 503, api.CodeUnavailable, true},
		{store.ErrFailed, 503, api.CodeShuttingDown, true},
		{store.ErrClosed, 503, api.CodeShuttingDown, true},
		{store.ErrConflict, 409, api.CodeConflict, false},
		{store.ErrForgotten, 410, api.CodeTaskForgotten, false},
		{context.DeadlineExceeded, 503, api.CodeUnavailable, false},
		{errors.New("the secret inner life of /var/lib/hub.db"), 500, api.CodeInternal, false},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			s.store.fail = fmt.Errorf("list: %w", c.err)
			defer func() { s.store.fail = nil }()
			resp := s.open(http.MethodGet, "/v1/nodes", alice, nil)
			data, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != c.status || !strings.Contains(string(data), `"`+string(c.code)+`"`) {
				t.Errorf("%d %s", resp.StatusCode, data)
			}
			if (resp.Header.Get("Retry-After") != "") != c.again {
				t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
			}
			if strings.Contains(string(data), "hub.db") {
				t.Errorf("the inner life is in the answer: %s", data)
			}
		})
	}
}

func TestAPanicIsOneFailedRequest(t *testing.T) {
	s := newShop(t)
	alice := s.enroll(login("alice", false))
	s.store.identity = func() { panic("oops") }
	status, e, _ := s.call(http.MethodGet, "/v1/nodes", alice, nil)
	if status != http.StatusInternalServerError || e.Code != api.CodeInternal {
		t.Errorf("%d %v", status, e)
	}
	if status, _, data := s.call(http.MethodGet, "/v1/nodes", alice, nil); status != http.StatusOK {
		t.Errorf("the next request: %d %s", status, data)
	}
}

func TestReadyTellsWhetherWorkIsTaken(t *testing.T) {
	s := newShop(t)
	if status, _, data := s.call(http.MethodGet, "/readyz", "", nil); status != http.StatusOK || string(data) != "ok\n" {
		t.Errorf("%d %q", status, data)
	}
	s.api.Close(context.Background())
	if status, _, data := s.call(http.MethodGet, "/readyz", "", nil); status != http.StatusServiceUnavailable || string(data) != "not ready\n" {
		t.Errorf("stopping: %d %q", status, data)
	}
	if status, _, data := s.call(http.MethodGet, "/healthz", "", nil); status != http.StatusOK || string(data) != "ok\n" {
		t.Errorf("%d %q", status, data)
	}
}

func TestRoutesAreCountedByTheirPatternAndMethodsFromAClosedSet(t *testing.T) {
	s := newShop(t)
	alice := s.enroll(login("alice", false))
	s.call(http.MethodGet, "/v1/tasks/some-id", alice, nil)
	s.call("BREW", "/v1/nodes", alice, nil)
	s.call(http.MethodGet, "/elsewhere/some-id", alice, nil)
	_, _, data := s.call(http.MethodGet, "/metrics", "", nil)
	for _, want := range []string{`route="/v1/tasks/{id}"`, `method="other"`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %s", want)
		}
	}
	for _, bad := range []string{"some-id", "BREW"} {
		if strings.Contains(string(data), bad) {
			t.Errorf("%s became a label", bad)
		}
	}
}

func TestStreamsOfOneIdentityAreBoundedAndThoseOfOthersGoOn(t *testing.T) {
	s := newShop(t)
	alice, bob := s.enroll(login("alice", false)), s.enroll(login("bob", false))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	handler := s.api.Public()
	stream := func(secret string) int {
		r := httptest.NewRequest(http.MethodGet, "/v1/events", nil).WithContext(ctx)
		r.Header.Set("Authorization", "Bearer "+secret)
		begun := make(chan int, 1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			handler.ServeHTTP(&first{begun: begun, header: http.Header{}}, r)
		}()
		t.Cleanup(func() { cancel(); <-ended })
		return <-begun
	}
	n := 0
	for stream(alice) == http.StatusOK {
		if n++; n > 2000 {
			t.Fatal("no end of streams")
		}
	}
	if n < 100 {
		t.Errorf("only %d streams", n)
	}
	if code := stream(bob); code != http.StatusOK {
		t.Errorf("bob's first stream: %d", code)
	}
	status, e, _ := s.call(http.MethodGet, "/v1/events", alice, nil)
	if status != http.StatusTooManyRequests || e.Code != api.CodeRateLimited {
		t.Errorf("%d %v", status, e)
	}
}

// first is an answer of which only the status matters.
type first struct {
	begun  chan int
	header http.Header
}

func (f *first) Header() http.Header              { return f.header }
func (f *first) Write(b []byte) (int, error)      { return len(b), nil }
func (f *first) SetWriteDeadline(time.Time) error { return nil }
func (f *first) Flush()                           {}
func (f *first) WriteHeader(status int) {
	select {
	case f.begun <- status:
	default:
	}
}

// revokedMeanwhile revokes an identity right after its credential was let in.
func (s *shop) revokedMeanwhile(name string) {
	s.store.identity = func() {
		op := s.enroll(login("boss", true))
		p, err := s.access.Authenticate(context.Background(), op)
		if err == nil {
			err = s.access.Revoke(context.Background(), p, peer, name)
		}
		if err != nil {
			s.t.Error(err)
		}
	}
}

func TestAStreamThatMeetsARevocationIsRefused(t *testing.T) {
	s := newShop(t)
	alice := s.enroll(login("alice", false))
	s.revokedMeanwhile("alice")
	status, e, _ := s.call(http.MethodGet, "/v1/events", alice, nil)
	if status != http.StatusUnauthorized || e.Code != api.CodeRevoked {
		t.Errorf("%d %v", status, e)
	}
}

func TestATunnelThatMeetsARevocationIsRefused(t *testing.T) {
	s := newShop(t)
	beta := s.enroll(join("beta"))
	s.revokedMeanwhile("beta")
	_, err := tunnel.Dial(context.Background(), tunnel.DialConfig{
		URL: strings.Replace(s.url, "http", "ws", 1) + "/v1/tunnel", Header: http.Header{"Authorization": {"Bearer " + beta}},
	})
	var refused *tunnel.RefusedError
	if !errors.As(err, &refused) || refused.Code != string(api.CodeRevoked) {
		t.Errorf("got %v", err)
	}
}

func TestAClosedServerTakesNoStreamsAndNoTunnels(t *testing.T) {
	s := newShop(t)
	alice, beta := s.enroll(login("alice", false)), s.enroll(join("beta"))
	s.api.Close(context.Background())
	if status, e, _ := s.call(http.MethodGet, "/v1/events", alice, nil); status != http.StatusServiceUnavailable || e.Code != api.CodeShuttingDown {
		t.Errorf("%d %v", status, e)
	}
	if status, e, _ := s.call(http.MethodGet, "/v1/tunnel", beta, nil); status != http.StatusServiceUnavailable || e.Code != api.CodeShuttingDown {
		t.Errorf("%d %v", status, e)
	}
}

func TestTheAdminInterfaceRefusesAnEmptyPasswordAndCutsABrokenBackup(t *testing.T) {
	s := newShop(t)
	admin := httptest.NewServer(s.api.Admin())
	defer admin.Close()
	s.url = admin.URL
	if status, e, _ := s.call(http.MethodPost, "/v1/passwd", "", hubapi.Passwd{}); status != http.StatusBadRequest {
		t.Errorf("%d %v", status, e)
	}
	if status, _, data := s.call(http.MethodGet, "/v1/audit", "", nil); status != http.StatusOK {
		t.Errorf("%d %s", status, data)
	}
	if status, _, data := s.call(http.MethodGet, "/v1/backup", "", nil); status != http.StatusOK || len(data) == 0 {
		t.Errorf("backup: %d, %d bytes", status, len(data))
	}
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(admin.URL + "/v1/backup")
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Error("half a backup looks like a whole one")
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestAStreamOutlivesTheTimeForOneWrite(t *testing.T) {
	for name, version := range map[string]string{"by HTTP/1.1": "", "by HTTP/2": overHTTP2} {
		t.Run(name, func(t *testing.T) {
			const limit = 50 * time.Millisecond
			s := newShop(t, func(c *hubapi.Config) { c.EventTimeout, c.Version = limit, version })
			alice := s.enroll(login("alice", false))
			resp := s.open(http.MethodGet, "/v1/events", alice, nil)
			defer resp.Body.Close()
			if (resp.ProtoMajor == 2) != (version == overHTTP2) {
				t.Fatalf("the answer came by %s", resp.Proto)
			}
			lines := bufio.NewScanner(resp.Body)
			for range 3 {
				for lines.Scan() && !strings.HasPrefix(lines.Text(), "event: ") {
				}
				if err := lines.Err(); err != nil || lines.Text() == "" {
					t.Fatalf("the stream broke: %v", err)
				}
				<-time.After(2 * limit) // silence, longer than a write may take
				s.bus.Node(api.Node{Name: "beta"})
			}
		})
	}
}
