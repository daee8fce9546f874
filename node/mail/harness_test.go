package mail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; only a hang reaches it.
const patience = 2 * time.Minute

// disk counts commits and fails those beyond what it is given.
type disk struct {
	mu    sync.Mutex
	left  int // commits that still succeed; -1: all
	errno error
	done  int
}

func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == 0 {
		return boltdb.WriteFault(d.errno)
	}
	if d.left > 0 {
		d.left--
	}
	d.done++
	return nil
}

func (d *disk) set(left int, errno error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left, d.errno = left, errno
}

func (d *disk) commits() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// dead reports whether no further commit succeeds.
func (d *disk) dead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left == 0
}

// rig is a box with an application and a hub.
type rig struct {
	t    *testing.T
	path string
	disk *disk
	box  *mail.Box
	app  *app
	hub  *hub
	mux  http.Handler
}

func newRig(t *testing.T, opts ...func(*mail.Config)) *rig {
	t.Helper()
	return openRig(t, filepath.Join(t.TempDir(), "mail.db"), opts...)
}

func openRig(t *testing.T, path string, opts ...func(*mail.Config)) *rig {
	t.Helper()
	g := &rig{t: t, path: path, disk: &disk{left: -1, errno: syscall.EROFS}, app: &app{}, hub: &hub{has: map[string]api.Mail{}, nowMS: hubStart}}
	cfg := mail.Config{Path: path, HubID: "hub", BallastBytes: -1, RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond, Faults: g.disk}
	for _, o := range opts {
		o(&cfg)
	}
	var err error
	if g.box, err = mail.Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.box.Close() })
	g.box.Handle("test.", g.app)
	mux := chi.NewRouter()
	g.box.Routes(mux)
	g.mux = mux
	return g
}

// crash ends the process that has the box; what is not on disk is gone.
func (g *rig) crash() *rig {
	g.t.Helper()
	g.disk.set(0, syscall.EROFS)
	_ = g.box.Close()
	next := openRig(g.t, g.path)
	next.hub = g.hub
	return next
}

func text(to, lane, s string) api.Mail {
	return api.Mail{ID: mail.NewID(), Kind: "test.text", To: to, Lane: lane, Body: fmt.Appendf(nil, "%q", s)}
}

// send puts mails into the outbox in one commit, with a note of the application's.
func (g *rig) send(mails ...api.Mail) error {
	return g.box.Update(context.Background(), func(tx *bolt.Tx) error {
		for _, m := range mails {
			if err := g.box.Send(tx, m); err != nil {
				return err
			}
			if err := put(tx, "test.sent", m.ID, "x"); err != nil {
				return err
			}
		}
		return nil
	})
}

func (g *rig) mustSend(mails ...api.Mail) {
	g.t.Helper()
	if err := g.send(mails...); err != nil {
		g.t.Fatalf("send: %v", err)
	}
}

// request is one of the hub's.
func (g *rig) request(method, path string, in, out any) (int, *api.Error) {
	g.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		g.t.Fatal(err)
	}
	w := httptest.NewRecorder()
	g.mux.ServeHTTP(w, httptest.NewRequest(method, path, bytes.NewReader(body)))
	if w.Code > 299 {
		return w.Code, api.DecodeError(w.Code, w.Body.Bytes())
	}
	if out != nil {
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
			g.t.Fatal(err)
		}
	}
	return w.Code, nil
}

const hubStart = int64(1_800_000_000_000)

// inbound is a mail as the hub delivers it.
func inbound(n int, s string) api.Mail {
	m := text("me", "lane", s)
	m.ID = fmt.Sprintf("mail_%032x", n)
	m.From, m.FromID, m.SentMS = "alpha", "id-alpha", hubStart+int64(n)
	return m
}

func (g *rig) deliver(m api.Mail) (int, *api.Error) {
	g.t.Helper()
	return g.request(http.MethodPut, "/v1/mail/"+m.ID, m, nil)
}

func (g *rig) mustDeliver(m api.Mail) {
	g.t.Helper()
	if status, err := g.deliver(m); err != nil {
		g.t.Fatalf("deliver: %d %v", status, err)
	}
}

