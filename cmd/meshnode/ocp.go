package main

import "github.com/spf13/cobra"

// ocp is the group of what concerns context: providers of it and hosts that ask them.
func (m *Main) ocp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ocp",
		Short: "Context for tasks, by the Open Context Protocol",
		Long: `Works with providers of context that speak the Open Context Protocol (ocp/1) or its successor, the Context Graph Protocol (contextgraph/1): programs on stdio, or HTTP addresses.

A query that leaves this machine needs your consent first; every HTTP address counts as leaving it.`,
		Example: "  meshnode ocp inspect stdio -- ./provider",
	}
	cmd.AddCommand(m.ocpInspect(), m.ocpServe(), m.ocpProviders(), m.ocpConsent(), m.ocpRevoke(), m.ocpQuery())
	return cmd
}
