package node_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// worker is an agent whose turns end when the test says so.
type worker struct {
	began chan agent.Turn

	mu       sync.Mutex // guards the following fields
	gates    map[string]chan struct{}
	causes   map[string]error // by task, why its context ended
	startErr error
	started  int
	stopped  int
}

func newWorker() *worker {
	return &worker{began: make(chan agent.Turn, 1000), gates: map[string]chan struct{}{}, causes: map[string]error{}}
}

func (w *worker) Kind() string      { return "fake" }
func (w *worker) HasSessions() bool { return true }

func (w *worker) Start(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started++
	return w.startErr
}

func (w *worker) Stop(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped++
	return nil
}

func (w *worker) Status(context.Context) api.AgentStatus {
	return api.AgentStatus{Kind: "fake", Health: api.HealthHealthy, Version: "1"}
}

func (w *worker) gate(task string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gates[task] == nil {
		w.gates[task] = make(chan struct{})
	}
	return w.gates[task]
}

// open lets a task end.
func (w *worker) open(task string) { close(w.gate(task)) }

func (w *worker) cause(task string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.causes[task]
}

func (w *worker) Run(ctx context.Context, turn agent.Turn, _ agent.Host) (api.Outcome, error) {
	w.began <- turn
	select {
	case <-w.gate(turn.Task):
		return api.Outcome{State: api.StateDone, Summary: "did " + turn.Task}, nil
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	w.mu.Lock()
	w.causes[turn.Task] = cause
	w.mu.Unlock()
	if errors.Is(cause, agent.ErrStopping) {
		return api.Outcome{}, agent.ErrDetached
	}
	return api.Outcome{State: api.StateCanceled}, nil
}

// process is a node under test.
type process struct {
	t     *testing.T
	node  *node.Node
	agent *worker
	dir   string
	ended chan error
	stop  context.CancelFunc
}

// config is that of a node of a hub, with short waits.
func config(t *testing.T, hub *linktest.Hub, dir string, w *worker) node.Config {
	return node.Config{
		DataDir: dir, Profile: hub.Profile(), Agent: w, Version: "test",
		Workspaces: []agent.Workspace{{Name: "main", Dir: t.TempDir()}},
		Backoff:    tunnel.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond, Restart: time.Millisecond},
		Tasks: tasks.Config{
			RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, StartDelay: time.Millisecond, BallastBytes: -1,
		},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// launch runs a node; it is stopped with the test.
func launch(t *testing.T, hub *linktest.Hub, dir string, opts ...func(*node.Config)) *process {
	t.Helper()
	w := newWorker()
	cfg := config(t, hub, dir, w)
	for _, o := range opts {
		o(&cfg)
	}
	n, err := node.New(cfg)
	if err != nil {
		t.Fatalf("new node: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{t: t, node: n, agent: w, dir: dir, ended: make(chan error, 1), stop: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.ended <- n.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		linktest.Await(t, done, "the node to end")
	})
	return p
}

// end waits for the node's error.
func (p *process) end() error {
	p.t.Helper()
	return linktest.Await(p.t, p.ended, "the node to end")
}

// quit stops the node gracefully.
func (p *process) quit() {
	p.t.Helper()
	p.stop()
	if err := p.end(); err != nil {
		p.t.Fatalf("stop: %v", err)
	}
}

// began waits for a turn to start.
func (p *process) began() string {
	p.t.Helper()
	turn := linktest.Await(p.t, p.agent.began, "a turn to start")
	if turn.Resumed {
		return turn.Task + "+"
	}
	return turn.Task
}

// idle fails if a turn has started.
func (p *process) idle() {
	p.t.Helper()
	select {
	case turn := <-p.agent.began:
		p.t.Fatalf("%s started", turn.Task)
	default:
	}
}

// copyDir copies the files of a data directory, sockets and locks left out.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasSuffix(e.Name(), ".lock") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// lane puts an offer into a lane of its own.
func lane(name string) func(*api.Offer) {
	return func(o *api.Offer) { o.Controller = api.Party{ID: "id-" + name, Name: name} }
}
