package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/hub/proxy"
	"opencode-mesh/protocol/api"
)

// patience is how long the hub may be silent after what it may wait for more of.
const patience = 200 * time.Millisecond

// say sends bytes to the hub as they are and returns all that it answers. The end of
// its own direction comes only after the answer has begun: a server takes it for the
// client's end.
func (b *bed) say(text string) string {
	b.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, text)
	r := bufio.NewReader(c)
	if !strings.Contains(text, "Connection: close") {
		_ = c.SetReadDeadline(time.Now().Add(patience))
	}
	_, _ = r.Peek(1)
	_ = c.SetReadDeadline(time.Time{})
	if !strings.Contains(text, "Connection: close") {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	all, _ := io.ReadAll(r)
	return string(all)
}

// lines is a service that repeats the request line and header that it got, as they
// came, and says how long the body was.
func lines(c net.Conn, r *bufio.Reader) {
	for {
		var head strings.Builder
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if head.WriteString(line); line == "\r\n" {
				break
			}
		}
		req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(head.String()), r)))
		if err != nil {
			fmt.Fprint(c, "HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")
			return
		}
		n, _ := io.Copy(io.Discard, req.Body)
		body := fmt.Sprintf("%sbody %d trailer %v", head.String(), n, req.Trailer)
		if req.Method == http.MethodHead {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(body))
			continue
		}
		answer(c, body)
	}
}

func TestAMethodIsPassedOnAsItIsUnlessItIsNotForServices(t *testing.T) {
	b := newBed(t, httpService(raw(t, lines)))
	for method, passes := range map[string]bool{
		"GET": true, "get": true, "Foo": true, "M-SEARCH": true, "PRI": true, "!#$%&'*+-.^_`|~0Az": true, "HEAD": true, "QUERY": true,
		"TRACE": false, "trace": false, "TRACK": false, "CONNECT": false, "Connect": false,
	} {
		got := b.say(method + " " + webPath + "x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		switch {
		case passes && !strings.HasPrefix(got, "HTTP/1.1 200"), passes && method != "HEAD" && !strings.Contains(got, "\r\n\r\n"+method+" /x HTTP/1.1\r\n"):
			t.Errorf("%s: got %q", method, got)
		case !passes && (!strings.HasPrefix(got, "HTTP/1.1 405") || !strings.Contains(got, string(api.CodeMethodNotAllowed)) || !strings.Contains(got, "web of node alpha")):
			t.Errorf("%s: got %q", method, got)
		}
	}
	if got := b.say("get " + webPath + " HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.0 200") || !strings.Contains(got, "get / HTTP/1.1") {
		t.Errorf("got %q", got)
	}
}

func TestHeadersThatLookLikeTheMeshsOrAProxysAreTakenOut(t *testing.T) {
	b := newBed(t, httpService(raw(t, lines)))
	for name, passes := range map[string]bool{
		"X_Forwarded_For": false, "x-forwarded_for": false, "X.Forwarded.Proto": false, "X_Real_IP": false, "Mesh_Authorization": false, "mesh.host": false,
		"Transfer_Encoding": false, "Content_Length": false, "Proxy_Authorization": false, "Keep_Alive": false,
		"X-Forwarded-Port": false, "X-Forwarded-Prefix": false, "X-Forwarded-User": false, "Forwarded": false, "X-Real-IP": false,
		"Api_Key": true, "X_Custom": true, "Meshed": true, "X-Mesh-Like": true, "Content_Type": true,
	} {
		got := b.say("GET " + webPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + name + ": 1234567\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 200") || strings.Contains(got, ": 1234567") != passes {
			t.Errorf("%s: the service got %q", name, got)
		}
	}
}

func TestTrailersCarryNothingThatIsNotToBeThere(t *testing.T) {
	const up = "X-Sum: 1\r\nAuthorization: secret\r\nMesh-Authorization: secret\r\nX-Forwarded-For: secret\r\nX_Forwarded_For: secret\r\nContent-Type: secret\r\n"
	const down = "X-Total: 2\r\nSet-Cookie: secret\r\nMesh-Task: secret\r\nContent-Security-Policy: secret\r\nConnection: secret\r\n"
	b := newBed(t, httpService(raw(t, func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		got := fmt.Sprint(req.Trailer)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Total, Set-Cookie, Mesh-Task\r\n\r\n%x\r\n%s\r\n0\r\n%s\r\n", len(got), got, down)
	})))
	for _, announced := range []string{"", "Trailer: X-Sum\r\n", "Trailer: X-Sum, Authorization, Mesh-Authorization, X-Forwarded-For, X_Forwarded_For\r\n"} {
		got := b.say("POST " + webPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTe: trailers\r\nTransfer-Encoding: chunked\r\n" + announced + "\r\n1\r\nx\r\n0\r\n" + up + "\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 200") || !strings.Contains(got, "X-Total: 2") || strings.Contains(got, "secret") || strings.Contains(got, "Mesh-Task") {
			t.Errorf("announced %q: got %q", announced, got)
		}
		if (announced != "") != strings.Contains(got, "map[X-Sum:[1]]") {
			t.Errorf("announced %q: the service got %q", announced, got)
		}
	}
}

