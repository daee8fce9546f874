package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/hub/gate"
	"opencode-mesh/protocol/api"
)

// withBrowsers is a hub that browsers may use.
func withBrowsers(c *hubapi.Config) {
	c.Gate = gate.New(gate.Config{Access: c.Access})
	c.Pages = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page of ", r.URL.Path) })
}

// visit logs a browser in.
func (s *shop) visit() api.Issued {
	s.t.Helper()
	is, err := s.access.Visit(context.Background(), peer, "dashboard", password)
	if err != nil {
		s.t.Fatal(err)
	}
	return is
}

// browse makes a request of a browser; header pairs follow.
func (s *shop) browse(method, path, cookie, body string, header ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	if cookie != "" {
		req.AddCookie(&http.Cookie{Name: "mesh_session", Value: cookie})
	}
	resp, err := s.hc.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestABrowserUsesTheInterfaceFromTheHubsOwnPages(t *testing.T) {
	s := newShop(t, withBrowsers)
	cookie := s.visit().Credential
	bearer := s.enroll(login("alice", false))
	for _, c := range []struct {
		name, method, path, cookie string
		header                     []string
		status                     int
	}{
		{"a listing", "GET", "/v1/nodes", cookie, nil, 200},
		{"an operator's listing", "GET", "/v1/credentials", cookie, nil, 200},
		{"without the cookie", "GET", "/v1/nodes", "", nil, 401},
		{"another credential as the cookie", "GET", "/v1/nodes", bearer, nil, 401},
		{"the cookie's secret as a bearer", "GET", "/v1/nodes", "", []string{"Authorization", "Bearer " + cookie}, 401},
		{"a bearer beside the cookie", "GET", "/v1/credentials", cookie, []string{"Authorization", "Bearer " + bearer}, 403},
		{"Basic beside the cookie", "GET", "/v1/nodes", cookie, []string{"Authorization", "Basic eDp5"}, 401},
		{"a change", "POST", "/v1/revoke/nobody", cookie, []string{"Origin", s.url}, 404},
		{"a change that says nothing", "POST", "/v1/revoke/nobody", cookie, nil, 403},
		{"a change of another page", "POST", "/v1/revoke/nobody", cookie, []string{"Origin", "https://evil.example"}, 403},
		{"a change of another port", "POST", "/v1/revoke/nobody", cookie, []string{"Origin", "http://127.0.0.1:1"}, 403},
		{"a change by bearer needs no origin", "POST", "/v1/revoke/nobody", "", []string{"Authorization", "Bearer " + bearer}, 403},
		{"a foreign name", "GET", "/v1/nodes", cookie, []string{"Host", "evil.example"}, 403},
		{"a foreign name by bearer", "GET", "/v1/nodes", "", []string{"Host", "evil.example", "Authorization", "Bearer " + bearer}, 200},
		{"another site's reading", "GET", "/v1/nodes", cookie, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403},

		{"the tunnel", "GET", "/v1/tunnel", cookie, []string{"Origin", s.url}, 401},
		{"the services of a node", "GET", "/v1/nodes/beta/services", cookie, nil, 401},
		{"a service", "GET", "/v1/nodes/beta/services/web/", cookie, []string{"Sec-Fetch-Site", "same-origin"}, 401},
		{"a service's own POST", "POST", "/v1/nodes/beta/services/web/x", cookie, []string{"Origin", s.url}, 401},
		{"a service by a method of its own", "PROPFIND", "/v1/nodes/beta/services/web/x", cookie, []string{"Origin", s.url}, 401},
		{"a URL that lets a browser in", "POST", "/v1/nodes/beta/services/web/handover", cookie, []string{"Origin", s.url}, 401},
		{"login", "POST", "/v1/login", cookie, []string{"Origin", s.url}, 400},
		{"join", "POST", "/v1/join", cookie, []string{"Origin", s.url}, 400},
		{"nothing below /v1", "GET", "/v1/nothing", cookie, nil, 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			if resp := s.browse(c.method, c.path, c.cookie, "", c.header...); resp.StatusCode != c.status {
				body, _ := io.ReadAll(resp.Body)
				t.Errorf("got %d, want %d: %s", resp.StatusCode, c.status, body)
			}
		})
	}
}

func TestPagesAreForBrowsersAndWhatIsBelowV1IsNoPage(t *testing.T) {
	s := newShop(t, withBrowsers)
	for _, c := range []struct {
		method, path string
		header       []string
		page         bool
	}{
		{"GET", "/", nil, true}, {"POST", "/login", nil, true}, {"GET", "/v1x", nil, true},
		{"GET", "/v1", nil, false}, {"GET", "/v1/x", nil, false}, {"PUT", "/x", nil, false}, {"GET", "/x", []string{"Authorization", "Bearer x"}, false},
		{"GET", "/healthz", nil, false}, {"GET", "/metrics", nil, false},
	} {
		resp := s.browse(c.method, c.path, "", "", c.header...)
		body, _ := io.ReadAll(resp.Body)
		if strings.HasPrefix(string(body), "page of ") != c.page {
			t.Errorf("%s %s: %d %.80s", c.method, c.path, resp.StatusCode, body)
		}
	}
}

