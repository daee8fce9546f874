package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"opencode-mesh/protocol/api"
)

// counted is a raw HTTP service that answers a request on a connection with f, which
// says whether the connection goes on. It counts connections.
func counted(t *testing.T, conns *atomic.Int32, f func(c net.Conn, req *http.Request, n int) bool) setting {
	return httpService(raw(t, func(c net.Conn, r *bufio.Reader) {
		conns.Add(1)
		for n := 0; ; n++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if !f(c, req, n) {
				return
			}
		}
	}))
}

func answer(c net.Conn, body string) {
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func TestStreamsAreUsedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		f      func(c net.Conn, req *http.Request, n int) bool
		conns  int32 // for ten requests
	}{
		"with a length": {"GET", func(c net.Conn, req *http.Request, n int) bool { answer(c, req.URL.Path); return true }, 1},
		"in chunks": {"GET", func(c net.Conn, req *http.Request, n int) bool {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(req.URL.Path), req.URL.Path)
			return true
		}, 1},
		"without a body": {"HEAD", func(c net.Conn, req *http.Request, n int) bool {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
			return true
		}, 1},
		"not after the service said close": {"GET", func(c net.Conn, req *http.Request, n int) bool {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", req.URL.Path)
			return false
		}, 10},
		"not when it closes without a word": {"GET", func(c net.Conn, req *http.Request, n int) bool { answer(c, req.URL.Path); return false }, 10},
		"nor when it had said more than asked": {"GET", func(c net.Conn, req *http.Request, n int) bool {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%sHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong", len(req.URL.Path), req.URL.Path)
			return true
		}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			var conns atomic.Int32
			b := newBed(t, counted(t, &conns, c.f))
			for i := range 10 {
				path := fmt.Sprint("p", i)
				resp := b.do(b.request(c.method, path, nil))
				if body := text(t, resp); c.method == "GET" && body != "/"+path {
					t.Fatalf("%s is answered %q", path, body)
				}
				_ = resp.Body.Close()
			}
			if n := conns.Load(); n != c.conns {
				t.Errorf("%d connections", n)
			}
			b.node.Close()
			eventually(t, "no stream is open", func() bool { return b.hub.Stats().Streams == 0 })
		})
	}
}

func TestAStreamIsNotUsedAgainWhenItsAnswerWasNotRead(t *testing.T) {
	var conns atomic.Int32
	b := newBed(t, counted(t, &conns, func(c net.Conn, req *http.Request, n int) bool {
		if req.URL.Path != "/long" {
			answer(c, req.URL.Path)
			return true
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nbegun")
		_, _ = c.Read(make([]byte, 1)) // until it is reset
		return false
	}))
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		resp := b.do(b.request(http.MethodGet, "long", nil).WithContext(ctx))
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if body := text(t, b.get("next")); body != "/next" {
			t.Fatalf("got %q", body)
		}
	}
}

