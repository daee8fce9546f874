package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
				if err := m.warnOfRoles(cmd.Context(), l); err != nil {
					return err
				}
				return m.answer(cmd, l, func(w io.Writer) {
					fmt.Fprintf(w, "%s is linked with %s of %s\n", l.Channel, l.PeerChannel, l.Node)
					if l.State == across.LinkWaiting {
						fmt.Fprintf(w, "it opens once it was made on both sides; on %s: meshnode opencomms link %s --node %s%s\n", cli.Or(l.Node), l.PeerChannel, l.Here, otherName(l))
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

// warnOfRoles says which of the members that the other side may see are not there.
func (m *Main) warnOfRoles(ctx context.Context, l across.Link) error {
	p, err := opencomms.Open(l.Project, opencomms.Options{Log: m.app.Warnings()})
	if err != nil {
		return err
	}
	roles, err := rolesIn(ctx, p, l.Channel)
	if err != nil {
		return err
	}
	for _, role := range absent(l.Members, slices.Collect(maps.Values(roles))) {
		fmt.Fprintf(m.app.Stderr, "no member of %s here has the role %s yet; --member names those of this side\n", cli.Or(l.Channel), cli.Or(role))
	}
	return nil
}

// absent are the wanted roles that are not among those that there are.
func absent(wanted, roles []string) []string {
	return slices.DeleteFunc(slices.Clone(wanted), func(role string) bool {
		return slices.ContainsFunc(roles, func(r string) bool { return strings.EqualFold(r, role) })
	})
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

// across asks the node on a data directory about a project; nil when none runs.
func (m *Main) across(ctx context.Context, data, project string) (*across.Status, error) {
	s, err := node.NewOperator(data).Across(ctx, project)
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
// machines, as the node on data knows it.
func printAcross(w io.Writer, channel, data string, all projectStatus) {
	name, _ := ocm.NormalName(channel)
	others := func(of string) bool { return name != "" && of != name }
	s := all.Across
	roles := map[string][]string{} // by channel
	for _, ch := range all.Channels {
		foreign := false
		for _, m := range ch.Members {
			roles[ch.Name] = append(roles[ch.Name], m.Role)
			foreign = foreign || m.Host == across.Host
		}
		switch {
		case !foreign:
		case s == nil:
			fmt.Fprintf(w, "\n%s has members of other machines, and no node runs that carries their mail: none is on %s; start it with meshnode run, or name the directory of the one that runs with --data\n", cli.Or(ch.Name), data)
		case !slices.ContainsFunc(s.Links, func(l across.Link) bool { return l.Channel == ch.Name }):
			fmt.Fprintf(w, "\n%s has members of other machines, and the node on %s has no link of it; if another node carries their mail, name its directory with --data\n", cli.Or(ch.Name), data)
		}
	}
	if s == nil {
		return
	}
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
		if gone := absent(l.Members, roles[l.Channel]); len(gone) > 0 {
			fmt.Fprintf(w, "  may show them %s, a role that no member here has\n", list(gone))
		}
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
	to := ocm.Trim(r.To)
	for _, m := range ch.Members {
		if m.Host == across.Host && (strings.EqualFold(m.SessionID, to) || strings.EqualFold(m.Role, to)) {
			return cli.Usage("%s is on another machine, and what the operator sends does not go there: say --as with a member of this one", cli.Or(m.Role))
		}
	}
	return nil
}
