package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/ocptest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

func TestMain(m *testing.M) {
	ocptest.Main()
	if len(os.Args) == 3 && os.Args[1] == childWord {
		os.Exit(child(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// childWord is the first argument of this binary as a provider that says who it is by
// files of a directory, and writes there what it is told.
const childWord = "ocp-host-test-provider"

// Files of that directory.
const (
	fileName   = "name"   // what it calls itself
	fileEgress = "egress" // it sends data off the machine
	fileGo     = "go"     // goals with "late" in them are answered
	fileStarts = "starts" // a byte for each start
	fileEnds   = "ends"   // a byte for each end in good order
	fileGoals  = "goals"  // the queries that it was sent, a line each
)

// slowBy is how long the child thinks about a goal with "slow" in it.
const slowBy = 700 * time.Millisecond

// child answers with the goal as content.
func child(dir string) int {
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	note := func(name, text string) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil {
			panic(err)
		}
		_ = f.Close()
	}
	note(fileStarts, "s")
	name, _ := os.ReadFile(filepath.Join(dir, fileName))
	r := bufio.NewReader(os.Stdin)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			note(fileEnds, "e")
			return 0
		}
		e, err := ocp.Decode(bytes.TrimSpace(line))
		var answer ocp.Envelope
		switch {
		case err != nil:
			return 2
		case e.Handshake != nil:
			answer.HandshakeAck = &ocp.HandshakeAck{
				ProtocolVersion: e.Handshake.ProtocolVersion,
				Provider:        ocp.ProviderInfo{Name: "child " + string(name), Version: "1", DataFlow: ocp.DataFlow{Reads: true, Egress: there(fileEgress)}},
				Capabilities:    ocp.Capabilities{Query: ocp.QueryCapability{Kinds: []string{"doc"}}},
			}
		case e.Query != nil:
			note(fileGoals, e.Query.Goal+"\n")
			if strings.Contains(e.Query.Goal, "crash") {
				return 1
			}
			for strings.Contains(e.Query.Goal, "late") && !there(fileGo) {
				time.Sleep(time.Millisecond)
			}
			if strings.Contains(e.Query.Goal, "slow") {
				time.Sleep(slowBy)
			}
			answer.Frames = &ocp.Result{Frames: []ocp.Frame{frame(e.Query.Goal)}}
		default:
			note(fileEnds, "e")
			return 0
		}
		out, err := ocp.Encode(answer, ocp.FamilyOCP)
		if err != nil {
			panic(err)
		}
		if _, err := os.Stdout.Write(append(out, '\n')); err != nil {
			return 1
		}
	}
}

func frame(content string) ocp.Frame {
	return ocp.Frame{ID: "f1", Kind: ocp.KindDoc, Title: "A frame", Content: content, CitationLabel: "notes L1", Score: 0.5, TokenCost: ocp.TokenCost(content)}
}

func childArgs(dir string) []string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{self, childWord, dir}
}

// has is a file of the child's directory, "" if it is not there.
func has(t testing.TB, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// open makes a host that ends with the test.
func open(t testing.TB, cfg Config) *Host {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = Path(t.TempDir())
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// ask asks for a goal and returns the legs by provider.
func ask(t testing.TB, h *Host, goal string) map[string]api.ContextAnswerLeg {
	t.Helper()
	return askFor(t, t.Context(), h, ocp.Query{Goal: goal})
}

func askFor(t testing.TB, ctx context.Context, h *Host, q ocp.Query) map[string]api.ContextAnswerLeg {
	t.Helper()
	legs, err := h.Ask(ctx, q, memory.Scope{All: true})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]api.ContextAnswerLeg{}
	for _, l := range legs {
		out[l.Provider] = l
	}
	return out
}

// wantOutcome fails unless a leg ended so.
func wantOutcome(t testing.TB, l api.ContextAnswerLeg, outcome, text string) {
	t.Helper()
	if l.Outcome != outcome || !strings.Contains(l.Error, text) {
		t.Errorf("%s: %s %q; want %s %q", l.Provider, l.Outcome, l.Error, outcome, text)
	}
	if outcome != api.ContextFrames && len(l.Result.Frames) > 0 {
		t.Errorf("%s: %s and %d frames", l.Provider, l.Outcome, len(l.Result.Frames))
	}
}

// source is a provider in this process.
type source func(ocp.Query, memory.Scope) (ocp.Result, error)

func (s source) Query(_ context.Context, q ocp.Query, scope memory.Scope) (ocp.Result, error) {
	return s(q, scope)
}

func goodSource() Provider {
	return Provider{Name: "memory", Kinds: []ocp.FrameKind{ocp.KindFact}, Version: "1", Source: source(func(q ocp.Query, _ memory.Scope) (ocp.Result, error) {
		return ocp.Result{Frames: []ocp.Frame{frame(q.Goal)}}, nil
	})}
}

// logs collects what is logged.
type logs struct {
	mu sync.Mutex // guards text
	b  bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logs) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logs) logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(io.MultiWriter(l, t.Output()), nil))
}

// clock is a clock that stands until it is moved.
type clock struct {
	mu  sync.Mutex // guards now
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.IsZero() {
		c.now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	return c.now
}

func (c *clock) forward(d time.Duration) {
	now := c.Now().Add(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// await waits until something is so.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// asJSON is a value as it is written.
func asJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// atRest looks at what only who has the turn may: an exchange may go on in the background
// after the query that it was for.
func atRest(m *member, look func()) {
	<-m.turn
	defer func() { m.turn <- struct{}{} }()
	look()
}

// failures is how often in a row a provider failed.
func failures(m *member) (n int) {
	atRest(m, func() { n = m.fails })
	return n
}
