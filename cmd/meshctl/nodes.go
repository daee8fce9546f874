package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func (m *Main) nodes() *cobra.Command {
	cmd := &cobra.Command{
		Use: "nodes", Short: "List the nodes", Example: "  meshctl nodes --json", Args: cobra.NoArgs,
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			list, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			s := m.style()
			err = cli.List(m.app, cmd, list, "NAME\tSTATE\tPLATFORM\tAGENT\tRUNNING\tQUEUED\tCTX\tSERVICES", func(n api.Node) string {
				agent := strings.Join(strings.Fields(n.Agent.Kind+" "+n.Agent.Version+" "+n.Agent.Health), " ")
				return fmt.Sprintf("%s\t%s %s\t%s\t%s\t%d\t%d\t%s\t%s", n.Name, n.State, since(n.Since), cli.Or(n.Platform), cli.Or(agent), n.Running, n.Queued, s.ctx(n.CtxPercent), cli.Or(mesh.CleanLine(strings.Join(n.Services, ","))))
			})
			if err != nil || cli.AsJSON(cmd) {
				return err
			}
			for _, n := range list {
				for _, a := range n.Alarms {
					fmt.Fprintf(m.app.Stderr, "%s: %s\n", n.Name, mesh.CleanLine(a))
				}
				if n.State == api.NodeOnline && n.Agent.Detail != "" {
					fmt.Fprintf(m.app.Stderr, "%s: %s\n", n.Name, mesh.CleanLine(n.Agent.Detail))
				}
			}
			return nil
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

// since shows an age.
func since(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
