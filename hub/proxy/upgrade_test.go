package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"opencode-mesh/hub/framed"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// upgrade sends an upgrade request with something behind it, over a connection of
// its own.
func (b *bed) upgrade(path, protocol, behind string) (net.Conn, *bufio.Reader, *http.Response) {
	b.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: hub.example\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s", path, protocol, behind)
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return c, r, resp
}

const webPath = "/v1/nodes/alpha/services/web/"

// upper upgrades, says hello with the answer and then repeats in capitals what it
// gets, until the end of that; then it says goodbye.
func upper(c net.Conn, r *bufio.Reader) {
	if _, err := http.ReadRequest(r); err != nil {
		return
	}
	fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: upper\r\n\r\nwith the answer\n")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			fmt.Fprint(c, "bye\n")
			return
		}
		fmt.Fprint(c, strings.ToUpper(line))
	}
}

func TestAnUpgradeLosesNoByteAndEndsDirectionByDirection(t *testing.T) {
	b := newBed(t, httpService(raw(t, upper)))
	c, r, resp := b.upgrade(webPath, "upper", "with the request\n")
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %d", resp.StatusCode)
	}
	expect := func(want string) {
		t.Helper()
		if line, err := r.ReadString('\n'); err != nil || line != want {
			t.Fatalf("got %q, %v; want %q", line, err, want)
		}
	}
	expect("with the answer\n")
	expect("WITH THE REQUEST\n")
	fmt.Fprint(c, "later\n")
	expect("LATER\n")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	expect("bye\n")
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("it ended with %v", err)
	}
}

func TestTheAnswerToARefusedUpgradeComesWithItsBody(t *testing.T) {
	b := newBed(t, web(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Why", "closed")
		http.Error(w, "no terminal today", http.StatusForbidden)
	})))
	_, _, resp := b.upgrade(webPath, "websocket", "")
	if body := text(t, resp); resp.StatusCode != http.StatusForbidden || body != "no terminal today\n" || resp.Header.Get("X-Why") != "closed" {
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
}

func TestFiveHundredRefusedUpgradesLeaveNothingBehind(t *testing.T) {
	b := newBed(t, web(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })))
	refuse := func(n int) {
		for range n {
			resp := b.get("", "Connection", "Upgrade", "Upgrade", "websocket")
			if body := text(t, resp); resp.StatusCode != http.StatusForbidden || body != "no\n" {
				t.Fatalf("got %d %q", resp.StatusCode, body)
			}
			_ = resp.Body.Close()
		}
	}
	refuse(20)
	goroutines, streams := runtime.NumGoroutine(), b.hub.Stats().Streams
	refuse(500)
	// What ends does so a moment after the answer.
	eventually(t, "goroutines and streams are as before", func() bool {
		return runtime.NumGoroutine() <= goroutines+10 && b.hub.Stats().Streams <= streams+2
	})
}

// eventually waits for a condition that has no event of its own.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never happened that %s", what)
		}
	}
}

// tcp is a raw service "db" at an address.
func tcp(addr string) setting { return offers(api.Service{Name: "db", Kind: api.ServiceTCP}, addr) }

const dbPath = "/v1/nodes/alpha/services/db"

func TestARawStreamCarriesBytesBothWaysWithHalfClose(t *testing.T) {
	b := newBed(t, tcp(raw(t, func(c net.Conn, r *bufio.Reader) {
		all, err := io.ReadAll(r)
		fmt.Fprintf(c, "got %d bytes, %v", len(all), err)
	})))
	const size = 3 << 20
	c, resp := b.rawStream("early")
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != api.UpgradeStream {
		t.Fatalf("got %d %v", resp.StatusCode, resp.Header)
	}
	if _, err := c.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprintf("got %d bytes, <nil>", size+len("early")) {
		t.Errorf("got %q, %v", got, err)
	}
}

// rawStream opens a raw stream to "db" with something sent along with the request.
func (b *bed) rawStream(early string) (*framed.Stream, *http.Response) {
	b.t.Helper()
	var first behind
	_, _ = framed.New(&first).Write([]byte(early))
	c, r, resp := b.upgrade(dbPath, api.UpgradeStream, first.String())
	return framed.New(&struct {
		io.Reader
		io.WriteCloser
	}{r, c}), resp
}

