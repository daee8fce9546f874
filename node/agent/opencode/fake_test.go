package opencode_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeServer speaks as much of opencode's HTTP interface as a node uses. What
// happens on a prompt is up to the test.
type fakeServer struct {
	t   *testing.T
	srv *httptest.Server

	// onPrompt runs when a prompt was accepted, with mu held; nil answers it well.
	onPrompt func(f *fakeServer, p fakePrompt)
	// intercept, if it returns true, has answered the request itself.
	intercept func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	lose     func(path string) bool // whether a request gets no answer and has no effect
	password string
	sessions []*fakeSession
	busy     map[string]map[string]any // status by session
	asks     map[string][]map[string]any
	replies  []string // "kind id: body" of answers to asks
	looks    int      // at what waits for a human
	polls    int      // of what the sessions do
	prompts  []fakePrompt
	aborts   []string
	removed  []string
	config   map[string]any
	// where opencode's own configuration lies, and the root of the worktree
	configDir, worktree string
	streams             map[chan string]string // by directory
	made                int
	changed             chan struct{} // closed and replaced at each change
}

type fakeSession struct {
	ID       string         `json:"id"`
	Dir      string         `json:"directory"`
	Parent   string         `json:"parentID,omitempty"`
	Title    string         `json:"title"`
	Metadata map[string]any `json:"metadata,omitempty"`
	Time     struct {
		Created int64 `json:"created"`
		Updated int64 `json:"updated"`
	} `json:"time"`

	messages []*fakeMessage
}

type fakeMessage struct {
	Info  map[string]any   `json:"info"`
	Parts []map[string]any `json:"parts"`
}

// everywhere is the directory of the stream of all of them.
const everywhere = "*"

// fakePrompt is a prompt as it came.
type fakePrompt struct {
	Session   string
	MessageID string `json:"messageID"`
	Agent     string `json:"agent"`
	System    string `json:"system"`
	Model     struct {
		Provider string `json:"providerID"`
		ID       string `json:"modelID"`
	} `json:"model"`
	Parts []struct {
		ID        string         `json:"id"`
		Text      string         `json:"text"`
		Synthetic bool           `json:"synthetic"`
		Metadata  map[string]any `json:"metadata"`
	} `json:"parts"`
}

func newFake(t *testing.T) *fakeServer {
	t.Helper()
	f := &fakeServer{
		t: t, password: "secret", busy: map[string]map[string]any{}, asks: map[string][]map[string]any{},
		streams: map[chan string]string{}, changed: make(chan struct{}),
		config: map[string]any{"model": "stub/one", "compaction": map[string]any{"auto": false},
			"permission": map[string]any{"question": "deny"}},
	}
	f.srv = httptest.NewServer(f)
	t.Cleanup(func() {
		f.srv.CloseClientConnections()
		f.srv.Close()
	})
	return f
}

