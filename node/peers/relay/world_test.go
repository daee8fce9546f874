package relay_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/mail"
	nodepeers "opencode-mesh/node/peers"
	"opencode-mesh/node/peers/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
	"opencode-mesh/store/boltdb"
	"opencode-mesh/test/peerstub"
)

// disk fails the commits of a box beyond those that it is given.
type disk struct {
	mu   sync.Mutex
	left int // -1: all succeed
	done int
	dead chan struct{} // closed at the first that fails
}

func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == 0 {
		select {
		case <-d.dead:
		default:
			close(d.dead)
		}
		return boltdb.WriteFault(syscall.EROFS)
	}
	if d.left > 0 {
		d.left--
	}
	d.done++
	return nil
}

func (d *disk) set(left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = left
}

// world is a hub in memory and the nodes around it.
type world struct {
	t *testing.T

	mu      sync.Mutex
	nodes   map[string]*machine
	mails   []api.Mail // not delivered
	known   map[string]bool
	down    bool
	rosters map[string][]api.PeerAgent
	rev     int
	changed chan struct{}
	refuse  *api.Error // of every delivery
	kick    chan struct{}
	old     bool   // knows nothing of lists
	shared  string // the directory of peers of machines that are made now; "": their own
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, nodes: map[string]*machine{}, known: map[string]bool{}, rosters: map[string][]api.PeerAgent{}, changed: make(chan struct{}), kick: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.kick:
			case <-tick.C:
			}
			w.pump()
		}
	})
	t.Cleanup(func() { cancel(); work.Wait() })
	return w
}

// pump delivers what waits, in order.
func (w *world) pump() {
	w.mu.Lock()
	mails := w.mails
	refuse := w.refuse
	w.mu.Unlock()
	for _, m := range mails {
		w.mu.Lock()
		to, from, down := w.nodes[m.To], w.nodes[m.From], w.down
		w.mu.Unlock()
		if down || from == nil {
			return
		}
		r := api.MailReceipt{ID: m.ID, State: api.MailDelivered}
		var err *api.Error
		if err = refuse; err == nil {
			if to == nil || !to.up() {
				continue
			}
			err = to.request(http.MethodPut, "/v1/mail/"+m.ID, m, nil)
		}
		if err != nil {
			if refuse == nil && err.Code != api.CodeRefused { // tried again
				continue
			}
			r = api.MailReceipt{ID: m.ID, State: api.MailReturned, Code: string(err.Code), MayHaveArrived: err.Message == "may"}
		}
		if !from.up() {
			continue // the receiver knows the id
		}
		var done api.MailSettled
		if from.request(http.MethodPost, "/v1/mail/receipts", api.MailReceipts{Receipts: []api.MailReceipt{r}}, &done) != nil || len(done.IDs) == 0 {
			continue
		}
		w.mu.Lock()
		for i := range w.mails {
			if w.mails[i].ID == m.ID {
				w.mails = append(w.mails[:i:i], w.mails[i+1:]...)
				break
			}
		}
		w.mu.Unlock()
	}
}

func (w *world) news() { // with mu held
	w.rev++
	close(w.changed)
	w.changed = make(chan struct{})
}

// line is the way of one node to the hub.
type line struct {
	w    *world
	node string
}

