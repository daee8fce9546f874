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

// defaultContextLog is how many queries are listed.
const defaultContextLog = 20

// source is a provider by what it is called in a consent.
func source(node, provider string) string {
	switch {
	case node == "":
		return mesh.CleanLine(provider)
	case provider == "":
		return mesh.CleanLine(node)
	}
	return mesh.CleanLine(node + "/" + provider)
}

// printLegs says what was not asked or did not count, and what to do.
func (m *Main) printLegs(legs []api.ContextLeg) {
	if len(legs) == 0 {
		fmt.Fprintln(m.app.Stderr, "nobody was asked: no node that is online has your consent; see meshctl context providers, then: meshctl context consent NODE --scope TEXT")
	}
	for _, l := range legs {
		who, why := source(l.Node, l.Provider), mesh.CleanLine(l.Error)
		if why != "" {
			why = ": " + why
		}
		switch l.Outcome {
		case api.ContextFrames:
			if why == "" {
				continue
			}
			why = "some of it does not count" + why
		case api.ContextAsks:
			why = "not asked, nothing was sent" + why + "; consent with: meshctl context consent " + who + " --scope TEXT"
		case api.ContextLiar:
			why = fmt.Sprintf("nothing of it counts: it gave %d tokens, more than it was asked for", l.Claimed)
		case api.ContextFlood:
			why = "nothing of it counts: it gave more frames than it was asked for"
		default:
			why = "failed" + why
		}
		fmt.Fprintf(m.app.Stderr, "%s: %s\n", cli.Or(who), why)
	}
}

// usageLine is what a query cost.
func usageLine(id string, frames int, tokens uint64, most uint32, legs []api.ContextLeg, truncated bool) string {
	answered := 0
	for _, l := range legs {
		if l.Outcome == api.ContextFrames {
			answered++
		}
	}
	more := ""
	if truncated {
		more = "; more was found than the budget takes"
	}
	return fmt.Sprintf("context: %s, %d of %d tokens, %s; query %s%s", counted(frames, "frame"), tokens, most, counted(answered, "provider"), mesh.CleanLine(id), more)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (m *Main) contextLog() *cobra.Command {
	cmd := &cobra.Command{
		Use: "log", Short: "List the queries of late, what they cost and where they went", Example: "  meshctl context log --limit 5", Args: cobra.NoArgs,
		Long: "Lists queries newest first: yours, or everybody's for operators. --json has the legs and what was cited, too; contents are not kept.",
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			limit, err := cli.Bounded(cmd, "limit", api.MaxContextQueries)
			if err != nil {
				return err
			}
			r, err := c.ContextQueries(cmd.Context(), int(limit))
			if err != nil {
				return err
			}
			err = cli.List(m.app, cmd, r.Queries, "WHEN\tBY\tTOKENS\tFRAMES\tPROVIDERS\tTASKS\tGOAL", func(q api.ContextRecord) string {
				return fmt.Sprintf("%s\t%s\t%d/%d\t%d\t%s\t%s\t%s", q.At.Local().Format(time.DateTime), cli.Or(q.Asker.Name), q.Tokens, q.MaxTokens, len(q.Frames), legsText(q.Legs), cli.Or(strings.Join(q.Tasks, " ")), cli.Or(mesh.CutSummary(q.Goal)))
			})
			if err == nil && r.More {
				fmt.Fprintln(m.app.Stderr, "there are more; --limit shows them")
			}
			return err
		}),
	}
	cmd.Flags().Int("limit", defaultContextLog, "at most so many queries")
	cli.JSONFlag(cmd)
	return cmd
}

// legsText names who was asked, with what went wrong.
func legsText(legs []api.ContextLeg) string {
	parts := make([]string, len(legs))
	for i, l := range legs {
		parts[i] = source(l.Node, l.Provider)
		if l.Outcome != api.ContextFrames {
			parts[i] += " (" + mesh.CleanLine(l.Outcome) + ")"
		}
	}
	return cli.Or(strings.Join(parts, " "))
}
