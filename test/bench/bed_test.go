// Package bench measures a whole fleet in one process: hub, nodes with journals
// and controllers over real sockets, with fsync on. Every figure is printed with
// its ratio to a floor measured in the same run, because only ratios carry over to
// another machine.
package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub"
	"opencode-mesh/hub/client"
	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

const password = "only for this benchmark"

// instant is an agent in this process that answers at once. It has nothing that
// could run twice, so it makes nothing durable before it starts.
type instant struct{}

func (instant) Kind() string                { return "instant" }
func (instant) HasSessions() bool           { return false }
func (instant) Start(context.Context) error { return nil }
func (instant) Stop(context.Context) error  { return nil }
func (instant) Status(context.Context) api.AgentStatus {
	return api.AgentStatus{Kind: "instant", Health: api.HealthHealthy}
}
func (instant) Run(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
	return api.Outcome{State: api.StateDone, Summary: "ok"}, nil
}

// bed is a hub with nodes and controllers.
type bed struct {
	tb      testing.TB
	dir     string
	hub     *hub.Hub
	stopHub func()
	names   []string
	clients []*client.Client
}

var quiet = slog.New(slog.DiscardHandler)

func newBed(tb testing.TB, tls string, nodes, controllers int) *bed {
	tb.Helper()
	f := &bed{tb: tb, dir: tb.TempDir()}
	f.startHub(tls, "127.0.0.1:0")
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		f.names = append(f.names, name)
		f.startNode(name, instant{})
	}
	for i := range controllers {
		f.clients = append(f.clients, f.controller(fmt.Sprintf("c%d", i)))
	}
	f.awaitOnline(nodes)
	return f
}

func (f *bed) startHub(tls, listen string) {
	f.tb.Helper()
	h, err := hub.Open(context.Background(), hub.Config{DataDir: filepath.Join(f.dir, "hub"), Listen: listen, TLS: tls, Password: password, Log: quiet})
	if err != nil {
		f.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx) }()
	f.hub = h
	var once sync.Once
	f.stopHub = func() { once.Do(func() { cancel(); <-done }) }
	f.tb.Cleanup(f.stopHub)
}

func (f *bed) link() auth.Link {
	f.tb.Helper()
	l, err := auth.ParseLink(f.hub.JoinLink())
	if err != nil {
		f.tb.Fatal(err)
	}
	return l
}

func (f *bed) enroll(path, name string) auth.Profile {
	f.tb.Helper()
	l := f.link()
	hc, err := l.HTTPClient("")
	if err != nil {
		f.tb.Fatal(err)
	}
	defer hc.CloseIdleConnections()
	is, err := auth.Enroll(context.Background(), hc, l, path, api.Login{Name: name, Password: password})
	if err != nil {
		f.tb.Fatal(err)
	}
	return auth.NewProfile(l, "", is)
}

func (f *bed) startNode(name string, a agent.Agent) {
	f.tb.Helper()
	n, err := node.New(node.Config{
		DataDir: filepath.Join(f.dir, name), Profile: f.enroll(auth.EnrollJoin, name), Agent: a, MaxParallel: 64,
		Workspaces: []agent.Workspace{{Name: "main", Dir: f.dir}}, Log: quiet,
	})
	if err != nil {
		f.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	f.tb.Cleanup(func() { cancel(); <-done })
}

func (f *bed) controller(name string) *client.Client {
	f.tb.Helper()
	c, err := client.New(f.enroll(auth.EnrollLogin, name), "")
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(c.Close)
	return c
}

func (f *bed) awaitOnline(want int) {
	f.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		list, err := f.clients[0].Nodes(context.Background())
		if err != nil {
			f.tb.Fatal(err)
		}
		online := 0
		for _, n := range list {
			if n.State == api.NodeOnline {
				online++
			}
		}
		if online == want {
			return
		}
		if time.Now().After(deadline) {
			f.tb.Fatalf("%d of %d nodes are online", online, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// floor is one fdatasync of a 2 KiB append, measured for d.
func floor(tb testing.TB, d time.Duration) (perSecond float64) {
	tb.Helper()
	f, err := os.Create(filepath.Join(tb.TempDir(), "floor"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 2048)
	n, start := 0, time.Now()
	for time.Since(start) < d {
		if _, err := f.Write(buf); err != nil {
			tb.Fatal(err)
		}
		if err := datasync(f); err != nil {
			tb.Fatal(err)
		}
		n++
	}
	return float64(n) / time.Since(start).Seconds()
}
