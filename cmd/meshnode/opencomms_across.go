package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/auth/local"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

func (m *Main) ocmLink() *cobra.Command {
	cmd := &cobra.Command{
		Use: "link CHANNEL", Short: "Join a channel with one of another node", Args: oneChannel,
		Example: "  meshnode opencomms link review --node beta",
		Long: `Joins a channel of this project with a channel of another node of the mesh, by way of the hub. The same has to be done on the other machine; until then nothing travels.

Then the members of each side appear in the other's channel, as ROLE-NODE, and are written to like all others. --member shows only some of this side's members to the other. The node of this machine has to run.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r := across.LinkRequest{Channel: args[0]}
			r.Node, _ = cmd.Flags().GetString("node")
			r.As, _ = cmd.Flags().GetString("as")
			r.Members, _ = cmd.Flags().GetStringArray("member")
			if r.Node == "" {
				return cli.Usage("--node names the other node; meshctl nodes lists them")
			}
			var err error
			if r.Project, err = m.projectDir(cmd); err != nil {
				return err
			}
			return m.operator(cmd, func(o *node.Operator) error {
				l, err := o.Link(cmd.Context(), r)
				if err != nil {
					return err
				}
				return m.answer(cmd, l, func(w io.Writer) {
					fmt.Fprintf(w, "%s is linked with %s of %s\n", l.Channel, l.PeerChannel, l.Node)
					if l.State == across.LinkWaiting {
						fmt.Fprintf(w, "it waits for the other side: meshnode opencomms link %s --node %s%s\n", l.PeerChannel, l.Here, otherName(l))
					}
				})
			})
		},
	}
	cmd.Flags().String("node", "", "name of the other node")
	cmd.Flags().String("as", "", "name of the channel over there (default: the same)")
	cmd.Flags().StringArray("member", nil, "role that the other side may see (repeatable; default: all)")
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

// otherName is --as for the other machine, if the channels have different names.
func otherName(l across.Link) string {
	if l.Channel == l.PeerChannel {
		return ""
	}
	return " --as " + l.Channel
}

func (m *Main) ocmUnlink() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unlink CHANNEL", Short: "End the link of a channel with one of another node", Args: oneChannel,
		Example: "  meshnode opencomms unlink review --node beta",
		Long:    "Ends a link: the members of the other side leave the channel. What is under way still arrives or comes back; what waits for them and was not sent is told to its senders.",
		RunE: func(cmd *cobra.Command, args []string) error {
			r := across.UnlinkRequest{Channel: args[0]}
			r.Node, _ = cmd.Flags().GetString("node")
			if r.Node == "" {
				return cli.Usage("--node names the other node; meshnode opencomms links lists what there is")
			}
			var err error
			if r.Project, err = m.projectDir(cmd); err != nil {
				return err
			}
			return m.operator(cmd, func(o *node.Operator) error {
				l, err := o.Unlink(cmd.Context(), r)
				if err != nil {
					return err
				}
				return m.answer(cmd, l, func(w io.Writer) {
					fmt.Fprintf(w, "%s is no longer linked with %s of %s\n", l.Channel, l.PeerChannel, l.Node)
				})
			})
		},
	}
	cmd.Flags().String("node", "", "name of the other node")
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) ocmLinks() *cobra.Command {
	cmd := &cobra.Command{
		Use: "links", Short: "List the links of this node's channels", Example: "  meshnode opencomms links", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.operator(cmd, func(o *node.Operator) error {
				list, err := o.Links(cmd.Context())
				if err != nil {
					return err
				}
				return cli.List(m.app, cmd, list, "CHANNEL\tNODE\tCHANNEL THERE\tSTATE\tMEMBERS\tUNDER WAY\tPROJECT", func(l across.Link) string {
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", cli.Or(l.Channel), cli.Or(l.Node), cli.Or(l.PeerChannel), l.State, seated(l), l.Under, cli.Or(l.Project))
				})
			})
		},
	}
	dataFlag(cmd)
	cli.JSONFlag(cmd)
	return cmd
}

// seated is how many members of the other side are in the channel.
func seated(l across.Link) (n int) {
	for _, p := range l.Proxies {
		if p.InChannel {
			n++
		}
	}
	return n
}

// across asks the node of --data about a project; nil when none runs.
func (m *Main) across(ctx context.Context, cmd *cobra.Command, project string) (*across.Status, error) {
	dir, err := m.dataDir(cmd)
	if err != nil {
		return nil, err
	}
	s, err := node.NewOperator(dir).Across(ctx, project)
	if errors.Is(err, local.ErrNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// shownMessages is how many messages to other machines a status shows.
const shownMessages = 10

// printAcross shows what a project, or one channel of it, has to do with other
// machines.
func printAcross(w io.Writer, channel string, all projectStatus) {
	name, _ := ocm.NormalName(channel)
	others := func(of string) bool { return name != "" && of != name }
	if all.Across == nil {
		for _, ch := range all.Channels {
			if slices.ContainsFunc(ch.Members, func(m engine.MemberStatus) bool { return m.Host == across.Host }) {
				fmt.Fprintf(w, "\n%s has members of other machines, and no node runs that carries their mail: meshnode run\n", cli.Or(ch.Name))
			}
		}
		return
	}
	s := all.Across
	for _, l := range s.Links {
		if others(l.Channel) {
			continue
		}
		state := l.State
		if l.State == across.LinkWaiting {
			state = "waiting: not linked over there yet"
		}
		fmt.Fprintf(w, "\n%s is linked with %s of %s: %s\n", cli.Or(l.Channel), cli.Or(l.PeerChannel), cli.Or(l.Node), state)
		if l.Trouble != "" {
			fmt.Fprintf(w, "  trouble: %s\n", cli.Or(l.Trouble))
		}
		fmt.Fprintf(w, "  shows them %s\n", list(l.Shown))
		for _, p := range l.Proxies {
			if p.InChannel {
				fmt.Fprintf(w, "  %s stands for their %s\n", cli.Or(p.Role), cli.Or(p.PeerRole))
			} else {
				fmt.Fprintf(w, "  their %s is not in the channel: %s\n", cli.Or(p.PeerRole), across.Absence(p.Code))
			}
		}
		if n := l.Incoming; n > 0 {
			fmt.Fprintf(w, "  %s from there to be put into the channel", waits(n))
			if l.WaitsFor != "" {
				fmt.Fprintf(w, ": %s", l.WaitsFor)
			}
			fmt.Fprintln(w)
		}
	}
	messages := slices.DeleteFunc(slices.Clone(s.Messages), func(m across.Message) bool { return others(m.Channel) })
	if n := len(messages); n > 0 {
		fmt.Fprintf(w, "\nsent to other machines, the last %d of %d:\n", min(n, shownMessages), n)
		for _, msg := range messages[max(0, n-shownMessages):] {
			fmt.Fprintf(w, "  %s  %s to %s: %s", when(msg.AtMS), cli.Or(msg.ID), cli.Or(msg.To), msg.State)
			if msg.Reason != "" {
				fmt.Fprintf(w, ", %s", msg.Reason)
			}
			fmt.Fprintln(w)
		}
	}
	for _, o := range s.Offers {
		if others(o.Channel) {
			continue
		}
		as := ""
		if o.Channel != o.PeerChannel {
			as = " --as " + o.PeerChannel
		}
		fmt.Fprintf(w, "\n%s offers channel %s with %s: meshnode opencomms link %s --node %s%s\n", cli.Or(o.Node), cli.Or(o.PeerChannel), list(o.Roles), cli.Or(o.Channel), cli.Or(o.Node), as)
	}
}

func waits(n int) string {
	if n == 1 {
		return "1 message waits"
	}
	return fmt.Sprintf("%d messages wait", n)
}

// list are roles in words.
func list(roles []string) string {
	shown := make([]string, len(roles))
	for i, r := range roles {
		shown[i] = cli.Or(r)
	}
	if len(shown) == 0 {
		return "nobody"
	}
	return strings.Join(shown, ", ")
}

// notAcross refuses what the operator sends to a member of another machine: over there
// nobody stands for the person here.
func notAcross(ctx context.Context, p *opencomms.Project, r engine.SendRequest) error {
	s, err := p.Read(ctx)
	if err != nil {
		return err
	}
	ch := engine.Find(s, r.Channel)
	if ch == nil {
		return nil // the rules refuse the channel
	}
	for _, m := range ch.Members {
		if m.Host == across.Host && (strings.EqualFold(m.SessionID, r.To) || strings.EqualFold(m.Role, r.To)) {
			return cli.Usage("%s is on another machine, and what the operator sends does not go there: say --as with a member of this one", cli.Or(m.Role))
		}
	}
	return nil
}
