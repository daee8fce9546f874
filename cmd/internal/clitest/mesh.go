package clitest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub"
	"opencode-mesh/hub/client"
	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/command"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// Password is that of every hub here.
const Password = "correct horse battery staple"

// Hub is a hub on loopback, in this process, with TLS of its own.
type Hub struct {
	tb   testing.TB
	hub  *hub.Hub
	Dir  string
	Link string
	// Operator sees everything.
	Operator *client.Client
	stop     func()
}

// StartHub starts a hub that ends with the test.
func StartHub(tb testing.TB) *Hub {
	tb.Helper()
	h := &Hub{tb: tb, Dir: tb.TempDir()}
	h.start("127.0.0.1:0")
	h.Operator = h.Client(auth.EnrollLogin, api.Login{Name: "overseer", Operator: true})
	return h
}

func (h *Hub) start(listen string) {
	h.tb.Helper()
	opened, err := hub.Open(context.Background(), hub.Config{
		DataDir: h.Dir, Listen: listen, TLS: hub.TLSSelf, Password: Password, Log: slog.New(slog.DiscardHandler), Version: "test",
	})
	if err != nil {
		h.tb.Fatal(err)
	}
	h.hub, h.Link = opened, opened.JoinLink()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- opened.Serve(ctx) }()
	stopped := false
	h.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-served; err != nil {
			h.tb.Errorf("the hub ended with %v", err)
		}
	}
	h.tb.Cleanup(h.stop)
}

// Stop stops the hub.
func (h *Hub) Stop() { h.stop() }

// Restart starts a stopped hub again at the same address.
func (h *Hub) Restart() {
	h.tb.Helper()
	link, err := auth.ParseLink(h.Link)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.stop()
	h.start(link.BaseURL()[len("https://"):])
}

// Enroll gets a credential.
func (h *Hub) Enroll(path string, req api.Login) auth.Profile {
	h.tb.Helper()
	link, err := auth.ParseLink(h.Link)
	if err != nil {
		h.tb.Fatal(err)
	}
	hc, err := link.HTTPClient("")
	if err != nil {
		h.tb.Fatal(err)
	}
	defer hc.CloseIdleConnections()
	req.Password = Password
	is, err := auth.Enroll(context.Background(), hc, link, path, req)
	if err != nil {
		h.tb.Fatal(err)
	}
	return auth.NewProfile(link, "", is)
}

// Client is a client with a credential of its own.
func (h *Hub) Client(path string, req api.Login) *client.Client {
	h.tb.Helper()
	c, err := client.New(h.Enroll(path, req), "")
	if err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(c.Close)
	return c
}

// Await waits until match likes the list of nodes.
func (h *Hub) Await(what string, match func([]api.Node) bool) {
	h.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := errors.New("done")
	err := h.Operator.Events(ctx, func(api.Event) error {
		list, err := h.Operator.Nodes(ctx)
		if err == nil && match(list) {
			return done
		}
		return err
	}, nil)
	if !errors.Is(err, done) {
		h.tb.Fatalf("waited in vain for %s: %v", what, err)
	}
}

// AwaitState waits until a node is api.NodeOnline or api.NodeOffline.
func (h *Hub) AwaitState(name, state string) {
	h.tb.Helper()
	h.Await(name+" "+state, func(list []api.Node) bool {
		return slices.ContainsFunc(list, func(n api.Node) bool { return n.Name == name && n.State == state })
	})
}

// AwaitTask waits until a task is there and in a state, and returns it.
func (h *Hub) AwaitTask(id string, state api.State) (t api.Task) {
	h.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := errors.New("done")
	err := h.Operator.Events(ctx, func(api.Event) error {
		var err error
		switch t, err = h.Operator.Task(ctx, id); {
		case api.ErrorCode(err) == api.CodeUnknownTask:
			return nil // not yet
		case err == nil && t.State == state:
			return done
		}
		return err
	}, nil)
	if !errors.Is(err, done) {
		h.tb.Fatalf("task %s is %s, waited in vain for %s: %v", id, t.State, state, err)
	}
	return t
}

// Node is a node in this process.
type Node struct {
	hub            *Hub
	name           string
	cfg            node.Config
	Dir, Workspace string
	// Stop stops it.
	Stop func()
}

// StartNode joins a node and runs it with an agent until the test ends. It returns
// when the node is online.
func (h *Hub) StartNode(name string, a agent.Agent, change ...func(*node.Config)) *Node {
	h.tb.Helper()
	p := h.Enroll(auth.EnrollJoin, api.Login{Name: name})
	n := &Node{hub: h, name: name, Dir: h.tb.TempDir(), Workspace: h.tb.TempDir()}
	n.cfg = node.Config{
		DataDir: n.Dir, Profile: p, Agent: a, Version: "test",
		Workspaces: []agent.Workspace{{Name: "main", Dir: n.Workspace}},
		Backoff:    tunnel.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond, Restart: 10 * time.Millisecond},
	}
	for _, c := range change {
		c(&n.cfg)
	}
	n.start()
	return n
}

// Restart stops the node and starts it again with its directory and name.
func (n *Node) Restart() {
	n.hub.tb.Helper()
	n.Stop()
	n.start()
}

func (n *Node) start() {
	n.hub.tb.Helper()
	opened, err := node.New(n.cfg)
	if err != nil {
		n.hub.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- opened.Run(ctx) }()
	stopped := false
	n.Stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			n.hub.tb.Logf("node %s ended with %v", n.name, err)
		}
	}
	n.hub.tb.Cleanup(n.Stop)
	n.hub.AwaitState(n.name, api.NodeOnline)
}

// DemoAgent runs the demo agent as a program, under shims of the test's binary.
func DemoAgent(tb testing.TB) agent.Agent {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	a, err := command.New(command.Config{
		Command: []string{self, "demo-agent"}, ShimCommand: []string{self, "shim"}, RunsDir: filepath.Join(tb.TempDir(), "runs"),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// Agent is an agent in this process; the function answers a turn's text. It says
// that it has sessions.
type Agent func(ctx context.Context, t agent.Turn) (api.Outcome, error)

var _ agent.Agent = Agent(nil)

// Kind implements agent.Agent.
func (a Agent) Kind() string { return "opencode" }

// HasSessions implements agent.Agent.
func (a Agent) HasSessions() bool { return true }

// Start implements agent.Agent.
func (a Agent) Start(context.Context) error { return nil }

// Stop implements agent.Agent.
func (a Agent) Stop(context.Context) error { return nil }

// Status implements agent.Agent.
func (a Agent) Status(context.Context) api.AgentStatus {
	return api.AgentStatus{Kind: a.Kind(), Health: api.HealthHealthy, Version: "1.2.3"}
}

// Run implements agent.Agent.
func (a Agent) Run(ctx context.Context, t agent.Turn, _ agent.Host) (api.Outcome, error) {
	out, err := a(ctx, t)
	switch cause := context.Cause(ctx); {
	case cause == nil || err == nil:
		return out, err
	case errors.Is(cause, agent.ErrStopping):
		return out, agent.ErrDetached
	case errors.Is(cause, agent.ErrCanceled):
		return api.Outcome{State: api.StateCanceled}, nil
	}
	return out, err
}
