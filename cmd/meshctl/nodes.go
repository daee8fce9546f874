package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
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
			if cli.AsJSON(cmd) {
				for _, n := range list {
					if err := jsonLine(m.app.Stdout, n); err != nil {
						return err
					}
				}
				return nil
			}
			s := m.style()
			w := tabwriter.NewWriter(m.app.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSTATE\tPLATFORM\tAGENT\tRUNNING\tQUEUED\tCTX")
			for _, n := range list {
				agent := strings.TrimSpace(n.Agent.Kind + " " + mesh.CleanLine(n.Agent.Version) + " " + n.Agent.Health)
				fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%d\t%d\t%s\n", n.Name, n.State, since(n.Since), or(n.Platform, "-"), or(agent, "-"), n.Running, n.Queued, s.ctx(n.CtxPercent))
			}
			if err := w.Flush(); err != nil {
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

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func (m *Main) watch() *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch", Short: "Show live events", Example: "  meshctl watch --json", Args: cobra.NoArgs,
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			return m.follow(cmd, func(fn func(api.Event) error, lost func(error)) error {
				return c.Events(cmd.Context(), fn, lost)
			})
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

// follow prints events until Ctrl-C, which is the normal end of watching.
func (m *Main) follow(cmd *cobra.Command, run func(func(api.Event) error, func(error)) error) error {
	s, plain := m.style(), !cli.AsJSON(cmd)
	err := run(func(e api.Event) error {
		if !plain {
			if e.Type == api.EventBeat {
				return nil
			}
			return jsonLine(m.app.Stdout, struct {
				ID   string          `json:"id,omitempty"`
				Type string          `json:"type"`
				Data json.RawMessage `json:"data"`
			}{e.ID, e.Type, e.Data})
		}
		at := time.Now().Format("15:04:05")
		switch e.Type {
		case api.EventTask:
			var t api.Task
			if err := json.Unmarshal(e.Data, &t); err != nil {
				return err
			}
			fmt.Fprintf(m.app.Stdout, "%s  %s -> %s  %s  %s  %s\n", at, t.Controller, t.Target, s.state(t.State), t.Task, headline(t))
		case api.EventNode:
			var n api.Node
			if err := json.Unmarshal(e.Data, &n); err != nil {
				return err
			}
			fmt.Fprintf(m.app.Stdout, "%s  node %s  %s  %s\n", at, n.Name, n.State, n.Agent.Health)
		case api.EventResync:
			fmt.Fprintf(m.app.Stderr, "%s  some events were missed\n", at)
		}
		return nil
	}, func(err error) { fmt.Fprintf(m.app.Stderr, "connection lost, trying again: %v\n", err) })
	if cmd.Context().Err() != nil {
		return nil
	}
	return err
}

func (m *Main) credentials() *cobra.Command {
	cmd := &cobra.Command{
		Use: "credentials", Short: "List issued credentials (operators)", Example: "  meshctl credentials", Args: cobra.NoArgs,
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			list, err := c.Credentials(cmd.Context())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(m.app.Stdout, 0, 0, 2, ' ', 0)
			if !cli.AsJSON(cmd) {
				fmt.Fprintln(w, "NAME\tROLE\tCREATED\tSTATE")
			}
			for _, cr := range list {
				if cli.AsJSON(cmd) {
					if err := jsonLine(m.app.Stdout, cr); err != nil {
						return err
					}
					continue
				}
				state := "valid"
				if cr.RevokedAt != nil {
					state = "revoked"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cr.Name, cr.Role, cr.CreatedAt.Local().Format(time.DateTime), state)
			}
			return w.Flush()
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) revoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME", Short: "Revoke a node or controller at once (operators)", Example: "  meshctl revoke old-laptop", Args: cobra.ExactArgs(1),
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			if !api.ValidName(args[0]) {
				return cli.Usage("a name is %s", api.NameRule)
			}
			if err := c.Revoke(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(m.app.Stderr, "%s is revoked\n", args[0])
			return nil
		}),
	}
}

func (m *Main) audit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Print the audit log (operators)", Example: "  meshctl audit --json", Args: cobra.NoArgs,
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			for after := uint64(0); ; {
				page, err := c.Audit(cmd.Context(), after)
				if err != nil {
					return err
				}
				for _, e := range page.Entries {
					if cli.AsJSON(cmd) {
						if err := jsonLine(m.app.Stdout, e); err != nil {
							return err
						}
						continue
					}
					fmt.Fprintf(m.app.Stdout, "%s  %-16s %s  %s  %s  %s\n", e.At.Local().Format(time.DateTime), e.Action, or(e.Actor, "-"), or(e.Peer, "-"), mesh.CleanLine(e.Object), mesh.CleanLine(e.Detail))
				}
				if page.Next == 0 {
					return nil
				}
				after = page.Next
			}
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}
