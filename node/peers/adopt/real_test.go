package adopt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/spool"
	proto "opencode-mesh/protocol/peers"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// TestMain lets the test binary be a node that dies.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "node" {
		fmt.Fprintln(os.Stderr, dieNoting(os.Args[2], os.Args[3], os.Args[4]))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// dieNoting is a node on an opencode server that is killed when it would note a delivery.
// It ends with its input, too, which its test holds open.
func dieNoting(dir, url, work string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	s, err := peers.New(peers.Config{Node: "alpha", DataDir: filepath.Join(dir, "alpha"), Show: peers.ShowAll,
		StorageDir: filepath.Join(dir, "storage"), RuntimeDir: filepath.Join(dir, "run")})
	if err != nil {
		return err
	}
	box, err := mail.Open(mail.Config{Path: filepath.Join(dir, "mail.db"), HubID: "hub"})
	if err != nil {
		return err
	}
	a, err := opencode.New(onServer(url, os.Getenv("OPENCODE_SERVER_PASSWORD"), work))
	if err == nil {
		err = a.Start(ctx)
	}
	if err != nil {
		return err
	}
	go func() { _ = s.Run(ctx) }()
	New(Config{Agent: a, Service: deadly{s}, Box: box}).Run(ctx)
	return errors.New("nothing was delivered")
}

func onServer(url, password, work string) opencode.Config {
	return opencode.Config{URL: url, Password: password, Workspaces: []agent.Workspace{{Name: "main", Dir: work}},
		PollInterval: 100 * time.Millisecond, HealthInterval: time.Second}
}

// deadly kills its process.
type deadly struct{ Service }

