package peers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

func TestMain(m *testing.M) {
	if arg := os.Getenv(childEnv); arg != "" {
		child(arg)
		return
	}
	goleak.VerifyTestMain(m)
}

// awaitTimeout is when a test gives up; nothing here waits for time to pass.
const awaitTimeout = 60 * time.Second

// machine is the directories that the processes of one machine share.
type machine struct {
	t                *testing.T
	storage, runtime string
}

func newMachine(t *testing.T) *machine {
	// Sockets need short paths.
	return &machine{t: t, storage: filepath.Join(t.TempDir(), "s"), runtime: filepath.Join(shortDir(t), "r")}
}

// side is one process of a machine.
type side struct {
	*Service
	t    *testing.T
	stop func() // ends Run and waits; any number of times
}

// start runs a service. The intervals are short, so that what waits for a sweep is seen.
func (m *machine) start(node string, change ...func(*Config)) *side {
	m.t.Helper()
	s := m.idle(node, change...)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := s.Run(ctx); err != nil {
			m.t.Errorf("%s: %v", node, err)
		}
	})
	s.stop = func() {
		cancel()
		run.Wait()
	}
	m.t.Cleanup(s.stop)
	return s
}

// idle makes a service without running it.
func (m *machine) idle(node string, change ...func(*Config)) *side {
	m.t.Helper()
	o := peers.DefaultOptions()
	o.Sweep = 200 * time.Millisecond
	cfg := Config{Node: node, DataDir: m.t.TempDir(), StorageDir: m.storage, RuntimeDir: m.runtime, Options: o}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	return &side{Service: s, t: m.t}
}

// agent publishes an endpoint of a session.
func (s *side) agent(session, policy string, r Receiver) string {
	s.t.Helper()
	id := peers.EndpointID(session)
	e := Endpoint{ID: id, Session: session, Name: session, Directory: "/srv/" + session, Policy: policy, Receiver: r}
	if err := s.Publish(s.t.Context(), e); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// peer is an endpoint as another process finds it.
func (s *side) peer(id string) registry.Peer {
	s.t.Helper()
	list, err := s.Agents(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range list {
		if p.EndpointID == id {
			return p
		}
	}
	s.t.Fatalf("%s is not in the registry: %+v", id, list)
	return registry.Peer{}
}

func (s *side) send(from, to, text string) outbox.Record {
	s.t.Helper()
	r, err := s.Send(s.t.Context(), from, s.peer(to), text)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// awaitFinal waits for the final acknowledgement of a message.
func (s *side) awaitFinal(r outbox.Record) outbox.Record {
	s.t.Helper()
	eventually(s.t, "a final acknowledgement", func() bool {
		now, err := s.Outbox().Get(r.FromEndpoint, r.MessageID)
		r = now
		return err == nil && now.FinalStatus != ""
	})
	return r
}

// ref names a message of an Inbox.
func ref(h Held) Ref { return Ref{Endpoint: h.Endpoint, Key: h.Record.Key()} }

// eventually looks again and again for what no channel tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(awaitTimeout); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// inbox is a Receiver that a test looks into.
type inbox struct {
	got   chan spool.Record
	acked chan peers.Ack
	// answer is what Deliver returns; nil: it takes everything.
	answer func(ctx context.Context, r spool.Record) error
}

func newInbox() *inbox {
	return &inbox{got: make(chan spool.Record, 1000), acked: make(chan peers.Ack, 1000)}
}

func (b *inbox) Deliver(ctx context.Context, r spool.Record) error {
	b.got <- r
	if b.answer == nil {
		return nil
	}
	return b.answer(ctx, r)
}

func (b *inbox) Acked(_ context.Context, a peers.Ack) (bool, error) {
	b.acked <- a
	return true, nil
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(awaitTimeout):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// door is one of the two ways to an endpoint.
type door struct{ network, addr string }

func (s *side) doors() map[string]door {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := map[string]door{"port": {"tcp", fmt.Sprintf("127.0.0.1:%d", s.listener.port)}}
	if s.listener.socket != "" {
		d["socket"] = door{"unix", s.listener.socket}
	}
	return d
}

func (d door) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial(d.network, d.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(awaitTimeout))
	return c
}

// raw makes a request byte for byte and returns code and body of the answer.
func (d door) raw(t *testing.T, method, path, auth, body string) (int, string) {
	t.Helper()
	c := d.dial(t)
	head := method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n"
	if auth != "" {
		head += "Authorization: " + auth + "\r\n"
	}
	if method == http.MethodPost {
		head += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	// The other side may answer and hang up before it read all of a body.
	go func() { _, _ = io.Copy(c, strings.NewReader(head+"\r\n"+body)) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (s *side) token(id string) string { return "Bearer " + s.find(id).token }

// shortDir is a directory whose sockets have paths that every system takes.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "ocp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
