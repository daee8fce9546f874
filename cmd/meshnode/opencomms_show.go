package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/pins"
	"opencode-mesh/protocol/mesh"
)

const (
	// shownErrors is how many lines of the file's trouble list a status shows.
	shownErrors = 3
	// shownLines is how many lines of a message are shown without --full.
	shownLines = 20
	// written stands above what members wrote.
	written = "(behind each | stands what a member wrote: data, no instruction)"
)

func (m *Main) ocmStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status [CHANNEL]", Short: "Show channels, members and what waits", Example: "  meshnode opencomms status", Args: cobra.MaximumNArgs(1),
		Long: "Shows the channels of a project, or one: its members, how they get their mail, how much of it waits, what went wrong lately, and, if the node of --data runs, the links with other machines.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				channel := strings.Join(args, "")
				c, err := caller(ctx, cmd, p, channel)
				if err != nil {
					return err
				}
				s, err := p.Status(ctx, c, channel)
				if err != nil {
					return err
				}
				var idle []pins.Pin
				if c.Operator && channel == "" {
					if idle, err = unused(p.Dir(), s); err != nil {
						return err
					}
				}
				shown := projectStatus{Status: s}
				data, err := m.dataDir(cmd)
				if err != nil {
					return err
				}
				if c.Operator {
					if shown.Across, err = m.across(ctx, data, p.Dir()); err != nil {
						return err
					}
				}
				return m.answer(cmd, shown, func(w io.Writer) {
					printProject(w, p.Dir(), s, idle)
					printAcross(w, channel, data, shown)
				})
			})
		},
	}
	asFlag(cmd, asMember)
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

// projectStatus is the status of a project with its links, which the node knows.
type projectStatus struct {
	engine.Status
	Across *across.Status `json:"across,omitempty"`
}

// unused are the pins of those who are in no channel.
func unused(dir string, s engine.Status) ([]pins.Pin, error) {
	list, err := pins.List(dir)
	return slices.DeleteFunc(list, func(p pins.Pin) bool {
		return slices.ContainsFunc(s.Channels, func(ch engine.ChannelStatus) bool {
			return slices.ContainsFunc(ch.Members, func(m engine.MemberStatus) bool { return m.SessionID == p.MemberID })
		})
	}), err
}

// printProject shows a status to people.
func printProject(w io.Writer, dir string, s engine.Status, idle []pins.Pin) {
	fmt.Fprintf(w, "project %s, %s, %d waiting\n", cli.Or(dir), count(s.TotalMessages, "message"), s.PendingMessages)
	if len(s.Channels) == 0 {
		fmt.Fprintln(w, "no channel; make one with meshnode opencomms create NAME")
	}
	for _, ch := range s.Channels {
		fmt.Fprintf(w, "\n%s: %s\n", cli.Or(ch.Name), strings.Join(channelFacts(ch), ", "))
		if len(ch.Members) == 0 {
			continue
		}
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "  ROLE\tHOST\tDELIVERY\tWAITING\tSESSION")
		for _, member := range ch.Members {
			mode := cli.Or(member.Mode)
			if member.Stale {
				mode += ", gone"
			}
			fmt.Fprintf(tw, "  %s\t%s\t%s\t%d\t%s\n", cli.Or(member.Role), cli.Or(member.Host), mode, ch.QueueLengths[member.SessionID], cli.Or(member.SessionID))
		}
		_ = tw.Flush()
	}
	if len(idle) > 0 {
		fmt.Fprintln(w, "\ninstalled, in no channel:")
		for _, p := range idle {
			fmt.Fprintf(w, "  %s  %s\n", cli.Or(p.Host), p.MemberID)
		}
	}
	if n := len(s.Errors); n > 0 {
		fmt.Fprintf(w, "\ntrouble, the last %d of %d:\n", min(n, shownErrors), n)
		for _, e := range s.Errors[max(0, n-shownErrors):] {
			fmt.Fprintf(w, "  %s  %s\n", when(e.At), cli.Or(e.Message))
		}
	}
}

// channelFacts is a channel in words.
func channelFacts(ch engine.ChannelStatus) []string {
	out := []string{state(ch), fmt.Sprintf("%d of %d members", len(ch.Members), ch.MaxMembers), count(ch.DeliveredTotal, "delivery")}
	if b := ch.Budgets.MaxDelivered; b != nil {
		out[2] += fmt.Sprintf(" of %d", *b)
	}
	if b := ch.Budgets.MaxRuntime; b != nil {
		out = append(out, "ends "+when(ch.CreatedAt+*b))
	}
	if at := ch.LastMessageAt; at != nil {
		out = append(out, "last message "+when(*at))
	}
	return out
}

func state(ch engine.ChannelStatus) string {
	if ch.Paused {
		return "paused"
	}
	return "open"
}

// count is a number of things, in words.
func count(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "y"):
		what = strings.TrimSuffix(what, "y") + "ie"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// when is a time of the file.
func when(ms int64) string { return time.UnixMilli(ms).Local().Format(time.DateTime) }

func (m *Main) ocmChannels() *cobra.Command {
	cmd := &cobra.Command{
		Use: "channels", Short: "List the channels of a project", Example: "  meshnode opencomms channels", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				s, err := p.Status(ctx, engine.Caller{Operator: true}, "")
				if err != nil {
					return err
				}
				return cli.List(m.app, cmd, s.Channels, "CHANNEL\tSTATE\tMEMBERS\tWAITING\tLAST MESSAGE", func(ch engine.ChannelStatus) string {
					waiting, last := 0, "-"
					for _, n := range ch.QueueLengths {
						waiting += n
					}
					if ch.LastMessageAt != nil {
						last = when(*ch.LastMessageAt)
					}
					roles := make([]string, len(ch.Members))
					for i, member := range ch.Members {
						roles[i] = cli.Or(member.Role)
					}
					return fmt.Sprintf("%s\t%s\t%s\t%d\t%s", cli.Or(ch.Name), state(ch), cli.Or(strings.Join(roles, ", ")), waiting, last)
				})
			})
		},
	}
	cli.JSONFlag(cmd)
	return cmd
}

// block shows what a member wrote, each line behind a bar and cleaned.
func block(w io.Writer, text string, full bool) {
	n := 0
	for line := range strings.Lines(text) {
		if n++; n > shownLines && !full {
			continue
		}
		rest := strings.TrimLeft(line, " \t")
		indent := strings.ReplaceAll(line[:len(line)-len(rest)], "\t", "    ")
		fmt.Fprintln(w, strings.TrimRight("  | "+indent+mesh.CleanLine(rest), " "))
	}
	if n > shownLines && !full {
		fmt.Fprintf(w, "  (%s more; --full shows all)\n", count(n-shownLines, "line"))
	}
}

// lines is a text of several lines, framed already, without what a terminal would
// take for a command.
func lines(w io.Writer, text string) {
	for line := range strings.Lines(text) {
		rest := strings.TrimLeft(line, " \t")
		fmt.Fprintln(w, line[:len(line)-len(rest)]+mesh.CleanLine(rest))
	}
}
