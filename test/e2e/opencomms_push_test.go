package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"opencode-mesh/node"
	"opencode-mesh/node/opencomms"
	ocm "opencode-mesh/protocol/opencomms"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// hosted is a project in a node's workspace with a channel whose members are sessions
// of the node's opencode.
type hosted struct {
	t        *testing.T
	server   *opencodebin.Server
	node     *fleet.Node
	sessions map[string]string // by role
}

func newHosted(t *testing.T, server *opencodebin.Server, n *fleet.Node, roles ...string) *hosted {
	t.Helper()
	h := &hosted{t: t, server: server, node: n, sessions: map[string]string{}}
	h.comms("create review --rate-limit 1000")
	for _, role := range roles {
		var s struct{ ID string }
		if status := server.Call(t, "POST", "/session?directory="+url.QueryEscape(n.Work), map[string]any{"title": role}, &s); status != 200 {
			t.Fatalf("POST /session: %d", status)
		}
		h.sessions[role] = s.ID
		h.comms(fmt.Sprintf("join review --push --host opencode --as %s --role %s --prompt 'You are the %s.'", s.ID, role, role))
	}
	return h
}

func (h *hosted) comms(line string) string {
	h.t.Helper()
	return fleet.Shell(h.t, h.node.Work, "meshnode opencomms "+line)
}

// send has the person send, and returns the message's id.
func (h *hosted) send(to, text string) string {
	h.t.Helper()
	out := fleet.Shell(h.t, h.node.Work, "meshnode opencomms send review --to "+to+" -- '"+text+"'")
	_, rest, ok := strings.Cut(out, "queued ")
	if !ok {
		h.t.Fatal(out)
	}
	return strings.Fields(rest)[0]
}

