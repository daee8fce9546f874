package adopt

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	proto "opencode-mesh/protocol/peers"
)

// testLimit bounds what can only hang by a fault.
const testLimit = 4 * time.Minute

// host is an agent with sessions whose history is kept, as a server's is.
type host struct {
	agent.Agent

	mu       sync.Mutex // guards the following fields
	changed  chan struct{}
	sessions map[string]*agent.Hosted
	history  map[string][]agent.Prompt
	lanes    map[string]bool
	plugin   map[string]string // by directory
	hold     bool              // turns do not end
	asks     []agent.Request   // of every turn
	verdicts []string
	finished []string
	refuse   error
	sign     func(string)
	missed   func() []string
	looked   map[string]int
}

func newHost() *host {
	return &host{changed: make(chan struct{}), sessions: map[string]*agent.Hosted{}, history: map[string][]agent.Prompt{},
		lanes: map[string]bool{}, plugin: map[string]string{}, looked: map[string]int{}}
}

// with runs fn with mu held and tells that something changed.
func (h *host) with(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *host) until(ctx context.Context, cond func() bool) error {
	for {
		h.mu.Lock()
		ok, changed := cond(), h.changed
		h.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *host) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if h.until(ctx, cond) != nil {
		t.Fatalf("never happened: %s", what)
	}
}

// put makes or changes a session and signs it.
func (h *host) put(s agent.Hosted) {
	var sign func(string)
	h.with(func() {
		h.sessions[s.Session] = &s
		sign = h.sign
	})
	if sign != nil {
		sign(s.Session)
	}
}

func (h *host) remove(id string) {
	var sign func(string)
	h.with(func() {
		delete(h.sessions, id)
		sign = h.sign
	})
	sign(id)
}

func (h *host) Watch(ctx context.Context, sign func(string), missed func() []string) {
	h.with(func() { h.sign, h.missed = sign, missed })
	h.gap()
	<-ctx.Done()
}

// gap lets the watch begin anew.
func (h *host) gap() {
	dirs := append(h.missed(), "/work")
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, s := range h.sessions {
		if s.Status != agent.StatusIdle && slices.Contains(dirs, s.Dir) {
			h.sign(id)
		}
	}
}

func (h *host) Hosted(_ context.Context, id string) (agent.Hosted, error) {
	defer h.with(func() { h.looked[id]++ })
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sessions[id]; s != nil {
		return *s, nil
	}
	return agent.Hosted{}, agent.ErrNoSession
}

func (h *host) Plugin(_ context.Context, dir string, names []string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range names {
		if strings.Contains(h.plugin[dir], n) {
			return h.plugin[dir], nil
		}
	}
	return "", nil
}

type visit struct {
	h  *host
	id string
}

func (h *host) Visit(ctx context.Context, id string) (agent.Visit, error) {
	if _, err := h.Hosted(ctx, id); err != nil {
		return nil, err
	}
	err := h.until(ctx, func() bool {
		if h.lanes[id] {
			return false
		}
		h.lanes[id] = true
		return true
	})
	return visit{h, id}, err
}

func (v visit) Leave() { v.h.with(func() { v.h.lanes[v.id] = false }) }

func (v visit) Idle(ctx context.Context) error {
	return v.h.until(ctx, func() bool { s := v.h.sessions[v.id]; return s == nil || s.Status == agent.StatusIdle })
}

func (v visit) Prompt(_ context.Context, p agent.Prompt) (err error) {
	v.h.with(func() {
		switch s := v.h.sessions[v.id]; {
		case s == nil:
			err = agent.ErrNoSession
		case s.Status != agent.StatusIdle:
			err = errors.New("a prompt to a session that works")
		case v.h.refuse != nil:
			err = v.h.refuse
		default:
			v.h.history[v.id] = append(v.h.history[v.id], p)
		}
	})
	return err
}

func (v visit) Stored(_ context.Context, p agent.Prompt) (bool, error) {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	if v.h.sessions[v.id] == nil {
		return false, agent.ErrNoSession
	}
	return slices.ContainsFunc(v.h.history[v.id], func(q agent.Prompt) bool { return q.Message == p.Message }), nil
}

func (v visit) Finish(ctx context.Context, p agent.Prompt, resumed bool) error {
	v.h.with(func() {
		for _, q := range v.h.asks {
			verdict, why := p.Decide(q)
			v.h.verdicts = append(v.h.verdicts, []string{"leave", "allow", "reject"}[verdict]+" "+q.ID+" "+why)
		}
		word := "first "
		if resumed {
			word = "resumed "
		}
		v.h.finished = append(v.h.finished, word+p.Message)
	})
	return v.h.until(ctx, func() bool { return !v.h.hold })
}

// rig is a node's adopter with its service, and a peer of the same machine.
type rig struct {
	t       *testing.T
	host    *host
	dir     string // of data, storage and sockets
	policy  string // of sessions; "": accept
	service *peers.Service
	peer    *peers.Service
	end     []func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	// Paths of sockets have to be short.
	dir, err := os.MkdirTemp("", "ad")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, host: newHost(), dir: dir}
	r.peer = r.newService("peer")
	r.run(r.peer)
	if err := r.peer.Publish(t.Context(), peers.Endpoint{ID: sender, Session: "ses_sender", Directory: "/elsewhere", Name: "sender", Receiver: deaf{}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stop)
	return r
}