// listen opens the stream of a browser and waits for its first event.
func (s *shop) listen(cookie string) (ended <-chan error) {
	s.t.Helper()
	resp := s.browse(http.MethodGet, "/v1/events", cookie, "")
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("stream: %d", resp.StatusCode)
	}
	lines := bufio.NewReader(resp.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, lines)
		done <- err
	}()
	return done
}

func TestLogoutEndsTheStreamsOfThatBrowserOnly(t *testing.T) {
	s := newShop(t, withBrowsers)
	one, two := s.visit(), s.visit() // of one name
	first, second, other := s.listen(one.Credential), s.listen(one.Credential), s.listen(two.Credential)
	p, err := s.access.Browser(context.Background(), one.Credential)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.access.Logout(context.Background(), p, peer); err != nil {
		t.Fatal(err)
	}
	for _, ended := range []<-chan error{first, second} {
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Fatal("a stream goes on")
		}
	}
	select {
	case err := <-other:
		t.Fatalf("the other browser's stream ended: %v", err)
	default:
	}
	if resp := s.browse(http.MethodGet, "/v1/events", one.Credential, ""); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a new stream: %d", resp.StatusCode)
	}

	// A new password ends the rest.
	if err := s.access.SetPassword(context.Background(), "another one"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-other:
	case <-time.After(2 * time.Minute):
		t.Fatal("a stream outlives the password")
	}
}

func TestAStreamThatOpensWhileItsBrowserLogsOutEnds(t *testing.T) {
	s := newShop(t, withBrowsers)
	is := s.visit()
	p, err := s.access.Browser(context.Background(), is.Credential)
	if err != nil {
		t.Fatal(err)
	}
	armed := true
	s.store.identity = func() { // the request was recognised, its stream is not open yet
		if armed {
			armed = false
			if err := s.access.Logout(context.Background(), p, peer); err != nil {
				t.Error(err)
			}
		}
	}
	resp := s.browse(http.MethodGet, "/v1/events", is.Credential, "")
	if resp.StatusCode == http.StatusOK {
		t.Errorf("the stream is open: %d", resp.StatusCode)
	}
}

func TestAStreamEndsWithTheTimeOfItsBrowser(t *testing.T) {
	s := newShop(t, withBrowsers, func(c *hubapi.Config) {
		// The clock of the handlers is a moment before the end of every session.
		c.Now = func() time.Time { return time.Now().UTC().Add(30*24*time.Hour - 300*time.Millisecond) }
	})
	select {
	case <-s.listen(s.visit().Credential):
	case <-time.After(2 * time.Minute):
		t.Fatal("the stream goes on")
	}
}

func TestAPageMissesNothingThatHappensAfterItWasMade(t *testing.T) {
	s := newShop(t, withBrowsers)
	cookie := s.visit().Credential
	last := s.bus.Last()
	s.bus.Node(api.Node{Name: "between"})
	resp := s.browse(http.MethodGet, "/v1/events?after="+last, cookie, "")
	text := make([]byte, 4096)
	n, err := io.ReadAtLeast(resp.Body, text, len("id: g-b-1\nevent: node"))
	if err != nil || !strings.Contains(string(text[:n]), `"between"`) {
		t.Errorf("the stream begins with %s (%v)", text[:n], err)
	}
	resp = s.browse(http.MethodGet, "/v1/events?after="+last, cookie, "", "Last-Event-ID", s.bus.Last())
	n, _ = resp.Body.Read(text)
	if !strings.HasPrefix(string(text[:n]), "event: beat") {
		t.Errorf("the header does not count: %s", text[:n])
	}
	resp = s.browse(http.MethodGet, "/v1/events?after=another-boot-1", cookie, "")
	n, _ = resp.Body.Read(text)
	if !strings.HasPrefix(string(text[:n]), "event: resync") {
		t.Errorf("after another boot: %s", text[:n])
	}
}

func TestNodesAreListedByNameToo(t *testing.T) {
	s := newShop(t)
	op := s.enroll(login("boss", true))
	for _, n := range []string{"alpha", "beta", "gamma"} {
		s.enroll(join(n))
	}
	_, _, data := s.call(http.MethodGet, "/v1/nodes?name=gamma&name=alpha&name=none", op, nil)
	if text := string(data); !strings.Contains(text, `"alpha"`) || !strings.Contains(text, `"gamma"`) || strings.Contains(text, `"beta"`) {
		t.Errorf("got %s", text)
	}
}

func TestAskingIsDoneAsWhoeverAsks(t *testing.T) {
	s := newShop(t, withBrowsers)
	is := s.visit()
	req, _ := http.NewRequest(http.MethodPost, s.url+"/tasks/x?y=z", strings.NewReader("body")) // a page's own request
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	req.RemoteAddr = "192.0.2.1:1"
	if status, body := s.api.Ask(req, "/v1/credentials"); status != http.StatusUnauthorized {
		t.Errorf("a stranger: %d %s", status, body)
	}
	req.AddCookie(&http.Cookie{Name: "mesh_session", Value: is.Credential})
	if status, body := s.api.Ask(req, "/v1/credentials"); status != http.StatusOK || !strings.Contains(string(body), `"browser":true`) {
		t.Errorf("a browser: %d %s", status, body)
	}
	if status, _ := s.api.Ask(req, "/v1/tasks/none"); status != http.StatusNotFound {
		t.Errorf("what is not there: %d", status)
	}
}