// rows are the messages of the file.
func (h *hosted) rows() *ocm.State {
	h.t.Helper()
	p, err := opencomms.Open(h.node.Work, opencomms.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	s, err := p.Read(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *hosted) row(id string) *ocm.Envelope {
	h.t.Helper()
	e, ok := h.rows().Messages.Get(id)
	if !ok {
		h.t.Fatalf("%s is gone", id)
	}
	return e
}

func (h *hosted) await(id, status string) *ocm.Envelope {
	h.t.Helper()
	eventually(h.t, id+" is "+status, func() bool { return h.row(id).Status == status })
	return h.row(id)
}

// said are the user's messages and the answers of a role's session that hold a text.
func (h *hosted) said(role, text string) (users, answers int) {
	h.t.Helper()
	var list []struct {
		Info  struct{ ID, Role, ParentID string }
		Parts []struct{ Type, Text string }
	}
	if status := h.server.Call(h.t, "GET", "/session/"+h.sessions[role]+"/message", nil, &list); status != 200 {
		h.t.Fatalf("GET /message: %d", status)
	}
	ours := map[string]bool{}
	for _, m := range list {
		for _, p := range m.Parts {
			if m.Info.Role == "user" && p.Type == "text" && strings.Contains(p.Text, text) {
				users++
				ours[m.Info.ID] = true
			}
		}
	}
	for _, m := range list {
		if m.Info.Role == "assistant" && ours[m.Info.ParentID] {
			answers++
		}
	}
	return users, answers
}

func (h *hosted) status() (s node.Status) {
	h.t.Helper()
	out := h.node.Run("status", "--json")
	if err := json.Unmarshal([]byte(out.Stdout), &s); err != nil {
		h.t.Fatalf("%v: %+v", err, out)
	}
	return s
}

// TestTheNodePushesToTheSessionsOfItsOpencode is one opencode for all of its cases.
func TestTheNodePushesToTheSessionsOfItsOpencode(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	alpha := f.Node("alpha", using(server, "--opencomms-push"))
	f.Ctl("desk").Healthy("alpha")
	h := newHosted(t, server, alpha, "Builder", "Reviewer")

	t.Run("two members talk, and the reply arrives", func(t *testing.T) {
		meshnode := fleet.Bin(t, "meshnode")
		question := "TOOL:'" + meshnode + "' opencomms send review --as Reviewer --to Builder -- two nits, fine otherwise"
		if err := os.WriteFile(filepath.Join(alpha.Work, "question.txt"), []byte(question), 0o600); err != nil {
			t.Fatal(err)
		}
		// A person has the Builder's model ask.
		h.server.Call(t, "POST", "/session/"+h.sessions["Builder"]+"/message", map[string]any{"parts": []any{map[string]any{
			"type": "text", "text": "TOOL:'" + meshnode + "' opencomms send review --as Builder --to Reviewer --file question.txt"}}}, nil)
		eventually(t, "the reply is answered", func() bool {
			_, n := h.said("Builder", "two nits, fine otherwise\n<<<END_UNTRUSTED_PEER_MESSAGE>>>")
			return n > 0
		})
		// The session has a message before the file says so.
		for id := range h.rows().Messages.All() {
			if e := h.await(id, ocm.StatusDelivered); e.Method != ocm.ModePush || e.Attempts != 1 {
				t.Errorf("%+v", e.EnvelopeFields)
			}
		}
		if n := h.rows().Messages.Len(); n != 2 {
			t.Errorf("%d messages", n)
		}
		r, err := llm.WaitFor(bounded(t), func(r stubllm.Request) bool { return strings.Contains(r.User, "from Builder (manual)") })
		if err != nil || !strings.Contains(r.System, "You are the Reviewer.") {
			t.Errorf("%v: the reviewer's role prompt is not in %q", err, r.System)
		}
		if out := alpha.Run("status").Stdout; !strings.Contains(out, alpha.Work+", pushed") {
			t.Errorf("status:\n%s", out)
		}
	})
	t.Run("a busy session is waited for", func(t *testing.T) {
		if status := h.server.Call(t, "POST", "/session/"+h.sessions["Builder"]+"/prompt_async", map[string]any{"parts": []any{map[string]any{
			"type": "text", "text": "GATE:busy"}}}, nil); status != 204 {
			t.Fatalf("prompt: %d", status)
		}
		asked(t, llm, has("GATE:busy"))
		id := h.send("Builder", "while you work")
		eventually(t, "the node waits", func() bool { s := h.status(); return len(s.Push) == 1 && len(s.Push[0].Delivering) == 1 })
		if e := h.row(id); e.Status != ocm.StatusPending {
			t.Errorf("%+v", e.EnvelopeFields)
		}
		llm.Open("busy")
		h.await(id, ocm.StatusDelivered)
		eventually(t, "it is answered by a turn of its own", func() bool { _, n := h.said("Builder", id); return n > 0 })
	})
	t.Run("nobody is waited for when its turn asks a permission", func(t *testing.T) {
		id := h.send("Builder", "TOOL:cat "+outside(t))
		h.await(id, ocm.StatusDelivered)
		eventually(t, "the model is told", func() bool {
			var list json.RawMessage
			server.Call(t, "GET", "/session/"+h.sessions["Builder"]+"/message", nil, &list)
			return strings.Contains(string(list), "Nobody is here to decide this")
		})
		h.await(h.send("Builder", "and the next"), ocm.StatusDelivered)
	})
	t.Run("a node that is killed delivers once", func(t *testing.T) {
		gate := newGate(t, server)
		n := f.In(t).Node("gamma", using(&opencodebin.Server{URL: gate.srv.URL, Password: server.Password}, "--opencomms-push"))
		h := newHosted(t, server, n, "Solo")
		for _, c := range []struct {
			mode     string
			attempts int
		}{{"before", 2}, {"after", 1}} {
			gate.set(c.mode)
			id := h.send("Solo", "killed "+c.mode+" the prompt")
			<-gate.held
			if e := h.row(id); e.Status != ocm.StatusInFlight {
				t.Errorf("%s: %+v", c.mode, e.EnvelopeFields)
			}
			n.Kill()
			gate.set("")
			n.Start()
			if e := h.await(id, ocm.StatusDelivered); e.Attempts != c.attempts {
				t.Errorf("%s: %+v", c.mode, e.EnvelopeFields)
			}
			eventually(t, "it is answered", func() bool { _, n := h.said("Solo", id); return n > 0 })
			if users, _ := h.said("Solo", id); users != 1 {
				t.Errorf("%s: stored %d times", c.mode, users)
			}
		}
		gate.set("refuse")
		id := h.send("Solo", "never")
		if e := h.await(id, ocm.StatusFailed); e.Attempts != ocm.MaxAttempts {
			t.Errorf("%+v", e.EnvelopeFields)
		}
		gate.set("")
		h.await(h.send("Solo", "again"), ocm.StatusDelivered)
		if out := h.comms("status"); !strings.Contains(out, "delivery to "+h.sessions["Solo"]+" failed") {
			t.Errorf("status:\n%s", out)
		}
	})
	t.Run("a plugin turns it off", func(t *testing.T) {
		dir := filepath.Join(f.Dir, "beta-work", ".opencode", "plugin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "opencomms.js"), []byte("export const OpenComms = async () => ({})\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		n := f.In(t).Node("beta", using(server, "--opencomms-push"))
		f.Ctl("second").Healthy("beta")
		h := newHosted(t, server, n, "Plugged")
		id := h.send("Plugged", "hello")
		eventually(t, "status says so", func() bool {
			return strings.Contains(n.Run("status").Stdout, "not pushed: the plugin") && strings.Contains(n.Run("status").Stdout, "opencomms.js delivers here")
		})
		eventually(t, "the log says so", func() bool { return strings.Contains(n.Log(), "a plugin of opencode does it") })
		var cfg struct{ Plugin []string }
		if server.Call(t, "GET", "/config?directory="+url.QueryEscape(n.Work), nil, &cfg); !strings.Contains(strings.Join(cfg.Plugin, " "), "opencomms.js") {
			t.Errorf("opencode itself lists %q", cfg.Plugin)
		}
		if e := h.row(id); e.Status != ocm.StatusPending || e.Attempts != 0 {
			t.Errorf("%+v", e.EnvelopeFields)
		}
	})
}

// gate stands between a node and its opencode and holds up its prompts.
type gate struct {
	srv  *httptest.Server
	held chan struct{} // a prompt is held up

	mu   sync.Mutex
	mode string // "before" and "after" it was passed on; "refuse"
}

func newGate(t *testing.T, server *opencodebin.Server) *gate {
	t.Helper()
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{held: make(chan struct{}, 1)}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	g.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		mode := g.mode
		g.mu.Unlock()
		if mode == "" || !strings.HasSuffix(r.URL.Path, "/prompt_async") {
			proxy.ServeHTTP(w, r)
			return
		}
		if mode == "refuse" {
			http.Error(w, `{"name":"UnknownError","data":{"message":"the disk is full"}}`, http.StatusInternalServerError)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if mode == "after" {
			req, err := http.NewRequest(r.Method, server.URL+r.URL.RequestURI(), strings.NewReader(string(body)))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header = r.Header.Clone()
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		}
		g.held <- struct{}{}
		<-r.Context().Done() // until the node is gone
	}))
	t.Cleanup(func() {
		g.srv.CloseClientConnections()
		g.srv.Close()
	})
	return g
}

func (g *gate) set(mode string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mode = mode
}
