package link_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/node/link"
	"opencode-mesh/node/link/linktest"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// host is a node without tasks.
type host struct {
	events  chan string // what the link did, in order
	drained chan struct{}

	mu      sync.Mutex // guards the following fields
	journal string
	epoch   uint64
	agent   api.AgentStatus
	failure error // of Hello
	client  *link.Client
	changed chan struct{}
}

func newHost() *host {
	return &host{events: make(chan string, 1000), drained: make(chan struct{}), journal: "j1", agent: api.AgentStatus{Kind: "fake", Health: api.HealthHealthy}, changed: make(chan struct{})}
}

func (h *host) Hello(context.Context) (api.Hello, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure != nil {
		return api.Hello{}, h.failure
	}
	h.epoch++
	return api.Hello{Protocol: api.ProtocolVersion, JournalID: h.journal, Epoch: h.epoch, Agent: h.agent, Instance: h.instance()}, nil
}

// instance is that of the process; tests have one per host.
func (h *host) instance() string { return "process-of-" + h.journal[:1] }

func (h *host) Fork(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.journal, h.epoch = h.journal+"'", 0
	h.events <- "fork"
	return nil
}

func (h *host) Welcomed(w api.Welcome) { h.events <- "welcomed" }

func (h *host) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"node":"here"}`)) })
}

func (h *host) Attach(c *link.Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.client = c
	h.events <- "attach"
}

func (h *host) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// tell says that something changed.
func (h *host) tell() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *host) Detach() { h.events <- "detach" }

func (h *host) Report(context.Context) api.NodeReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	return api.NodeReport{Agent: h.agent, Running: 1}
}

func (h *host) Supersede()               { h.events <- "supersede" }
func (h *host) Revoke()                  { h.events <- "revoke" }
func (h *host) Drained() <-chan struct{} { return h.drained }

func (h *host) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// run is a link under test.
type run struct {
	t     *testing.T
	hub   *linktest.Hub
	host  *host
	link  *link.Link
	ended chan error
	stop  context.CancelFunc
}

// quick are waits short enough for tests.
var quick = tunnel.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond, Restart: time.Millisecond}

// start runs a link to a hub; it ends with the test.
func start(t *testing.T, hub *linktest.Hub, h *host, opts ...func(*link.Config)) *run {
	t.Helper()
	cfg := link.Config{
		Profile: hub.Profile(), Host: h, Backoff: quick, SlowRetry: time.Hour, ReportInterval: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, o := range opts {
		o(&cfg)
	}
	l, err := link.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{t: t, hub: hub, host: h, link: l, ended: make(chan error, 1), stop: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- l.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		linktest.Await(t, done, "the link to end")
	})
	return r
}

// expect waits for what the link does next.
func (r *run) expect(events ...string) {
	r.t.Helper()
	for _, want := range events {
		if got := linktest.Await(r.t, r.host.events, want); got != want {
			r.t.Fatalf("the link did %s, want %s", got, want)
		}
	}
}

// end waits for the link's error.
func (r *run) end() error {
	r.t.Helper()
	return linktest.Await(r.t, r.ended, "the link to end")
}

// state waits for a state of the link.
func (r *run) state(want string) link.Status {
	r.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		s := r.link.Status()
		if s.State == want {
			return s
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the link is %+v, want state %s", s, want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestLinkConnects(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	r := start(t, hub, newHost())
	r.expect("welcomed", "attach")
	c := linktest.Await(t, hub.Conns, "the connection")
	if c.Hello.JournalID != "j1" || c.Hello.Epoch != 1 {
		t.Fatalf("hello %+v", c.Hello)
	}
	var answer map[string]string
	if _, err := c.Call(http.MethodGet, "/v1/status", nil, &answer); err != nil || answer["node"] != "here" {
		t.Fatalf("the node answers %v, %v", answer, err)
	}
	if s := r.link.Status(); s.State != link.StateOnline || s.Name != "node" || s.HubVersion != "test" || s.Connections != 1 || s.LastError != "" {
		t.Fatalf("status %+v", s)
	}

	t.Run("again after every loss, with a greater epoch", func(t *testing.T) {
		for epoch := uint64(2); epoch < 6; epoch++ {
			hub.Cut([]tunnel.Reason{tunnel.ReasonShutdown, tunnel.ReasonLost, tunnel.ReasonNone}[epoch%3])
			r.expect("detach", "welcomed", "attach")
			if c := linktest.Await(t, hub.Conns, "the next connection"); c.Hello.Epoch != epoch {
				t.Fatalf("hello %+v, want epoch %d", c.Hello, epoch)
			}
		}
	})

	t.Run("until it is told to stop", func(t *testing.T) {
		r.stop()
		if err := r.end(); !errors.Is(err, context.Canceled) {
			t.Fatalf("ended with %v", err)
		}
		r.expect("detach")
		if s := r.link.Status(); s.State != link.StateStopped {
			t.Fatalf("status %+v", s)
		}
	})
}

func TestLinkReports(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	h := newHost()
	h.agent.Memory = 1000
	r := start(t, hub, h)
	r.expect("welcomed", "attach")

	t.Run("a change of the agent's health", func(t *testing.T) {
		h.set(func() { h.agent.Health, h.agent.Detail = api.HealthUnreachable, "connection refused" })
		if got := linktest.Await(t, hub.Reports, "a report"); got.Agent.Health != api.HealthUnreachable || got.Agent.Detail != "connection refused" || got.Running != 1 {
			t.Fatalf("report %+v", got)
		}
	})
	t.Run("not every breath of its memory", func(t *testing.T) {
		h.set(func() { h.agent.Memory = 1100 })
		h.set(func() { h.agent.Memory = 2000 })
		if got := linktest.Await(t, hub.Reports, "a report"); got.Agent.Memory != 2000 {
			t.Fatalf("report %+v", got)
		}
	})
	t.Run("that the node stops", func(t *testing.T) {
		r.link.Draining(t.Context())
		for {
			if got := linktest.Await(t, hub.Reports, "the last report"); got.Draining {
				return
			}
		}
	})
}

func TestLinkReportsAtOnceWhatTheHostSaysHasChanged(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	h := newHost()
	r := start(t, hub, h, func(c *link.Config) { c.ReportInterval = time.Hour })
	r.expect("welcomed", "attach")
	for _, health := range []string{api.HealthUnreachable, api.HealthStarting, api.HealthHealthy} {
		h.set(func() { h.agent.Health = health })
		h.tell()
		if got := linktest.Await(t, hub.Reports, "a report"); got.Agent.Health != health {
			t.Fatalf("report %+v", got)
		}
	}
	h.tell() // of nothing
	select {
	case got := <-hub.Reports:
		t.Errorf("a report without news: %+v", got)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestLinkReplacesForkedJournal(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	hub.SawEpoch("j1", 7)
	r := start(t, hub, newHost())
	r.expect("fork", "welcomed", "attach")
	c := linktest.Await(t, hub.Conns, "the connection")
	if c.Hello.JournalID != "j1'" || c.Hello.Epoch != 1 {
		t.Fatalf("hello %+v", c.Hello)
	}
	if n := len(hub.Dials()); n != 1 {
		t.Fatalf("%d tunnels, want one for both hellos", n)
	}
}

func TestLinkDoesNotReplaceJournalsWithoutEnd(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	hub.AnswerHello(func(api.Hello) *api.Error { return api.Errorf(api.CodeJournalForked, "always") })
	r := start(t, hub, newHost(), func(c *link.Config) { c.Backoff = tunnel.Backoff{Min: time.Hour, Max: time.Hour} })
	r.expect("fork", "fork")
	if s := r.state(link.StateWaiting); !strings.Contains(s.LastError, "journal_forked") {
		t.Fatalf("status %+v", s)
	}
}

func TestLinkSuperseded(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	h := newHost()
	r := start(t, hub, h)
	r.expect("welcomed", "attach")
	linktest.Await(t, hub.Conns, "the connection")

	other := newHost()
	other.journal = "k1"
	second := start(t, hub, other)
	second.expect("welcomed", "attach")
	linktest.Await(t, hub.Conns, "the second process")

	r.expect("detach", "supersede", "attach")
	d := linktest.Await(t, hub.Drains, "the drain tunnel")

	t.Run("delivers over tunnels that do not take the name, again after a loss", func(t *testing.T) {
		if err := h.client.Call(t.Context(), http.MethodPut, "/v1/tasks/t1/result", api.Result{Triple: api.Triple{Task: "t1", Attempt: 1, Turn: 1}}, nil); err != nil {
			t.Fatal(err)
		}
		if got := linktest.Await(t, hub.Results, "the result"); got.Task != "t1" {
			t.Fatalf("result %+v", got)
		}
		_ = d.Session.CloseWith(tunnel.ReasonShutdown)
		r.expect("detach", "attach")
		linktest.Await(t, hub.Drains, "the next drain tunnel")
	})

	t.Run("is left alone once it is drained, and never says hello again", func(t *testing.T) {
		hellos := len(hub.Hellos)
		close(h.drained)
		r.expect("detach")
		if s := r.state(link.StateSuperseded); s.LastError == "" {
			t.Fatalf("status %+v", s)
		}
		if n := len(hub.Hellos); n != hellos {
			t.Fatalf("%d further hellos", n-hellos)
		}
		select {
		case err := <-r.ended:
			t.Fatalf("it ended: %v", err)
		default:
		}
		if s := second.link.Status(); s.State != link.StateOnline || s.Connections != 1 {
			t.Fatalf("the second process: %+v", s)
		}
	})
}

func TestLinkEndsForGood(t *testing.T) {
	t.Run("when its credential is revoked while it is connected", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		r := start(t, hub, newHost())
		r.expect("welcomed", "attach")
		hub.Refuse(api.Errorf(api.CodeRevoked, "gone"))
		hub.Cut(tunnel.ReasonRevoked)
		if err := r.end(); !errors.Is(err, link.ErrRevoked) {
			t.Fatalf("ended with %v", err)
		}
		r.expect("detach", "revoke")
		if s := r.link.Status(); s.State != link.StateRevoked {
			t.Fatalf("status %+v", s)
		}
		if n := len(hub.Dials()); n != 1 {
			t.Fatalf("%d dials", n)
		}
	})

	t.Run("when its credential was revoked while it was away", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		r := start(t, hub, newHost())
		r.expect("welcomed", "attach")
		hub.Refuse(api.Errorf(api.CodeRevoked, "gone"))
		hub.Cut(tunnel.ReasonLost)
		if err := r.end(); !errors.Is(err, link.ErrRevoked) {
			t.Fatalf("ended with %v", err)
		}
		r.expect("detach", "revoke")
	})

	t.Run("when a drain tunnel learns of the revocation", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		r := start(t, hub, newHost())
		r.expect("welcomed", "attach")
		hub.Cut(tunnel.ReasonSuperseded)
		r.expect("detach", "supersede", "attach")
		linktest.Await(t, hub.Drains, "the drain tunnel")
		hub.Cut(tunnel.ReasonRevoked)
		if err := r.end(); !errors.Is(err, link.ErrRevoked) {
			t.Fatalf("ended with %v", err)
		}
		r.expect("detach", "revoke")
	})

	t.Run("when the first connection is refused", func(t *testing.T) {
		for code, want := range map[api.Code]error{api.CodeUnauthorized: link.ErrRefused, api.CodeForbidden: link.ErrRefused} {
			hub := linktest.New(t, tunnel.Config{})
			hub.Refuse(api.Errorf(code, "no"))
			r := start(t, hub, newHost())
			if err := r.end(); !errors.Is(err, want) {
				t.Fatalf("%s: ended with %v", code, err)
			}
			if n := len(hub.Dials()); n != 1 {
				t.Fatalf("%s: %d dials", code, n)
			}
		}
	})

	t.Run("when the hub speaks another version", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		hub.AnswerHello(func(api.Hello) *api.Error { return api.Errorf(api.CodeUnsupportedVersion, "I speak 9") })
		r := start(t, hub, newHost())
		if err := r.end(); !errors.Is(err, link.ErrVersion) || !strings.Contains(err.Error(), "I speak 9") {
			t.Fatalf("ended with %v", err)
		}
	})

	t.Run("when it meets another hub", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		hub.SetID("hub-other")
		r := start(t, hub, newHost())
		var wrong *link.WrongHubError
		if err := r.end(); !errors.As(err, &wrong) || wrong.Want != linktest.HubID || wrong.Got != "hub-other" {
			t.Fatalf("ended with %v", err)
		}
		select {
		case e := <-r.host.events:
			t.Fatalf("the link did %s with another hub", e)
		default:
		}
	})

	t.Run("when the hub's key is not the pinned one, even after it had been connected", func(t *testing.T) {
		other := httptest.NewTLSServer(http.NotFoundHandler())
		defer other.Close()
		hub := linktest.New(t, tunnel.Config{})
		r := start(t, hub, newHost(), func(c *link.Config) { pinElsewhere(t, c, hub.Profile(), other) })
		r.expect("welcomed", "attach")
		hub.Cut(tunnel.ReasonLost)
		err := r.end()
		if !errors.Is(err, auth.ErrPinMismatch) {
			t.Fatalf("ended with %v", err)
		}
	})
}

// pinElsewhere makes a link's second dial reach a server with another key than its
// profile pins.
func pinElsewhere(t *testing.T, c *link.Config, p auth.Profile, other *httptest.Server) {
	t.Helper()
	pinned, err := auth.ParseLink("mesh://" + strings.TrimPrefix(other.URL, "https://") + "?pin=sha256:" + strings.Repeat("ab", 32))
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig, err := pinned.TLSConfig("")
	if err != nil {
		t.Fatal(err)
	}
	first := true
	c.Dial = func(ctx context.Context, header http.Header, cfg tunnel.Config) (*tunnel.Session, error) {
		url, tlsCfg := p.Link.TunnelURL(), (*tls.Config)(nil)
		if !first {
			url, tlsCfg = pinned.TunnelURL(), tlsConfig
		}
		first = false
		header.Set("Authorization", "Bearer "+p.Credential.Reveal())
		return tunnel.Dial(ctx, tunnel.DialConfig{URL: url, Header: header, TLS: tlsCfg, Config: cfg})
	}
}

func TestLinkKeepsTrying(t *testing.T) {
	t.Run("slowly after a refusal, when it had been connected", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		r := start(t, hub, newHost())
		r.expect("welcomed", "attach")
		hub.Refuse(api.Errorf(api.CodeUnauthorized, "a hub that was restored"))
		hub.Cut(tunnel.ReasonLost)
		r.expect("detach")
		deadline := time.Now().Add(2 * time.Minute)
		for {
			s := r.link.Status()
			if s.State == link.StateWaiting && time.Until(s.RetryAt) > 30*time.Minute {
				if !strings.Contains(s.LastError, "a hub that was restored") {
					t.Fatalf("status %+v", s)
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("status %+v", s)
			}
			time.Sleep(time.Millisecond)
		}
		if n := len(hub.Dials()); n != 2 {
			t.Fatalf("%d dials", n)
		}
	})

	t.Run("while the hub is not ready", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		hub.Refuse(api.Errorf(api.CodeUnavailable, "starting"))
		r := start(t, hub, newHost())
		for len(hub.Dials()) < 5 {
			time.Sleep(time.Millisecond)
		}
		hub.Refuse(nil)
		r.expect("welcomed", "attach")
	})

	t.Run("while the node's own disk does not take the epoch, and proposes none", func(t *testing.T) {
		hub := linktest.New(t, tunnel.Config{})
		h := newHost()
		h.failure = errors.New("disk is full")
		r := start(t, hub, h)
		for len(hub.Dials()) < 3 {
			time.Sleep(time.Millisecond)
		}
		if len(hub.Hellos) != 0 {
			t.Fatal("it said hello")
		}
		if s := r.link.Status(); s.LastError == "" {
			t.Fatalf("status %+v", s)
		}
		h.set(func() { h.failure = nil })
		r.expect("welcomed", "attach")
	})
}

func TestNoCredentialInErrorsOrStatus(t *testing.T) {
	hub := linktest.New(t, tunnel.Config{})
	hub.Refuse(api.Errorf(api.CodeUnauthorized, "no"))
	var log strings.Builder
	r := start(t, hub, newHost(), func(c *link.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	err := r.end()
	secret := hub.Profile().Credential.Reveal()
	if strings.Contains(err.Error(), secret) || strings.Contains(r.link.Status().LastError, secret) || strings.Contains(log.String(), secret) {
		t.Fatal("the credential is in an error, the status or the log")
	}
}