func (l line) Call(ctx context.Context, method, path string, in, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	w := l.w
	w.mu.Lock()
	down, old := w.down, w.old
	w.mu.Unlock()
	var answer any
	switch {
	case down:
		return fmt.Errorf("the hub is down")
	case path == "/v1/mail/known":
		var q api.MailQuery
		_ = json.Unmarshal(data, &q)
		k := api.MailKnown{Unknown: []string{}, NowMS: time.Now().UnixMilli()}
		w.mu.Lock()
		for _, id := range q.IDs {
			if !w.known[id] {
				k.Unknown = append(k.Unknown, id)
			}
		}
		w.mu.Unlock()
		answer = k
	case strings.HasPrefix(path, "/v1/mail/"):
		var m api.Mail
		_ = json.Unmarshal(data, &m)
		m.From, m.FromID, m.SentMS = l.node, "id-"+l.node, time.Now().UnixMilli()
		w.mu.Lock()
		if !w.known[m.ID] {
			w.known[m.ID] = true
			w.mails = append(w.mails, m)
		}
		w.mu.Unlock()
		select {
		case w.kick <- struct{}{}:
		default:
		}
		answer = api.MailReceipt{ID: m.ID, State: api.MailQueued}
	case old:
		return api.Errorf(api.CodeNotFound, "nothing here")
	case method == http.MethodPut:
		var r api.PeerRoster
		_ = json.Unmarshal(data, &r)
		w.mu.Lock()
		w.rosters[l.node] = r.Agents
		w.news()
		w.mu.Unlock()
	default:
		return w.others(ctx, l.node, strings.TrimPrefix(path, "/v1/peers?after="), out)
	}
	if out == nil {
		return nil
	}
	data, err = json.Marshal(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

func (w *world) others(ctx context.Context, node, after string, out any) error {
	for {
		w.mu.Lock()
		f, changed := api.PeerFleet{Revision: fmt.Sprint(w.rev)}, w.changed
		for name, list := range w.rosters {
			if name != node {
				f.Nodes = append(f.Nodes, api.PeerNode{Node: name, NodeID: "id-" + name, Agents: list})
			}
		}
		w.mu.Unlock()
		if f.Revision != after {
			data, _ := json.Marshal(f)
			return json.Unmarshal(data, out)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// machine is a machine with a node.
type machine struct {
	w       *world
	name    string
	dir     string
	shared  string
	show    string
	tune    func(*relay.Config)
	running *running
	mu      sync.Mutex
}

// running is a process of the node.
type running struct {
	box     *mail.Box
	relay   *relay.Relay
	service *nodepeers.Service
	disk    *disk
	mux     http.Handler
	cancel  context.CancelFunc
	work    sync.WaitGroup
}

func (w *world) machine(name, show string, tune ...func(*relay.Config)) *machine {
	w.t.Helper()
	dir, err := os.MkdirTemp("", "m") // short: the path of a socket is
	if err != nil {
		w.t.Fatal(err)
	}
	m := &machine{w: w, name: name, dir: dir, shared: w.shared, show: show, tune: func(*relay.Config) {}}
	for _, f := range tune {
		m.tune = f
	}
	m.start(-1)
	w.mu.Lock()
	w.nodes[name] = m
	w.mu.Unlock()
	w.t.Cleanup(func() {
		m.stop()
		_ = os.RemoveAll(dir)
	})
	return m
}

// start starts the node, whose box can write so many commits.
func (m *machine) start(commits int) *running {
	m.w.t.Helper()
	p := &running{disk: &disk{left: -1, dead: make(chan struct{})}}
	var err error
	p.box, err = mail.Open(mail.Config{Path: filepath.Join(m.dir, "mail.db"), HubID: "hub", BallastBytes: -1, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, Faults: p.disk})
	if err != nil {
		m.w.t.Fatal(err)
	}
	opts := peers.DefaultOptions()
	opts.Sweep, opts.Heartbeat, opts.Stale = 200*time.Millisecond, 200*time.Millisecond, 30*time.Second
	s, err := nodepeers.New(nodepeers.Config{
		Node: m.name, DataDir: m.dir, StorageDir: m.storage(), RuntimeDir: filepath.Join(m.dir, "run"), Show: m.show, Options: opts, Version: "test",
	})
	if err != nil {
		m.w.t.Fatal(err)
	}
	cfg := relay.Config{Box: p.box, Service: s, Node: m.name, Sole: relay.Sole(m.storage(), fmt.Sprintf("%p", m.w)), Shows: s.Config().Shows, RetryMin: 20 * time.Millisecond, RetryMax: 100 * time.Millisecond, AckGrace: 2 * time.Second, PostRate: 1000, Log: logOf()}
	m.tune(&cfg)
	p.relay, p.service = relay.New(cfg), s
	mux := chi.NewRouter()
	p.box.Routes(mux)
	p.mux = mux
	p.disk.set(commits)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	service, end := context.WithCancel(context.Background())
	var serves sync.WaitGroup
	serves.Go(func() { _ = s.Run(service) })
	p.work.Go(func() {
		p.relay.Run(ctx)
		end()
		serves.Wait()
	})
	p.box.Attach(line{m.w, m.name})
	p.relay.Attach(line{m.w, m.name})
	m.mu.Lock()
	m.running = p
	m.mu.Unlock()
	return p
}

func (m *machine) storage() string { return cmp.Or(m.shared, filepath.Join(m.dir, "s")) }

func (m *machine) up() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running != nil
}

// stop ends the node. What its box was not able to write is lost, as in a crash.
func (m *machine) stop() {
	m.mu.Lock()
	p := m.running
	m.running = nil
	m.mu.Unlock()
	if p == nil {
		return
	}
	p.disk.set(0)
	p.cancel()
	p.work.Wait()
	_ = p.box.Close()
}

// request is one of the hub's.
func (m *machine) request(method, path string, in, out any) *api.Error {
	m.mu.Lock()
	p := m.running
	m.mu.Unlock()
	if p == nil {
		return api.Errorf(api.CodeUnavailable, "down")
	}
	body, _ := json.Marshal(in)
	rec := httptest.NewRecorder()
	p.mux.ServeHTTP(rec, httptest.NewRequest(method, path, bytes.NewReader(body)))
	if rec.Code > 299 {
		return api.DecodeError(rec.Code, rec.Body.Bytes())
	}
	if out != nil {
		_ = json.Unmarshal(rec.Body.Bytes(), out)
	}
	return nil
}

// peer starts an agent on the machine.
func (m *machine) peer(name string, change ...func(*peerstub.Config)) *peerstub.Peer {
	m.w.t.Helper()
	cfg := peerstub.Config{StorageDir: m.storage(), Session: "ses_" + m.name + name, Name: name, Directory: "/srv/" + name, Policy: "accept"}
	for _, f := range change {
		f(&cfg)
	}
	return peerstub.Start(m.w.t, cfg)
}

func policy(p string) func(*peerstub.Config) {
	return func(c *peerstub.Config) { c.Policy = cmp.Or(p, c.Policy) }
}

func logOf() *slog.Logger {
	if os.Getenv("RELAY_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
