package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// cleaner is a worker with sessions that can be deleted.
type cleaner struct {
	*worker
	err error

	mu       sync.Mutex // guards the following fields
	sessions []string
	calls    int
	deleted  []string
	stopped  bool // when Clean was called
}

func (c *cleaner) Clean(ctx context.Context, keep func(string) bool, removed func(agent.Removed)) error {
	c.worker.mu.Lock()
	stopped := c.worker.stopped > 0
	c.worker.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.stopped = stopped
	var left []string
	for _, s := range c.sessions {
		if keep(s) || ctx.Err() != nil {
			left = append(left, s)
			continue
		}
		c.deleted = append(c.deleted, s)
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		removed(agent.Removed{Session: s, Title: agent.SessionTitle + "alpha", Workspace: "main", CreatedAt: at, UpdatedAt: at.Add(time.Hour), Summary: "did\n" + s})
	}
	c.sessions = left
	return c.err
}

// with makes a node use it.
func (c *cleaner) with(on bool) func(*node.Config) {
	return func(cfg *node.Config) {
		c.worker = cfg.Agent.(*worker)
		cfg.Agent, cfg.Cleanup = c, on
	}
}

// lines reads the record of what was cleaned up.
func lines(t *testing.T, dir string) []map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, node.CleanupFile))
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]any
	for line := range strings.Lines(string(data)) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

func TestCleanup(t *testing.T) {
	t.Run("is off by default", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		c := &cleaner{sessions: []string{"ses_1"}}
		p := launch(t, hub, t.TempDir(), c.with(false))
		linktest.Await(t, hub.Conns, "the connection")
		p.quit()
		if c.calls != 0 {
			t.Fatalf("cleaned up %d times", c.calls)
		}
		if _, err := os.Stat(filepath.Join(p.dir, node.CleanupFile)); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("the record: %v", err)
		}
	})

	t.Run("deletes at the stop what no unfinished task needs, with a line for each", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		dir := t.TempDir()
		c := &cleaner{sessions: []string{"ses_1", "ses_run", "ses_wait", "ses_2"}}
		p := launch(t, hub, dir, c.with(true))
		conn := linktest.Await(t, hub.Conns, "the connection")
		in := func(session string) func(*api.Offer) {
			return func(o *api.Offer) { o.Binding = api.Binding{Generation: 7, Session: session} }
		}
		conn.Take("t0", in("ses_1"))
		p.began()
		p.agent.open("t0")
		linktest.Await(t, hub.Results, "t0")
		conn.Take("t1", in("ses_run"))
		p.began()
		conn.Take("t2", in("ses_wait"))
		p.quit()
		if c.calls != 1 || c.stopped || !slices.Equal(c.deleted, []string{"ses_1", "ses_2"}) {
			t.Fatalf("%d calls, agent stopped %v, deleted %v", c.calls, c.stopped, c.deleted)
		}
		if p.agent.cause("t1") == nil {
			t.Fatal("a turn still ran")
		}
		info, err := os.Stat(filepath.Join(dir, node.CleanupFile))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("the record: %v %v", info, err)
		}

		c.sessions = append(c.sessions, "ses_3")
		q := launch(t, hub, dir, c.with(true))
		linktest.Await(t, hub.Conns, "the next connection")
		q.quit()
		got := lines(t, dir)
		if len(got) != 3 {
			t.Fatalf("%d lines: %v", len(got), got)
		}
		for i, session := range []string{"ses_1", "ses_2", "ses_3"} {
			want := map[string]any{
				"session": session, "title": "opencode-mesh alpha", "workspace": "main", "summary": "did\n" + session,
				"created_at": "2026-01-02T03:04:05Z", "updated_at": "2026-01-02T04:04:05Z",
			}
			if at, err := time.Parse(time.RFC3339, got[i]["at"].(string)); err != nil || time.Since(at) < 0 {
				t.Errorf("time of deletion %v", got[i]["at"])
			}
			delete(got[i], "at")
			for k, v := range want {
				if got[i][k] != v {
					t.Errorf("line %d: %s is %v, wanted %v", i, k, got[i][k], v)
				}
			}
			if len(got[i]) != len(want) {
				t.Errorf("line %d: %v", i, got[i])
			}
		}
	})

	t.Run("happens at no other end than a graceful stop", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		c := &cleaner{sessions: []string{"ses_1"}}
		p := launch(t, hub, t.TempDir(), c.with(true))
		linktest.Await(t, hub.Conns, "the connection")
		hub.Refuse(api.Errorf(api.CodeRevoked, "gone"))
		hub.Cut(tunnel.ReasonRevoked)
		_ = p.end()
		if c.calls != 0 {
			t.Fatalf("cleaned up %d times", c.calls)
		}
	})

	t.Run("does not happen when the start was interrupted", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		cfg := config(t, hub, t.TempDir(), newWorker())
		c := &cleaner{sessions: []string{"ses_1"}}
		c.with(true)(&cfg)
		n, err := node.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.Run(ctx); err != nil || c.calls != 0 {
			t.Fatalf("%v, cleaned up %d times", err, c.calls)
		}
	})

	t.Run("deletes nothing when no record can be kept", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, node.CleanupFile), 0o700); err != nil {
			t.Fatal(err)
		}
		c := &cleaner{sessions: []string{"ses_1"}}
		p := launch(t, hub, dir, c.with(true))
		linktest.Await(t, hub.Conns, "the connection")
		p.stop()
		if err := p.end(); err == nil || !strings.Contains(err.Error(), "clean up sessions") || c.calls != 0 {
			t.Fatalf("%v, cleaned up %d times", err, c.calls)
		}
		if p.agent.stopped != 1 {
			t.Fatalf("agent stopped %d times", p.agent.stopped)
		}
	})

	t.Run("that fails is told, and the agent is stopped", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		c := &cleaner{sessions: []string{"ses_1"}, err: errors.New("the server is away")}
		p := launch(t, hub, t.TempDir(), c.with(true))
		linktest.Await(t, hub.Conns, "the connection")
		p.stop()
		if err := p.end(); !errors.Is(err, c.err) || p.agent.stopped != 1 {
			t.Fatalf("%v, agent stopped %d times", err, p.agent.stopped)
		}
		if got := lines(t, p.dir); len(got) != 1 {
			t.Fatalf("%d lines", len(got))
		}
	})

	t.Run("needs an agent that can", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		cfg := config(t, hub, t.TempDir(), newWorker())
		cfg.Cleanup = true
		if _, err := node.New(cfg); err == nil || !strings.Contains(err.Error(), "no sessions to clean up") {
			t.Fatalf("%v", err)
		}
	})
}
