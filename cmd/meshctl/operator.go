package main

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

func (m *Main) credentials() *cobra.Command {
	cmd := &cobra.Command{
		Use: "credentials", Short: "List issued credentials (operators)", Example: "  meshctl credentials", Args: cobra.NoArgs,
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			list, err := c.Credentials(cmd.Context())
			if err != nil {
				return err
			}
			return cli.List(m.app, cmd, list, "NAME\tROLE\tCREATED\tSTATE", func(cr api.Credential) string {
				state := "valid"
				if cr.RevokedAt != nil {
					state = "revoked"
				}
				return fmt.Sprintf("%s\t%s\t%s\t%s", cli.Or(cr.Name), cr.Role, cr.CreatedAt.Local().Format(time.DateTime), state)
			})
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
			last, _ := cmd.Flags().GetInt("last")
			if last < 0 {
				return cli.Usage("--last is at least 1")
			}
			q, cursor := url.Values{}, "after"
			if action, _ := cmd.Flags().GetString("action"); action != "" {
				q.Set("action", action)
			}
			if last > 0 {
				cursor = "before"
				q.Set(cursor, "")
			}
			for n := 0; ; {
				page, err := c.Audit(cmd.Context(), q)
				if err != nil {
					return err
				}
				for _, e := range page.Entries {
					if err := m.audited(cmd, e); err != nil {
						return err
					}
					if n++; n == last {
						return nil
					}
				}
				if page.Next == 0 {
					return nil
				}
				q.Set(cursor, strconv.FormatUint(page.Next, 10))
			}
		}),
	}
	cmd.Flags().String("action", "", "only entries of this action, such as dispatched or login_refused")
	cmd.Flags().Int("last", 0, "only so many entries, the newest first (default: all, the oldest first)")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) audited(cmd *cobra.Command, e api.AuditEntry) error {
	if cli.AsJSON(cmd) {
		return m.app.JSONLine(e)
	}
	_, err := fmt.Fprintf(m.app.Stdout, "%s  %-16s %s  %s  %s  %s\n",
		e.At.Local().Format(time.DateTime), cli.Or(e.Action), cli.Or(e.Actor), cli.Or(e.Peer), cli.Or(e.Object), cli.Or(e.Detail))
	return err
}