// receipts tells receipts and returns the ids that are settled.
func (g *rig) receipts(rs ...api.MailReceipt) ([]string, *api.Error) {
	g.t.Helper()
	var done api.MailSettled
	_, err := g.request(http.MethodPost, "/v1/mail/receipts", api.MailReceipts{Receipts: rs}, &done)
	return done.IDs, err
}

func delivered(id string) api.MailReceipt { return api.MailReceipt{ID: id, State: api.MailDelivered} }

// all is what a bucket of the application's holds.
func (g *rig) all(bucket string) (values []string) {
	g.t.Helper()
	err := g.box.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.ForEach(func(_, v []byte) error {
			values = append(values, string(v))
			return nil
		})
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return values
}

func put(tx *bolt.Tx, bucket, key, value string) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	return b.Put([]byte(key), []byte(value))
}

// app is an application that keeps what it gets in the box's file.
type app struct {
	mu      sync.Mutex
	receive func(tx *bolt.Tx, m api.Mail) error // nil: taken
	settle  func(r api.MailReceipt) error       // nil: taken
	woken   []string
}

func (a *app) Receive(tx *bolt.Tx, m api.Mail) error {
	a.mu.Lock()
	receive := a.receive
	a.mu.Unlock()
	if receive != nil {
		if err := receive(tx, m); err != nil {
			return err
		}
	}
	b, err := tx.CreateBucketIfNotExists([]byte("test.got"))
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(fmt.Appendf(nil, "%08d", n), m.Body)
}

func (a *app) Received(m api.Mail) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.woken = append(a.woken, string(m.Body))
}

func (a *app) Settled(tx *bolt.Tx, r api.MailReceipt, m api.Mail) error {
	a.mu.Lock()
	settle := a.settle
	a.mu.Unlock()
	if settle != nil {
		if err := settle(r); err != nil {
			return err
		}
	}
	b, err := tx.CreateBucketIfNotExists([]byte("test.settled"))
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(fmt.Appendf(nil, "%08d", n), fmt.Appendf(nil, "%s %s %s %v", m.Body, r.State, r.Code, r.MayHaveArrived))
}

// hub is a hub that takes what it is told to.
type hub struct {
	mu     sync.Mutex
	has    map[string]api.Mail
	order  []string // bodies as they came, repeats too
	asked  int      // questions for what it has
	puts   int
	refuse func(m api.Mail) error // nil: takes all
	lose   func(m api.Mail) bool  // takes it and loses the answer
	mute   error                  // of questions
	nowMS  int64
	block  chan struct{} // if not nil, puts wait for it
}

func (h *hub) Call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	h.mu.Lock()
	block := h.block
	h.mu.Unlock()
	if block != nil && method == http.MethodPut {
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var v any
	switch {
	case path == "/v1/mail/known":
		h.asked++
		if h.mute != nil {
			return h.mute
		}
		var q api.MailQuery
		if err := json.Unmarshal(body, &q); err != nil {
			return err
		}
		if len(q.IDs) > api.MaxReconcile {
			return api.Errorf(api.CodeTooLarge, "too many")
		}
		known := api.MailKnown{Unknown: []string{}, NowMS: h.nowMS}
		for _, id := range q.IDs {
			if _, ok := h.has[id]; !ok {
				known.Unknown = append(known.Unknown, id)
			}
		}
		v = known
	case strings.HasPrefix(path, "/v1/mail/"):
		h.puts++
		var m api.Mail
		if err := json.Unmarshal(body, &m); err != nil {
			return err
		}
		if h.refuse != nil {
			if err := h.refuse(m); err != nil {
				return err
			}
		}
		h.has[m.ID] = m
		h.order = append(h.order, m.To+string(m.Body))
		if h.lose != nil && h.lose(m) {
			return errors.New("the answer was lost")
		}
		v = api.MailReceipt{ID: m.ID, State: api.MailQueued}
	default:
		return api.Errorf(api.CodeNotFound, "no such path")
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

func (h *hub) got() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string{}, h.order...)
}

func (h *hub) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// eventually waits for something that comes by itself.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
