// Package mail_test holds the post of hub and nodes together: the hub's office and the
// nodes' boxes, each with its real file, over wires that lose what the test wants.
package mail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	hubmail "opencode-mesh/hub/mail"
	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/boltdb"
	"opencode-mesh/test/fleet"
)

func TestMain(m *testing.M) {
	// Each check syncs files some hundred times. -rapid.checks=N, but not 100, has its way.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("30")
	}
	fleet.Verify(m)
}

// patience bounds every wait; only a hang reaches it.
const patience = 4 * time.Minute

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// disk is a disk that dies: from then on nothing reaches it, which is what a crash
// leaves behind.
type disk struct{ dead atomic.Bool }

func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	if d.dead.Load() {
		return boltdb.WriteFault(syscall.EROFS)
	}
	return nil
}

// clock is the hub's, as far ahead as the test says.
type clock struct{ ahead atomic.Int64 }

func (c *clock) Now() time.Time  { return time.Now().UTC().Add(time.Duration(c.ahead.Load())) }
func (c *clock) MayExpire() bool { return true }

type observer struct{}

func (observer) MailTaken()       {}
func (observer) MailEnded(string) {}

// world is a hub with its nodes.
type world struct {
	t     tester
	dir   string
	clock clock
	nodes map[string]*node
	names []string

	lossPercent atomic.Int64
	calls       underWay

	mu     sync.RWMutex // guards the following fields; held while the hub is exchanged
	hub    *hub
	lives  int
	backup []byte
}

// hub is one life of the hub.
type hub struct {
	disk   *disk
	store  *bolt.Store
	office *hubmail.Office
	stop   context.CancelFunc
	ran    sync.WaitGroup
}

// underWay counts requests that nobody may be waiting for any more. Others begin while
// it is waited for, which a sync.WaitGroup does not allow.
type underWay struct {
	mu sync.Mutex
	n  int           // guarded by mu
	no chan struct{} // closed once n is 0; nil while nobody waits
}

// Go runs do and counts it.
func (u *underWay) Go(do func()) {
	u.mu.Lock()
	u.n++
	u.mu.Unlock()
	go func() {
		defer u.done()
		do()
	}()
}

func (u *underWay) done() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n--; u.n == 0 && u.no != nil {
		close(u.no)
		u.no = nil
	}
}

// Wait returns at a moment when none is under way.
func (u *underWay) Wait() {
	u.mu.Lock()
	if u.n == 0 {
		u.mu.Unlock()
		return
	}
	if u.no == nil {
		u.no = make(chan struct{})
	}
	no := u.no
	u.mu.Unlock()
	<-no
}

func newWorld(t tester, dir string, names ...string) *world {
	w := &world{t: t, dir: dir, nodes: map[string]*node{}, names: names}
	w.hub = w.openHub(filepath.Join(dir, "hub"))
	for _, name := range names {
		id := store.Identity{ID: "id-" + name, Name: name, Role: api.RoleNode, CreatedAt: time.Now()}
		cred := store.Credential{ID: "cred-" + name, IdentityID: id.ID, Name: name, Role: api.RoleNode, CreatedAt: time.Now()}
		copy(cred.Hash[:], name)
		if err := w.hub.store.CreateIdentity(context.Background(), id, cred); err != nil {
			t.Fatalf("%v", err)
		}
		n := &node{w: w, id: id, path: filepath.Join(dir, name+".db")}
		n.open()
		w.nodes[name] = n
	}
	return w
}

