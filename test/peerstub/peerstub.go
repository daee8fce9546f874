// Package peerstub is a peer as opencode-plugin-peers has them, for tests: an entry in the
// registry, a Unix socket, a queue in memory that knows what it has, and final
// acknowledgements that are told until they are taken. It is written from the protocol's
// description and shares no code with the node's own part but the words of protocol/peers.
package peerstub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/peers"
)

// Patience bounds every wait of a test; only a hang reaches it.
const Patience = 20 * time.Second

// beat is how often an entry is written and acknowledgements are told.
const beat = 100 * time.Millisecond

// Again is a policy that no peer has: all that comes was said a moment ago.
const Again = "again"

// Config of a Peer.
type Config struct {
	StorageDir string
	Session    string
	Name       string
	Directory  string
	Policy     string // accept, hold or refuse; Again takes everything for a duplicate
	V1         bool   // has no entry of version 2 and tells no acknowledgements
}

// Got is a message that a Peer took, once.
type Got struct {
	peers.Message
	Status string // final; "": held or not delivered yet
	Times  int    // how often it was posted
	told   bool
}

// Peer is a running peer. Its methods are safe for concurrent use.
type Peer struct {
	ID      string
	cfg     Config
	tb      testing.TB
	process string
	token   string
	socket  string
	ln      []net.Listener
	srv     *http.Server
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu    sync.Mutex // guards the following fields
	got   map[string]*Got
	order []string
	acks  map[string][]peers.Ack // by message id
	full  int                    // so many posts are answered with full
	mute  int                    // so many posts are taken and not answered
	shape func(w http.ResponseWriter) bool
}

// Memory is what a Peer has on disk in life: it survives Stop.
type Memory struct {
	got   map[string]*Got
	order []string
}

// Start starts a peer that ends with the test.
func Start(tb testing.TB, cfg Config, mem ...*Memory) *Peer {
	tb.Helper()
	p := &Peer{
		ID: peers.EndpointID(cfg.Session), cfg: cfg, tb: tb, process: peers.NewProcessID(), token: peers.NewToken(),
		got: map[string]*Got{}, acks: map[string][]peers.Ack{},
	}
	if cfg.V1 {
		p.ID = p.process
	}
	for _, m := range mem {
		p.got, p.order = m.got, m.order
	}
	dir, err := os.MkdirTemp("", "ps") // short: the path of a socket is
	if err != nil {
		tb.Fatal(err)
	}
	p.socket = filepath.Join(dir, p.process+".sock")
	unix, err := net.Listen("unix", p.socket)
	if err != nil {
		tb.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p.ln = []net.Listener{unix, tcp}
	p.srv = &http.Server{Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: Patience}
	for _, l := range p.ln {
		p.work.Go(func() { _ = p.srv.Serve(l) })
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.write()
	p.work.Go(func() { p.beat(ctx) })
	tb.Cleanup(func() {
		p.Stop()
		_ = os.RemoveAll(dir)
	})
	return p
}

// Stop ends the peer as a shutdown does and returns what it had on disk. Idempotent.
func (p *Peer) Stop() *Memory {
	p.cancel()
	_ = p.srv.Close()
	p.work.Wait()
	_ = os.Remove(p.file())
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Memory{got: p.got, order: p.order}
}

func (p *Peer) file() string {
	name := p.process + "." + peers.Safe(p.ID) + ".v2.json"
	if p.cfg.V1 {
		name = p.process + ".json"
	}
	return filepath.Join(p.cfg.StorageDir, "peers.d", name)
}

// write puts the entry into the registry.
func (p *Peer) write() {
	now := time.Now().UnixMilli()
	e := map[string]any{
		"pid": os.Getpid(), "name": p.cfg.Name, "hostname": "h", "directory": p.cfg.Directory, "serverUrl": "", "busy": false, "queuedCount": 0,
		"inboxUrl": "http://" + p.ln[1].Addr().String(), "inboxToken": p.token, "inboundPolicy": p.cfg.Policy, "pluginVersion": "0.2.2",
		"startedAt": now - 1000, "heartbeatAt": now, "activeSessionId": p.cfg.Session, "activeSessionTitle": "title of " + p.cfg.Name,
	}
	if p.cfg.V1 {
		e["version"], e["instanceId"] = 1, p.process
	} else {
		e["version"], e["endpointId"], e["processId"], e["sessionId"], e["title"], e["status"] = 2, p.ID, p.process, p.cfg.Session, "t", "idle"
		e["transport"] = map[string]any{"type": "unix", "path": p.socket}
		e["capabilities"] = []string{"local", "protocol-v2", "prompt-async", "ack"}
	}
	data, err := json.MarshalIndent(e, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(p.file()), 0o700)
	}
	if err == nil {
		err = os.WriteFile(p.file()+".tmp", data, 0o600)
	}
	if err == nil {
		err = os.Rename(p.file()+".tmp", p.file())
	}
	if err != nil {
		p.tb.Errorf("a peer cannot write its entry: %v", err)
	}
}

// beat tells acknowledgements until they are taken.
func (p *Peer) beat(ctx context.Context) {
	t := time.NewTicker(beat)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if n%20 == 0 {
			p.write()
		}
		p.tell(ctx)
	}
}

