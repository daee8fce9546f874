package forward_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/hub/client"
	"opencode-mesh/hub/client/forward"
	"opencode-mesh/protocol/api"
)

func TestOnlyThisMachinesNamesAndItsOwnPagesAreServed(t *testing.T) {
	served := 0
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request) { served++; _, _ = io.WriteString(w, "here") })
	f, _ := h.start(forward.Config{})
	_, addr, _ := strings.Cut(f.URL(), "://")
	port := addr[strings.LastIndex(addr, ":"):]
	for _, c := range []struct {
		what, host string
		header     [][2]string
		method     string
		ok         bool
	}{
		{"its address", "127.0.0.1" + port, nil, "GET", true},
		{"its name", "localhost" + port, nil, "GET", true},
		{"its name in capitals", "LocalHost" + port, nil, "GET", true},
		{"its IPv6 address", "[::1]" + port, nil, "GET", true},
		{"a foreign name that resolves to here", "evil.example" + port, nil, "GET", false},
		{"a name below localhost", "beta.localhost" + port, nil, "GET", false},
		{"another loopback address", "127.0.0.2" + port, nil, "GET", false},
		{"another port", "127.0.0.1:1", nil, "GET", false},
		{"no port", "127.0.0.1", nil, "GET", false},
		{"a page of its own", "127.0.0.1" + port, [][2]string{{"Origin", "http://127.0.0.1" + port}}, "POST", true},
		{"a page of its name", "localhost" + port, [][2]string{{"Origin", "http://localhost" + port}}, "POST", true},
		{"a page of its other name", "127.0.0.1" + port, [][2]string{{"Origin", "http://localhost" + port}}, "POST", false},
		{"a page over TLS", "127.0.0.1" + port, [][2]string{{"Origin", "https://127.0.0.1" + port}}, "POST", false},
		{"a page of another port", "127.0.0.1" + port, [][2]string{{"Origin", "http://127.0.0.1:1"}}, "POST", false},
		{"a foreign page that reads", "127.0.0.1" + port, [][2]string{{"Origin", "http://evil.example"}}, "GET", false},
		{"a page without an origin", "127.0.0.1" + port, [][2]string{{"Origin", "null"}}, "POST", false},
		{"an empty origin", "127.0.0.1" + port, [][2]string{{"Origin", ""}}, "POST", false},
		{"two origins", "127.0.0.1" + port, [][2]string{{"Origin", "http://127.0.0.1" + port}, {"Origin", "http://evil.example"}}, "POST", false},
		{"a foreign page's WebSocket", "127.0.0.1" + port, [][2]string{{"Origin", "http://evil.example"}, {"Connection", "Upgrade"}, {"Upgrade", "websocket"}}, "GET", false},
		{"a foreign page's image", "127.0.0.1" + port, [][2]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "no-cors"}, {"Sec-Fetch-Dest", "image"}}, "GET", false},
		{"an image of another port", "127.0.0.1" + port, [][2]string{{"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Mode", "no-cors"}, {"Sec-Fetch-Dest", "image"}}, "GET", false},
		{"a foreign page's frame", "127.0.0.1" + port, [][2]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "iframe"}}, "GET", false},
		{"a foreign page's form", "127.0.0.1" + port, [][2]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "document"}}, "POST", false},
		{"a link to it", "127.0.0.1" + port, [][2]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "document"}}, "GET", true},
		{"its typed address", "127.0.0.1" + port, [][2]string{{"Sec-Fetch-Site", "none"}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "document"}}, "GET", true},
		{"its own image", "127.0.0.1" + port, [][2]string{{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Mode", "no-cors"}, {"Sec-Fetch-Dest", "image"}}, "GET", true},
	} {
		before := served
		resp, body := get(t, f.URL(), func(r *http.Request) {
			r.Method, r.Host = c.method, c.host
			for _, kv := range c.header {
				r.Header.Add(kv[0], kv[1])
			}
		})
		if c.ok != (resp.StatusCode == 200 && served == before+1) || !c.ok && (resp.StatusCode != 403 || served != before || api.DecodeError(403, []byte(body)).Code != api.CodeForbidden) {
			t.Errorf("%s: %d %s, reached the hub %d times", c.what, resp.StatusCode, body, served-before)
		}
	}
}

func TestRequestsReachTheServiceAsTheBrowserSentThem(t *testing.T) {
	type seen struct {
		uri, host, body string
		header, trailer http.Header
	}
	got := make(chan seen, 1)
	h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.RequestURI, r.Host, string(body), r.Header, r.Trailer}
		w.Header().Set("X-Own", "1")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "short and stout")
	})
	f, _ := h.start(forward.Config{})
	for _, uri := range []string{"/", "/a%2Fb//c/../d", "/a|b\"c", "/%zz", "/?", "/?a=1;b=%zz&c", "//x", "/a?u=http://x/?y", "/caf\xc3\xa9", "/.%2e/x"} {
		conn := dial(t, f)
		_, addr, _ := strings.Cut(f.URL(), "://")
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Basic b3duOm93bg==\r\nCookie: own=1\r\nMesh-Authorization: Bearer forged\r\nMesh-Host: forged\r\nX-Own: 2\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n5\r\nhello\r\n0\r\nX-Late: yes\r\n\r\n", uri, addr)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode == http.StatusBadRequest { // Go's own server refuses it already
			if uri != "/%zz" {
				t.Errorf("%s: %d %s", uri, resp.StatusCode, body)
			}
			continue
		}
		s := <-got
		if s.uri != uri || s.body != "hello" || s.trailer.Get("X-Late") != "yes" {
			t.Errorf("%s arrives as %s %q, trailer %v", uri, s.uri, s.body, s.trailer)
		}
		if s.host != addr || s.header.Get("Mesh-Host") != addr {
			t.Errorf("Host is %s, Mesh-Host %s", s.host, s.header.Get("Mesh-Host"))
		}
		if s.header.Get("Authorization") != "Basic b3duOm93bg==" || s.header.Get("Cookie") != "own=1" || s.header.Get("X-Own") != "2" || s.header.Get("X-Hop") != "" || s.header.Get("X-Forwarded-Proto") != "http" || s.header["Accept-Encoding"] != nil {
			t.Errorf("header %v", s.header)
		}
		if resp.StatusCode != http.StatusTeapot || string(body) != "short and stout" || resp.Header.Get("X-Own") != "1" {
			t.Errorf("answer %d %v %s", resp.StatusCode, resp.Header, body)
		}
	}
}

