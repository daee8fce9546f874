package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node"
	"opencode-mesh/protocol/api"
)

func (m *Main) ocpProviders() *cobra.Command {
	cmd := &cobra.Command{
		Use: "providers", Short: "List the node's providers of context, with your consents", Example: "  meshnode ocp providers", Args: cobra.NoArgs,
		Long: "Meets the providers of the node that runs here and lists who they say they are, what they do with data, and what you consented to. They are not told of any goal.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.operator(cmd, func(o *node.Operator) error {
				list, err := o.ContextProviders(cmd.Context())
				if err != nil {
					return err
				}
				return cli.List(m.app, cmd, list.Providers, "PROVIDER\tCALLS ITSELF\tKINDS\tDATA\tCONSENT\tWHERE", providerRow)
			})
		},
	}
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

func providerRow(p api.ContextProvider) string {
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", cli.Or(p.ID), cli.Or(strings.TrimSpace(p.Name+" "+p.Version)), cli.Or(strings.Join(p.Kinds, " ")),
		cli.FlowText(p.DataFlow), cli.ConsentText(p), cli.ContextWhere(p))
}

// oneProvider demands the name of a provider.
func oneProvider(_ *cobra.Command, args []string) error {
	if len(args) != 1 || !api.ValidName(args[0]) {
		return cli.Usage("name one provider; meshnode ocp providers lists them")
	}
	return nil
}

func (m *Main) ocpConsent() *cobra.Command {
	cmd := &cobra.Command{
		Use: "consent NAME --scope TEXT", Short: "Let a provider that sends data off this machine be asked", Args: oneProvider,
		Example: "  meshnode ocp consent issues --scope 'goals of tasks go to example.com'",
		Long: `Consents that a provider of the node may have queries, whoever asks them, until it is revoked. It is looked up and shown first, and the consent holds for that alone: if what it calls itself, its address, its command or the program's file, or what it does with data changes, it is not asked before you consent again.

--scope says in your words what may leave, and where to; it is kept with the consent.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, _ := cmd.Flags().GetString("scope")
			if strings.TrimSpace(scope) == "" {
				return cli.Usage("--scope says in words what may leave, and where to")
			}
			return m.operator(cmd, func(o *node.Operator) error {
				list, err := o.ContextProviders(cmd.Context())
				if err == nil {
					err = o.Consent(cmd.Context(), args[0], m.app.ConsentTo(list.Providers, args[0], scope))
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(m.app.Stderr, "%s may be asked; take it back with: meshnode ocp revoke %s\n", args[0], args[0])
				return nil
			})
		},
	}
	dataFlag(cmd)
	cmd.Flags().String("scope", "", "what may leave, and where to, in words")
	return cmd
}

func (m *Main) ocpRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Take the consent to a provider back", Example: "  meshnode ocp revoke issues", Args: oneProvider,
		Long: "Takes a consent back. Once this command is done, nothing is sent to the provider any more; a query that was under way is broken off.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.operator(cmd, func(o *node.Operator) error {
				if err := o.RevokeConsent(cmd.Context(), args[0]); err != nil {
					return err
				}
				fmt.Fprintf(m.app.Stderr, "%s is not asked any more\n", args[0])
				return nil
			})
		},
	}
	dataFlag(cmd)
	return cmd
}

func (m *Main) ocpQuery() *cobra.Command {
	cmd := &cobra.Command{
		Use: "query GOAL", Short: "Ask the node's providers of context", Example: "  meshnode ocp query 'how the release is signed' --max-tokens 2000",
		Long: `Asks the providers of the node that runs here, its memory first, and prints what each has found. Every provider has the whole budget; meshctl context query merges what several nodes find under one. Contents are of others; they are no instructions.

Exit codes: 0 everybody who may be asked has answered, even if nothing was found; 1 some have failed; 2 usage. What was found is printed in any case.`,
		Args: cli.OneGoal,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := cli.ContextQuery(cmd, args[0])
			if err != nil {
				return err
			}
			return m.operator(cmd, func(o *node.Operator) error {
				a, err := o.QueryContext(cmd.Context(), q)
				if err != nil {
					return err
				}
				return m.printContext(cmd, a)
			})
		},
	}
	dataFlag(cmd)
	cli.ContextFlags(cmd, "the frames of a provider")
	cli.JSONFlag(cmd)
	return cmd
}

// printContext shows what each provider found: the frames, and what went wrong beside
// them. As JSON each provider is a line.
func (m *Main) printContext(cmd *cobra.Command, a api.ContextAnswer) error {
	failed, shown := false, 0
	for i := range a.Legs {
		l := &a.Legs[i]
		failed = failed || l.Outcome != api.ContextFrames && l.Outcome != api.ContextAsks
		if cli.AsJSON(cmd) {
			if err := m.app.JSONLine(l); err != nil {
				return err
			}
			continue
		}
		for j := range l.Result.Frames {
			shown++
			m.app.PrintFrame(shown, l.Provider, &l.Result.Frames[j])
		}
		note := fmt.Sprintf("%s: %d frames, %d tokens, %d ms", cli.Or(l.Provider), l.Used, l.Tokens, l.TookMS)
		if l.Outcome != api.ContextFrames {
			note = cli.Or(l.Provider) + ": " + cli.Or(strings.ReplaceAll(l.Outcome, "_", " "))
		}
		if l.Result.Truncated {
			note += ", there was more"
		}
		if l.Error != "" {
			note += ": " + cli.Or(l.Error)
		}
		if l.Outcome == api.ContextAsks {
			note += fmt.Sprintf(" (meshnode ocp consent %s --scope …)", cli.Or(l.Provider))
		}
		fmt.Fprintln(m.app.Stderr, note)
	}
	if failed {
		return cli.Exit(cli.ExitNotDone, nil)
	}
	return nil
}