// behind keeps what is written.
type behind struct{ strings.Builder }

func (*behind) Read([]byte) (int, error) { return 0, io.EOF }
func (*behind) Close() error             { return nil }

// TestAClientThatIsGoneHasNotSentAll: its connection just ends, and the service must not
// take what came for the whole.
func TestAClientThatIsGoneHasNotSentAll(t *testing.T) {
	ended := make(chan error, 1)
	begun := make(chan struct{})
	b := newBed(t, tcp(raw(t, func(c net.Conn, r *bufio.Reader) {
		_, _ = r.ReadByte()
		close(begun)
		_, err := io.Copy(io.Discard, r)
		ended <- err
	})))
	c, _ := b.rawStream("half of it")
	<-begun
	_ = c.Close()
	if err := <-ended; err == nil {
		t.Error("it read the end of what was broken off")
	}
}

func TestARawServiceIsNoHTTPServiceAndTheOtherWayRound(t *testing.T) {
	addr := raw(t, upper)
	b := newBed(t, tcp(addr), httpService(addr))
	for name, c := range map[string][3]string{
		"a plain request": {dbPath, "", "meshctl forward alpha/db"},
		"a WebSocket":     {dbPath, "websocket", "meshctl forward alpha/db"},
		"a path":          {dbPath + "/x", api.UpgradeStream, "no paths"},
		"a body":          {dbPath, api.UpgradeStream + "\r\nContent-Length: 1", "no body"},
	} {
		_, _, resp := b.upgrade(c[0], c[1], "x")
		if body := text(t, resp); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, c[2]) {
			t.Errorf("%s: got %d %q", name, resp.StatusCode, body)
		}
	}
	// To an HTTP service it is an upgrade like any other.
	if _, r, resp := b.upgrade("/v1/nodes/alpha/services/web", "upper", ""); resp.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("got %d", resp.StatusCode)
	} else if line, _ := r.ReadString('\n'); line != "with the answer\n" {
		t.Errorf("got %q", line)
	}
}

// TestARawStreamThatTheServiceDoesNotTakeIsNotBegun: the 101 says that it was.
func TestARawStreamThatTheServiceDoesNotTakeIsNotBegun(t *testing.T) {
	for name, c := range map[string]struct {
		setting setting
		code    api.Code
		words   string
	}{
		"nobody listens":                  {tcp("127.0.0.1:1"), api.CodeServiceDown, "db of node alpha does not run"},
		"it takes no connection in time":  {func(b *bed) { tcp("127.0.0.1:1")(b); b.failed = context.DeadlineExceeded }, api.CodeTimeout, "db of node alpha"},
		"the node does not know it (now)": {func(b *bed) { tcp("")(b); delete(b.addrs, "db") }, api.CodeNotFound, "alpha offers db no longer"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c.setting)
			_, _, resp := b.upgrade(dbPath, api.UpgradeStream, "early")
			want(t, resp, c.code, c.words)
			eventually(t, "nothing is under way", func() bool { return b.node.Under() == 0 && b.hub.Stats().Streams == 0 })
		})
	}
	t.Run("the node goes meanwhile", func(t *testing.T) {
		dialing := make(chan struct{})
		b := newBed(t, tcp(""), func(b *bed) { b.dialing = dialing })
		go func() { <-dialing; _ = b.far.CloseWith(tunnel.ReasonLost) }()
		_, _, resp := b.upgrade(dbPath, api.UpgradeStream, "early")
		want(t, resp, api.CodeNodeOffline, "alpha")
	})
	t.Run("the client goes meanwhile", func(t *testing.T) {
		dialing := make(chan struct{})
		b := newBed(t, tcp(""), func(b *bed) { b.dialing = dialing })
		c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: mesh-stream\r\n\r\n", dbPath)
		<-dialing
		_ = c.Close()
		eventually(t, "nothing is under way", func() bool { return b.node.Under() == 0 })
	})
}
