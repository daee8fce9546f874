package tasks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

const (
	hubID = "hub-1"
	// patience bounds every wait for an event; only a failing test sees it pass.
	patience = 2 * time.Minute
)

// runFunc is what a fake agent does with a turn.
type runFunc func(ctx context.Context, turn agent.Turn, host agent.Host) (api.Outcome, error)

// fakeAgent records the turns that it gets and does with each what run says.
type fakeAgent struct {
	sessions bool

	mu     sync.Mutex // guards the following fields
	run    runFunc
	turns  []agent.Turn
	active map[string]int // by lane, now
	most   map[string]int // by lane, at once
	peak   int
	began  chan agent.Turn // nil: nobody listens
}

func newAgent(sessions bool, run runFunc) *fakeAgent {
	return &fakeAgent{sessions: sessions, run: run, active: map[string]int{}, most: map[string]int{}, began: make(chan agent.Turn, 10000)}
}

func (a *fakeAgent) Kind() string                { return "fake" }
func (a *fakeAgent) HasSessions() bool           { return a.sessions }
func (a *fakeAgent) Start(context.Context) error { return nil }
func (a *fakeAgent) Stop(context.Context) error  { return nil }
func (a *fakeAgent) Status(context.Context) api.AgentStatus {
	return api.AgentStatus{Kind: "fake", Health: api.HealthHealthy}
}

func (a *fakeAgent) Run(ctx context.Context, turn agent.Turn, host agent.Host) (api.Outcome, error) {
	key := turn.Session.Key
	a.mu.Lock()
	a.turns = append(a.turns, turn)
	a.active[key]++
	a.active[""]++
	a.most[key] = max(a.most[key], a.active[key])
	a.peak = max(a.peak, a.active[""])
	run := a.run
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.active[key]--
		a.active[""]--
		a.mu.Unlock()
	}()
	a.began <- turn
	return run(ctx, turn, host)
}

// starts lists what the agent was given, as "task/attempt/turn", with a "+" when
// it was resumed.
func (a *fakeAgent) starts() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, t := range a.turns {
		out = append(out, name(t))
	}
	return out
}

func name(t agent.Turn) string {
	s := fmt.Sprintf("%s/%d/%d", t.Task, t.Attempt, t.Turn)
	if t.Resumed {
		s += "+"
	}
	return s
}

// done answers every turn at once.
func done(_ context.Context, turn agent.Turn, _ agent.Host) (api.Outcome, error) {
	return api.Outcome{State: api.StateDone, Summary: "did " + turn.Task}, nil
}

// gated ends turns as done when the test says so, and as agents must when their
// context ends.
type gated struct {
	mu    sync.Mutex // guards the following field
	gates map[string]chan struct{}
}

func newGated() *gated { return &gated{gates: map[string]chan struct{}{}} }

func (g *gated) gate(task string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[task] == nil {
		g.gates[task] = make(chan struct{})
	}
	return g.gates[task]
}

// open lets a task end.
func (g *gated) open(task string) { close(g.gate(task)) }

func (g *gated) run(ctx context.Context, turn agent.Turn, host agent.Host) (api.Outcome, error) {
	select {
	case <-g.gate(turn.Task):
		return done(ctx, turn, host)
	case <-ctx.Done():
		return aborted(ctx)
	}
}

// aborted is what an agent returns when its context ended.
func aborted(ctx context.Context) (api.Outcome, error) {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, agent.ErrStopping):
		return api.Outcome{}, agent.ErrDetached
	case errors.Is(cause, agent.ErrDeadline):
		return api.Outcome{State: api.StateFailed, Error: &api.TaskError{Code: api.TaskDeadline, Message: "too long"}}, nil
	default:
		return api.Outcome{State: api.StateCanceled}, nil
	}
}

// fakeHub takes results, progress and questions.
type fakeHub struct {
	results  chan api.Result
	progress chan api.Progress
	asks     chan api.Ask

	mu     sync.Mutex // guards the following fields
	answer func(res api.Result) error
	onAsk  func(api.Ask) error // nil: taken
	stored map[api.Triple]api.Outcome
	calls  int
}

func newHub() *fakeHub {
	return &fakeHub{results: make(chan api.Result, 10000), progress: make(chan api.Progress, 10000), asks: make(chan api.Ask, 10000), stored: map[api.Triple]api.Outcome{}}
}

