package adopt

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	proto "opencode-mesh/protocol/peers"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func onServer(url, password, work string) opencode.Config {
	return opencode.Config{URL: url, Password: password, Workspaces: []agent.Workspace{{Name: "main", Dir: work}},
		PollInterval: 100 * time.Millisecond, HealthInterval: time.Second}
}

// realRig is a rig whose agent is a real opencode.
type realRig struct {
	*rig
	server *opencodebin.Server
	model  *stubllm.Server
	work   string
	agent  *opencode.Agent
}

func newRealRig(t *testing.T) *realRig {
	t.Helper()
	r := &realRig{model: stubllm.Start(t), work: t.TempDir()}
	r.server = opencodebin.Serve(t, opencodebin.Options{ModelURL: r.model.URL()}, r.work)
	cfg := onServer(r.server.URL, r.server.Password, r.work)
	cfg.Log = testLog(t)
	a, err := opencode.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Stop(context.Background()) })
	r.agent, r.rig = a, newRig(t) // whose end comes before that of the agent
	return r
}

func (r *realRig) on(c *Config) { c.Agent = r.agent }

// session makes a session as a person's client does.
func (r *realRig) session(parent string) string {
	r.t.Helper()
	in := map[string]any{"title": "of a person"}
	if parent != "" {
		in["parentID"] = parent
	}
	var made struct{ ID string }
	if status := r.server.Call(r.t, http.MethodPost, "/session", in, &made); status != http.StatusOK {
		r.t.Fatalf("a session is not made: %d", status)
	}
	return made.ID
}

// shown waits until a session is published. Until the node watches it is told of nothing,
// so the session's title changes over and over.
func (r *realRig) shown(id string) {
	r.t.Helper()
	title := 0
	eventually(r.t, "the session is shown", func() bool {
		title++
		r.server.Call(r.t, http.MethodPatch, "/session/"+id, map[string]any{"title": fmt.Sprint("title ", title)}, nil)
		return len(r.published()) > 0
	})
}

// message is one of a session's history.
type message struct {
	Info struct {
		ID, Role, ParentID string
		Time               struct{ Completed float64 }
		Finish             string
	}
	Parts []struct {
		Type, Text string
		Synthetic  bool
		Metadata   map[string]any
	}
}

func (r *realRig) history(session string) []message {
	r.t.Helper()
	var list []message
	if status := r.server.Call(r.t, http.MethodGet, "/session/"+session+"/message", nil, &list); status != http.StatusOK {
		r.t.Fatalf("no history: %d", status)
	}
	return list
}

// answer waits for the end of the answer to a message and returns its words.
func (r *realRig) answer(session, id string) string {
	r.t.Helper()
	text := ""
	eventually(r.t, "an answer", func() bool {
		text = ""
		ended := false
		for _, m := range r.history(session) {
			if m.Info.ParentID == id {
				ended = m.Info.Time.Completed > 0 && m.Info.Finish != "" && m.Info.Finish != "tool-calls"
				for _, p := range m.Parts {
					text += p.Text
				}
			}
		}
		return ended
	})
	return text
}

// count is how often a message is in the history.
func (r *realRig) count(session, id string) (n int, found message) {
	for _, m := range r.history(session) {
		if m.Info.ID == id {
			n, found = n+1, m
		}
	}
	return n, found
}

func TestOnTheRealServerAMessageIsPromptedOnceAndAnswered(t *testing.T) {
	r := newRealRig(t)
	r.start(r.on)
	eventually(t, "the server is there", func() bool { _, _, _, ok := r.agent.Server(); return ok })
	id := r.session("")
	r.shown(id)
	sent, receipt := r.send(id, "hello from afar")
	if receipt != proto.Queued {
		t.Errorf("receipt %q", receipt)
	}
	r.final(sent, proto.Delivered)
	prompt := proto.PromptID(id, sender, sent)
	if got := r.answer(id, prompt); !strings.Contains(got, "hello from afar") {
		t.Errorf("answer %q", got)
	}
	n, m := r.count(id, prompt)
	if n != 1 || len(m.Parts) != 1 || !m.Parts[0].Synthetic || fmt.Sprint(m.Parts[0].Metadata["peerMessage"]) !=
		fmt.Sprint(map[string]any{"version": 2, "messageId": sent, "fromEndpointId": sender, "toSessionId": id}) {
		t.Errorf("%d times: %+v", n, m)
	}

	child := r.session(id)
	eventually(t, "the child", func() bool { return r.row(child).ParentSessionID == id })
	if status := r.server.Call(t, http.MethodDelete, "/session/"+id, nil, nil); status != http.StatusOK {
		t.Fatalf("not deleted: %d", status)
	}
	r.shows()
}
