package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

// large is a JSON text that is as large as one may be that is rewritten.
var large = `"` + strings.Repeat("x", api.MaxRewritten-2) + `"`

// rewriteBed is a node whose opencode answers with large, and for /config stops before
// the end until released.
func rewriteBed(t *testing.T, limits setting) (b *bed, begun chan struct{}, release func()) {
	t.Helper()
	begun, done := make(chan struct{}, 8), make(chan struct{})
	release = sync.OnceFunc(func() { close(done) })
	t.Cleanup(release)
	b = newBed(t, limits, opencode(true, "", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(large)))
		if r.URL.Path != "/config" {
			_, _ = io.WriteString(w, large)
			return
		}
		_, _ = io.WriteString(w, large[:len(large)-1]) // has been read, but for the windows
		begun <- struct{}{}
		select {
		case <-done:
		case <-r.Context().Done():
		}
	}))
	b.url = b.root + opencodePath
	return b, begun, release
}

func TestAnswersThatAreRewrittenTakeABoundedRoom(t *testing.T) {
	b, begun, _ := rewriteBed(t, func(b *bed) { b.roomWait = 50 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var held sync.WaitGroup
	for range 2 {
		held.Go(func() {
			resp, err := b.hc.Do(b.request(http.MethodGet, "/config", nil).WithContext(ctx))
			if err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	<-begun
	<-begun
	resp := b.do(b.request(http.MethodGet, "/provider", nil))
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	want(t, resp, api.CodeUnavailable, "alpha", "try again")
	if resp := b.do(b.request(http.MethodGet, "/session", nil)); text(t, resp) != large {
		t.Error("an answer that is not rewritten had to wait")
	}
	cancel()
	held.Wait()
	for range 3 { // each gives its room back
		if resp := b.do(b.request(http.MethodGet, "/provider", nil)); text(t, resp) != large {
			t.Errorf("afterwards: %d", resp.StatusCode)
		}
	}
}

func TestAnAnswerThatIsRewrittenHasToArriveInTime(t *testing.T) {
	b, _, _ := rewriteBed(t, func(b *bed) { b.rewrites = 50 * time.Millisecond })
	want(t, b.do(b.request(http.MethodGet, "/config", nil)), api.CodeTimeout, "alpha", "opencode", "did not arrive")
}

func TestAClientThatReadsNothingKeepsNoRoom(t *testing.T) {
	b, _, _ := rewriteBed(t, func(b *bed) { b.passes = 200 * time.Millisecond })
	for range 2 {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		fmt.Fprintf(c, "GET %s/provider HTTP/1.1\r\nHost: x\r\n\r\n", opencodePath)
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // its answer has come
			t.Fatal(err)
		}
	}
	if resp := b.do(b.request(http.MethodGet, "/provider", nil)); resp.StatusCode != http.StatusOK {
		t.Errorf("got %d %s", resp.StatusCode, text(t, resp))
	}
}