const sender = "session-sender"

// deaf takes nothing.
type deaf struct{}

func (deaf) Deliver(context.Context, spool.Record) error    { return peers.ErrLater }
func (deaf) Acked(context.Context, proto.Ack) (bool, error) { return false, nil }

func (r *rig) newService(node string) *peers.Service {
	r.t.Helper()
	o := proto.DefaultOptions()
	o.SendRate, o.ReceiveRate, o.Sweep = 1000, 1000, 100*time.Millisecond
	s, err := peers.New(peers.Config{Node: node, DataDir: filepath.Join(r.dir, node), Show: peers.ShowAll,
		StorageDir: filepath.Join(r.dir, "storage"), RuntimeDir: filepath.Join(r.dir, "run"), Options: o, Policy: r.policy, Log: testLog(r.t)})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

func (r *rig) run(s *peers.Service) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r.end = append(r.end, func() {
		cancel()
		<-done
	})
}

// start starts a node; stop ends it.
func (r *rig) start(change ...func(*Config)) {
	r.t.Helper()
	r.service = r.newService("alpha")
	r.run(r.service)
	box, err := mail.Open(mail.Config{Path: filepath.Join(r.dir, "mail.db"), HubID: "hub"})
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := Config{Agent: r.host, Service: r.service, Box: box, Retry: 20 * time.Millisecond, Log: testLog(r.t)}
	for _, fn := range change {
		fn(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		New(cfg).Run(ctx)
	}()
	r.end = append(r.end, func() { _ = box.Close() }, func() {
		cancel()
		<-done
	})
}

// stop ends what was started after the peer, or all.
func (r *rig) stop() { r.stopTo(0) }

func (r *rig) restart(change ...func(*Config)) {
	r.t.Helper()
	r.stopTo(1)
	r.start(change...)
}

func (r *rig) stopTo(n int) {
	for len(r.end) > n {
		last := len(r.end) - 1
		r.end[last]()
		r.end = r.end[:last]
	}
}

// eventually waits for what the service's own changes do not tell of all.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.After(testLimit)
	for !cond() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-limit:
			t.Fatalf("never happened: %s", what)
		}
	}
}

// shows waits until just these sessions are published by the node.
func (r *rig) shows(ids ...string) {
	r.t.Helper()
	eventually(r.t, "shown "+strings.Join(ids, " "), func() bool { return slices.Equal(r.published(), ids) })
}

func (r *rig) published() []string {
	r.t.Helper()
	all, err := r.peer.Agents(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	ids := []string{}
	for _, p := range all {
		if !p.V1 && p.EndpointID != sender && !strings.HasPrefix(p.SessionID, "mesh-desk") {
			ids = append(ids, p.SessionID)
		}
	}
	slices.Sort(ids)
	return ids
}

func (r *rig) row(session string) registry.Peer {
	r.t.Helper()
	all, err := r.peer.Agents(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range all {
		if !p.V1 && p.SessionID == session {
			return p
		}
	}
	return registry.Peer{}
}

// send sends a message to a session and returns its id and receipt. No text is that of
// another one: within peers.DuplicateWindow it would count as sent twice.
func (r *rig) send(session, text string) (id, receipt string) {
	r.t.Helper()
	rec, err := r.peer.Send(r.t.Context(), sender, r.row(session), text)
	if err != nil {
		r.t.Fatal(err)
	}
	sent, err := r.peer.Outbox().List(sender)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, other := range sent {
		if other.Text == text && other.MessageID != rec.MessageID {
			r.t.Fatalf("%q was sent before: a test gives every message a text of its own", text)
		}
	}
	return rec.MessageID, rec.ReceiptStatus
}

// final waits for a message's final acknowledgement.
func (r *rig) final(id, want string) {
	r.t.Helper()
	eventually(r.t, "the final acknowledgement "+want, func() bool {
		rec, err := r.peer.Outbox().Get(sender, id)
		if err != nil {
			r.t.Fatal(err)
		}
		if rec.FinalStatus != "" && rec.FinalStatus != want {
			r.t.Fatalf("the final acknowledgement is %q, want %q", rec.FinalStatus, want) // no other follows
		}
		return rec.FinalStatus == want
	})
}

func at(id string, more ...func(*agent.Hosted)) agent.Hosted {
	h := agent.Hosted{Session: id, Dir: "/work", Title: "title of " + id, Status: agent.StatusIdle, Created: time.Now(), Updated: time.Now()}
	for _, fn := range more {
		fn(&h)
	}
	return h
}

func busy(h *agent.Hosted) { h.Status = agent.StatusBusy }
func old(h *agent.Hosted)  { h.Updated = time.Now().Add(-time.Hour) }
func below(parent string) func(*agent.Hosted) {
	return func(h *agent.Hosted) { h.Parent = parent }
}
