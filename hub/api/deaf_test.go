package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/protocol/api"
)

// patience bounds waits that only a hang reaches.
const patience = 2 * time.Minute

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: it does not come", what)
		}
	}
}

// journal is a log that is read while it is written.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// subscribe asks for events over a connection of its own, with bounded room for what is
// not read, and reads nothing.
func (s *shop) subscribe(secret, last string) net.Conn {
	s.t.Helper()
	before := s.bus.Subscribers()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.(*net.TCPConn).SetReadBuffer(256 << 10)
	_, err = fmt.Fprintf(conn, "GET /v1/events HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer %s\r\nLast-Event-ID: %s\r\n\r\n", secret, last)
	if err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); s.bus.Subscribers() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("it is no subscriber")
		}
	}
	return conn
}

// happen publishes the n-th event, of a kilobyte.
func (s *shop) happen(n int) {
	s.bus.Node(api.Node{Name: fmt.Sprint("n", n), Alarms: []string{strings.Repeat("x", 1<<10)}})
}

// most is how many events of a kilobyte fit into a queue and what a system keeps for a
// connection, and some more; the ring holds them all.
const most = 8000

func TestASubscriberThatNeverReadsIsCutWithAReasonAndSlowsNobody(t *testing.T) {
	log := &journal{}
	s := newShop(t, func(c *hubapi.Config) {
		c.EventTimeout = 300 * time.Millisecond
		c.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	good, deaf := s.enroll(login("good", true)), s.enroll(login("deaf", true))
	s.subscribe(deaf, "")
	resp := s.open(http.MethodGet, "/v1/events", good, nil)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), `data: {"name":"`); ok {
				name, _, _ := strings.Cut(data, `"`)
				return name
			}
		}
		t.Fatalf("the other's stream ended: %v", lines.Err())
		return ""
	}
	n := 0
	for ; n < most && s.bus.Subscribers() > 1; n++ {
		s.happen(n)
		if got, want := next(), fmt.Sprint("n", n); got != want {
			t.Fatalf("the other gets %s, not %s", got, want)
		}
	}
	if s.bus.Subscribers() > 1 {
		t.Fatalf("it is a subscriber still, after %d events that it did not read", n)
	}
	cut := regexp.MustCompile(`mesh_event_streams_cut_total\{reason="(lagged|stalled)"\} 1\n`)
	eventually(t, "the reason among the metrics", func() bool {
		_, _, data := s.call(http.MethodGet, "/metrics", "", nil)
		return cut.Match(data)
	})
	eventually(t, "the reason in the log", func() bool {
		return regexp.MustCompile(`an event stream was cut.* reason=(lagged|stalled) by=deaf peer=127\.0\.0\.1`).MatchString(log.String())
	})
	s.happen(n)
	if got, want := next(), fmt.Sprint("n", n); got != want {
		t.Errorf("then the other gets %s, not %s", got, want)
	}
}

func TestASubscriberThatFallsBehindIsToldWhyAndResumesWithoutAGap(t *testing.T) {
	s := newShop(t, func(c *hubapi.Config) { c.EventTimeout = patience })
	slow := s.enroll(login("slow", true))
	conn := s.subscribe(slow, "")
	n := 0
	for ; s.bus.Subscribers() > 0; n++ {
		if n == most {
			t.Fatal("it is a subscriber still")
		}
		s.happen(n)
	}
	read := func(conn net.Conn, done func(events int, typ string) bool) (events int, last, id string) {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			switch line := lines.Text(); {
			case strings.HasPrefix(line, "id: "):
				id = strings.TrimPrefix(line, "id: ")
			case strings.HasPrefix(line, "event: "):
				last = strings.TrimPrefix(line, "event: ")
				if last == api.EventNode {
					events++
				}
			case line == "" && done(events, last):
				return events, last, id
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		return events, last, id
	}
	got, last, id := read(conn, func(int, string) bool { return false })
	if last != api.EventCut || got == 0 || got >= n {
		t.Fatalf("%d of %d events, the last is %s", got, n, last)
	}
	if rest, _, _ := read(s.subscribe(slow, id), func(events int, typ string) bool { return got+events == n || typ == api.EventResync }); got+rest != n {
		t.Errorf("%d events, and %d when it came back, of %d", got, rest, n)
	}
	_, _, data := s.call(http.MethodGet, "/metrics", "", nil)
	if !strings.Contains(string(data), `mesh_event_streams_cut_total{reason="lagged"} 1`) {
		t.Error("it is not counted")
	}
}
