package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/hub/events"
	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/boltdb"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is a relay on a real store with a clock that tests move and nodes that
// are played by fakes.
type harness struct {
	t     tester
	dir   string
	store *bolt.Store
	gate  *gate // the store as the relay sees it
	disk  *disk
	bus   *events.Bus
	relay *relay.Relay
	clock *fakeClock
	seen  *observer
	ids   map[string]store.Identity
	opts  func(*relay.Config)
	stop  func() // ends the relay's own work
}

// gate lets a test stand between the relay and its store.
type gate struct {
	store.Store
	created, updated func(before bool)     // around CreateTasks and UpdateTask
	bound            func(before bool)     // around PutBinding
	read             func()                // after Binding
	fail             func(id string) error // of UpdateTask
	writes           atomic.Int64          // changes of tasks that were tried
}

func (g *gate) CreateTasks(ctx context.Context, tasks []store.NewTask, acts ...api.AuditEntry) ([]store.Task, error) {
	if g.created != nil {
		g.created(true)
		defer g.created(false)
	}
	return g.Store.CreateTasks(ctx, tasks, acts...)
}

func (g *gate) UpdateTaskLater(t store.Task, onFail func(error)) (store.Task, error) {
	g.writes.Add(1)
	return g.Store.UpdateTaskLater(t, onFail)
}

func (g *gate) Binding(ctx context.Context, key store.BindingKey) (store.Binding, error) {
	if g.read != nil {
		defer g.read()
	}
	return g.Store.Binding(ctx, key)
}

func (g *gate) PutBinding(ctx context.Context, b store.Binding, fills ...api.Fill) (store.Binding, error) {
	if g.bound != nil {
		g.bound(true)
		defer g.bound(false)
	}
	return g.Store.PutBinding(ctx, b, fills...)
}

func (g *gate) UpdateTask(ctx context.Context, t store.Task, parts ...store.Part) (store.Task, error) {
	g.writes.Add(1)
	if g.fail != nil {
		if err := g.fail(t.ID); err != nil {
			return t, err
		}
	}
	if g.updated != nil {
		g.updated(true)
		defer g.updated(false)
	}
	return g.Store.UpdateTask(ctx, t, parts...)
}

// disk is a disk that is full on demand, or after some more commits, and counts them.
type disk struct {
	full    atomic.Bool
	commits atomic.Int64
	room    atomic.Int64 // how many more commits there is room for, plus one; 0: no end
}

func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	d.commits.Add(1)
	if d.room.Load() > 0 && d.room.Add(-1) == 0 {
		d.full.Store(true)
	}
	if d.full.Load() {
		return boltdb.WriteFault(syscall.ENOSPC)
	}
	return nil
}

// fill makes the disk full; free makes room and waits until the store knows.
func (h *harness) fill() { h.disk.full.Store(true) }

func (h *harness) free() {
	h.t.Helper()
	h.disk.full.Store(false)
	for limit := time.Now().Add(2 * time.Minute); h.store.Writable() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			h.t.Fatal("the disk stays full")
		}
	}
}

// tester is what a harness needs of a test, or of one case of a property.
type tester interface {
	rapid.TB
	Cleanup(func())
}

func newHarness(t *testing.T, opts ...func(*relay.Config)) *harness {
	t.Helper()
	return newHarnessIn(t, t.TempDir(), opts...)
}

func newHarnessIn(t tester, dir string, opts ...func(*relay.Config)) *harness {
	t.Helper()
	h := &harness{t: t, dir: dir, disk: &disk{}, clock: &fakeClock{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), may: true}, seen: &observer{}, ids: map[string]store.Identity{}}
	h.opts = func(c *relay.Config) {
		for _, o := range opts {
			o(c)
		}
	}
	h.open()
	t.Cleanup(func() {
		h.stop()
		_ = h.store.Close()
	})
	for _, name := range []string{"alice", "bob"} {
		h.identity(name, api.RoleController)
	}
	for _, name := range []string{"alpha", "beta"} {
		h.identity(name, api.RoleNode)
	}
	return h
}

func (h *harness) open() {
	h.t.Helper()
	st, err := bolt.Open(bolt.Config{Dir: h.dir, Faults: h.disk, ProbeInterval: time.Millisecond})
	if err != nil {
		h.t.Fatal(err)
	}
	h.store, h.gate, h.bus = st, &gate{Store: st}, events.New("g", "b")
	cfg := relay.Config{
		Store: h.gate, Bus: h.bus, Clock: h.clock, Observer: h.seen, Log: slog.New(slog.DiscardHandler), Secret: make([]byte, 32),
		RetryMin: time.Millisecond, SweepEvery: time.Hour, // tests sweep themselves
	}
	h.opts(&cfg)
	if h.relay, err = relay.New(context.Background(), cfg); err != nil {
		h.t.Fatal(err)
	}
	h.stop = start(h.relay)
}