func (deadly) Settle(ctx context.Context, _ string, _ spool.Key, _ string) error {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := self.Kill(); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// realRig is a rig whose agent is a real opencode.
type realRig struct {
	*rig
	server *opencodebin.Server
	model  *stubllm.Server
	work   string
	agent  *opencode.Agent
	left   atomic.Int32 // how often something was left to a person
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

func (r *realRig) on(c *Config) { c.Agent = watched{r.agent, &r.left} }

// watched counts what is left to a person.
type watched struct {
	*opencode.Agent
	left *atomic.Int32
}

func (w watched) Visit(ctx context.Context, session string) (agent.Visit, error) {
	v, err := w.Agent.Visit(ctx, session)
	if err != nil {
		return nil, err
	}
	return watchedVisit{v, w.left}, nil
}

type watchedVisit struct {
	agent.Visit
	left *atomic.Int32
}

func (w watchedVisit) Finish(ctx context.Context, p agent.Prompt, resumed bool) error {
	decide := p.Decide
	p.Decide = func(q agent.Request) (agent.Verdict, string) {
		verdict, why := decide(q)
		if verdict == agent.Leave {
			w.left.Add(1)
		}
		return verdict, why
	}
	return w.Visit.Finish(ctx, p, resumed)
}

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

func TestOnTheRealServerANodeThatIsKilledWithAPromptOutDoesNotRepeatIt(t *testing.T) {
	r := newRealRig(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "node", r.dir, r.server.URL, r.work)
	cmd.Env = append(os.Environ(), r.server.Environ()...)
	cmd.Stderr = t.Output()
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	id := r.session("")
	r.shown(id)
	sent, _ := r.send(id, "hello once")
	select {
	case <-ended:
	case <-time.After(testLimit):
		t.Fatal("the node does not come to note a delivery")
	}
	if cmd.ProcessState.Exited() {
		t.Fatalf("the node was not killed: %v", cmd.ProcessState)
	}
	prompt := proto.PromptID(id, sender, sent)
	r.answer(id, prompt)
	if rec, err := r.peer.Outbox().Get(sender, sent); err != nil || rec.FinalStatus != "" {
		t.Fatalf("it was noted: %+v, %v", rec, err)
	}
	r.start(r.on)
	r.final(sent, proto.Delivered)
	r.rests()
	if row := r.row(id); !row.Alive {
		t.Errorf("the session is not shown again: %+v", row)
	}
	if n, _ := r.count(id, prompt); n != 1 {
		t.Errorf("it is there %d times", n)
	}
	if n := r.asked("hello once"); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
	if got := roles(r.history(id)); !slices.Equal(got, []string{"user", "assistant"}) {
		t.Errorf("the history is %q", got)
	}
}

func TestOnTheRealServerWhatWaitedForASessionIsDeliveredAfterARestart(t *testing.T) {
	r := newRealRig(t)
	r.start(r.on)
	id := r.session("")
	r.shown(id)
	// A person keeps it at work.
	r.server.Call(t, http.MethodPost, "/session/"+id+"/prompt_async", map[string]any{
		"parts": []any{map[string]any{"type": "text", "text": "work of a person GATE:person"}}}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if _, err := r.model.WaitFor(ctx, func(q stubllm.Request) bool { return strings.Contains(q.User, "GATE:person") }); err != nil {
		t.Fatalf("the person's prompt: %v", err)
	}
	sent, receipt := r.send(id, "hello later")
	if receipt != proto.Queued {
		t.Errorf("receipt %q", receipt)
	}
	r.stopTo(1) // the node
	if got := r.published(); len(got) != 0 {
		t.Errorf("shown without a node: %q", got)
	}
	r.model.Open("person")
	r.rests()
	if n := r.asked("hello later"); n != 0 {
		t.Fatal("it was delivered before the restart")
	}
	// The session rests and nothing becomes of it: it is adopted for what waits.
	r.start(r.on)
	r.final(sent, proto.Delivered)
	prompt := proto.PromptID(id, sender, sent)
	r.answer(id, prompt)
	r.rests()
	if n, _ := r.count(id, prompt); n != 1 || r.asked("hello later") != 1 {
		t.Errorf("it is there %d times, and the model was asked %d times", n, r.asked("hello later"))
	}
	if got := roles(r.history(id)); !slices.Equal(got, []string{"user", "assistant", "user", "assistant"}) {
		t.Errorf("the history is %q", got)
	}
}

// rests waits until the server works at nothing.
func (r *realRig) rests() {
	r.t.Helper()
	eventually(r.t, "rest", func() bool {
		var busy map[string]any
		return r.server.Call(r.t, http.MethodGet, "/session/status", nil, &busy) == http.StatusOK && len(busy) == 0
	})
}

// asked is how often the model was asked to answer a text.
func (r *realRig) asked(text string) int {
	return r.model.Count(func(q stubllm.Request) bool { return strings.Contains(q.User, text) })
}

func roles(list []message) (out []string) {
	for _, m := range list {
		out = append(out, m.Info.Role)
	}
	return out
}

func TestOnTheRealServerPermissionsOfAPeersTurnAreDecided(t *testing.T) {
	r := newRealRig(t)
	id := r.session("")
	for _, c := range []struct {
		name, permissions, command string
		limit                      time.Duration
		person                     string // their reply; "": there is none
		want                       string // what the model heard
	}{
		{name: "allow", command: "cat /etc/hostname >/dev/null; echo read-it", want: "tool output: read-it"},
		{name: "protected", command: "cat /etc/crontab-of-nobody 2>/dev/null; echo seen-it", person: "once", want: "tool output: seen-it"},
		{name: "ask", permissions: "ask", command: "cat /etc/hostname", limit: 200 * time.Millisecond, want: unanswered[:30]},
		{name: "deny", permissions: "deny", command: "cat /etc/hosts", want: denied[:30]},
	} {
		r.restart(r.on, func(cfg *Config) { cfg.Permissions, cfg.AskLimit = c.permissions, c.limit })
		r.shown(id)
		sent, _ := r.send(id, "TOOL:"+c.command)
		r.final(sent, proto.Delivered)
		if c.person != "" {
			var asks []struct{ ID string }
			eventually(t, c.name+": the person is asked", func() bool {
				r.server.Call(t, http.MethodGet, "/permission", nil, &asks)
				return len(asks) == 1
			})
			eventually(t, c.name+": the node leaves it", func() bool { return r.left.Load() > 0 })
			if status := r.server.Call(t, http.MethodPost, "/permission/"+asks[0].ID+"/reply", map[string]any{"reply": c.person}, nil); status != http.StatusOK {
				t.Errorf("%s: the reply: %d", c.name, status)
			}
		}
		if got := r.answer(id, proto.PromptID(id, sender, sent)); !strings.Contains(got, c.want) {
			t.Errorf("%s: the answer is %q, want %q", c.name, got, c.want)
		}
		r.rests()
	}
}