func TestAnAnswerThatIsGivenUpIsNotTheNextOnes(t *testing.T) {
	const part = 64 << 10 // past the buffer, so that nothing of it is read ahead
	body := strings.Repeat("x", part) + strings.Repeat("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", 1000)
	var conns atomic.Int32
	b := newBed(t, counted(t, &conns, func(c net.Conn, _ *http.Request, _ int) bool { answer(c, body); return true }))
	for range 2 {
		req, err := http.NewRequest(http.MethodGet, "http://web/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := b.node.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, part)
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != body[:part] {
			t.Errorf("%d bytes %.20q, %v", resp.ContentLength, got, err)
		}
		_ = resp.Body.Close()
	}
}

// TestOnlyWhatMayBeRepeatedIsRepeated has a service that acts and does not say so.
func TestOnlyWhatMayBeRepeatedIsRepeated(t *testing.T) {
	var conns, posts atomic.Int32
	b := newBed(t, counted(t, &conns, func(c net.Conn, req *http.Request, n int) bool {
		if req.Method == http.MethodPost {
			posts.Add(1)
			return false // it acts, and dies before it answers
		}
		answer(c, "ok")
		return true
	}))
	for range 5 {
		if body := text(t, b.get("")); body != "ok" {
			t.Fatal(body)
		}
		want(t, b.do(b.request(http.MethodPost, "", strings.NewReader("x"))), api.CodeServiceDown, "alpha")
		want(t, b.do(b.request(http.MethodPost, "", nil)), api.CodeServiceDown, "alpha")
	}
	if n := posts.Load(); n != 10 {
		t.Errorf("ten requests arrived %d times", n)
	}
}

func TestAnAnswerThatIsNoneIsSaidSo(t *testing.T) {
	for name, said := range map[string]string{
		"a header without end":             "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) + "\r\n\r\n",
		"an upgrade that nobody asked for": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"only informational answers":       strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 20),
		"half a header":                    "HTTP/1.1 200 OK\r\nX: y",
	} {
		var conns atomic.Int32
		b := newBed(t, counted(t, &conns, func(c net.Conn, _ *http.Request, _ int) bool {
			fmt.Fprint(c, said)
			return false
		}))
		for _, method := range []string{http.MethodGet, http.MethodDelete} { // the two ways
			if resp := b.do(b.request(method, "", nil)); resp.StatusCode != http.StatusBadGateway {
				t.Errorf("%s, %s: %d %.100s", name, method, resp.StatusCode, text(t, resp))
			}
		}
	}
}

func TestARequestThatWasBegunToBeAnsweredIsNotSentAgain(t *testing.T) {
	var conns, asked atomic.Int32
	b := newBed(t, counted(t, &conns, func(c net.Conn, req *http.Request, _ int) bool {
		if req.URL.Path == "/first" {
			answer(c, "x")
			return true
		}
		asked.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-")
		return false
	}))
	if body := text(t, b.get("first")); body != "x" {
		t.Fatalf("got %q", body)
	}
	want(t, b.get("second"), api.CodeServiceDown, "alpha")
	if n := asked.Load(); n != 1 || conns.Load() != 1 {
		t.Errorf("the service was asked %d times, on %d connections", n, conns.Load())
	}
}

func TestAnAnswerThatIsNoneSaysWhy(t *testing.T) {
	drain := func(c net.Conn, r *bufio.Reader, answer string) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, answer)
		}
		_, _ = io.Copy(io.Discard, r)
	}
	for name, c := range map[string]struct {
		method string
		f      func(c net.Conn, r *bufio.Reader)
		says   string
	}{
		"a large header": {"GET", func(c net.Conn, r *bufio.Reader) {
			drain(c, r, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 300<<10)+"\r\n\r\n")
		}, "header of more than"},
		"a large header of what cannot be repeated": {"POST", func(c net.Conn, r *bufio.Reader) {
			drain(c, r, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 300<<10)+"\r\n\r\n")
		}, "header of more than"},
		"only informational answers": {"GET", func(c net.Conn, r *bufio.Reader) {
			drain(c, r, strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20))
		}, "informational"},
		"an upgrade": {"GET", func(c net.Conn, r *bufio.Reader) {
			drain(c, r, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		}, "nobody asked for"},
		"an upgrade of what cannot be repeated": {"POST", func(c net.Conn, r *bufio.Reader) {
			drain(c, r, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		}, "nobody asked for"},
		"an end in the middle of the request": {"POST", func(_ net.Conn, r *bufio.Reader) {
			_, _ = io.ReadFull(r, make([]byte, 100<<10))
		}, "connection"},
		"another protocol": {"GET", func(c net.Conn, r *bufio.Reader) { drain(c, r, "SSH-2.0 x\r\n\r\n") }, "no answer that is HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, httpService(raw(t, c.f)))
			var body io.Reader
			if c.method == http.MethodPost {
				body = strings.NewReader("x")
				if strings.HasPrefix(name, "an end") {
					body = strings.NewReader(strings.Repeat("x", 20<<20))
				}
			}
			want(t, b.do(b.request(c.method, "x", body)), api.CodeServiceDown, "alpha", c.says)
		})
	}
}
