package forward_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"opencode-mesh/hub/client/forward"
	"opencode-mesh/protocol/api"
)

// restarted serves a hub's handler at its old address and returns how to end that.
func restarted(t *testing.T, addr string, h *hub) func() {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return s.Close
}

// echo sends back what it reads and says goodbye once the other side has ended.
func echo(conn net.Conn) {
	_, _ = io.Copy(conn, conn)
	_, _ = io.WriteString(conn, "bye")
	_ = conn.(raw).CloseWrite()
}

func TestARawStreamCarriesBytesBothWaysAndItsHalfClose(t *testing.T) {
	h := newHub(t, nil)
	h.stream = echo
	f, stop := h.start(forward.Config{TCP: true})
	if !strings.HasPrefix(f.URL(), "tcp://127.0.0.1:") {
		t.Errorf("it serves at %s", f.URL())
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			conn := dial(t, f)
			data := make([]byte, 1<<20)
			_, _ = rand.Read(data)
			go func() {
				_, _ = conn.Write(data)
				_ = conn.CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, append(data, "bye"...)) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	all.Wait()
	stop()
	if c := f.Traffic().Counts(); c.Total != 8 || c.Open != 0 || c.In != 8<<20 || c.Out != 8*(1<<20+3) {
		t.Errorf("%+v", c)
	}
}

func TestAStreamThatCannotBeOpenedShowsAsAFailureAndIsReportedOnce(t *testing.T) {
	h := newHub(t, nil)
	h.stream = echo
	said := make(chan error, 10)
	f, _ := h.start(forward.Config{TCP: true, Report: func(err error) { said <- err }})
	h.refuse.Store(api.Errorf(api.CodeNodeOffline, "node beta is offline"))
	for range 2 {
		_, addr, _ := strings.Cut(f.URL(), "://")
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			continue // reset before it was seen to be open
		}
		if got, err := io.ReadAll(conn); err == nil {
			t.Errorf("read %q as if all were well", got)
		}
		_ = conn.Close()
	}
	h.refuse.Store(nil)
	conn := dial(t, f)
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "bye" {
		t.Errorf("after the node is back: %q %v", got, err)
	}
	if err := <-said; !errors.Is(err, &api.Error{Code: api.CodeNodeOffline}) {
		t.Errorf("said %v", err)
	}
	if err := <-said; err != nil {
		t.Errorf("said %v and not that it works again", err)
	}
	if len(said) > 0 {
		t.Errorf("said too much: %v", <-said)
	}
}

// TestABrokenStreamIsNotTakenForItsEnd has connections to the hub that break, and that
// just end, as those of a killed hub do.
func TestABrokenStreamIsNotTakenForItsEnd(t *testing.T) {
	for name, end := range map[string]func(raw){
		"it breaks":                        func(c raw) { _ = c.SetLinger(0) },
		"it ends":                          func(raw) {},
		"it ends in the middle of a frame": func(c raw) { _, _ = c.buffered.Write([]byte{0, 0, 1, 0, 'x'}) },
		"something else comes":             func(c raw) { _, _ = io.WriteString(c.buffered, "HTTP/1.1 502 Bad Gateway\r\n\r\n") },
	} {
		h := newHub(t, nil)
		h.stream = func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 1))
			_, _ = io.WriteString(conn, "half")
			end(conn.(raw))
		}
		f, _ := h.start(forward.Config{TCP: true})
		conn := dial(t, f)
		_, _ = io.WriteString(conn, "?")
		if got, err := io.ReadAll(conn); err == nil {
			t.Errorf("%s: read %q as if that were all", name, got)
		}
	}
}

func TestACallerThatGoesAwayIsNoticedAndTheEndCutsStreams(t *testing.T) {
	gone := make(chan struct{}, 2)
	h := newHub(t, nil)
	h.stream = func(conn net.Conn) {
		_, _ = io.WriteString(conn, "x")
		_, _ = io.Copy(io.Discard, conn)
		gone <- struct{}{}
	}
	f, stop := h.start(forward.Config{TCP: true})
	first, second := dial(t, f), dial(t, f)
	for _, c := range []net.Conn{first, second} {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	_ = first.SetLinger(0)
	_ = first.Close()
	<-gone
	stop()
	<-gone
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a stream goes on after the end")
	}
}

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	for addr, want := range map[string]string{
		"": "127.0.0.1:", "0": "127.0.0.1:", ":0": "127.0.0.1:", "localhost:0": "127.0.0.1:", "127.0.0.1:0": "127.0.0.1:",
	} {
		l, err := forward.Listen(addr)
		if err != nil {
			t.Errorf("%q: %v", addr, err)
			continue
		}
		if !strings.HasPrefix(l.Addr().String(), want) {
			t.Errorf("%q listens on %s", addr, l.Addr())
		}
		_ = l.Close()
	}
	for _, addr := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:0", "127.0.0.2:0", "example.com:0", "localhost", "127.0.0.1", "70000", ":70000", "127.0.0.1:http", "-1"} {
		if l, err := forward.Listen(addr); err == nil {
			_ = l.Close()
			t.Errorf("%q is taken", addr)
		} else if errors.Is(err, forward.ErrListen) {
			t.Errorf("%q: %v", addr, err)
		}
	}
	l, err := forward.Listen("")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := forward.Listen(l.Addr().String()); !errors.Is(err, forward.ErrListen) {
		t.Errorf("a port in use: %v", err)
	}
}
