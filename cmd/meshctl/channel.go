package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

func (m *Main) channel() *cobra.Command {
	cmd := &cobra.Command{Use: "channel", Short: "Look into the OpenComms channels of nodes (operators)", Example: "  meshctl channel list beta"}
	cmd.AddCommand(m.channelList(), m.channelShow())
	return cmd
}

// theNode demands so many arguments, of which the first is a node.
func theNode(n int, usage string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n || !api.ValidName(args[0]) {
			return cli.Usage("%s", usage)
		}
		return nil
	}
}

func (m *Main) channelList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list NODE", Short: "List the channels that a node shows", Example: "  meshctl channel list beta",
		Args: theNode(1, "name one node"),
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			list, err := c.Channels(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, p := range list.Problems {
				fmt.Fprintf(m.app.Stderr, "%s: %s\n", cli.Or(p.Project), cli.Or(p.Message))
			}
			if list.More {
				fmt.Fprintf(m.app.Stderr, "%s has more channels than are listed\n", args[0])
			}
			return cli.List(m.app, cmd, list.Channels, "ID\tPROJECT\tCHANNEL\tMEMBERS\tMESSAGES\tWAITING\tLAST", func(ch api.Channel) string {
				var members []string
				for _, m := range ch.Members {
					members = append(members, m.Role)
				}
				last := "-"
				if ch.LastAt != nil {
					last = since(*ch.LastAt)
				}
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", cli.Or(ch.ID), cli.Or(ch.Project), cli.Or(ch.Name), cli.Or(strings.Join(members, ", ")), ch.Messages, ch.Waiting, last)
			})
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) channelShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NODE ID", Short: "Print the newest messages of a channel", Example: "  meshctl channel show beta 5f70bf18a086.review",
		Long: "Prints the newest messages of a channel, the last one at the end. What its members wrote stands behind a bar.",
		Args: theNode(2, "name one node and the id of a channel; meshctl channel list NODE shows them"),
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			limit, _ := cmd.Flags().GetInt("limit")
			if limit < 1 || limit > api.MaxChannelPage {
				return cli.Usage("--limit is from 1 to %d", api.MaxChannelPage)
			}
			page, err := c.ChannelMessages(cmd.Context(), args[0], args[1], limit, "")
			if err != nil {
				return err
			}
			for _, msg := range slices.Backward(page.Messages) {
				if cli.AsJSON(cmd) {
					if err := m.app.JSONLine(msg); err != nil {
						return err
					}
					continue
				}
				m.printMessage(msg)
			}
			return nil
		}),
	}
	cmd.Flags().Int("limit", api.DefaultChannelPage, "at most so many messages")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) printMessage(msg api.ChannelMessage) {
	out := m.app.Stdout
	fmt.Fprintf(out, "%s  %s -> %s  %s  %s\n", msg.At.Local().Format(time.DateTime), cli.Or(msg.From), cli.Or(msg.To), cli.Or(msg.Type), cli.Or(msg.Status))
	for line := range strings.Lines(msg.Content) {
		fmt.Fprintf(out, "  | %s\n", cli.Indented(strings.TrimRight(line, "\r\n")))
	}
	if msg.Truncated {
		fmt.Fprintln(out, "  (cut: the rest is in the file at the node)")
	}
}