// TestARequestCannotHideAnother sends what front ends and servers have been known to
// read differently. The one hidden in it must never reach a service.
func TestARequestCannotHideAnother(t *testing.T) {
	const hidden = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden)
	var got sync.Map
	b := newBed(t, httpService(raw(t, func(c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			got.Store(req.URL.Path, true)
			_, _ = io.Copy(io.Discard, req.Body)
			answer(c, "ok")
		}
	})))
	for i, head := range []string{
		"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden,
		"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"Content-Length: 0\r\nContent-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"Content-Length: " + fmt.Sprint(len(hidden)) + "\r\nContent-Length: 0\r\n\r\n" + hidden,
		"Content-Length: 0, 37\r\n\r\n" + hidden,
		"Content-Length: +37\r\n\r\n" + hidden,
		"Content-Length: 0x0\r\n\r\n" + hidden,
		"Content-Length : 0\r\n\r\n" + hidden,
		"Content_Length: 0\r\n\r\n" + hidden,
		"Transfer-Encoding: xchunked\r\n\r\n" + chunked,
		"Transfer-Encoding : chunked\r\n\r\n" + chunked,
		"Transfer-Encoding:\r\n chunked\r\n\r\n" + chunked,
		"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked,
		"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"Transfer_Encoding: chunked\r\n\r\n" + chunked,
		"X: y\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"X: y\rTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"Transfer-Encoding: chunked\r\n\r\n0;x=\"\n\r\n\r\n" + hidden,
		"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + hidden,
		"Transfer-Encoding: chunked\r\n\r\n1\r\nZZ\r\n0\r\n\r\n" + hidden,
		"Expect: 100-continue\r\nContent-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"Connection: Content-Length, Transfer-Encoding\r\nContent-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\nContent-Length: " + fmt.Sprint(len(hidden)) + "\r\n\r\n" + hidden,
		"\r\n" + hidden,
	} {
		for _, method := range []string{"GET", "POST"} {
			for _, version := range []string{"1.1", "1.0"} {
				b.say(method + " " + webPath + fmt.Sprint("sent", i) + " HTTP/" + version + "\r\nHost: x\r\n" + head)
				if _, found := got.Load("/hidden"); found {
					t.Fatalf("%s %s %q: the service got what was hidden in it", method, version, head)
				}
			}
		}
		if body := text(t, b.get("next")); body != "ok" {
			t.Fatalf("after %q: %q", head, body)
		}
	}
	if _, found := got.Load("/sent24"); !found {
		t.Error("not even the well-formed ones reached the service")
	}
}

// TestAnAnswerCannotBeAnothersToo has services that lie about their answers, by both
// ways of the hub: what does not belong to a request's answer reaches neither its
// client nor the next one.
func TestAnAnswerCannotBeAnothersToo(t *testing.T) {
	const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
	for name, said := range map[string]string{
		"a body where there is none":        "HTTP/1.1 204 No Content\r\n\r\n" + forged,
		"a body of something not modified":  "HTTP/1.1 304 Not Modified\r\nContent-Length: 90\r\n\r\n" + forged,
		"more than its length":              "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + forged,
		"something behind the last chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + forged,
		"two lengths":                       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 50\r\n\r\nok" + forged,
		"a length and chunks":               "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + forged,
		"a coding that is not chunked":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + forged,
		"a length that is no number":        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok" + forged,
		"a status below all":                "HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok" + forged,
		"no status":                         "HTTP/1.1 000 Odd\r\nContent-Length: 2\r\n\r\nok" + forged,
		"a status above all":                "HTTP/1.1 1000 Odd\r\nContent-Length: 2\r\n\r\nok" + forged,
		"less than its length":              "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nok",
		"a chunk without end":               "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\nok",
		"chunks that end without their end": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
		"chunks that are none":              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodDelete} {
			var conns atomic.Int32
			b := newBed(t, counted(t, &conns, func(c net.Conn, req *http.Request, _ int) bool {
				if req.URL.Path == "/next" {
					answer(c, "next")
					return true
				}
				fmt.Fprint(c, said)
				return strings.Contains(said, forged)
			}))
			var body []byte
			status := 0
			resp, err := b.hc.Do(b.request(method, "", nil))
			if err == nil {
				status = resp.StatusCode
				body, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if strings.Contains(string(body), "forged") {
				t.Errorf("%s, %s: got %q", name, method, body)
			}
			lies := !strings.Contains(said, forged)
			if method != http.MethodHead && lies && err == nil && status < 400 {
				t.Errorf("%s, %s: %d %q is taken for whole", name, method, status, body)
			}
			if strings.Contains(said, " Odd") && status != http.StatusBadGateway {
				t.Errorf("%s, %s: %d %q, %v", name, method, status, body, err)
			}
			for range 2 {
				if got := text(t, b.get("next")); got != "next" {
					t.Errorf("%s, %s: the next request is answered %q", name, method, got)
				}
			}
			eventually(t, "no request is under way", func() bool { return b.node.Under() == 0 })
		}
	}
}