func TestThePortIsNoProxyForOtherAddresses(t *testing.T) {
	h := newHub(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s reaches the hub", r.RequestURI) })
	f, _ := h.start(forward.Config{})
	conn := dial(t, f)
	fmt.Fprintf(conn, "GET %s/x HTTP/1.1\r\nHost: whatever\r\n\r\n", f.URL())
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Error(resp.Status)
	}
}

func TestAListenerThatBreaksEndsWhatIsOpenToo(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request) {
		conn := upgraded(t, w, "websocket")
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	})
	l, err := forward.Listen("")
	if err != nil {
		t.Fatal(err)
	}
	svc := h.serviceOf()
	f := forward.New(l, forward.Config{Service: svc})
	served := make(chan error, 1)
	go func() { served <- f.Serve(context.Background()) }()
	_, addr, _ := strings.Cut(f.URL(), "://")
	conn := dial(t, f)
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", addr)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	_ = l.Close()
	select {
	case err := <-served:
		if err == nil {
			t.Error("it ends as if it had been asked to")
		}
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}

func TestWhatTheHubDoesAgainstPagesOfNodesIsUndoneOnThePort(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "sandbox")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Set-Cookie", "of=hub")
		h.Set(api.HeaderOriginal+"Content-Security-Policy", "default-src 'self'")
		h.Add(api.HeaderOriginal+"Set-Cookie", "a=1; HttpOnly")
		h.Add(api.HeaderOriginal+"Set-Cookie", "b=2")
	})
	f, _ := h.start(forward.Config{})
	resp, _ := get(t, f.URL())
	if got := resp.Header["Content-Security-Policy"]; len(got) != 1 || got[0] != "default-src 'self'" {
		t.Errorf("policy %q", got)
	}
	if got := resp.Header["X-Content-Type-Options"]; len(got) != 0 {
		t.Errorf("options %q", got)
	}
	if got := resp.Header["Set-Cookie"]; len(got) != 2 || got[0] != "a=1; HttpOnly" || got[1] != "b=2" || resp.Header.Get(api.HeaderOriginal+"Set-Cookie") != "" {
		t.Errorf("cookies %q", got)
	}
}

