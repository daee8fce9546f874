package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/hub/client/forward"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// defaultService is what NODE alone means.
const defaultService = api.ServiceOpencode

// countersEvery is how often the traffic counters are shown anew.
const countersEvery = time.Second

func (m *Main) forward() *cobra.Command {
	return &cobra.Command{
		Use:   "forward NODE[/SERVICE] [ADDR]",
		Short: "Serve a service of a node on a local port",
		Long: `Serves a node's service (opencode unless named) on a port of this machine until Ctrl-C, and prints its address. Any number of connections may use it; after a restart of hub or node it goes on by itself.

ADDR is PORT or 127.0.0.1:PORT; a free port is taken without it. An http service answers to localhost, 127.0.0.1 and [::1] only, and not to pages of other origins. A tcp:// service is a raw stream per connection. Other users of this machine can use the port too.`,
		Example: "  meshctl forward beta/opencode 4096",
		Args:    cobra.RangeArgs(1, 2),
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			addr := ""
			if len(args) > 1 {
				addr = args[1]
			}
			return m.serve(cmd, c, args[0], addr, service{}, nil)
		}),
	}
}

// service says how a command wants its service.
type service struct {
	httpOnly bool
	password string
	// quiet leaves the terminal to somebody else.
	quiet bool
}

// serve forwards a service until ctx ends or beside, which gets the local address,
// returns an error or asks for the end with errDone.
func (m *Main) serve(cmd *cobra.Command, c *client.Client, target, addr string, want service, beside func(ctx context.Context, url string) error) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	node, info, err := findService(ctx, c, target)
	switch {
	case err != nil:
		return err
	case want.httpOnly && info.Kind == api.ServiceTCP:
		return cli.Usage("service %s of %s is a raw stream: use meshctl forward %s", info.Name, node, target)
	}
	if info.Policy != "" {
		fmt.Fprintf(m.app.Stderr, "node %s has the policy %s: its %s can be read, and whatever would change something is refused; dispatch a task instead\n",
			node, mesh.CleanLine(info.Policy), mesh.CleanLine(info.Name))
	}
	l, err := forward.Listen(addr)
	if errors.Is(err, forward.ErrListen) {
		return err
	} else if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	svc, err := c.Service(node, info.Name)
	if err != nil {
		_ = l.Close()
		return err
	}
	defer svc.Close()
	view := &trafficView{app: m.app, counters: m.app.StderrTerminal && !want.quiet}
	cfg := forward.Config{Service: svc, TCP: info.Kind == api.ServiceTCP, Password: want.password}
	if !want.quiet {
		cfg.Report = view.report
	}
	f := forward.New(l, cfg)
	view.traffic = f.Traffic()
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	if !want.quiet {
		fmt.Fprintln(m.app.Stdout, "forwarding", f.URL())
	}
	return settle(ctx, cancel, served, view, func(ctx context.Context) error {
		if beside == nil {
			return nil
		}
		return beside(ctx, f.URL())
	})
}

// errDone asks for the end of a forward from beside it.
var errDone = errors.New("done")

// settle waits for the end of a forward and of what runs beside it. Ctrl-C is the
// normal end.
func settle(ctx context.Context, cancel context.CancelFunc, served <-chan error, view *trafficView, beside func(context.Context) error) error {
	shown := make(chan struct{})
	go func() { defer close(shown); view.run(ctx) }()
	ended := make(chan error, 1)
	go func() {
		err := beside(ctx)
		if err != nil {
			cancel()
		}
		ended <- err
	}()
	err := <-served
	cancel()
	<-shown
	if besideErr := <-ended; besideErr != nil && !errors.Is(besideErr, errDone) {
		err = besideErr
	}
	return err
}

// findService resolves NODE[/SERVICE].
func findService(ctx context.Context, c *client.Client, target string) (node string, info api.ServiceInfo, err error) {
	node, name, named := strings.Cut(target, "/")
	if !named {
		name = defaultService
	}
	if !api.ValidName(node) || name == "" {
		return "", info, cli.Usage("%q is not NODE or NODE/SERVICE", target)
	}
	list, err := c.Services(ctx, node)
	if err != nil {
		return "", info, err
	}
	var names []string
	for _, s := range list {
		if s.Name == name {
			return node, s, nil
		}
		names = append(names, mesh.CleanLine(s.Name))
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "", info, cli.Usage("node %s exposes no service: start it with --service NAME=URL", node)
	}
	return "", info, cli.Usage("node %s has no service %q; it has %s", node, name, strings.Join(names, ", "))
}