// Call implements tasks.Hub.
func (h *fakeHub) Call(ctx context.Context, method, path string, in, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if method != http.MethodPut {
		return fmt.Errorf("unexpected %s %s", method, path)
	}
	if strings.HasSuffix(path, "/progress") {
		var p api.Progress
		if err := json.Unmarshal(data, &p); err != nil {
			return err
		}
		h.progress <- p
		return ctx.Err()
	}
	if strings.HasSuffix(path, "/question") {
		var ask api.Ask
		if err := json.Unmarshal(data, &ask); err != nil {
			return err
		}
		if path != "/v1/tasks/"+ask.Task+"/question" {
			return fmt.Errorf("unexpected path %s", path)
		}
		h.mu.Lock()
		decide := h.onAsk
		h.mu.Unlock()
		if decide != nil {
			err = decide(ask)
		}
		if err == nil {
			err = ctx.Err()
		}
		h.asks <- ask
		return err
	}
	var res api.Result
	if err := json.Unmarshal(data, &res); err != nil {
		return err
	}
	if path != "/v1/tasks/"+res.Task+"/result" {
		return fmt.Errorf("unexpected path %s", path)
	}
	h.mu.Lock()
	answer := h.answer
	h.calls++
	h.mu.Unlock()
	if answer != nil {
		err = answer(res)
	}
	if err == nil {
		err = ctx.Err() // a caller that went away meanwhile does not hear of it
	}
	if err == nil {
		h.mu.Lock()
		if _, ok := h.stored[res.Triple]; !ok {
			h.stored[res.Triple] = res.Outcome
		}
		h.mu.Unlock()
	}
	h.results <- res
	return err
}

func (h *fakeHub) setAnswer(f func(api.Result) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = f
}

// setAsk decides on further questions and withdrawals; nil takes all.
func (h *fakeHub) setAsk(f func(api.Ask) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onAsk = f
}

func (h *fakeHub) outcome(t api.Triple) (api.Outcome, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o, ok := h.stored[t]
	return o, ok
}

// disk holds back, refuses or lets through the commits of a journal.
type disk struct {
	mu    sync.Mutex // guards the following fields
	fault error
	held  chan struct{} // closed to let commits go on; nil when they may
	at    chan struct{} // gets one for each commit that is held back
	n     int           // commits so far
}

func newDisk() *disk { return &disk{at: make(chan struct{}, 1000)} }

// BeforeCommit implements boltdb.FaultInjector.
func (d *disk) BeforeCommit(boltdb.CommitOp) error {
	d.mu.Lock()
	held := d.held
	d.n++
	d.mu.Unlock()
	if held != nil {
		d.at <- struct{}{}
		<-held
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fault
}

// commits is how many commits there were.
func (d *disk) commits() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

// fail makes commits fail with an error number; 0 heals.
func (d *disk) fail(errno syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = nil
	if errno != 0 {
		d.fault = boltdb.WriteFault(errno)
	}
}

// hold keeps commits back until the returned function is called.
func (d *disk) hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(chan struct{})
	d.held = held
	return sync.OnceFunc(func() {
		d.mu.Lock()
		if d.held == held {
			d.held = nil
		}
		d.mu.Unlock()
		close(held)
	})
}

// rig is a runner between a fake hub and a fake agent.
type rig struct {
	t     *testing.T
	r     *tasks.Runner
	mux   chi.Router
	agent *fakeAgent
	hub   *fakeHub
	disk  *disk
	cfg   tasks.Config
	id    string
	epoch uint64
	seq   uint64
}

type option func(*tasks.Config)

// newRig opens a runner on a new journal that said hello and is connected.
func newRig(t *testing.T, a *fakeAgent, opts ...option) *rig {
	t.Helper()
	return openRig(t, filepath.Join(t.TempDir(), "journal.db"), a, newHub(), opts...)
}

