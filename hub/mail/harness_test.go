package mail_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/hub/mail"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/boltdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// start is when the tests play.
var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// clock is the hub's, set by tests.
type clock struct {
	mu     sync.Mutex
	now    time.Time
	frozen bool // nothing may expire
}

func (c *clock) Now() time.Time  { c.mu.Lock(); defer c.mu.Unlock(); return c.now }
func (c *clock) MayExpire() bool { c.mu.Lock(); defer c.mu.Unlock(); return !c.frozen }

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) freeze(f bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = f
}

// disk counts commits and fails them when told.
type disk struct {
	mu   sync.Mutex
	err  error
	done int
}

func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return boltdb.WriteFault(d.err)
	}
	d.done++
	return nil
}

func (d *disk) fail(errno error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = errno
}

func (d *disk) commits() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// rig is an office with its store.
type rig struct {
	t      *testing.T
	dir    string
	disk   *disk
	store  *bolt.Store
	clock  *clock
	office *mail.Office
	ended  map[string]int
	mu     sync.Mutex
}

func (g *rig) MailTaken() {}
func (g *rig) MailEnded(s string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended[s]++
}

func newRig(t *testing.T, opts ...func(*mail.Config)) *rig {
	t.Helper()
	g := openRig(t, t.TempDir(), &clock{now: start}, opts...)
	for _, name := range []string{"alpha", "beta", "gamma"} {
		g.join(name, "id-"+name)
	}
	return g
}

func openRig(t *testing.T, dir string, c *clock, opts ...func(*mail.Config)) *rig {
	t.Helper()
	g := &rig{t: t, dir: dir, disk: &disk{}, clock: c, ended: map[string]int{}}
	var err error
	if g.store, err = bolt.Open(bolt.Config{Dir: dir, BallastBytes: -1, Faults: g.disk, ProbeInterval: 5 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.store.Close() })
	cfg := mail.Config{Store: g.store, Clock: c, Observer: g, Log: slog.New(slog.DiscardHandler), RetryMin: time.Millisecond}
	for _, o := range opts {
		o(&cfg)
	}
	if g.office, err = mail.New(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return g
}

// restart ends the hub's process, with all that is only in memory, and starts it again.
func (g *rig) restart() *rig {
	g.t.Helper()
	if err := g.store.Close(); err != nil {
		g.t.Fatal(err)
	}
	return openRig(g.t, g.dir, g.clock)
}

func identity(name string) store.Identity {
	return store.Identity{ID: "id-" + name, Name: name, Role: api.RoleNode}
}

func (g *rig) join(name, id string) {
	g.t.Helper()
	who := store.Identity{ID: id, Name: name, Role: api.RoleNode, CreatedAt: start}
	cred := store.Credential{ID: "cred-" + id, IdentityID: id, Name: name, Role: api.RoleNode, CreatedAt: start}
	copy(cred.Hash[:], id)
	if err := g.store.CreateIdentity(g.t.Context(), who, cred); err != nil {
		g.t.Fatal(err)
	}
}

// leave revokes a node and tells the office of it.
func (g *rig) leave(name string) {
	g.t.Helper()
	who, err := g.store.IdentityByName(g.t.Context(), name)
	if err == nil {
		err = g.store.RetireIdentity(g.t.Context(), who, start)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// letter is the mail n of a test.
func letter(n int, to, lane string) api.Mail {
	return api.Mail{ID: fmt.Sprintf("mail_%032x", n), Kind: "test.text", To: to, Lane: lane, Body: fmt.Appendf(nil, "%d", n), From: "forged", FromID: "forged"}
}

func (g *rig) accept(from string, m api.Mail) error {
	_, _, err := g.office.Accept(g.t.Context(), identity(from), m)
	return err
}

func (g *rig) mustAccept(from string, mails ...api.Mail) {
	g.t.Helper()
	for _, m := range mails {
		if err := g.accept(from, m); err != nil {
			g.t.Fatalf("mail %s: %v", m.Body, err)
		}
	}
}

func (g *rig) refused(from string, m api.Mail, want api.Code) {
	g.t.Helper()
	if err := g.accept(from, m); api.ErrorCode(err) != want {
		g.t.Errorf("mail %s: %v, want %s", m.Body, err, want)
	}
}

func (g *rig) write() {
	g.t.Helper()
	if err := g.office.Write(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) counts(waiting, receipts int) {
	g.t.Helper()
	if w, r := g.office.Counts(); w != waiting || r != receipts {
		g.t.Errorf("%d mails and %d receipts wait, want %d and %d", w, r, waiting, receipts)
	}
}

// target is a node that a test plays.
type target struct {
	mu       sync.Mutex
	mail     func(m api.Mail) error // nil: takes all
	settle   func(r api.MailReceipt) bool
	got      []string // bodies
	mails    []api.Mail
	receipts []api.MailReceipt
	lost     error // of receipts
	calls    int
}

func (n *target) Mail(_ context.Context, m api.Mail) error {
	n.mu.Lock()
	f := n.mail
	n.calls++
	n.mu.Unlock()
	if f != nil {
		if err := f(m); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got, n.mails = append(n.got, string(m.Body)), append(n.mails, m)
	return nil
}

func (n *target) MailReceipts(_ context.Context, rs api.MailReceipts) (done api.MailSettled, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost != nil {
		return done, n.lost
	}
	for _, r := range rs.Receipts {
		if n.settle == nil || n.settle(r) {
			n.receipts = append(n.receipts, r)
			done.IDs = append(done.IDs, r.ID)
		}
	}
	return done, nil
}

func (n *target) bodies() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string{}, n.got...)
}

func (n *target) told() []api.MailReceipt {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]api.MailReceipt{}, n.receipts...)
}

func (n *target) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// attach connects a node; detach is called with the test's end if not before.
func (g *rig) attach(name string, n *target) (detach func()) {
	g.t.Helper()
	detach = sync.OnceFunc(g.office.Attach(context.Background(), identity(name), n))
	g.t.Cleanup(detach)
	return detach
}

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