func TestThePasswordOpensThePortAndStaysThere(t *testing.T) {
	served := 0
	h := newHub(t, func(_ http.ResponseWriter, r *http.Request) {
		served++
		if r.Header.Get("Authorization") != "" {
			t.Error("the port's own password reaches the hub")
		}
	})
	f, _ := h.start(forward.Config{Password: "let-me-in"})
	for _, c := range []struct {
		what string
		do   func(*http.Request)
		ok   bool
	}{
		{"nothing", func(*http.Request) {}, false},
		{"right", func(r *http.Request) { r.SetBasicAuth(forward.Username, "let-me-in") }, true},
		{"wrong password", func(r *http.Request) { r.SetBasicAuth(forward.Username, "let-me-in!") }, false},
		{"wrong name", func(r *http.Request) { r.SetBasicAuth("root", "let-me-in") }, false},
		{"empty", func(r *http.Request) { r.SetBasicAuth(forward.Username, "") }, false},
		{"as a token", func(r *http.Request) { r.Header.Set("Authorization", "Bearer let-me-in") }, false},
	} {
		before := served
		resp, _ := get(t, f.URL(), c.do)
		if c.ok != (resp.StatusCode == 200 && served == before+1) || !c.ok && (resp.StatusCode != 401 || served != before || resp.Header.Get("WWW-Authenticate") == "") {
			t.Errorf("%s: %d", c.what, resp.StatusCode)
		}
	}
}

func TestEventsArriveOneByOneAndTheEndReachesTheService(t *testing.T) {
	next, ended := make(chan string), make(chan struct{})
	h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		for {
			select {
			case text := <-next:
				fmt.Fprintf(w, "data: %s\n\n", text)
				_ = rc.Flush()
			case <-r.Context().Done():
				close(ended)
				return
			}
		}
	})
	f, _ := h.start(forward.Config{})
	conn := dial(t, f)
	_, addr, _ := strings.Cut(f.URL(), "://")
	fmt.Fprintf(conn, "GET /event HTTP/1.1\r\nHost: %s\r\n\r\n", addr)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	events := bufio.NewReader(resp.Body)
	for i := range 5 {
		next <- fmt.Sprint(i)
		if line, err := events.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q %v", line, err)
		}
		_, _ = events.ReadString('\n')
	}
	_ = conn.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the service never learns that nobody listens")
	}
}

func TestAnAnswerMayBeginBeforeItsRequestHasEnded(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		_, _ = io.WriteString(w, "ready,")
		_ = rc.Flush()
		_, _ = io.Copy(w, r.Body)
	})
	f, _ := h.start(forward.Config{})
	body, typing := io.Pipe()
	req, err := http.NewRequest(http.MethodPost, f.URL(), body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := browser(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	start := make([]byte, len("ready,"))
	if _, err := io.ReadFull(resp.Body, start); err != nil || string(start) != "ready," {
		t.Fatalf("%q %v", start, err)
	}
	_, _ = io.WriteString(typing, "then this")
	_ = typing.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "then this" {
		t.Errorf("%q %v", rest, err)
	}
}

func TestUpgradesPassBothWaysAndARefusedOneKeepsItsBody(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI == "/no" {
			http.Error(w, "not today", http.StatusForbidden)
			return
		}
		conn := upgraded(t, w, "websocket")
		defer conn.Close()
		_, _ = io.WriteString(conn, "early,")
		_, _ = io.Copy(conn, struct{ io.Reader }{conn})
		_, _ = io.WriteString(conn, ",late")
		_ = conn.(buffered).CloseWrite()
	})
	f, _ := h.start(forward.Config{})
	_, addr, _ := strings.Cut(f.URL(), "://")
	ask := func(path string) (*http.Response, *bufio.Reader, interface {
		io.Writer
		CloseWrite() error
	}) {
		conn := dial(t, f)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nbehind,", path, addr, addr)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp, r, conn
	}
	resp, _, _ := ask("/no")
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusForbidden || string(body) != "not today\n" || err != nil {
		t.Errorf("refused: %d %q %v", resp.StatusCode, body, err)
	}
	resp, r, conn := ask("/pty")
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "websocket" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	_, _ = io.WriteString(conn, "ping")
	_ = conn.CloseWrite()
	if all, err := io.ReadAll(r); err != nil || string(all) != "early,behind,ping,late" {
		t.Errorf("%q %v", all, err)
	}
}

