package tunnel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/tunnel"
)

// service is a tunnel whose node offers the given TCP address as "svc".
func service(t testing.TB, addr string) (hubSide, nodeSide *tunnel.Session) {
	t.Helper()
	return pair(t, tunnel.Config{}, tunnel.Config{ServiceDial: func(ctx context.Context, name string) (net.Conn, error) {
		if name != "svc" {
			return nil, fmt.Errorf("%q: %w", name, tunnel.ErrNoService)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}})
}

// tcpServer is a local server of which every connection is handed out.
func tcpServer(t testing.TB) (addr string, conns <-chan *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := make(chan *net.TCPConn, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			c <- conn.(*net.TCPConn)
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln.Addr().String(), c
}

// watched is a connection of the pipe's that tells when the pipe closes it.
type watched struct {
	*net.TCPConn
	once   sync.Once
	closed chan struct{}
}

func (w *watched) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.TCPConn.Close()
}

// piped is a service stream with the connection that it leads to. closed tells
// when the pipe has let go of that, whatever the server does.
func piped(t *testing.T) (hubEnd *tunnel.Stream, server *net.TCPConn, closed <-chan struct{}) {
	t.Helper()
	addr, conns := tcpServer(t)
	w := &watched{closed: make(chan struct{})}
	hubSide, _ := pair(t, tunnel.Config{}, tunnel.Config{ServiceDial: func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		w.TCPConn = c.(*net.TCPConn)
		return w, nil
	}})
	c, err := hubSide.Open(within(t), tunnel.Service("svc"))
	if err != nil {
		t.Fatal(err)
	}
	server = receive(t, conns, "the connection to the service")
	t.Cleanup(func() { _ = server.Close() })
	deadline(t, c)
	deadline(t, server)
	// The connection exists before the pipe does: see a byte through.
	_, _ = server.Write([]byte("!"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("the pipe does not come up: %v", err)
	}
	return c.(*tunnel.Stream), server, w.closed
}

func TestServicePipeCarriesBytesBothWays(t *testing.T) {
	hubEnd, server, _ := piped(t)
	// The server speaks first, as some protocols do.
	if _, err := io.WriteString(server, "welcome"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 7)
	if _, err := io.ReadFull(hubEnd, buf); err != nil || string(buf) != "welcome" {
		t.Fatalf("the hub read %q, %v", buf, err)
	}
	big := strings.Repeat("0123456789abcdef", 64<<10) // more than a window
	go func() { _, _ = io.WriteString(hubEnd, big); _ = hubEnd.CloseWrite() }()
	if b, err := io.ReadAll(server); err != nil || string(b) != big {
		t.Fatalf("the server read %d bytes of %d, %v", len(b), len(big), err)
	}
	go func() { _, _ = io.WriteString(server, big); _ = server.CloseWrite() }()
	if b, err := io.ReadAll(hubEnd); err != nil || string(b) != big {
		t.Fatalf("the hub read %d bytes of %d, %v", len(b), len(big), err)
	}
}

func TestServicePipePassesAHalfCloseOn(t *testing.T) {
	t.Parallel() // it mostly waits
	t.Run("from the hub", func(t *testing.T) {
		hubEnd, server, _ := piped(t)
		_, _ = io.WriteString(hubEnd, "count me")
		if err := hubEnd.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(server)
		if err != nil {
			t.Fatal(err)
		}
		// The answer may take longer than the interval at which the pipe watches.
		<-time.After(300 * time.Millisecond)
		fmt.Fprintf(server, "got %d", len(b))
		_ = server.Close()
		if b, err := io.ReadAll(hubEnd); err != nil || string(b) != "got 8" {
			t.Errorf("the hub read %q, %v", b, err)
		}
	})
	t.Run("from the server", func(t *testing.T) {
		hubEnd, server, _ := piped(t)
		if err := server.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(hubEnd); err != nil || len(b) != 0 {
			t.Fatalf("the hub read %q, %v", b, err)
		}
		_, _ = io.WriteString(hubEnd, "still here")
		_ = hubEnd.CloseWrite()
		if b, err := io.ReadAll(server); err != nil || string(b) != "still here" {
			t.Errorf("the server read %q, %v", b, err)
		}
	})
}

func TestServicePipeEndsWhenTheServerBreaks(t *testing.T) {
	hubEnd, server, _ := piped(t)
	if err := server.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	wantReset(t, hubEnd, tunnel.ResetBroken)
}

// wantBroken expects the server to see its connection reset, not ended.
func wantBroken(t *testing.T, server *net.TCPConn) {
	t.Helper()
	_, err := io.Copy(io.Discard, server)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server sees %v, want a reset", err)
	}
}