func (f *fakeServer) reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fakeServer) notFound(w http.ResponseWriter) {
	f.reply(w, http.StatusNotFound, map[string]any{"name": "NotFoundError", "data": map[string]any{"message": "not found"}})
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	intercept := f.intercept
	f.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	if user, password, _ := r.BasicAuth(); f.password != "" && (user != "opencode" || password != f.password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="Secure Area"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	dir := r.URL.Query().Get("directory")
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if r.Method == http.MethodGet && r.URL.Path == "/event" {
		f.stream(w, r, dir)
		return
	}
	if r.Method == http.MethodGet && r.URL.Path == "/global/event" {
		f.stream(w, r, everywhere)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.notify()
	if f.lose != nil && f.lose(r.URL.Path) {
		panic(http.ErrAbortHandler)
	}
	switch route := r.Method + " " + r.URL.Path; {
	case route == "GET /global/health":
		f.reply(w, 200, map[string]any{"healthy": true, "version": "1.18.33"})
	case route == "GET /path":
		f.reply(w, 200, map[string]any{"config": f.configDir, "worktree": f.worktree, "directory": dir})
	case route == "GET /config":
		f.reply(w, 200, f.config)
	case route == "GET /config/providers":
		f.reply(w, 200, map[string]any{"default": map[string]string{"stub": "one"}, "providers": []any{
			map[string]any{"id": "stub", "options": map[string]any{"apiKey": "key"}, "models": map[string]any{
				"one": map[string]any{"limit": map[string]any{"context": 1000}},
				"two": map[string]any{"limit": map[string]any{"context": 2000}}}}}})
	case route == "GET /session/status":
		f.polls++
		out := map[string]any{}
		for id, s := range f.busy {
			if x := f.find(id); x != nil && x.Dir == dir {
				out[id] = s
			}
		}
		f.reply(w, 200, out)
	case route == "GET /permission", route == "GET /question":
		f.looks++
		out := f.asks[strings.TrimPrefix(r.URL.Path, "/")]
		f.reply(w, 200, append([]map[string]any{}, out...))
	case len(parts) == 3 && parts[2] == "reply":
		f.answerAsk(w, r, parts[0], parts[1])
	case route == "GET /session":
		out := []*fakeSession{}
		for _, s := range slices.Backward(f.sessions) {
			if s.Dir == dir && s.Parent == "" && strings.Contains(s.Title, r.URL.Query().Get("search")) {
				out = append(out, s)
			}
		}
		f.reply(w, 200, out[:min(len(out), f.pageSize(r))])
	case route == "POST /session":
		s := &fakeSession{Dir: dir}
		_ = json.NewDecoder(r.Body).Decode(s)
		s.Dir = dir
		f.reply(w, 200, f.add(s))
	case parts[0] == "session" && len(parts) > 1:
		s := f.find(parts[1])
		if s == nil {
			f.notFound(w)
			return
		}
		f.serveSession(w, r, s, parts[2:])
	default:
		// The real server answers unknown GET paths with its web page.
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<!doctype html>")
	}
}

func (f *fakeServer) serveSession(w http.ResponseWriter, r *http.Request, s *fakeSession, rest []string) {
	switch route := r.Method + " " + strings.Join(rest, "/"); {
	case route == "GET ":
		f.reply(w, 200, s)
	case route == "DELETE ":
		if _, busy := f.busy[s.ID]; busy {
			f.t.Error("a busy session is deleted")
		}
		f.remove(s.ID)
		f.removed = append(f.removed, s.ID)
		f.reply(w, 200, true)
	case route == "POST abort":
		f.aborts = append(f.aborts, s.ID)
		if _, busy := f.busy[s.ID]; busy {
			f.failLast(s, "MessageAbortedError", "Aborted")
			f.idle(s.ID)
		}
		f.reply(w, 200, true)
	case route == "POST prompt_async":
		var p fakePrompt
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			f.t.Errorf("prompt: %v", err)
		}
		p.Session = s.ID
		f.prompts = append(f.prompts, p)
		w.WriteHeader(http.StatusNoContent)
		if f.onPrompt != nil {
			f.onPrompt(f, p)
		} else {
			f.answer(p, resultBlock(p, "done", "well"))
		}
	case route == "GET message":
		f.page(w, r, s)
	case len(rest) == 2 && rest[0] == "message":
		for _, m := range s.messages {
			if m.Info["id"] == rest[1] {
				f.reply(w, 200, m)
				return
			}
		}
		f.notFound(w)
	default:
		f.t.Errorf("unexpected request %s %s", r.Method, r.URL.Path)
		f.notFound(w)
	}
}

func (f *fakeServer) pageSize(r *http.Request) int {
	limit := 100
	_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
	return limit
}

// page serves the newest messages before a cursor, oldest first.
func (f *fakeServer) page(w http.ResponseWriter, r *http.Request, s *fakeSession) {
	end := len(s.messages)
	if c := r.URL.Query().Get("before"); c != "" {
		_, _ = fmt.Sscan(c, &end)
	}
	limit := len(s.messages)
	if l := r.URL.Query().Get("limit"); l != "" {
		_, _ = fmt.Sscan(l, &limit)
	}
	begin := max(0, end-limit)
	if begin > 0 {
		w.Header().Set("X-Next-Cursor", fmt.Sprint(begin))
	}
	f.reply(w, 200, append([]*fakeMessage{}, s.messages[begin:end]...))
}

// The methods below are for hooks and tests that hold mu.

func (f *fakeServer) add(s *fakeSession) *fakeSession {
	f.made++
	if s.ID == "" {
		s.ID = fmt.Sprintf("ses_%d", f.made)
	}
	f.sessions = append(f.sessions, s)
	return s
}

func (f *fakeServer) find(id string) *fakeSession {
	for _, s := range f.sessions {
		if s.ID == id {
			return s
		}
	}
	return nil
}

func (f *fakeServer) remove(id string) {
	f.sessions = slices.DeleteFunc(f.sessions, func(s *fakeSession) bool { return s.ID == id })
}

// store puts the user's message into the history, once.
func (f *fakeServer) store(p fakePrompt) {
	s := f.find(p.Session)
	for _, m := range s.messages {
		if m.Info["id"] == p.MessageID {
			return
		}
	}
	f.say(p.Session, p.MessageID, p.Parts[0].Text)
}

// say stores a user message.
func (f *fakeServer) say(session, id, text string) {
	s := f.find(session)
	s.messages = append(s.messages, &fakeMessage{
		Info: map[string]any{"id": id, "role": "user", "summary": map[string]any{"diffs": []any{}},
			"time": map[string]any{"created": 1.5}},
		Parts: []map[string]any{{"type": "text", "text": text}},
	})
}

// step adds an assistant message to a turn; fields go into its info.
func (f *fakeServer) step(p fakePrompt, text string, fields map[string]any) *fakeMessage {
	f.made++
	m := &fakeMessage{
		Info: map[string]any{"id": fmt.Sprintf("msg_a%d", f.made), "role": "assistant", "parentID": p.MessageID,
			"providerID": p.Model.Provider, "modelID": p.Model.ID, "time": map[string]any{"created": 1}},
		Parts: []map[string]any{{"type": "step-start"}, {"type": "text", "text": text}},
	}
	for k, v := range fields {
		m.Info[k] = v
	}
	s := f.find(p.Session)
	s.messages = append(s.messages, m)
	return m
}

var completed = map[string]any{"created": 1, "completed": 2}

// finish ends a turn with a last step and makes its session idle.
func (f *fakeServer) finish(p fakePrompt, text string) {
	f.step(p, text, map[string]any{"finish": "stop", "time": completed, "tokens": map[string]any{"total": 250}})
	f.idle(p.Session)
}

// answer stores the prompt and finishes its turn.
func (f *fakeServer) answer(p fakePrompt, text string) {
	f.store(p)
	f.finish(p, text)
}

// work stores the prompt and leaves its turn running.
func (f *fakeServer) work(p fakePrompt) {
	f.store(p)
	f.busy[p.Session] = map[string]any{"type": "busy"}
	f.event(p.Session, "session.status", nil)
}

func (f *fakeServer) idle(session string) {
	delete(f.busy, session)
	f.event(session, "session.idle", nil)
}

// failLast turns the newest assistant message of a session into a failed one.
func (f *fakeServer) failLast(s *fakeSession, name, message string) {
	for _, m := range slices.Backward(s.messages) {
		if m.Info["role"] == "assistant" && m.Info["finish"] == nil {
			m.Info["error"] = map[string]any{"name": name, "data": map[string]any{"message": message}}
			m.Info["time"] = completed
			return
		}
	}
}

// event sends an event to everyone who listens in the session's directory.
func (f *fakeServer) event(session, kind string, properties map[string]any) {
	// In the order of the real server: a reader may look at the head only.
	more := ""
	if len(properties) > 0 {
		b, _ := json.Marshal(properties)
		more = "," + string(b[1:len(b)-1])
	}
	f.raw(session, fmt.Sprintf(`{"id":"evt_1","type":%q,"properties":{"sessionID":%q%s}}`, kind, session, more))
}

func (f *fakeServer) raw(session, data string) {
	dir := ""
	if s := f.find(session); s != nil {
		dir = s.Dir
	}
	for ch, at := range f.streams {
		line := data
		if at == everywhere {
			line = fmt.Sprintf(`{"directory":%q,"project":"global","payload":%s}`, dir, data)
		}
		if at == dir || at == everywhere {
			select {
			case ch <- line:
			default:
				f.t.Error("an event reader does not read")
			}
		}
	}
}

func (f *fakeServer) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// locked runs fn with mu held.
func (f *fakeServer) locked(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
	f.notify()
}

// await waits until cond, which is called with mu held, is true.
func (f *fakeServer) await(what string, cond func() bool) {
	f.t.Helper()
	limit := time.After(testLimit)
	for {
		f.mu.Lock()
		ok, changed := cond(), f.changed
		f.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			f.t.Fatalf("never happened: %s", what)
		}
	}
}