func (w *world) openHub(dir string) *hub {
	h := &hub{disk: &disk{}}
	var err error
	if h.store, err = bolt.Open(bolt.Config{Dir: dir, BallastBytes: -1, Faults: h.disk}); err != nil {
		w.t.Fatalf("open the hub's store: %v", err)
	}
	h.office, err = hubmail.New(context.Background(), hubmail.Config{
		Store: h.store, Clock: &w.clock, Observer: observer{}, Log: slog.New(slog.DiscardHandler), RetryMin: time.Millisecond,
	})
	if err != nil {
		w.t.Fatalf("open the office: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	h.ran.Go(func() { h.office.Run(ctx) })
	return h
}

func (w *world) closeHub() {
	for _, n := range w.nodes {
		n.disconnect()
	}
	w.hub.disk.dead.Store(true)
	w.hub.stop()
	w.hub.ran.Wait()
	w.calls.Wait()
	_ = w.hub.store.Close()
}

// crashHub kills the hub: what is not on disk is gone, and all tunnels with it.
func (w *world) crashHub() {
	w.closeHub()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hub = w.openHub(w.hubDir())
}

func (w *world) hubDir() string {
	if w.lives == 0 {
		return filepath.Join(w.dir, "hub")
	}
	return filepath.Join(w.dir, fmt.Sprint("hub", w.lives))
}

// keep makes a backup of the hub, restore brings the last one back.
func (w *world) keep() {
	var b bytes.Buffer
	if _, err := w.hub.store.Backup(context.Background(), &b); err != nil {
		w.t.Fatalf("backup: %v", err)
	}
	w.backup = b.Bytes()
}

func (w *world) restore() {
	if w.backup == nil {
		return
	}
	w.closeHub()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lives++
	file := filepath.Join(w.dir, "backup")
	if err := os.WriteFile(file, w.backup, 0o600); err != nil {
		w.t.Fatalf("%v", err)
	}
	if _, err := bolt.Restore(context.Background(), file, w.hubDir()); err != nil {
		w.t.Fatalf("restore: %v", err)
	}
	w.hub = w.openHub(w.hubDir())
}

func (w *world) close() {
	w.closeHub()
	for _, n := range w.nodes {
		_ = n.box.Close()
	}
}

// errLost is what a caller sees of a request or an answer that is lost.
var errLost = errors.New("lost on the wire")

// lose says whether something is lost now.
func (w *world) lose() bool { return rand.Int64N(100) < w.lossPercent.Load() }

// call makes a call over the wire: it may be lost on its way or on its way back, and a
// caller that gives up does not stop what it began.
func (w *world) call(ctx context.Context, do func() error) error {
	if w.lose() {
		return errLost
	}
	done := make(chan error, 1)
	w.calls.Go(func() { done <- do() })
	select {
	case err := <-done:
		if w.lose() {
			return errLost
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// node is a node by its box.
type node struct {
	w    *world
	id   store.Identity
	path string
	disk *disk
	box  *mail.Box
	app  *app
	mux  http.Handler

	detach func() // nil while it is away
	end    context.CancelFunc
}

func (n *node) open() {
	n.disk = &disk{}
	n.app = &app{}
	box, err := mail.Open(mail.Config{
		Path: n.path, HubID: "hub", BallastBytes: -1, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, Faults: n.disk,
	})
	if err != nil {
		n.w.t.Fatalf("open the box of %s: %v", n.id.Name, err)
	}
	box.Handle("test.", n.app)
	mux := chi.NewRouter()
	box.Routes(mux)
	n.box, n.mux = box, mux
}

// crash kills the node and starts it again.
func (n *node) crash() {
	n.disk.dead.Store(true)
	n.disconnect()
	n.w.calls.Wait()
	_ = n.box.Close()
	n.open()
}

func (n *node) connect() {
	if n.detach != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.end = cancel
	n.detach = n.w.hub.office.Attach(ctx, n.id, toNode{n.w, n.mux})
	n.box.Attach(toHub{n.w, n.id})
}

func (n *node) disconnect() {
	if n.detach == nil {
		return
	}
	n.end()
	n.box.Detach()
	n.detach()
	n.detach = nil
}

// toNode is the hub's way to a node.
type toNode struct {
	w   *world
	mux http.Handler
}

func (c toNode) serve(ctx context.Context, method, path string, in, out any) error {
	return c.w.call(ctx, func() error {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		rec := httptest.NewRecorder()
		c.mux.ServeHTTP(rec, httptest.NewRequest(method, path, bytes.NewReader(body)))
		if rec.Code > 299 {
			return api.DecodeError(rec.Code, rec.Body.Bytes())
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(rec.Body.Bytes(), out)
	})
}

func (c toNode) Mail(ctx context.Context, m api.Mail) error {
	return c.serve(ctx, http.MethodPut, "/v1/mail/"+m.ID, m, nil)
}

func (c toNode) MailReceipts(ctx context.Context, rs api.MailReceipts) (api.MailSettled, error) {
	// A call that is lost may still write: the answer is the caller's only when it came.
	done := new(api.MailSettled)
	if err := c.serve(ctx, http.MethodPost, "/v1/mail/receipts", rs, done); err != nil {
		return api.MailSettled{}, err
	}
	return *done, nil
}

// toHub is a node's way to the hub.
type toHub struct {
	w  *world
	id store.Identity
}

func (c toHub) Call(ctx context.Context, _, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	var answer []byte
	answered := new([]byte)
	err = c.w.call(ctx, func() error {
		c.w.mu.RLock()
		defer c.w.mu.RUnlock()
		office := c.w.hub.office
		var v any
		if strings.HasSuffix(path, "/known") {
			var q api.MailQuery
			if err := json.Unmarshal(body, &q); err != nil {
				return err
			}
			v = office.Known(c.id, q.IDs)
		} else {
			var m api.Mail
			if err := json.Unmarshal(body, &m); err != nil {
				return err
			}
			if err := m.Check(); err != nil {
				return err
			}
			rc, _, err := office.Accept(context.Background(), c.id, m)
			if err != nil {
				return err
			}
			v = rc
		}
		data, err := json.Marshal(v)
		*answered = data
		return err
	})
	if err != nil {
		return err
	}
	answer = *answered
	return json.Unmarshal(answer, out)
}

// app keeps what it gets in the box's file: what it received, in order, and how often
// each receipt came.
type app struct{ woken atomic.Int64 }

var (
	gotBucket     = []byte("test.got")
	settledBucket = []byte("test.settled")
)

func (a *app) Receive(tx *mail.Tx, m api.Mail) error {
	b, err := tx.CreateBucketIfNotExists(gotBucket)
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(fmt.Appendf(nil, "%08d", n), fmt.Appendf(nil, "%s/%s/%s", m.From, m.Lane, m.Body))
}

func (a *app) Received(api.Mail) { a.woken.Add(1) }

func (a *app) Settled(tx *mail.Tx, r api.MailReceipt, m api.Mail) error {
	b, err := tx.CreateBucketIfNotExists(settledBucket)
	if err != nil {
		return err
	}
	old := b.Get([]byte(m.ID))
	return b.Put([]byte(m.ID), append(slices.Clone(old), (r.State+" "+r.Code+";")...))
}

// got is what a node received, by "sender/lane", in order.
func (n *node) got() map[string][]string {
	got := map[string][]string{}
	err := n.box.View(func(tx *mail.Tx) error {
		b := tx.Bucket(gotBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(_, v []byte) error {
			parts := strings.SplitN(string(v), "/", 3)
			lane := parts[0] + "/" + parts[1]
			got[lane] = append(got[lane], parts[2])
			return nil
		})
	})
	if err != nil {
		n.w.t.Fatalf("%v", err)
	}
	return got
}

// settled are the receipts that a node got, by id.
func (n *node) settled() map[string]string {
	settled := map[string]string{}
	err := n.box.View(func(tx *mail.Tx) error {
		b := tx.Bucket(settledBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			settled[string(k)] = string(v)
			return nil
		})
	})
	if err != nil {
		n.w.t.Fatalf("%v", err)
	}
	return settled
}

// send puts a mail into a node's outbox.
func (n *node) send(to, lane, text string) (id string) {
	n.w.t.Helper()
	id = mail.NewID()
	m := api.Mail{ID: id, Kind: "test.text", To: to, Lane: lane, Body: fmt.Appendf(nil, "%q", text)}
	if err := n.box.Update(context.Background(), func(tx *mail.Tx) error { return n.box.Send(tx, m) }); err != nil {
		n.w.t.Fatalf("send: %v", err)
	}
	return id
}

// eventually waits for something that comes by itself.
func eventually(t tester, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// quiet lets the world heal and waits until nothing is under way.
func (w *world) quiet() {
	w.t.Helper()
	w.lossPercent.Store(0)
	for _, n := range w.nodes {
		n.connect()
	}
	eventually(w.t, "all receipts", func() bool {
		for _, n := range w.nodes {
			if n.box.Snapshot().Waiting > 0 {
				return false
			}
		}
		waiting, receipts := w.hub.office.Counts()
		return waiting+receipts == 0
	})
}