func TestWhatComesOnAnIdleStreamIsNobodysAnswer(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		var conns atomic.Int32
		more := make(chan struct{})
		b := newBed(t, counted(t, &conns, func(c net.Conn, req *http.Request, _ int) bool {
			if req.URL.Path == "/next" {
				answer(c, "next")
				return true
			}
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			<-more
			answer(c, "forged")
			return true
		}))
		_ = text(t, b.do(b.request(method, "", nil)))
		more <- struct{}{}
		eventually(t, "it has come", func() bool { return b.node.Spoke("web") })
		if got := text(t, b.get("next")); got != "next" {
			t.Errorf("%s: the next request is answered %q", method, got)
		}
		if n := conns.Load(); n != 2 {
			t.Errorf("%d connections", n)
		}
	}
}

func TestInformationalAnswersAreCleanedToo(t *testing.T) {
	const said = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nSet-Cookie: mesh_service=1\r\nMesh-Task: 1\r\nClear-Site-Data: \"*\"\r\nConnection: X\r\n\r\n" +
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for _, hosted := range []bool{false, true} {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			var conns atomic.Int32
			b := newBed(t, counted(t, &conns, func(c net.Conn, _ *http.Request, _ int) bool { fmt.Fprint(c, said); return true }))
			b.caller = proxy.Caller{Hosted: hosted}
			var hints http.Header
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				hints = http.Header(h)
				return nil
			}})
			resp := b.do(b.request(method, "", nil).WithContext(ctx))
			if got := text(t, resp); got != "ok" || resp.Header.Get("Link") != "" {
				t.Errorf("got %q %v", got, resp.Header)
			}
			if hints.Get("Link") != "</a.css>" || (hints.Get("Content-Security-Policy") == "sandbox") == hosted {
				t.Errorf("%v %s: hints %v", hosted, method, hints)
			}
			for _, name := range []string{"Set-Cookie", "Mesh-Task", "Clear-Site-Data", "Connection"} {
				if hints[name] != nil {
					t.Errorf("%v %s: hints %v", hosted, method, hints)
				}
			}
		}
	}
}

// TestAnUpgradeIsNoWayAroundTheHub: behind a change to HTTP/2 further requests would
// come that nobody has looked at.
func TestAnUpgradeIsNoWayAroundTheHub(t *testing.T) {
	willing := func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if up := req.Header.Get("Upgrade"); up != "" {
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", up)
			return
		}
		answer(c, "not upgraded")
	}
	b := newBed(t, httpService(raw(t, willing)), offers(api.Service{Name: api.ServiceOpencode, Kind: api.ServiceHTTP}, raw(t, willing)))
	for _, c := range []struct {
		path, protocol string
		passes         bool
	}{
		{webPath, "websocket", true}, {webPath, "own/1", true}, {webPath, "h2c", false}, {webPath, "H2C", false}, {webPath, "HTTP/2.0", false},
		{webPath, "TLS/1.0", false}, {webPath, "websocket, h2c", false}, {webPath, "h2", false},
		{opencodePath, "WebSocket", true}, {opencodePath, "own", false}, {opencodePath, "h2c", false},
	} {
		_, _, resp := b.upgrade(c.path, c.protocol, "")
		if (resp.StatusCode == http.StatusSwitchingProtocols) != c.passes {
			t.Errorf("%s at %s: %d", c.protocol, c.path, resp.StatusCode)
		}
		if !c.passes {
			if body := text(t, resp); body != "not upgraded" {
				t.Errorf("%s at %s: %q", c.protocol, c.path, body)
			}
		}
	}
}