// awaitPolls waits until some turn has looked at what the sessions do n more times.
func (f *fakeServer) awaitPolls(n int) {
	f.t.Helper()
	f.mu.Lock()
	want := f.polls + n
	f.mu.Unlock()
	f.await("more polls", func() bool { return f.polls >= want })
}

func (f *fakeServer) stream(w http.ResponseWriter, r *http.Request, dir string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	events := make(chan string, 64)
	f.locked(func() { f.streams[events] = dir })
	defer f.locked(func() { delete(f.streams, events) })
	flush := http.NewResponseController(w)
	hello := `{"id":"evt_0","type":"server.connected","properties":{}}`
	if dir == everywhere {
		hello = `{"payload":` + hello + `}`
	}
	_, _ = fmt.Fprintf(w, "data: %s\n\n", hello)
	_ = flush.Flush()
	for {
		select {
		case data, ok := <-events:
			if !ok {
				return
			}
			_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
			_ = flush.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// dropStreams ends all event streams without a word.
func (f *fakeServer) dropStreams() {
	for ch := range f.streams {
		close(ch)
		delete(f.streams, ch)
	}
}

// resultBlock is a reply to a prompt with a result block for its task.
func resultBlock(p fakePrompt, status, summary string) string {
	task := ""
	for line := range strings.Lines(p.Parts[0].Text) {
		if v, ok := strings.CutPrefix(line, "task: "); ok {
			task = strings.TrimSpace(v)
			break
		}
	}
	return "[opencode-mesh-result v1]\ntask: " + task + "\nstatus: " + status + "\nsummary: " + summary +
		"\nartifacts: out/a.txt\n[/opencode-mesh-result]"
}
