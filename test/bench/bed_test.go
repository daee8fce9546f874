// Package bench measures a whole fleet with fsync on: a hub process, a process
// with the nodes and their journals, and the controllers here, over real sockets.
// Every figure is printed with its ratio to a floor measured in the same run,
// because only ratios carry over to another machine.
package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/client"
	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// Variables with which the test binary is started again as the nodes' process.
const (
	nodesVar = "BENCH_NODES" // names
	linkVar  = "BENCH_LINK"
	dirVar   = "BENCH_DIR"
)

func TestMain(m *testing.M) {
	if names := os.Getenv(nodesVar); names != "" {
		if err := serveNodes(strings.Fields(names), os.Getenv(linkVar), os.Getenv(dirVar)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if role := os.Getenv(roleVar); role != "" {
		if err := serveRole(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	debug.SetGCPercent(400) // the load is not what is measured
	fleet.Main(m)
}

// serveNodes runs nodes with the instant agent until stdin ends, which it does
// with the process that started this one.
func serveNodes(names []string, link, dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, len(names))
	for _, name := range names {
		n, err := newNode(link, dir, name, instant{})
		if err != nil {
			return err
		}
		go func() { ended <- n.Run(ctx) }()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	for range names {
		<-ended
	}
	return nil
}

func newNode(link, dir, name string, a agent.Agent) (*node.Node, error) {
	p, err := enroll(link, auth.EnrollJoin, name)
	if err != nil {
		return nil, err
	}
	return node.New(node.Config{
		DataDir: filepath.Join(dir, name), Profile: p, Agent: a, MaxParallel: 64,
		Workspaces: []agent.Workspace{{Name: "main", Dir: dir}}, Log: quiet,
	})
}

func enroll(link, path, name string) (auth.Profile, error) {
	l, err := auth.ParseLink(link)
	if err != nil {
		return auth.Profile{}, err
	}
	hc, err := l.HTTPClient("")
	if err != nil {
		return auth.Profile{}, err
	}
	defer hc.CloseIdleConnections()
	is, err := auth.Enroll(context.Background(), hc, l, path, api.Login{Name: name, Password: fleet.Password})
	return auth.NewProfile(l, "", is), err
}

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
	fleet   *fleet.Fleet
	names   []string
	clients []*client.Client
}

var quiet = slog.New(slog.DiscardHandler)

// newBed starts a hub, as its service file does, and nodes with the instant agent.
func newBed(tb testing.TB, tls string, nodes, controllers int) *bed {
	tb.Helper()
	b := &bed{tb: tb, dir: tb.TempDir()}
	b.fleet = fleet.New(tb, "--tls", tls, "--log-level", "error")
	b.fleet.Hub.Kill()
	b.fleet.Hub.Env = []string{"GOGC=400", "GOMEMLIMIT=1GiB"}
	b.fleet.Hub.Start()
	for i := range nodes {
		b.names = append(b.names, fmt.Sprintf("n%d", i))
	}
	if nodes > 0 {
		b.startNodes()
	}
	for i := range controllers {
		b.clients = append(b.clients, b.controller(fmt.Sprintf("c%d", i)))
	}
	b.awaitOnline(nodes)
	return b
}

// startNodes starts this binary again as the nodes' process.
func (b *bed) startNodes() {
	b.tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), nodesVar+"="+strings.Join(b.names, " "), linkVar+"="+b.fleet.Hub.Link, dirVar+"="+b.dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
}

// startNode runs one node with an agent in this process.
func (b *bed) startNode(name string, a agent.Agent) {
	b.tb.Helper()
	n, err := newNode(b.fleet.Hub.Link, b.dir, name, a)
	if err != nil {
		b.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	b.tb.Cleanup(func() { cancel(); <-done })
}

func (b *bed) controller(name string) *client.Client {
	b.tb.Helper()
	p, err := enroll(b.fleet.Hub.Link, auth.EnrollLogin, name)
	if err != nil {
		b.tb.Fatal(err)
	}
	c, err := client.New(p, "")
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(c.Close)
	return c
}

func (b *bed) awaitOnline(want int) {
	b.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		list, err := b.clients[0].Nodes(context.Background())
		if err != nil {
			b.tb.Fatal(err)
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
			b.tb.Fatalf("%d of %d nodes are online", online, want)
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