// start runs a relay's own work until stop is called.
func start(r *relay.Relay) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// crash drops the relay and the store as a killed process would, keeping only
// what is on disk, and starts anew.
func (h *harness) crash() {
	h.t.Helper()
	h.stop()
	if err := h.store.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.open()
}

func (h *harness) identity(name string, role api.Role) store.Identity {
	h.t.Helper()
	id := store.Identity{ID: "id_" + name, Name: name, Role: role, CreatedAt: h.clock.Now()}
	if role == api.RoleNode {
		id.Platform = "linux/amd64" // as fakeNode says when it attaches
	}
	cred := store.Credential{ID: "cred_" + name, IdentityID: id.ID, Name: name, Role: role, CreatedAt: h.clock.Now()}
	copy(cred.Hash[:], name)
	if err := h.store.CreateIdentity(context.Background(), id, cred); err != nil {
		h.t.Fatal(err)
	}
	id, err := h.store.Identity(context.Background(), id.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	h.ids[name] = id
	return id
}

func (h *harness) by(name string) relay.Author { return relay.Author{Identity: h.ids[name]} }

// submit dispatches one task and fails the test when it is refused.
func (h *harness) submit(by, target, id, text string, opts ...func(*api.Dispatch)) store.Task {
	h.t.Helper()
	t, err := h.trySubmit(by, target, id, text, opts...)
	if err != nil {
		h.t.Fatal(err)
	}
	return t
}

func (h *harness) trySubmit(by, target, id, text string, opts ...func(*api.Dispatch)) (store.Task, error) {
	d := api.Dispatch{Targets: []api.DispatchTarget{{Name: target, ID: id}}, Text: text}
	for _, o := range opts {
		o(&d)
	}
	made, err := h.relay.Submit(context.Background(), h.by(by), d)
	if err != nil {
		return store.Task{}, err
	}
	return made[0], nil
}

func asNew(d *api.Dispatch) { d.New = true }

// await waits until the task is in one of the states.
func (h *harness) await(id string, states ...api.State) store.Task {
	h.t.Helper()
	_, sub, _ := h.bus.Subscribe("", func(e *events.Event) bool { return e.Task == id })
	defer sub.Close()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	for {
		t, err := h.relay.Task(context.Background(), id)
		if err != nil {
			h.t.Fatalf("task %s: %v", id, err)
		}
		for _, s := range states {
			if t.State == s {
				return t
			}
		}
		select {
		case <-sub.C:
		case <-limit.C:
			h.t.Fatalf("task %s stays %s, want %v", id, t.State, states)
		}
	}
}

func (h *harness) state(id string) api.State {
	h.t.Helper()
	t, err := h.relay.Task(context.Background(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return t.State
}

// fakeNode plays a node: it journals what it is offered.
type fakeNode struct {
	h       *harness
	name    string
	journal string
	epoch   uint64

	mu        sync.Mutex
	known     map[api.Triple]api.Receipt
	offers    []api.Offer
	calls     []string // "offer ID", "withdraw ID", "reconcile"
	offered   chan api.Offer
	withdrawn []api.Withdraw
	onOffer   func(api.Offer) (api.Receipt, error)
	withdraw  func(api.Withdraw) (api.Receipt, error)
	onAsk     func(api.Reconcile) (api.Reconciled, error)
	onFail    func(error) // nil: the test fails
	onAnswer  func(api.Reply) (api.Receipt, error)
	answers   chan api.Reply // that came in, taken or not
	sessions  bool
	bound     []api.BoundSession
}

func (h *harness) node(name, journal string) *fakeNode {
	return &fakeNode{h: h, name: name, journal: journal, epoch: 1, known: map[api.Triple]api.Receipt{}, offered: make(chan api.Offer, 1000), answers: make(chan api.Reply, 1000), sessions: true}
}

// attach connects the node; the returned function ends the connection.
func (n *fakeNode) attach() (detach func()) {
	ctx, cancel := context.WithCancel(context.Background())
	end, err := n.tryAttach(ctx)
	if err != nil {
		n.h.t.Fatal(err)
	}
	var once sync.Once
	detach = func() {
		once.Do(func() {
			cancel()
			end()
		})
	}
	n.h.t.Cleanup(detach)
	return detach
}

func (n *fakeNode) tryAttach(ctx context.Context) (end func(), err error) {
	n.mu.Lock()
	n.epoch++
	epoch, fail := n.epoch, n.onFail
	n.mu.Unlock()
	if fail == nil {
		fail = func(err error) { n.h.t.Errorf("%s failed: %v", n.name, err) }
	}
	return n.h.relay.Attach(ctx, relay.Link{Identity: n.h.ids[n.name], Node: n, Hello: api.Hello{
		JournalID: n.journal, Epoch: epoch, OS: "linux", Arch: "amd64", Sessions: n.sessions, Bound: n.bound,
	}}, fail)
}

func (n *fakeNode) Offer(_ context.Context, o api.Offer) (api.Receipt, error) {
	n.mu.Lock()
	n.calls = append(n.calls, "offer "+o.Task)
	n.offers = append(n.offers, o)
	on := n.onOffer
	n.mu.Unlock()
	rc := api.Receipt{Triple: o.Triple, State: api.StateAccepted}
	var err error
	if on != nil {
		rc, err = on(o)
	}
	n.mu.Lock()
	if err == nil {
		n.known[o.Triple] = rc
	}
	n.mu.Unlock()
	n.offered <- o
	return rc, err
}

func (n *fakeNode) Withdraw(_ context.Context, w api.Withdraw) (api.Receipt, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, "withdraw "+w.Task)
	n.withdrawn = append(n.withdrawn, w)
	if n.withdraw != nil {
		return n.withdraw(w)
	}
	s := api.StateCanceled
	if w.Reason == api.WithdrawExpire {
		s = api.StateExpired
	}
	rc := api.Receipt{Triple: w.Triple, State: s, Outcome: &api.Outcome{State: s}}
	n.known[w.Triple] = rc
	return rc, nil
}

func (n *fakeNode) Reconcile(_ context.Context, q api.Reconcile) (api.Reconciled, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, "reconcile")
	if n.onAsk != nil {
		return n.onAsk(q)
	}
	var a api.Reconciled
	for _, t := range q.Tasks {
		a.Tasks = append(a.Tasks, n.known[t])
	}
	return a, nil
}

func (n *fakeNode) Answer(_ context.Context, a api.Reply) (api.Receipt, error) {
	n.mu.Lock()
	n.calls = append(n.calls, "answer "+a.Task)
	on := n.onAnswer
	n.mu.Unlock()
	rc, err := api.Receipt{Triple: a.Triple, State: api.StateRunning}, error(nil)
	if on != nil {
		rc, err = on(a)
	}
	n.answers <- a
	return rc, err
}

// next waits for the next offer.
func (n *fakeNode) next() api.Offer {
	n.h.t.Helper()
	select {
	case o := <-n.offered:
		return o
	case <-time.After(2 * time.Minute):
		n.h.t.Fatalf("%s was offered nothing", n.name)
		return api.Offer{}
	}
}

// settle reports an outcome of an offer.
func (n *fakeNode) settle(o api.Offer, out api.Outcome) error {
	n.mu.Lock()
	n.known[o.Triple] = api.Receipt{Triple: o.Triple, State: out.State, Outcome: &out}
	epoch := n.epoch
	n.mu.Unlock()
	return n.h.relay.Result(context.Background(), n.h.ids[n.name], api.Result{Triple: o.Triple, JournalID: n.journal, Epoch: epoch, Outcome: out})
}

func (n *fakeNode) count(id string) (c int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.offers {
		if o.Task == id {
			c++
		}
	}
	return c
}

func done(summary string) api.Outcome { return api.Outcome{State: api.StateDone, Summary: summary} }

// fakeClock is a clock that tests move.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
	may bool
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) MayExpire() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.may
}

func (c *fakeClock) expires(may bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.may = may
}

func (c *fakeClock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// observer counts what the relay reports.
type observer struct {
	mu   sync.Mutex
	late []string
}

func (o *observer) Settled(api.State, string, time.Duration) {}
func (o *observer) Offered(string)                           {}
func (o *observer) LateResult(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.late = append(o.late, reason)
}

func wantCode(t tester, err error, code api.Code) {
	t.Helper()
	if got := api.ErrorCode(err); got != code {
		t.Fatalf("got error %v (%s), want code %s", err, got, code)
	}
}

func id(n int) string { return fmt.Sprintf("task-%03d", n) }

var errLost = errors.New("the tunnel broke")

// await waits until cond holds; it is called with the node locked.
func (n *fakeNode) await(cond func() bool) {
	n.h.t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		n.mu.Lock()
		ok := cond()
		n.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(limit) {
			n.h.t.Fatalf("%s: it does not come to that; calls %v", n.name, n.calls)
		}
	}
}

// asked is how often the node was asked to withdraw something.
func (n *fakeNode) asked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.withdrawn)
}