func TestAClientOfHTTP10GetsNothingThatItCannotRead(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		fmt.Fprintf(w, "upgrade %s.", r.Header.Get("Upgrade"))
	})
	f, _ := h.start(forward.Config{})
	_, addr, _ := strings.Cut(f.URL(), "://")
	conn := dial(t, f)
	fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", addr)
	got, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.0 200 ") || strings.Contains(string(got), "Link") || !strings.HasSuffix(string(got), "upgrade .") {
		t.Errorf("got %q %v", got, err)
	}
}

func TestAHubThatIsBackServesNewRequests(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	addr := h.Listener.Addr().String()
	said := make(chan error, 10)
	f, _ := h.start(forward.Config{Report: func(err error) { said <- err }})
	if resp, _ := get(t, f.URL()); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	h.CloseClientConnections()
	h.Close()
	for range 2 {
		resp, body := get(t, f.URL())
		if resp.StatusCode != http.StatusServiceUnavailable || api.DecodeError(0, []byte(body)).Code != api.CodeUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("while the hub is away: %d %s", resp.StatusCode, body)
		}
	}
	again := restarted(t, addr, h)
	if resp, body := get(t, f.URL()); resp.StatusCode != 200 || body != "here" {
		t.Errorf("after it is back: %d %s", resp.StatusCode, body)
	}
	again()
	if err := <-said; !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("said %v", err)
	}
	if err := <-said; err != nil {
		t.Errorf("said %v and not that it works again", err)
	}
	if len(said) > 0 {
		t.Errorf("said too much: %v", <-said)
	}
}

func TestTheEndCutsWhatIsOpen(t *testing.T) {
	entered := make(chan struct{}, 3)
	h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn := upgraded(t, w, "websocket")
			entered <- struct{}{}
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
			return
		}
		if r.RequestURI == "/bulk" {
			entered <- struct{}{}
			for _, err := w.Write(make([]byte, 1<<20)); err == nil; _, err = w.Write(make([]byte, 1<<20)) {
			}
			return
		}
		_ = http.NewResponseController(w).Flush()
		entered <- struct{}{}
		<-r.Context().Done()
	})
	f, stop := h.start(forward.Config{})
	_, addr, _ := strings.Cut(f.URL(), "://")
	for _, head := range []string{"GET /wait HTTP/1.1\r\nHost: %s\r\n\r\n", "GET /bulk HTTP/1.1\r\nHost: %s\r\n\r\n", "GET /pty HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"} {
		fmt.Fprintf(dial(t, f), head, addr)
		<-entered
	}
	if n := f.Traffic().Counts().Open; n != 3 {
		t.Errorf("%d connections are open", n)
	}
	stop()
	if c := f.Traffic().Counts(); c.Open != 0 || c.Total != 3 {
		t.Errorf("after the end: %+v", c)
	}
}

func TestTrafficIsCounted(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	f, stop := h.start(forward.Config{})
	body := bytes.Repeat([]byte("x"), 1<<20)
	resp, err := browser(t).Post(f.URL(), "text/plain", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	stop()
	c := f.Traffic().Counts()
	if !bytes.Equal(got, body) || c.Total != 1 || c.In < 1<<20 || c.In > 1<<20+4096 || c.Out < 1<<20 || c.Out > 1<<20+65536 {
		t.Errorf("%+v", c)
	}
}
