// Package stubllm is a deterministic stand-in for an OpenAI-compatible model
// server, so that a real coding agent can be driven in tests without a network.
//
// What it answers depends on the newest user message of a request alone (and on
// whether a tool result follows it): directives in that text make it fail, hang,
// call a tool or be slow; see directives.go. For texts that a test does not write
// itself it gives the directives with Direct. Every request is recorded, and a
// test waits for one with WaitFor, or holds one at a gate, instead of sleeping.
//
// It serves POST /v1/chat/completions (streamed or not), GET /v1/models, GET
// /health and GET /requests. It checks no credentials and is meant for loopback
// only.
package stubllm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Model is the id of the one model that the server offers.
const Model = "stub-model"

const (
	// maxRequests is how many requests are remembered; older ones are forgotten.
	maxRequests = 1000
	// maxBody is the largest request body read, in bytes: a whole conversation.
	maxBody = 64 << 20
	// maxUser is how much of a user message is kept in the record, in bytes.
	maxUser = 32 << 10
)

// The kinds of request that an agent makes.
const (
	KindChat       = "chat"
	KindTitle      = "title"      // the agent wants a title for a session
	KindCompaction = "compaction" // the agent wants a history condensed
)

// Request is the record of one request for a completion.
type Request struct {
	N      int    `json:"n"` // from 1
	Kind   string `json:"kind"`
	Stream bool   `json:"stream"`
	Model  string `json:"model"`
	// Tags name the directives that took effect.
	Tags []string `json:"tags,omitempty"`
	// ToolResult says that the newest user message was followed by a tool's result.
	ToolResult bool     `json:"tool_result"`
	Tools      []string `json:"tools,omitempty"` // names of the tools offered
	Messages   int      `json:"messages"`
	System     string   `json:"system"`
	User       string   `json:"user"` // the newest user message, cut to 32 KiB
	// Ended says that the request is over; Aborted that its client went away
	// before that.
	Ended   bool `json:"ended"`
	Aborted bool `json:"aborted"`
	// Took is how long the request lasted, in milliseconds; 0 until it ended.
	Took int64 `json:"ms"`
}

// Server is the model server. It is an http.Handler; use New or Start. Safe for
// concurrent use.
type Server struct {
	mux *http.ServeMux
	url string

	mu       sync.Mutex
	requests []*Request
	count    int
	inflight int
	fails    map[string]int           // how often each user text failed already
	gates    map[string]chan struct{} // closed when opened
	directed []*direction             // oldest first
	changed  chan struct{}            // closed and replaced whenever a record changed
}

// New makes a Server that listens nowhere.
func New() *Server {
	s := &Server{
		mux:     http.NewServeMux(),
		fails:   make(map[string]int),
		gates:   make(map[string]chan struct{}),
		changed: make(chan struct{}),
	}
	s.mux.HandleFunc("POST /v1/chat/completions", s.completions)
	s.mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{
			"object": "list",
			"data":   []any{map[string]any{"id": Model, "object": "model", "created": 0, "owned_by": "stub"}},
		})
	})
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		count, inflight := s.count, s.inflight
		s.mu.Unlock()
		writeJSON(w, http.StatusOK, map[string]any{"ok": true, "requests": count, "inflight": inflight})
	})
	s.mux.HandleFunc("GET /requests", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Requests())
	})
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusNotFound, apiError("not found: "+r.URL.Path, "not_found"))
	})
	return s
}

// Start makes a Server that listens on a free loopback port until the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := New()
	srv := httptest.NewServer(s)
	s.url = srv.URL + "/v1"
	tb.Cleanup(func() {
		srv.CloseClientConnections() // or Close would wait for whatever hangs
		srv.Close()
	})
	return s
}

// URL is the base URL of a Server made by Start, "/v1" included; "" otherwise.
func (s *Server) URL() string { return s.url }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Requests returns the remembered requests, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Request, len(s.requests))
	for i, r := range s.requests {
		all[i] = *r
	}
	return all
}

// Count is how many remembered requests satisfy match.
func (s *Server) Count(match func(Request) bool) int {
	n := 0
	for _, r := range s.Requests() {
		if match(r) {
			n++
		}
	}
	return n
}

// WaitFor returns the oldest remembered request that satisfies match, and waits
// for one if there is none yet. A record changes when its request ends, so match
// may ask for Ended or Aborted. The error is that of ctx.
func (s *Server) WaitFor(ctx context.Context, match func(Request) bool) (Request, error) {
	for {
		s.mu.Lock()
		changed := s.changed
		for _, r := range s.requests {
			if match(*r) {
				found := *r
				s.mu.Unlock()
				return found, nil
			}
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, fmt.Errorf("no such request came: %w", ctx.Err())
		}
	}
}

// Open lets every request pass that waits, or will wait, at the gate of that
// name (directive GATE). Idempotent.
func (s *Server) Open(name string) {
	gate := s.gate(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
}

// gate returns the gate of that name and makes it if need be.
func (s *Server) gate(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.gates[name]
	if !ok {
		g = make(chan struct{})
		s.gates[name] = g
	}
	return g
}

// begin records a request.
func (s *Server) begin(r Request) *Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.inflight++
	r.N = s.count
	s.requests = append(s.requests, &r)
	if len(s.requests) > maxRequests {
		s.requests = s.requests[1:]
	}
	s.notify()
	return &r
}

// end completes the record of a request.
func (s *Server) end(r *Request, took time.Duration, aborted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inflight--
	r.Ended, r.Aborted, r.Took = true, aborted, took.Milliseconds()
	s.notify()
}

// notify wakes everyone in WaitFor; the caller holds mu.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// failNow counts a call that carries text and reports whether it is among the
// first times that are to fail; times 0 means always.
func (s *Server) failNow(text string, times int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[text]++
	return times == 0 || s.fails[text] <= times
}

// completions serves one request for a completion.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var chat chatRequest
	if err != nil || json.Unmarshal(body, &chat) != nil {
		writeJSON(w, http.StatusBadRequest, apiError("bad json", "invalid_request_error"))
		return
	}
	in := chat.read()
	p := s.plan(in)
	rec := s.begin(Request{
		Kind: p.kind, Stream: chat.Stream, Model: chat.Model, Tags: p.tags, ToolResult: in.hasResult,
		Tools: chat.toolNames(), Messages: len(chat.Messages), System: in.system, User: cut(in.user, maxUser),
	})
	start, whole := time.Now(), false
	// Deferred, because a connection is cut by a panic.
	defer func() { s.end(rec, time.Since(start), !whole) }()
	whole = p.answer(r.Context(), w, s, rec.N, chat)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client may be gone; nobody is left to be told.
	_ = json.NewEncoder(w).Encode(v)
}

func apiError(message, kind string) map[string]any {
	return map[string]any{"error": map[string]any{"message": message, "type": kind, "code": kind}}
}

// cut returns at most n bytes of s, ending on a character boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
