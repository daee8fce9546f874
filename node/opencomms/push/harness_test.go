package push_test

import (
	"context"
	"encoding/json"
	"errors"
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
	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/push"
	ocm "opencode-mesh/protocol/opencomms"
)

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "pusher" {
		os.Exit(child(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait; only a hang reaches it.
const patience = 2 * time.Minute

// host is an opencode whose histories are files, one for each message, so that they
// outlive the process. Safe for concurrent use.
type host struct {
	agent.Agent // none of it is used
	dir         string

	mu       sync.Mutex // guards the following fields
	sessions map[string]agent.Hosted
	plugin   string
	// pluginDir is where it is; "" is everywhere.
	pluginDir string
	busy      map[string]bool
	lanes     map[string]bool
	refuse    error // of prompts
	silent    bool  // prompts are stored and answered with an error
	down      bool  // nothing is answered
	leaves    bool  // with the next prompt it goes down
	prompts   []agent.Prompt
	resumed   []bool        // what Finish was told
	hold      chan struct{} // turns end when it is closed; nil: at once
	changed   chan struct{}
}

func newHost(dir string) *host {
	return &host{dir: dir, sessions: map[string]agent.Hosted{}, busy: map[string]bool{}, lanes: map[string]bool{}, changed: make(chan struct{})}
}

var errDown = errors.New("the server does not answer")

func (h *host) with(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
	close(h.changed)
	h.changed = make(chan struct{})
}

// until waits for a condition, which is called with mu held.
func (h *host) until(ctx context.Context, is func() bool) error {
	for {
		h.mu.Lock()
		ok, changed := is(), h.changed
		h.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *host) Hosted(_ context.Context, session string) (agent.Hosted, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return agent.Hosted{}, errDown
	}
	s, ok := h.sessions[session]
	if !ok {
		return s, agent.ErrNoSession
	}
	return s, nil
}

func (h *host) Plugin(_ context.Context, dir string, names []string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return "", errDown
	}
	if h.pluginDir != "" && h.pluginDir != dir {
		return "", nil
	}
	if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(h.plugin, n) }) {
		return h.plugin, nil
	}
	return "", nil
}

type visit struct {
	h       *host
	session string
}

func (h *host) Visit(ctx context.Context, session string) (agent.Visit, error) {
	if _, err := h.Hosted(ctx, session); err != nil {
		return nil, err
	}
	taken := false
	err := h.until(ctx, func() bool {
		taken = !h.lanes[session]
		h.lanes[session] = true
		return taken
	})
	return visit{h, session}, err
}

func (v visit) Leave() { v.h.with(func() { v.h.lanes[v.session] = false }) }

func (v visit) Idle(ctx context.Context) error {
	return v.h.until(ctx, func() bool { return !v.h.busy[v.session] })
}

func (v visit) path(key string) string { return filepath.Join(v.h.dir, v.session+"-"+key) }

func (v visit) Prompt(_ context.Context, p agent.Prompt) (err error) {
	v.h.with(func() {
		v.h.prompts = append(v.h.prompts, p)
		v.h.down = v.h.down || v.h.leaves
		if v.h.busy[v.session] {
			err = errors.New("a prompt to a busy session")
		} else if err = v.h.refuse; err == nil {
			v.h.busy[v.session] = true
		}
	})
	if err != nil {
		return err
	}
	// A message that is there stays as it is.
	if f, err := os.OpenFile(v.path(p.Key), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		_, _ = f.WriteString(p.Text)
		_ = f.Close()
	}
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	if v.h.silent {
		return errDown
	}
	return nil
}

func (v visit) Stored(_ context.Context, p agent.Prompt) (bool, error) {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	if v.h.down {
		return false, errDown
	}
	_, err := os.Stat(v.path(p.Key))
	return err == nil, nil
}

func (v visit) Finish(ctx context.Context, _ agent.Prompt, resumed bool) error {
	v.h.with(func() { v.h.resumed = append(v.h.resumed, resumed) })
	v.h.mu.Lock()
	hold := v.h.hold
	v.h.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	v.h.with(func() { v.h.busy[v.session] = false })
	return nil
}

// stored are the texts of a session's history, in any order.
func (h *host) stored(t *testing.T, session string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, session+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(data))
	}
	return out
}

