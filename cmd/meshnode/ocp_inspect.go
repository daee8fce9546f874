package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/ocp/inspect"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/ocp"
)

// ocpInspect checks whether a provider keeps to the protocol.
func (m *Main) ocpInspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Check whether a provider keeps to the protocol",
		Long: `Meets a provider, shows who it says it is, and checks it: first by the five checks of the protocol's own suite, under their names, then by stricter ones. The program is started three times, with PATH and HOME as its whole environment; queries are sent for real, so they leave this machine if the provider sends them on.

Exit code 0: conformant, 1: not, 2: the command line is wrong.`,
		Example: "  meshnode ocp inspect http http://127.0.0.1:7700/ocp",
	}
	cmd.PersistentFlags().String("query", "", "ask for this goal first and show what comes")
	cmd.PersistentFlags().String("protocol", ocp.VersionOCP, "version to speak, which decides the family: "+ocp.VersionOCP+", "+ocp.VersionContextgraph+" …")
	cmd.PersistentFlags().Duration("timeout", 0, "longest wait for an answer to a query (default 30s)")
	cmd.PersistentFlags().Bool("json", false, "the report as one JSON object, and nothing else on stdout")
	cmd.AddCommand(m.inspectStdio(), m.inspectHTTP())
	return cmd
}

func (m *Main) inspectStdio() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "stdio -- CMD [ARG…]",
		Short:   "Check a provider that is a program",
		Example: "  meshnode ocp inspect stdio --json -- ./provider --quiet",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := m.inspectOptions(cmd)
			if err != nil {
				return err
			}
			return m.inspect(cmd, inspect.Stdio(args, options))
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the program is the program's
	return cmd
}

func (m *Main) inspectHTTP() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "http URL",
		Short:   "Check a provider at an HTTP address",
		Example: "  meshnode ocp inspect http --token-file token http://127.0.0.1:7700/ocp",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := m.inspectOptions(cmd)
			if err != nil {
				return err
			}
			if path, _ := cmd.Flags().GetString("token-file"); path != "" {
				if options.Token, err = tokenFrom("--token-file", path); err != nil {
					return cli.Exit(cli.ExitUsage, err)
				}
			}
			return m.inspect(cmd, inspect.HTTP(args[0], options))
		},
	}
	cmd.Flags().String("token-file", "", "file whose first line is the bearer token")
	return cmd
}

func (m *Main) inspectOptions(cmd *cobra.Command) (inspect.Options, error) {
	version, _ := cmd.Flags().GetString("protocol")
	if _, ok := ocp.FamilyOf(version); !ok || ocp.Answer(version) != version {
		return inspect.Options{}, cli.Usage("--protocol %s: not a version of %s or %s", version, ocp.FamilyOCP, ocp.FamilyContextgraph)
	}
	timeout, _ := cmd.Flags().GetDuration("timeout")
	if timeout < 0 || timeout > time.Hour {
		return inspect.Options{}, cli.Usage("--timeout %s: not between 0 and 1h", timeout)
	}
	goal, _ := cmd.Flags().GetString("query")
	return inspect.Options{Version: version, Goal: goal, Stderr: m.app.Stderr, Timeout: timeout}, nil
}

// inspect meets a provider, checks it and prints what came out.
func (m *Main) inspect(cmd *cobra.Command, p *inspect.Provider) error {
	if !cli.AsJSON(cmd) {
		m.meet(cmd.Context(), p)
	}
	report := p.Check(cmd.Context())
	if cli.AsJSON(cmd) {
		if err := m.app.JSONLine(report); err != nil {
			return err
		}
	} else {
		report.Write(m.app.Stdout)
	}
	if !report.Conformant() {
		return cli.Exit(cli.ExitNotDone, nil)
	}
	return nil
}

// meet shows who the provider is, and what it has for the goal. What goes wrong is said;
// the checks judge it.
func (m *Main) meet(ctx context.Context, p *inspect.Provider) {
	meeting, err := p.Meet(ctx)
	out := m.app.Stdout
	if ack := meeting.Ack; ack.ProtocolVersion != "" {
		flow := ack.Provider.DataFlow
		fmt.Fprintf(out, "provider      %s %s\n", mesh.CleanLine(ack.Provider.Name), mesh.CleanLine(ack.Provider.Version))
		fmt.Fprintf(out, "protocol      %s\n", mesh.CleanLine(ack.ProtocolVersion))
		fmt.Fprintf(out, "data flow     reads %v, writes %v, leaves this machine %v\n", flow.Reads, flow.Writes, flow.Egress)
		fmt.Fprintf(out, "kinds         %s\n", cli.Or(mesh.CleanLine(strings.Join(ack.Capabilities.Query.Kinds, " "))))
	}
	if meeting.Result != nil {
		for i := range meeting.Result.Frames {
			f := &meeting.Result.Frames[i]
			fmt.Fprintf(out, "frame         %.2f  %d tokens  %s (%s)\n", f.Score, f.TokenCost, mesh.CleanLine(f.Title), mesh.CleanLine(f.CitationLabel))
		}
	}
	if err != nil {
		fmt.Fprintln(m.app.Stderr, "meeting the provider:", err)
	}
}

// tokenFrom reads the first line of the file that a flag names.
func tokenFrom(flag, path string) (string, error) {
	line, err := cli.FirstLine(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return strings.TrimSpace(line), nil
}
