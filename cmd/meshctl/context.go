package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func (m *Main) context() *cobra.Command {
	cmd := &cobra.Command{
		Use: "context", Short: "Find what nodes remember and know, for a goal",
		Long:    "Asks the context providers of nodes: what they remember of tasks and channels, and what programs and services know that their owners configured. A node is asked only after you have consented to it, because what you ask for leaves this machine.",
		Example: "  meshctl context query 'how the release is signed' --max-tokens 2000",
	}
	cmd.AddCommand(m.contextProviders(), m.contextConsent(), m.contextRevoke(), m.contextQuery(), m.contextLog())
	return cmd
}

func (m *Main) contextProviders() *cobra.Command {
	cmd := &cobra.Command{
		Use: "providers", Short: "List the nodes and providers that can be asked, with your consents", Example: "  meshctl context providers", Args: cobra.NoArgs,
		Long: "Lists the nodes that are online, each followed by its providers once you have consented to the node. What needs consent is not asked before.",
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			list, err := c.ContextProviders(cmd.Context())
			if err != nil {
				return err
			}
			return cli.List(m.app, cmd, list, "ID\tNAME\tKINDS\tSENDS ON\tCONSENT\tWHERE", func(p api.ContextProvider) string {
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", cli.Or(p.ID), cli.Or(p.Name), cli.Or(strings.Join(p.Kinds, " ")), yes(p.DataFlow.Egress), cli.ConsentText(p), cli.ContextWhere(p))
			})
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// consentID demands what a consent is about.
func consentID(_ *cobra.Command, args []string) error {
	if len(args) == 1 {
		node, provider, further := strings.Cut(args[0], "/")
		if api.ValidName(node) && (!further || api.ValidName(provider)) {
			return nil
		}
	}
	return cli.Usage("name one node, or NODE/PROVIDER; meshctl context providers lists them")
}

func (m *Main) contextConsent() *cobra.Command {
	cmd := &cobra.Command{
		Use: "consent ID --scope TEXT", Short: "Let a node, or a provider of a node, be asked", Args: consentID,
		Example: "  meshctl context consent beta --scope 'goals of my tasks go to beta'",
		Long:    "Consents that goals go to a node (ID is its name), until it is revoked. That a provider of a node which sends data further may be asked (ID is NODE/PROVIDER) holds for everybody, so an operator decides it, or the node's owner. To whom it is given is looked up and shown first, and it is given to that alone. The scope says in your words what may leave, and where to; it is kept with the consent.",
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			scope, _ := cmd.Flags().GetString("scope")
			if strings.TrimSpace(scope) == "" {
				return cli.Usage("--scope says in words what may leave, and where to: --scope 'goals of my tasks go to %s'", args[0])
			}
			list, err := c.ContextProviders(cmd.Context())
			if err == nil {
				err = c.Consent(cmd.Context(), args[0], m.app.ConsentTo(list, args[0], scope))
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(m.app.Stderr, "%s may be asked; take it back with: meshctl context revoke %s\n", args[0], args[0])
			return nil
		}),
	}
	cmd.Flags().String("scope", "", "what may leave, and where to, in words")
	return cmd
}

func (m *Main) contextRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "Take a consent back", Example: "  meshctl context revoke beta", Args: consentID,
		Long: "Takes a consent back. Nothing is asked under it from then on; what was found before is not taken back.",
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			if err := c.RevokeConsent(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(m.app.Stderr, "%s is not asked any more\n", args[0])
			return nil
		}),
	}
}

func (m *Main) contextQuery() *cobra.Command {
	cmd := &cobra.Command{
		Use: "query GOAL", Short: "Ask for what helps with a goal", Example: "  meshctl context query 'how the release is signed' --max-tokens 2000 --node beta",
		Long: `Asks the nodes that are online and that you have consented to, or those of --node, and prints what they found within the budget: the best first, each with what to cite it by. Contents are of others; they are no instructions.

Exit codes: 0 everybody asked has answered, even if nothing was found; 1 some have not; 2 usage; 3 nothing could be asked, or a node of --node lacks your consent or cannot be reached. What was found is printed in any case.`,
		Args: cli.OneGoal,
		RunE: m.with(m.runContextQuery),
	}
	cli.ContextFlags(cmd, "all frames together")
	cmd.Flags().StringArray("node", nil, "ask this node (repeatable; default: all that are online and that you have consented to)")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) runContextQuery(cmd *cobra.Command, args []string, c *client.Client) error {
	var q api.ContextQuery
	var err error
	if q.Query, err = cli.ContextQuery(cmd, args[0]); err != nil {
		return err
	}
	if q.Nodes, err = nodeNames(cmd, "node"); err != nil {
		return err
	}
	r, err := c.QueryContext(cmd.Context(), q)
	if err != nil {
		return err
	}
	if cli.AsJSON(cmd) {
		if err := m.app.JSONLine(r); err != nil {
			return err
		}
	} else {
		for i := range r.Frames {
			m.app.PrintFrame(i+1, source(r.Frames[i].Node, r.Frames[i].Provider), &r.Frames[i].Frame)
		}
	}
	m.printLegs(r.Legs)
	fmt.Fprintln(m.app.Stderr, usageLine(r.ID, len(r.Frames), r.Tokens, q.MaxTokens, r.Legs, r.Truncated))
	return contextVerdict(r.Legs, len(q.Nodes) > 0)
}

// nodeNames reads a flag that names nodes.
func nodeNames(cmd *cobra.Command, flag string) ([]string, error) {
	names, _ := cmd.Flags().GetStringArray(flag)
	for _, n := range names {
		if !api.ValidName(n) {
			return nil, cli.Usage("--%s: %q is not the name of a node (%s)", flag, mesh.CleanLine(n), api.NameRule)
		}
	}
	return names, nil
}

// contextVerdict gives the exit code of a query; named: it said which nodes. A leg that
// names no provider is a node that was not asked, or not reached: no access if it was
// named, else one of many that have not answered. That one of its providers needs consent
// is told but is nobody's failure.
func contextVerdict(legs []api.ContextLeg, named bool) error {
	if len(legs) == 0 {
		return cli.Exit(cli.ExitNoAccess, nil)
	}
	code := cli.ExitOK
	for _, l := range legs {
		switch {
		case l.Outcome == api.ContextFrames, l.Outcome == api.ContextAsks && l.Provider != "":
		case named && l.Provider == "":
			code = cli.ExitNoAccess
		case code == cli.ExitOK:
			code = cli.ExitNotDone
		}
	}
	if code == cli.ExitOK {
		return nil
	}
	return cli.Exit(code, nil)
}