// openRig opens a runner on a journal that may exist.
func openRig(t *testing.T, path string, a *fakeAgent, hub *fakeHub, opts ...option) *rig {
	t.Helper()
	g := &rig{t: t, agent: a, hub: hub, disk: newDisk(), mux: chi.NewRouter()}
	g.cfg = tasks.Config{
		Path: path, HubID: hubID, Agent: a, Faults: g.disk,
		Workspaces: []agent.Workspace{{Name: "main", Dir: t.TempDir()}, {Name: "other", Dir: t.TempDir()}},
		RetryMin:   time.Millisecond, RetryMax: 10 * time.Millisecond, StartDelay: time.Millisecond, BallastBytes: -1,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, o := range opts {
		o(&g.cfg)
	}
	r, err := tasks.Open(g.cfg)
	if err != nil {
		t.Fatalf("open the runner: %v", err)
	}
	g.r = r
	g.r.Routes(g.mux)
	t.Cleanup(g.stop)
	g.hello()
	g.r.Connect(hub)
	g.r.Start()
	return g
}

// hello moves the epoch on as a link does.
func (g *rig) hello() {
	g.t.Helper()
	var err error
	if g.id, g.epoch, err = g.r.Propose(); err != nil {
		g.t.Fatalf("propose: %v", err)
	}
}

func (g *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.r.Stop(ctx); err != nil {
		g.t.Errorf("stop: %v", err)
	}
}

// crash returns a copy of the journal as a kill would leave it now: what was not
// committed is lost. The runner that lives on cannot write any more.
func (g *rig) crash() (path string) {
	g.t.Helper()
	release := g.disk.hold()
	path = g.copyJournal()
	g.disk.fail(syscall.EROFS)
	release()
	return path
}

// copyJournal copies the journal's file, once a commit under way has ended, while
// further ones are held back.
func (g *rig) copyJournal() string {
	g.t.Helper()
	var data []byte
	eventually(g.t, "the file to come to rest", func() bool {
		before := data
		var err error
		if data, err = os.ReadFile(g.cfg.Path); err != nil {
			g.t.Fatal(err)
		}
		return bytes.Equal(before, data)
	})
	path := filepath.Join(g.t.TempDir(), "journal.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// offer makes an offer as the hub would.
func (g *rig) offer(id string, changes ...func(*api.Offer)) api.Offer {
	g.seq++
	o := api.Offer{
		Triple: api.Triple{Task: id, Attempt: 1, Turn: 1}, HubID: hubID, JournalID: g.id, Epoch: g.epoch,
		Hash: "hash-of-" + id, Seq: g.seq, Kind: api.TurnTask,
		Controller: api.Party{ID: "id-alpha", Name: "alpha"}, CreatedMS: 1000 + int64(g.seq),
		TTLMS: 1000, Mode: "session", Binding: api.Binding{Generation: 1, Title: "opencode-mesh alpha"},
		Text: "do " + id,
	}
	for _, c := range changes {
		c(&o)
	}
	return o
}

// call sends a request to the node's interface.
func (g *rig) call(method, path string, in, out any) (int, *api.Error) {
	g.t.Helper()
	data, err := json.Marshal(in)
	if err != nil {
		g.t.Fatal(err)
	}
	w := httptest.NewRecorder()
	g.mux.ServeHTTP(w, httptest.NewRequest(method, path, bytes.NewReader(data)))
	if w.Code >= 300 {
		return w.Code, api.DecodeError(w.Code, w.Body.Bytes())
	}
	if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
		g.t.Fatalf("%s %s: %v in %q", method, path, err, w.Body)
	}
	return w.Code, nil
}

// put sends an offer.
func (g *rig) put(o api.Offer) (int, api.Receipt, *api.Error) {
	g.t.Helper()
	var rc api.Receipt
	status, err := g.call(http.MethodPut, "/v1/tasks/"+o.Task, o, &rc)
	return status, rc, err
}

// take offers a task that must be taken.
func (g *rig) take(id string, changes ...func(*api.Offer)) api.Offer {
	g.t.Helper()
	o := g.offer(id, changes...)
	status, rc, err := g.put(o)
	if err != nil || status != http.StatusAccepted {
		g.t.Fatalf("offer of %s: %d %+v %v", id, status, rc, err)
	}
	return o
}

// withdraw sends a cancel, an expiry or a revocation.
func (g *rig) withdraw(t api.Triple, reason string) (int, api.Receipt, *api.Error) {
	g.t.Helper()
	var rc api.Receipt
	w := api.Withdraw{Triple: t, JournalID: g.id, Epoch: g.epoch, Reason: reason, CreatedMS: 5000}
	status, err := g.call(http.MethodDelete, "/v1/tasks/"+t.Task, w, &rc)
	return status, rc, err
}

// reply sends the answer to a question of a running turn.
func (g *rig) reply(t api.Triple, question, text string) (int, *api.Error) {
	g.t.Helper()
	rp := api.Reply{Triple: t, JournalID: g.id, Epoch: g.epoch, Question: question, Text: text}
	var rc api.Receipt
	status, err := g.call(http.MethodPost, "/v1/tasks/"+t.Task+"/answer", rp, &rc)
	if err == nil && (rc.Triple != t || rc.State != api.StateRunning) {
		g.t.Errorf("receipt of an answer: %+v", rc)
	}
	return status, err
}

// asked waits for the hub to hear of a question, or of its withdrawal.
func (g *rig) asked() api.Ask {
	g.t.Helper()
	return await(g.t, g.hub.asks, "a question")
}

// reconcile asks for triples.
func (g *rig) reconcile(ts ...api.Triple) []api.Receipt {
	g.t.Helper()
	var rc api.Reconciled
	if _, err := g.call(http.MethodPost, "/v1/reconcile", api.Reconcile{JournalID: g.id, Epoch: g.epoch, Tasks: ts}, &rc); err != nil {
		g.t.Fatalf("reconcile: %v", err)
	}
	return rc.Tasks
}

// began waits for the agent to be given a turn.
func (g *rig) began() agent.Turn {
	g.t.Helper()
	return await(g.t, g.agent.began, "a turn to start")
}

// result waits for a delivery to the hub.
func (g *rig) result() api.Result {
	g.t.Helper()
	return await(g.t, g.hub.results, "a result")
}

// settled waits until the journal shows a triple as acknowledged, and nothing
// else as undelivered.
func (g *rig) delivered() {
	g.t.Helper()
	eventually(g.t, "everything to be delivered", func() bool { return g.r.Snapshot().Undelivered == 0 })
}

// await receives from a channel.
func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// eventually waits for a condition that no channel tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// none fails when a channel has something.
func none[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case v := <-c:
		t.Fatalf("unexpected %s: %+v", what, v)
	default:
	}
}

// triple names a unit of execution.
func triple(task string, attempt, turn int) api.Triple {
	return api.Triple{Task: task, Attempt: attempt, Turn: turn}
}

// newMux serves what a runner offers its hub.
func newMux(r *tasks.Runner) chi.Router {
	mux := chi.NewRouter()
	r.Routes(mux)
	return mux
}
