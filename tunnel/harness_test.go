package tunnel_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/tunnel"
)

// patience bounds every wait for something that must happen. It is never a
// measure: a test that runs into it has failed.
const patience = 2 * time.Minute

// hub is a server whose only address takes tunnels.
type hub struct {
	*httptest.Server
	URL      string // ws:// or wss:// address of the tunnel
	Sessions chan *tunnel.Session
}

// newHub starts a hub. wrap may put middleware around its handler.
func newHub(t testing.TB, cfg tunnel.Config, wrap func(http.Handler) http.Handler) *hub {
	t.Helper()
	h := &hub{Sessions: make(chan *tunnel.Session, 64)}
	var mu sync.Mutex
	var all []*tunnel.Session
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := tunnel.Accept(w, r, cfg)
		if err != nil {
			return
		}
		mu.Lock()
		all = append(all, s)
		mu.Unlock()
		h.Sessions <- s
	})
	if wrap != nil {
		handler = wrap(handler)
	}
	h.Server = httptest.NewServer(handler)
	h.URL = "ws" + strings.TrimPrefix(h.Server.URL, "http") + "/v1/tunnel"
	t.Cleanup(func() {
		h.Server.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, s := range all {
			_ = s.Close()
		}
	})
	return h
}

// next is the session that the hub accepted next.
func (h *hub) next(t testing.TB) *tunnel.Session {
	t.Helper()
	return receive(t, h.Sessions, "a session at the hub")
}

// dial opens a tunnel to url without looking at the environment.
func dial(t testing.TB, addr string, cfg tunnel.Config) *tunnel.Session {
	t.Helper()
	s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{URL: addr, Proxy: noProxy, Config: cfg})
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// pair is a tunnel with both ends at hand.
func pair(t testing.TB, hubCfg, nodeCfg tunnel.Config) (hubSide, nodeSide *tunnel.Session) {
	t.Helper()
	h := newHub(t, hubCfg, nil)
	n := dial(t, h.URL, nodeCfg)
	return h.next(t), n
}

// receive takes a value that must come.
func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// wantEnd waits for the end of s and checks its reason.
func wantEnd(t testing.TB, s *tunnel.Session, r tunnel.Reason) *tunnel.CloseError {
	t.Helper()
	receive(t, s.Done(), "the end of the session")
	var e *tunnel.CloseError
	if !errors.As(s.Err(), &e) || e.Reason != r {
		t.Fatalf("the session ended with %v, want reason %v", s.Err(), r)
	}
	return e
}

// serve runs an HTTP server on what the session accepts.
func serve(t testing.TB, s *tunnel.Session, h http.Handler) {
	t.Helper()
	srv := &http.Server{Handler: h, ReadHeaderTimeout: patience}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(s.Listener())
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
}

// client calls the other side of the session.
func client(t testing.TB, s *tunnel.Session) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: s.DialContext, DisableCompression: true, MaxIdleConnsPerHost: 256}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func get(t testing.TB, c *http.Client, addr string) string {
	t.Helper()
	resp, err := c.Get(addr)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return string(b)
}

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// deadline gives a conn the test's patience.
func deadline(t testing.TB, c net.Conn) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}

// freezer is a TCP proxy that can stop passing bytes without closing anything:
// a network that swallows packets.
type freezer struct {
	mu     sync.Mutex
	frozen chan struct{} // closed while bytes may pass
	conns  []net.Conn
	closed bool
}

// newFreezer puts a freezer before the host of an address and returns the address
// that leads through it.
func newFreezer(t testing.TB, target string) (*freezer, string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	host := u.Host
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{frozen: make(chan struct{})}
	close(f.frozen)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", host)
			if err != nil {
				_ = in.Close()
				continue
			}
			// Little is lost in buffers, so a stalled side is felt soon.
			for _, c := range []net.Conn{in, out} {
				_ = c.(*net.TCPConn).SetReadBuffer(32 << 10)
			}
			if !f.add(in, out) {
				continue
			}
			wg.Go(func() { f.copy(in, out) })
			wg.Go(func() { f.copy(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		f.mu.Lock()
		f.closed = true
		for _, c := range f.conns {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.thaw()
		wg.Wait()
	})
	u.Host = ln.Addr().String()
	return f, u.String()
}

func (f *freezer) add(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		for _, c := range conns {
			_ = c.Close()
		}
		return false
	}
	f.conns = append(f.conns, conns...)
	return true
}

func (f *freezer) copy(dst, src net.Conn) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := src.Read(buf)
		f.mu.Lock()
		pass := f.frozen
		f.mu.Unlock()
		<-pass
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = make(chan struct{})
}

func (f *freezer) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.frozen:
	default:
		close(f.frozen)
	}
}

// within gives a test step a context that ends with patience.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await polls for something that has no event of its own.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// wantReset expects the next read of c to report a reset by the other side.
func wantReset(t testing.TB, c net.Conn, code tunnel.ResetCode) {
	t.Helper()
	deadline(t, c)
	_, err := c.Read(make([]byte, 1))
	if reset, ok := errors.AsType[*tunnel.ResetError](err); !ok || reset.Code != code || !reset.Remote {
		t.Errorf("the stream gives %v, want a reset with %q", err, code)
	}
}

// heap is what lives on the heap, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// quietLog swallows what a server says about clients that mean to fail.
func quietLog() *log.Logger { return log.New(io.Discard, "", 0) }
