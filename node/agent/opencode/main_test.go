package opencode_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// testLimit bounds what can only hang by a fault.
const testLimit = 4 * time.Minute

// TestMain lets the test binary be its own guard, and the node of one test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "guard":
			os.Exit(opencode.GuardMain(os.Stdin, os.Stdout))
		case "node":
			os.Exit(nodeMain(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}

// guardCommand starts this binary as a guard.
func guardCommand(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "guard"}
}

// records is a Host that remembers.
type records struct {
	mu          sync.Mutex
	checkpoint  []byte
	saved       []string
	made        []string
	notes       []string
	activity    api.Activity
	checkpoints func(n int, data []byte) error // may refuse the n-th
	somebody    bool                           // answers questions; else ErrNoAnswer at once
	questions   []*question
	changed     chan struct{}
}

func newRecords() *records { return &records{changed: make(chan struct{})} }

func (r *records) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *records) Checkpoint(_ context.Context, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checkpoints != nil {
		if err := r.checkpoints(len(r.saved)+1, data); err != nil {
			return err
		}
	}
	r.checkpoint = slices.Clone(data)
	r.saved = append(r.saved, string(data))
	r.notify()
	return nil
}

func (r *records) SessionMade(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, id)
	r.notify()
	return nil
}

// question is what a turn put to the host.
type question struct {
	id string
	api.Asked
	answer chan string // cap 1; closed when nobody answers in time
	ended  error       // the cause if it was withdrawn
}

func (r *records) Ask(ctx context.Context, id string, asked api.Asked) (string, error) {
	q := &question{id: id, Asked: asked, answer: make(chan string, 1)}
	r.mu.Lock()
	r.questions = append(r.questions, q)
	if !r.somebody {
		close(q.answer)
	}
	r.notify()
	r.mu.Unlock()
	select {
	case text, ok := <-q.answer:
		if !ok {
			return "", agent.ErrNoAnswer
		}
		return text, nil
	case <-ctx.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		q.ended = context.Cause(ctx)
		r.notify()
		return "", q.ended
	}
}

// asked waits for the n-th question, from 1.
func (r *records) asked(t *testing.T, n int) *question {
	t.Helper()
	r.await(t, fmt.Sprintf("question %d", n), func() bool { return len(r.questions) >= n })
	return r.questions[n-1]
}

// patient is a host whose questions wait until the test answers them.
func patient() *records {
	r := newRecords()
	r.somebody = true
	return r
}

func (r *records) Progress(a api.Activity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, a.Note)
	r.activity = a
	r.notify()
}

// last is the checkpoint that a later process would find.
func (r *records) last() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.checkpoint)
}

func (r *records) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.After(testLimit)
	for {
		r.mu.Lock()
		ok, changed := cond(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("never happened: %s", what)
		}
	}
}

func (r *records) awaitNote(t *testing.T, text string) {
	t.Helper()
	r.await(t, "a note with "+text, func() bool {
		return slices.ContainsFunc(r.notes, func(n string) bool { return strings.Contains(n, text) })
	})
}

// awaitSeen waits until the turn has the message on record as seen.
func (r *records) awaitSeen(t *testing.T) {
	t.Helper()
	r.await(t, "a checkpoint that saw the message", func() bool {
		return strings.Contains(string(r.checkpoint), `"seen":true`)
	})
}

// newTurn makes a turn in a new workspace.
func newTurn(t *testing.T, task, body string) agent.Turn {
	t.Helper()
	return agent.Turn{
		Triple:     api.Triple{Task: task, Attempt: 1, Turn: 1},
		HubID:      "hub",
		Kind:       api.TurnTask,
		Controller: api.Party{ID: "c1", Name: "alpha"},
		Workspace:  agent.Workspace{Name: "main", Dir: t.TempDir()},
		Mode:       mesh.ModeSession,
		Text:       envelope(task, body),
		Session:    agent.Session{Key: "c1/main", Generation: 1, Title: "opencode-mesh alpha"},
	}
}

func envelope(task, body string) string {
	return "[opencode-mesh v1]\nfrom: alpha\ntask: " + task + "\nmode: session\nreply: result-block\n---\n" + body
}

// resumed is the turn as a later process gets it.
func resumed(turn agent.Turn, r *records) agent.Turn {
	turn.Resumed, turn.Checkpoint = true, r.last()
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.made); n > 0 {
		turn.Session.ID = r.made[n-1]
	}
	return turn
}

// logged collects log lines for assertions and shows them when a test fails.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newLog(t *testing.T) (*slog.Logger, *logged) {
	t.Helper()
	l := &logged{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("log:\n" + l.String())
		}
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), l
}

// start starts an agent and stops it at the end of the test.
func start(t *testing.T, cfg opencode.Config) *opencode.Agent {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log, _ = newLog(t)
	}
	a, err := opencode.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, a) })
	return a
}

func stop(t *testing.T, a *opencode.Agent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// forFake is a configuration for a fake server, with short times.
func forFake(f *fakeServer, dir string) opencode.Config {
	return opencode.Config{
		URL: f.srv.URL, Password: f.password, Workspaces: []agent.Workspace{{Name: "main", Dir: dir}},
		PollInterval: 10 * time.Millisecond, StallAfter: 80 * time.Millisecond, HealthInterval: 20 * time.Millisecond,
		ReadyWait: 5 * time.Second,
	}
}

// ended is what Run returned.
type ended struct {
	out api.Outcome
	err error
}

// begin runs a turn in the background; cancel ends its context with a cause.
func begin(t *testing.T, a *opencode.Agent, turn agent.Turn, host *records) (done <-chan ended, cancel context.CancelCauseFunc) {
	t.Helper()
	limited, release := context.WithTimeout(context.Background(), testLimit)
	ctx, cancel := context.WithCancelCause(limited)
	ch := make(chan ended, 1)
	go func() {
		defer release()
		out, err := a.Run(ctx, turn, host)
		ch <- ended{out, err}
	}()
	t.Cleanup(func() { cancel(agent.ErrStopping) })
	return ch, cancel
}

// run runs a turn to its outcome.
func run(t *testing.T, a *opencode.Agent, turn agent.Turn, host *records) api.Outcome {
	t.Helper()
	done, _ := begin(t, a, turn, host)
	return settle(t, done)
}

func settle(t *testing.T, done <-chan ended) api.Outcome {
	t.Helper()
	e := <-done
	if e.err != nil {
		t.Fatalf("Run: %v", e.err)
	}
	return e.out
}

// expect compares the state, the flags and the error code of an outcome.
func expect(t *testing.T, out api.Outcome, state api.State, code string, flags ...api.Flag) {
	t.Helper()
	got := ""
	if out.Error != nil {
		got = out.Error.Code
	}
	slices.Sort(flags)
	if out.State != state || got != code || !slices.Equal(out.Flags, flags) {
		t.Errorf("outcome %s, error %q, flags %q; want %s, %q, %q\n%+v", out.State, got, out.Flags, state, code, flags, out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