func (p *Peer) tell(ctx context.Context) {
	if p.cfg.V1 {
		return
	}
	p.mu.Lock()
	var due []*Got
	for _, k := range p.order {
		if g := p.got[k]; g.Status != "" && !g.told {
			due = append(due, g)
		}
	}
	p.mu.Unlock()
	for _, g := range due {
		e, ok := p.Find(g.FromEndpoint)
		if !ok {
			continue
		}
		p.mu.Lock()
		a := peers.Ack{MessageID: g.ID, FromEndpoint: g.FromEndpoint, ToEndpoint: p.ID, Status: g.Status, AcknowledgedAt: float64(time.Now().UnixMilli())}
		p.mu.Unlock()
		if code, _, err := post(ctx, e, "/ack", a.Encode()); err == nil && code == http.StatusAccepted {
			p.mu.Lock()
			g.told = true
			p.mu.Unlock()
		}
	}
}

// List is the registry as others see it, without the peer itself and processes that are
// gone.
func (p *Peer) List() (out []peers.Entry) {
	files, _ := filepath.Glob(filepath.Join(p.cfg.StorageDir, "peers.d", "*.json"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it was replaced
		}
		e, err := peers.ReadEntry(data)
		if err == nil && !e.V1 && e.EndpointID != p.ID && runs(e.PID) {
			out = append(out, e)
		}
	}
	return out
}

// runs reports whether a process is there.
func runs(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil || pid <= 0 {
		return false
	}
	defer p.Release() //nolint:errcheck // nothing to do about it
	return p.Signal(syscall.Signal(0)) == nil || runtime.GOOS == "windows"
}

// Find is the entry of an endpoint.
func (p *Peer) Find(id string) (peers.Entry, bool) {
	for _, e := range p.List() {
		if e.EndpointID == id {
			return e, true
		}
	}
	return peers.Entry{}, false
}

