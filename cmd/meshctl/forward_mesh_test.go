package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/node"
	"opencode-mesh/protocol/api"
)

// origin is a local web server of a node.
func origin(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "" && r.URL.Path == "/refused":
		http.Error(w, "no sockets today", http.StatusForbidden)
	case r.Header.Get("Upgrade") != "":
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly,")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
		_, _ = io.WriteString(conn, ",late")
	case r.URL.Path == "/event":
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; r.Context().Err() == nil; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	case r.URL.Path == "/body":
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	default:
		http.SetCookie(w, &http.Cookie{Name: "own", Value: "1"})
		w.Header().Set("Content-Security-Policy", "default-src 'self'")
		fmt.Fprintf(w, "%s host=%s auth=%s cookie=%s", r.RequestURI, r.Host, r.Header.Get("Authorization"), r.Header.Get("Cookie"))
	}
}

// forwardWorld is a hub with a node beta that exposes origin as web and an echo as
// raw.
func forwardWorld(t *testing.T) (*world, *clitest.Node) {
	t.Helper()
	w := newWorld(t)
	web := httptest.NewServer(http.HandlerFunc(origin))
	t.Cleanup(web.Close)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for conn, err := raw.Accept(); err == nil; conn, err = raw.Accept() {
			conns.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
				_, _ = io.WriteString(conn, "bye")
			})
		}
	})
	t.Cleanup(func() { _ = raw.Close(); conns.Wait() })
	n := w.hub.StartNode("beta", clitest.Agent(obey), func(c *node.Config) {
		c.Services = map[string]string{"web": web.URL, "raw": "tcp://" + raw.Addr().String()}
	})
	return w, n
}

func TestForwardThroughAHubAndItsNode(t *testing.T) {
	t.Parallel()
	w, _ := forwardWorld(t)
	r := w.Start([]string{"forward", "beta/web"})
	url := forwarded(t, r)
	_, addr, _ := strings.Cut(url, "://")

	t.Run("a page, its host, credential and cookies", func(t *testing.T) {
		req, _ := http.NewRequest(http.MethodGet, url+"/a%2Fb//c?x=1;y", nil)
		req.Close = true
		req.SetBasicAuth("me", "secret")
		req.AddCookie(&http.Cookie{Name: "own", Value: "1"})
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if want := "/a%2Fb//c?x=1;y host=" + addr + " auth=Basic bWU6c2VjcmV0 cookie=own=1"; string(body) != want {
			t.Errorf("the service saw %q, want %q", body, want)
		}
		if resp.Header.Get("Set-Cookie") != "own=1" || resp.Header.Get("Content-Security-Policy") != "default-src 'self'" || resp.Header.Get("X-Content-Type-Options") != "" {
			t.Errorf("answer %v", resp.Header)
		}
		for name := range resp.Header {
			if strings.HasPrefix(name, "Mesh-") {
				t.Errorf("%s reaches the browser", name)
			}
		}
	})
	t.Run("a body of 8 MiB each way", func(t *testing.T) {
		data := make([]byte, 8<<20)
		_, _ = rand.Read(data)
		req, _ := http.NewRequest(http.MethodPost, url+"/body", bytes.NewReader(data))
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	t.Run("events one by one", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"/event", nil)
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for i := 0; i < 5; {
			if !lines.Scan() {
				t.Fatal(lines.Err())
			}
			if lines.Text() == "" {
				continue
			}
			if lines.Text() != fmt.Sprintf("data: %d", i) {
				t.Fatalf("event %d is %q", i, lines.Text())
			}
			i++
		}
	})
	t.Run("a WebSocket, and a refused one", func(t *testing.T) {
		ask := func(path string) (net.Conn, *bufio.Reader, *http.Response) {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", path, addr, url)
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			return conn, in, resp
		}
		conn, in, resp := ask("/pty")
		if resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(resp.Status)
		}
		_, _ = io.WriteString(conn, "ping")
		_ = conn.(*net.TCPConn).CloseWrite()
		if all, err := io.ReadAll(in); err != nil || string(all) != "early,ping,late" {
			t.Errorf("%q %v", all, err)
		}
		_, _, resp = ask("/refused")
		if body, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusForbidden || string(body) != "no sockets today\n" || err != nil {
			t.Errorf("%d %q %v", resp.StatusCode, body, err)
		}
	})
	t.Run("not for a foreign page", func(t *testing.T) {
		code, _ := page(t, url, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") })
		if code != http.StatusForbidden {
			t.Error(code)
		}
	})
	if res := r.Stop(); res.Code != 0 || res.Err != "" {
		t.Errorf("%+v", res)
	}
}

func TestARawServiceEndsEachDirectionByItself(t *testing.T) {
	t.Parallel()
	w, _ := forwardWorld(t)
	r := w.Start([]string{"forward", "beta/raw"})
	_, addr, _ := strings.Cut(forwarded(t, r), "://")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			data := make([]byte, 2<<20)
			_, _ = rand.Read(data)
			go func() {
				_, _ = conn.Write(data)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, append(data, "bye"...)) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	all.Wait()
	if res := r.Stop(); res.Code != 0 || res.Err != "" {
		t.Errorf("%+v", res)
	}
}

func TestAForwardOutlivesRestartsOfHubAndNode(t *testing.T) {
	t.Parallel()
	w, n := forwardWorld(t)
	r := w.Start([]string{"forward", "beta/web"})
	url := forwarded(t, r)
	works := func(when string) {
		t.Helper()
		if code, body := page(t, url+"/x"); code != 200 || !strings.HasPrefix(body, "/x ") {
			t.Errorf("%s: %d %s", when, code, body)
		}
	}
	works("at first")
	n.Stop()
	w.hub.AwaitState("beta", api.NodeOffline)
	code, body := page(t, url+"/x")
	if e := api.DecodeError(code, []byte(body)); code != http.StatusBadGateway || e.Code != api.CodeNodeOffline || !strings.Contains(e.Message, "beta") {
		t.Errorf("without its node: %d %s", code, body)
	}
	n.Restart()
	works("after the node is back")
	w.hub.Stop()
	code, body = page(t, url+"/x")
	if e := api.DecodeError(code, []byte(body)); code != http.StatusServiceUnavailable || e.Code != api.CodeUnavailable {
		t.Errorf("without the hub: %d %s", code, body)
	}
	r.Err.AwaitText(t, "does not answer")
	w.hub.Restart()
	w.hub.AwaitState("beta", api.NodeOnline)
	works("after the hub is back")
	r.Err.AwaitText(t, "it works again")
	if res := r.Stop(); res.Code != 0 {
		t.Errorf("%+v", res)
	}
}