func TestCancellingReachesTheServer(t *testing.T) {
	const gone = "the pipe to let go of the server, which does nothing by itself"
	t.Run("while it waits", func(t *testing.T) {
		t.Parallel()
		hubEnd, server, closed := piped(t)
		_ = hubEnd.Close()
		receive(t, closed, gone)
		wantBroken(t, server)
	})
	t.Run("while it sends to a caller that does not read", func(t *testing.T) {
		t.Parallel()
		hubEnd, server, closed := piped(t)
		sent := make(chan error, 1)
		go func() {
			_, err := server.Write(make([]byte, 64<<20))
			sent <- err
		}()
		if _, err := io.ReadFull(hubEnd, make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		_ = hubEnd.Close()
		receive(t, closed, gone)
		if err := receive(t, sent, "the server's write to fail"); err == nil {
			t.Error("the server wrote everything")
		}
	})
	t.Run("while it does not read what the caller sends", func(t *testing.T) {
		t.Parallel()
		hubEnd, server, closed := piped(t)
		fill(t, hubEnd)
		_ = hubEnd.Close()
		receive(t, closed, gone)
		wantBroken(t, server)
	})
	t.Run("while it does not read the end of what the caller sends", func(t *testing.T) {
		t.Parallel()
		hubEnd, server, closed := piped(t)
		fill(t, hubEnd)
		if err := hubEnd.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_ = hubEnd.Close()
		receive(t, closed, gone)
		wantBroken(t, server)
	})
	t.Run("while it does not read and has nothing more to say", func(t *testing.T) {
		t.Parallel()
		hubEnd, server, closed := piped(t)
		if err := server.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := hubEnd.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("the hub reads %v", err)
		}
		fill(t, hubEnd)
		_ = hubEnd.Close()
		receive(t, closed, gone)
		wantBroken(t, server)
	})
	t.Run("after the caller's half-close", func(t *testing.T) {
		t.Parallel()
		hubEnd, server, closed := piped(t)
		if err := hubEnd.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("the server reads %v", err)
		}
		_ = hubEnd.Close()
		receive(t, closed, gone)
	})
	t.Run("by loss of the tunnel", func(t *testing.T) {
		t.Parallel()
		hubEnd, server, closed := piped(t)
		_ = hubEnd.Session().CloseWith(tunnel.ReasonLost)
		receive(t, closed, gone)
		wantBroken(t, server)
	})
}

