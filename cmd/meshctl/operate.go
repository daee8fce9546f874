package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// operation makes the command of an operation on a session.
func (m *Main) operation(op, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: op + " TARGET", Short: short, Example: "  meshctl session " + op + " beta", Args: oneTarget,
		Long: long + " What was dispatched before comes first, what is dispatched after waits for it. Exit codes are those of dispatch.",
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error { return m.operate(cmd, c, op, args[0]) }),
	}
	sessionFlags(cmd)
	cmd.Flags().Duration("timeout", 0, "how long to wait for its end (default: no limit)")
	cmd.Flags().Bool("detach", false, "do not wait for its end")
	if op == api.OpClear {
		cmd.Flags().Bool("yes", false, "do not ask")
	}
	return cmd
}

func (m *Main) operate(cmd *cobra.Command, c *client.Client, op, target string) error {
	controller, workspace, err := place(cmd)
	if err != nil {
		return err
	}
	timeout, _ := cmd.Flags().GetDuration("timeout")
	if timeout < 0 {
		return cli.Usage("--timeout must be positive")
	}
	if op == api.OpClear {
		if err := m.sure(cmd, c, controller, target, workspace); err != nil {
			return err
		}
	}
	o := api.Operate{ID: mesh.NewID(c.Name()), Workspace: workspace}
	ctx, cancel := within(cmd.Context(), timeout)
	defer cancel()
	t, err := c.Operate(ctx, controller, target, op, o)
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return mayBeTaken(cmd.Context(), err, o.ID)
	case err != nil:
		return err
	}
	if detach, _ := cmd.Flags().GetBool("detach"); detach {
		return m.printOne(cmd, t)
	}
	return m.waitFor(cmd, c, []api.Task{t}, timeout)
}

// sure asks before something is deleted. Who cannot be asked must have said yes.
func (m *Main) sure(cmd *cobra.Command, c *client.Client, controller, target, workspace string) error {
	if yes, _ := cmd.Flags().GetBool("yes"); yes {
		return nil
	}
	if !m.app.StdinTerminal {
		return cli.Usage("clear deletes the session for good: say --yes where nobody can be asked; nothing was done")
	}
	s, err := c.Session(cmd.Context(), controller, target, workspace)
	if err != nil {
		return err
	}
	return m.app.Ask(cmd.Context(), fmt.Sprintf("Delete session %s of %s on %s, workspace %s, for good?", sessionID(s), cli.Or(s.Controller), cli.Or(s.Target), cli.Or(s.Workspace)))
}
