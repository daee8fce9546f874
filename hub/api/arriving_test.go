package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// sending is a request inside a tunnel whose body comes in pieces.
type sending struct {
	t  *testing.T
	c  net.Conn
	in *bufio.Reader
}

// send begins a request with a body of that many bytes; -1: it does not say.
func send(t *testing.T, s *tunnel.Session, length int) *sending {
	t.Helper()
	c, err := s.Open(t.Context(), tunnel.KindAPI)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	says := "Transfer-Encoding: chunked"
	if length >= 0 {
		says = fmt.Sprint("Content-Length: ", length)
	}
	fmt.Fprintf(c, "PUT /v1/tasks/t1/result HTTP/1.1\r\nHost: hub\r\n%s\r\n\r\n", says)
	return &sending{t, c, bufio.NewReader(c)}
}

// status waits for the answer.
func (s *sending) status() (status int, retry string) {
	s.t.Helper()
	resp, err := http.ReadResponse(s.in, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Header.Get("Retry-After")
}

func TestABodyInsideATunnelThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	s := newShop(t, func(c *hubapi.Config) { c.BodyTimeout = 20 * time.Millisecond })
	session := s.tunnelOf(s.enroll(join("beta")), nil)
	for _, length := range []int{-1, 100, api.MaxTunnelBody, api.MaxTunnelBody + 1} {
		if status, _ := send(t, session, length).status(); status != http.StatusBadRequest {
			t.Errorf("%d bytes: got %d", length, status)
		}
	}
}

// outcome is the body of a result, as large as one may be.
func outcome() []byte {
	b := []byte(`{"attempt":1,"turn":1,"journal_id":"j1","epoch":1,"outcome":{"state":"done"},"later":""}`)
	return bytes.Replace(b, []byte(`""`), []byte(`"`+strings.Repeat("x", api.MaxTunnelBody-len(b))+`"`), 1)
}

func TestANodeHasSoManyBytesOfBodiesUnderWayAndOthersAreNotHeldUp(t *testing.T) {
	s := newShop(t, func(c *hubapi.Config) { c.RoomTimeout = 50 * time.Millisecond })
	evil := s.tunnelOf(s.enroll(join("beta")), nil)
	good := s.tunnelOf(s.enroll(join("gamma")), nil)
	body := outcome()
	var stalled []*sending
	for range 4 {
		w := send(t, evil, len(body))
		if _, err := w.c.Write(body[:len(body)-1]); err != nil { // all but the last byte
			t.Fatal(err)
		}
		stalled = append(stalled, w)
	}
	if status, retry := send(t, evil, len(body)).status(); status != http.StatusServiceUnavailable || retry == "" {
		t.Errorf("a fifth body: got %d, Retry-After %q", status, retry)
	}
	w := send(t, evil, -1)
	_, _ = io.WriteString(w.c, "2\r\n{}\r\n0\r\n\r\n")
	if status, _ := w.status(); status != http.StatusServiceUnavailable {
		t.Errorf("one that does not say how long it is: got %d", status)
	}
	w = send(t, good, len(body))
	_, _ = w.c.Write(body)
	if status, _ := w.status(); status != http.StatusNotFound { // there is no such task
		t.Errorf("another node: got %d", status)
	}
	for _, w := range stalled {
		_, _ = w.c.Write(body[len(body)-1:])
		if status, _ := w.status(); status != http.StatusNotFound {
			t.Errorf("a body that came in the end: got %d", status)
		}
	}
	if status, _ := send(t, evil, 0).status(); status != http.StatusBadRequest {
		t.Errorf("no body: got %d", status)
	}
	w = send(t, evil, len(body))
	_, _ = w.c.Write(body)
	if status, _ := w.status(); status != http.StatusNotFound {
		t.Errorf("a body afterwards: got %d", status)
	}
}

func TestManyLargeResultsAtOnceWaitForEachOther(t *testing.T) {
	s := newShop(t)
	session := s.tunnelOf(s.enroll(join("beta")), nil)
	hc := &http.Client{Transport: &http.Transport{DialContext: session.DialContext}}
	defer hc.CloseIdleConnections()
	body := outcome()
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, "http://hub/v1/tasks/t1/result", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := hc.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusNotFound {
				b, _ := io.ReadAll(resp.Body)
				t.Errorf("got %d %s", resp.StatusCode, b)
			}
		})
	}
	all.Wait()
}
