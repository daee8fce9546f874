package mail_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/auth"
	meshhub "opencode-mesh/hub"
	meshnode "opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

const password = "correct horse battery staple"

// idle is an agent without work.
type idle struct{}

func (idle) Kind() string                { return "idle" }
func (idle) HasSessions() bool           { return false }
func (idle) Start(context.Context) error { return nil }
func (idle) Stop(context.Context) error  { return nil }
func (idle) Run(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
	return api.Outcome{State: api.StateDone}, nil
}

func (idle) Status(context.Context) api.AgentStatus {
	return api.AgentStatus{Kind: "idle", Health: api.HealthHealthy}
}

// serve runs a hub on an address until stop is called.
func serve(t *testing.T, dir, listen string) (h *meshhub.Hub, stop func()) {
	t.Helper()
	h, err := meshhub.Open(t.Context(), meshhub.Config{
		DataDir: dir, Listen: listen, TLS: meshhub.TLSOff, Password: password, Log: slog.New(slog.DiscardHandler), Version: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the hub ended with %v", err)
		}
	}
	t.Cleanup(stop)
	return h, stop
}

// join makes the profile of a node.
func join(t *testing.T, h *meshhub.Hub, name string) auth.Profile {
	t.Helper()
	body, err := json.Marshal(api.Login{Name: name, Password: password, Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post(h.URL()+"/v1/join", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var is api.Issued
	if err := json.NewDecoder(resp.Body).Decode(&is); err != nil || is.Credential == "" {
		t.Fatalf("join: %d %v", resp.StatusCode, err)
	}
	link, err := auth.ParseLink(h.JoinLink())
	if err != nil {
		t.Fatal(err)
	}
	return auth.Profile{Link: link, HubID: is.HubID, IdentityID: is.IdentityID, Name: is.Name, Role: is.Role, Credential: auth.Secret(is.Credential)}
}

// machine is a node with an application on its box.
type machine struct {
	node *meshnode.Node
	app  *app
	stop func()
}

func launch(t *testing.T, p auth.Profile, dir string) *machine {
	t.Helper()
	n, err := meshnode.New(meshnode.Config{
		DataDir: dir, Profile: p, Agent: idle{}, Version: "test",
		Backoff: tunnel.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond, Restart: time.Millisecond},
		Mail:    mail.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond, BallastBytes: -1},
		Log:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{node: n, app: &app{}}
	n.Mail().Handle("test.", m.app)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stopped := false
	m.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended with %v", p.Name, err)
		}
	}
	t.Cleanup(m.stop)
	return m
}

// send puts a text into the outbox.
func (m *machine) send(t *testing.T, to, text string) {
	t.Helper()
	box := m.node.Mail()
	err := box.Update(t.Context(), func(tx *mail.Tx) error {
		return box.Send(tx, api.Mail{ID: mail.NewID(), Kind: "test.text", To: to, Lane: "lane", Body: fmt.Appendf(nil, "%q", text)})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTwoNodesAndAHubThatIsStoppedInTheMiddle sends both ways over real tunnels while
// hub and nodes come and go.
func TestTwoNodesAndAHubThatIsStoppedInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	h, stopHub := serve(t, filepath.Join(dir, "hub"), "127.0.0.1:0")
	alpha, beta := join(t, h, "alpha"), join(t, h, "beta")
	a := launch(t, alpha, filepath.Join(dir, "alpha"))
	var want []string
	say := func(n int) {
		for range n {
			text := fmt.Sprint(len(want))
			want = append(want, fmt.Sprintf("%q", text))
			a.send(t, "beta", text)
		}
	}
	say(10) // beta was never there
	b := launch(t, beta, filepath.Join(dir, "beta"))
	say(10)
	b.send(t, "alpha", "back")
	b.send(t, "beta", "to myself")
	address := strings.TrimPrefix(h.URL(), "http://")
	if _, _, err := net.SplitHostPort(address); err != nil {
		t.Fatal(err)
	}
	stopHub()
	say(10)
	b.stop()
	_, _ = serve(t, filepath.Join(dir, "hub"), address)
	say(10)
	b = launch(t, beta, filepath.Join(dir, "beta"))
	say(10)

	at := func(m *machine) *node { return &node{w: &world{t: t}, box: m.node.Mail()} }
	eventually(t, "all of them", func() bool { return len(at(b).got()["alpha/lane"]) >= len(want) })
	if got := at(b).got(); !slices.Equal(got["alpha/lane"], want) || !slices.Equal(got["beta/lane"], []string{`"to myself"`}) {
		t.Errorf("beta got %v", got)
	}
	eventually(t, "the receipts", func() bool { return a.node.Mail().Snapshot().Waiting+b.node.Mail().Snapshot().Waiting == 0 })
	settled := at(a).settled()
	if len(settled) != len(want) {
		t.Errorf("%d receipts of %d mails", len(settled), len(want))
	}
	for id, receipts := range settled {
		if receipts != "delivered ;" {
			t.Errorf("%s: %q", id, receipts)
		}
	}
	if got := at(a).got(); !slices.Equal(got["beta/lane"], []string{`"back"`}) {
		t.Errorf("alpha got %v", got)
	}
}