// fill writes until nothing more is taken.
func fill(t *testing.T, c net.Conn) {
	t.Helper()
	chunk := make([]byte, 256<<10)
	for {
		if err := c.SetWriteDeadline(time.Now().Add(400 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(chunk); err != nil {
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() {
				t.Fatalf("writing gives %v", err)
			}
			return
		}
	}
}

func TestServiceRefusalsAreTold(t *testing.T) {
	dead, _ := tcpServer(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := ln.Addr().String()
	_ = ln.Close()

	t.Run("no such service", func(t *testing.T) {
		hubSide, _ := service(t, dead)
		c, err := hubSide.Open(within(t), tunnel.Service("other"))
		if err != nil {
			t.Fatal(err)
		}
		wantReset(t, c, tunnel.ResetNoService)
	})
	t.Run("nobody listens", func(t *testing.T) {
		hubSide, _ := service(t, gone)
		c, err := hubSide.Open(within(t), tunnel.Service("svc"))
		if err != nil {
			t.Fatal(err)
		}
		wantReset(t, c, tunnel.ResetUnreachable)
	})
	t.Run("nobody answers in time", func(t *testing.T) {
		hubSide, _ := pair(t, tunnel.Config{}, tunnel.Config{ServiceDial: func(context.Context, string) (net.Conn, error) {
			return nil, fmt.Errorf("dial: %w", context.DeadlineExceeded)
		}})
		c, err := hubSide.Open(within(t), tunnel.Service("svc"))
		if err != nil {
			t.Fatal(err)
		}
		wantReset(t, c, tunnel.ResetTimeout)
	})
	t.Run("the hub takes no service streams", func(t *testing.T) {
		_, nodeSide := service(t, dead)
		c, err := nodeSide.Open(within(t), tunnel.Service("svc"))
		if err != nil {
			t.Fatal(err)
		}
		wantReset(t, c, tunnel.ResetNoService)
	})
}

func TestOpenTakenWaitsForTheLocalServer(t *testing.T) {
	release := make(chan error, 1)
	var asked atomic.Int32
	hubSide, _ := pair(t, tunnel.Config{}, tunnel.Config{ServiceDial: func(ctx context.Context, name string) (net.Conn, error) {
		asked.Add(1)
		if name == "other" {
			return nil, tunnel.ErrNoService
		}
		select {
		case err := <-release:
			if err != nil {
				return nil, err
			}
			far, near := net.Pipe()
			go func() { _, _ = io.Copy(far, far); _ = far.Close() }()
			return near, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	for err, code := range map[error]tunnel.ResetCode{
		errors.New("refused"): tunnel.ResetUnreachable, context.DeadlineExceeded: tunnel.ResetTimeout, tunnel.ErrNoService: tunnel.ResetNoService,
	} {
		release <- err
		var reset *tunnel.ResetError
		if _, got := hubSide.OpenTaken(within(t), "svc"); !errors.As(got, &reset) || reset.Code != code {
			t.Errorf("%v gives %v", err, got)
		}
	}
	if _, err := hubSide.OpenTaken(within(t), "no such/name"); !errors.Is(err, tunnel.ErrBadKind) {
		t.Errorf("got %v", err)
	}
	release <- nil
	c, err := hubSide.OpenTaken(within(t), "svc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("echo")); err != nil {
		t.Fatal(err)
	}
	var back [4]byte
	if _, err := io.ReadFull(c, back[:]); err != nil || string(back[:]) != "echo" {
		t.Errorf("%q %v: the word of the other side is no part of the stream", back, err)
	}
	_ = c.Close()

	ctx, cancel := context.WithCancel(within(t))
	go func() { // when the dial is under way
		for asked.Load() < 5 {
			runtime.Gosched()
		}
		cancel()
	}()
	if _, err := hubSide.OpenTaken(ctx, "svc"); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	release <- errors.New("too late")
}

// TestALostConnectionIsNoEndOfAStream has a connection that ends as that of a process
// which was killed: with a FIN. What it carried must break off at both sides; taken
// for an end, half of an answer would pass for the whole.
func TestALostConnectionIsNoEndOfAStream(t *testing.T) {
	addr, conns := tcpServer(t)
	var socket net.Conn
	h := newHub(t, tunnel.Config{}, nil)
	node, err := tunnel.Dial(t.Context(), tunnel.DialConfig{
		URL: h.URL, Proxy: noProxy,
		NetDial: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			socket, err = new(net.Dialer).DialContext(ctx, network, addr)
			return socket, err
		},
		Config: tunnel.Config{ServiceDial: func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	hubSide := h.next(t)
	c, err := hubSide.Open(within(t), tunnel.Service("svc"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server := receive(t, conns, "the connection to the service")
	defer server.Close()
	deadline(t, c)
	deadline(t, server)
	if _, err := server.Write([]byte("half of it")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := socket.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || !tunnel.IsReason(err, tunnel.ReasonLost) {
		t.Errorf("the hub reads %v", err)
	}
	if _, err := c.Write([]byte("x")); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the hub writes: %v", err)
	}
	if _, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the service reads %v, want a broken connection", err)
	}
}

func TestServiceDialEndsWithTheSession(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	hubSide, nodeSide := pair(t, tunnel.Config{}, tunnel.Config{ServiceDial: func(ctx context.Context, _ string) (net.Conn, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}})
	if _, err := hubSide.Open(within(t), tunnel.Service("svc")); err != nil {
		t.Fatal(err)
	}
	receive(t, started, "the dial")
	_ = nodeSide.Close()
	select {
	case <-ended:
	default:
		t.Error("Close returned while the dial was going on")
	}
}

func TestServicePipeWorksOverConnectionsWithoutADescriptor(t *testing.T) {
	local, far := net.Pipe()
	hubSide, _ := pair(t, tunnel.Config{}, tunnel.Config{ServiceDial: func(context.Context, string) (net.Conn, error) {
		return local, nil
	}})
	c, err := hubSide.Open(within(t), tunnel.Service("svc"))
	if err != nil {
		t.Fatal(err)
	}
	deadline(t, c)
	deadline(t, far)
	go func() { _, _ = io.WriteString(c, "ping") }()
	buf := make([]byte, 4)
	if _, err := io.ReadFull(far, buf); err != nil || string(buf) != "ping" {
		t.Fatalf("the service read %q, %v", buf, err)
	}
	go func() { _, _ = io.WriteString(far, "pong"); _ = far.Close() }()
	if b, err := io.ReadAll(c); err != nil || string(b) != "pong" {
		t.Fatalf("the hub read %q, %v", b, err)
	}
}

// serviceClient is an HTTP client for the service of a node.
func serviceClient(t testing.TB, s *tunnel.Session) *http.Client {
	t.Helper()
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.Open(ctx, tunnel.Service("svc"))
		},
		MaxIdleConnsPerHost:   256,
		DisableCompression:    true,
		ExpectContinueTimeout: patience,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestHTTPServiceThroughThePipe(t *testing.T) {
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/continue":
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "read %d", len(b))
		case "/no":
			w.WriteHeader(http.StatusExpectationFailed)
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-Sum", "42")
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			f := http.NewResponseController(w)
			_ = f.EnableFullDuplex() // the request body asks for each event
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = f.Flush()
				if _, err := io.ReadFull(r.Body, make([]byte, 3)); err != nil {
					return
				}
			}
		}
	}))
	defer origin.Close()
	hubSide, _ := service(t, origin.Listener.Addr().String())
	c := serviceClient(t, hubSide)

	t.Run("expect 100-continue passes", func(t *testing.T) {
		for path, want := range map[string]int{"/continue": http.StatusOK, "/no": http.StatusExpectationFailed} {
			req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://svc"+path, strings.NewReader("12345"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Expect", "100-continue")
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s answers %d", path, resp.StatusCode)
			}
		}
	})
	t.Run("trailers pass", func(t *testing.T) {
		resp, err := c.Get("http://svc/trailer")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.Trailer.Get("X-Sum") != "42" {
			t.Errorf("the trailer is %v", resp.Trailer)
		}
	})
	t.Run("each event passes before the next is sent", func(t *testing.T) {
		body, w := io.Pipe()
		defer w.Close()
		req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://svc/events", body)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(w, "go\n") }()
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		r := bufio.NewReader(resp.Body)
		for i := range 3 {
			line, err := r.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("event %d is %q, %v", i, line, err)
			}
			_, _ = r.ReadString('\n')
			go func() { _, _ = io.WriteString(w, "go\n") }()
		}
	})
}

func TestUpgradeThroughAServiceStream(t *testing.T) {
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: count\r\n\r\n")
		n, _ := io.Copy(io.Discard, rw) // until the client's half-close
		fmt.Fprintf(conn, "got %d", n)
	}))
	defer origin.Close()
	hubSide, _ := service(t, origin.Listener.Addr().String())
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://svc/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "count")
	resp, err := serviceClient(t, hubSide).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the answer is %s", resp.Status)
	}
	conn := resp.Body.(io.ReadWriteCloser)
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || string(b) != "got 5" {
		t.Errorf("read %q, %v", b, err)
	}
}