// times is how often the history of a session has a message.
func (h *host) times(t *testing.T, session, id string) int {
	t.Helper()
	n := 0
	for _, text := range h.stored(t, session) {
		n += strings.Count(text, "message_id "+id+",")
	}
	return n
}

// The members of every test. Two are opencode's sessions.
const (
	builder  = "ses_builder"
	reviewer = "ses_reviewer"
)

// rig is a project with a channel and its sessions' host.
type rig struct {
	t       *testing.T
	root    string
	project *opencomms.Project
	host    *host
	log     *logged
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"project", "history"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	project, err := opencomms.Open(filepath.Join(root, "project"), opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, root: root, project: project, host: newHost(filepath.Join(root, "history")), log: &logged{}}
	for _, s := range []string{builder, reviewer} {
		r.host.sessions[s] = agent.Hosted{Dir: project.Dir()}
	}
	if _, err := project.Create(t.Context(), engine.CreateRequest{Channel: "review", RateLimit: 1000}); err != nil {
		t.Fatal(err)
	}
	r.join(builder, "Builder", ocm.ModePush)
	r.join(reviewer, "Reviewer", ocm.ModePush)
	r.pause(0)
	return r
}

func (r *rig) join(session, role, mode string) {
	r.t.Helper()
	_, err := r.project.Join(r.t.Context(), engine.JoinRequest{Channel: "review", Member: engine.NewMember{
		Session: session, Role: role, RolePrompt: "You are the " + role + ".", Host: "opencode", Surface: ocm.SurfaceCLI, Mode: mode}})
	if err != nil {
		r.t.Fatal(err)
	}
}

// pause sets how long a recipient is left alone after a delivery.
func (r *rig) pause(ms int64) {
	r.t.Helper()
	r.update(func(s *ocm.State) { ch, _ := s.Channels.Get("review"); ch.DeliveryCooldown = ms })
}

func (r *rig) update(fn func(*ocm.State)) {
	r.t.Helper()
	if err := r.project.Update(r.t.Context(), func(s *ocm.State) error { fn(s); return nil }); err != nil {
		r.t.Fatal(err)
	}
}

// send queues a message of the person for a member.
func (r *rig) send(to, content string) string {
	r.t.Helper()
	sent, err := r.project.Send(r.t.Context(), engine.Caller{Operator: true}, engine.SendRequest{Channel: "review", To: to, Content: content})
	if err != nil {
		r.t.Fatal(err)
	}
	return sent.MessageIDs[0]
}

func (r *rig) message(id string) *ocm.Envelope {
	r.t.Helper()
	s, err := r.project.Read(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	e, ok := s.Messages.Get(id)
	if !ok {
		r.t.Fatalf("%s is gone", id)
	}
	return e
}

func (r *rig) queue(session string) []string {
	r.t.Helper()
	s, err := r.project.Read(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	q, _ := s.Queues.Get(session)
	return q
}

// awaitStatus waits until a message has a status.
func (r *rig) awaitStatus(id, status string) *ocm.Envelope {
	r.t.Helper()
	r.eventually(id+" is "+status, func() bool { return r.message(id).Status == status })
	return r.message(id)
}

func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("never happened: %s\n%s", what, r.log)
		}
	}
}

func (r *rig) box() *mail.Box {
	r.t.Helper()
	box, err := mail.Open(mail.Config{Path: filepath.Join(r.root, "mail.db"), HubID: "hub", BallastBytes: 4096})
	if err != nil {
		r.t.Fatal(err)
	}
	return box
}

// config is that of a node with short times.
func (r *rig) config(box *mail.Box) push.Config {
	return push.Config{Enabled: true, Agent: r.host, Box: box, Projects: func() []string { return []string{r.project.Dir()} },
		Retry: 20 * time.Millisecond, Look: 50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(r.log, nil))}
}

// start runs a Pusher until stop is called, or the end of the test.
func (r *rig) start(change ...func(*push.Config)) (p *push.Pusher, stop func()) {
	r.t.Helper()
	box := r.box()
	cfg := r.config(box)
	for _, fn := range change {
		fn(&cfg)
	}
	p = push.New(cfg)
	return p, r.run(p, box)
}

// run does that with a Pusher that is made already.
func (r *rig) run(p *push.Pusher, box *mail.Box) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			<-ended
			if err := box.Close(); err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(stop)
	return stop
}

// logged collects log lines.
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

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