// Named waits for an entry with a name.
func (p *Peer) Named(name string) (found peers.Entry) {
	p.tb.Helper()
	Eventually(p.tb, "a peer called "+name, func() bool {
		for _, e := range p.List() {
			if e.Name == name {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// Send posts a message and returns its id and receipt.
func (p *Peer) Send(to peers.Entry, text string, via ...string) (id, receipt string) {
	p.tb.Helper()
	id = peers.NewMessageID()
	receipt, err := p.SendAs(id, to, text, via...)
	if err != nil {
		p.tb.Fatalf("%s could not post: %v", p.cfg.Name, err)
	}
	return id, receipt
}

// SendAs is the same with an id, once.
func (p *Peer) SendAs(id string, to peers.Entry, text string, via ...string) (string, error) {
	m := peers.Message{
		ID: id, FromEndpoint: p.ID, ToEndpoint: to.EndpointID, Text: text, Via: append(append([]string{}, via...), p.ID),
		From: peers.Sender{InstanceID: p.ID, Name: p.cfg.Name, Directory: p.cfg.Directory}, SentAt: float64(time.Now().UnixMilli()),
	}
	code, answer, err := post(context.Background(), to, "/message", m.Encode())
	if err != nil {
		return "", err
	}
	if r := peers.ReadReceipt(answer); r != "" {
		return r, nil
	}
	return "", fmt.Errorf("answer %d %s", code, answer)
}

// Acked waits for the final acknowledgement of a message.
func (p *Peer) Acked(id string) peers.Ack {
	p.tb.Helper()
	Eventually(p.tb, "the acknowledgement of "+id+" for "+p.cfg.Name, func() bool { return len(p.Acks(id)) > 0 })
	return p.Acks(id)[0]
}

// Acks are the acknowledgements of a message so far.
func (p *Peer) Acks(id string) []peers.Ack {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]peers.Ack{}, p.acks[id]...)
}

// Messages are what the peer took, in order.
func (p *Peer) Messages() (out []Got) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.order {
		out = append(out, *p.got[k])
	}
	return out
}

// Wait waits until the peer has n messages.
func (p *Peer) Wait(n int) []Got {
	p.tb.Helper()
	Eventually(p.tb, fmt.Sprintf("%d messages at %s", n, p.cfg.Name), func() bool { return len(p.Messages()) >= n })
	return p.Messages()
}

// Decide ends everything that is held with a status.
func (p *Peer) Decide(status string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.got {
		if g.Status == "" {
			g.Status = status
		}
	}
}

// Full has the next n posts answered with full, Mute the next n taken and not answered.
func (p *Peer) Full(n int) { p.mu.Lock(); defer p.mu.Unlock(); p.full = n }

// Mute is explained at Full.
func (p *Peer) Mute(n int) { p.mu.Lock(); defer p.mu.Unlock(); p.mute = n }

// Answer has f answer posts in the peer's place as long as it reports true.
func (p *Peer) Answer(f func(w http.ResponseWriter) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shape = f
}

func (p *Peer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 20480+1))
	switch {
	case r.Header.Get("Authorization") != "Bearer "+p.token:
		w.WriteHeader(http.StatusUnauthorized)
	case err != nil || len(body) > 20480:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	case r.URL.Path == "/ack":
		p.serveAck(w, body)
	case r.URL.Path == "/message":
		p.serveMessage(w, body)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (p *Peer) serveAck(w http.ResponseWriter, body []byte) {
	a, err := peers.ReadAck(body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.acks[a.MessageID] = append(p.acks[a.MessageID], a)
	p.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(peers.EncodeReceipt("accepted"))
}

func (p *Peer) serveMessage(w http.ResponseWriter, body []byte) {
	m, err := peers.ReadMessage(body)
	if err != nil || len(m.Text) > peers.DefaultMaxMessageBytes {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid message shape"}`))
		return
	}
	p.mu.Lock()
	shape := p.shape
	if p.full > 0 {
		p.full--
		p.mu.Unlock()
		receipt(w, peers.Full)
		return
	}
	p.mu.Unlock()
	if shape != nil && shape(w) {
		return
	}
	if status, mute := p.take(m); !mute {
		receipt(w, status)
		return
	}
	panic(http.ErrAbortHandler) // the answer is lost
}

func receipt(w http.ResponseWriter, status string) {
	w.WriteHeader(peers.HTTPStatus(status))
	_, _ = w.Write(peers.EncodeReceipt(status))
}

// take keeps a message and says what to answer.
func (p *Peer) take(m peers.Message) (status string, mute bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mute > 0 {
		p.mute--
		mute = true
	}
	k := strings.Join([]string{m.FromEndpoint, m.ID}, "\x00")
	g := p.got[k]
	if g == nil {
		g = &Got{Message: m, Status: map[string]string{"": peers.Delivered, peers.PolicyAccept: peers.Delivered, peers.PolicyRefuse: peers.Refused, Again: peers.Duplicate}[p.cfg.Policy]}
		for _, o := range p.order { // the same words within a second
			if old := p.got[o]; old.FromEndpoint == m.FromEndpoint && old.Text == m.Text && m.SentAt-old.SentAt < 1000 && g.Status == peers.Delivered {
				g.Status = peers.Duplicate
			}
		}
		p.got[k] = g
		p.order = append(p.order, k)
	}
	g.Times++
	if g.Status == "" {
		return peers.Held, mute
	}
	return g.Status, mute
}

// post makes one request to an entry.
func post(ctx context.Context, e peers.Entry, path string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	network, addr := "unix", e.Transport.Path
	if e.Transport.Type != "unix" {
		network, addr = "tcp", net.JoinHostPort(e.Transport.Host, fmt.Sprint(e.Transport.Port))
	}
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+e.InboxToken)
	resp, err := hc.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, errors.Join(err)
}

// Eventually waits for something that comes by itself.
func Eventually(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	for !is() {
		if time.Now().After(deadline) {
			tb.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