// TestAClientOfHTTP10GetsNothingThatItCannotRead: it would take an informational answer
// for the answer, and has no upgrades.
func TestAClientOfHTTP10GetsNothingThatItCannotRead(t *testing.T) {
	b := newBed(t, httpService(raw(t, func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")
		answer(c, "upgrade "+req.Header.Get("Upgrade")+".")
	})), offers(api.Service{Name: "db", Kind: api.ServiceTCP}, "127.0.0.1:9"))
	for _, method := range []string{"GET", "DELETE"} {
		got := b.say(method + " " + webPath + " HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.0 200 ") || strings.Contains(got, "Link") || !strings.HasSuffix(got, "upgrade .") {
			t.Errorf("%s: got %q", method, got)
		}
	}
	if got := b.say("GET " + dbPath + " HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: " + api.UpgradeStream + "\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.0 400 ") {
		t.Errorf("a raw stream: got %q", got)
	}
}

// TestTheLimitIsGivenBackHoweverARequestEnds goes through the ways in which one ends.
func TestTheLimitIsGivenBackHoweverARequestEnds(t *testing.T) {
	arrived := make(chan struct{}, 16)
	b := newBed(t, tcp(raw(t, upper)), offers(api.Service{Name: "gone", Kind: api.ServiceTCP}, "127.0.0.1:1"),
		offers(api.Service{Name: "up", Kind: api.ServiceHTTP}, raw(t, upper)), web(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/die":
				panic(http.ErrAbortHandler)
			case "/half":
				w.Header().Set("Content-Length", "100")
				fmt.Fprint(w, "half")
				panic(http.ErrAbortHandler)
			case "/wait":
				fmt.Fprint(w, "begun")
				_ = http.NewResponseController(w).Flush()
				arrived <- struct{}{}
				<-r.Context().Done()
			}
		})))
	base := strings.TrimSuffix(webPath, "web/")
	leave := func(head string) { // in the middle
		c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, head)
		if strings.Contains(head, "/wait") {
			<-arrived
		} else {
			eventually(t, "it is under way", func() bool { return b.node.Under() > 0 })
		}
		_ = c.Close()
	}
	ways := map[string]func(){
		"answered":                    func() { _ = text(t, b.get("")) },
		"refused by the service":      func() { _ = text(t, b.get("die")) },
		"broken off by the service":   func() { _, _ = io.Copy(io.Discard, b.get("half").Body) },
		"no such service":             func() { _ = b.say("GET " + base + "none/ HTTP/1.0\r\n\r\n") },
		"a method that is not passed": func() { _ = b.say("TRACE " + webPath + " HTTP/1.0\r\n\r\n") },
		"left in the answer":          func() { leave("GET " + webPath + "wait HTTP/1.1\r\nHost: x\r\n\r\n") },
		"left in the body":            func() { leave("POST " + webPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nsome") },
		"left before its body":        func() { leave("POST " + webPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n") },
		"a broken body": func() {
			_ = b.say("POST " + webPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
		},
		"a raw stream that is left":     func() { c, _, _ := b.upgrade(dbPath, api.UpgradeStream, "x"); _ = c.Close() },
		"a raw stream to nobody":        func() { _, _, _ = b.upgrade(base+"gone", api.UpgradeStream, "") },
		"a raw stream asked for as web": func() { _ = b.say("GET " + dbPath + " HTTP/1.0\r\n\r\n") },
		"an upgrade that is left":       func() { c, _, _ := b.upgrade(base+"up/", "upper", "x"); _ = c.Close() },
		"given up by the hub": func() {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-arrived; cancel() }()
			resp, err := b.hc.Do(b.request(http.MethodGet, "wait", nil).WithContext(ctx))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		},
	}
	names := make([]string, 0, len(ways))
	for name := range ways {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for range 3 {
			ways[name]()
		}
		eventually(t, name+": the limit is given back", func() bool { return b.node.Under() == 0 })
	}
	b.node.Close()
	eventually(t, "no stream is open", func() bool { return b.hub.Stats().Streams == 0 })
}

func TestWhatLooksLikeASecondHostNamesNoOther(t *testing.T) {
	b := newBed(t, httpService(raw(t, lines)))
	b.caller.Apart = true
	got := b.say("GET http://evil.example@hub.example" + webPath + " HTTP/1.1\r\nHost: other.example\r\nMesh-Host: localhost:1\r\nConnection: close\r\n\r\n")
	if strings.Contains(got, "evil") || strings.Contains(got, "other.example") || !strings.Contains(got, "Host: localhost:1\r\n") {
		t.Errorf("got %q", got)
	}
	for _, head := range []string{"Host: a\r\nHost: b\r\n", "", "Host: a b\r\n", "Host: a/b\r\n"} {
		if got := b.say("GET " + webPath + " HTTP/1.1\r\n" + head + "Connection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 400") {
			t.Errorf("%q: got %q", head, got)
		}
	}
}
