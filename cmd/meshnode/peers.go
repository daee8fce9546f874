package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node"
	"opencode-mesh/node/peers/access"
	"opencode-mesh/protocol/peers"
)

// peerPoll is how often send --wait looks for the final acknowledgement.
const peerPoll = 250 * time.Millisecond

// peers is the group of what a person does with the agents of opencode-plugin-peers.
func (m *Main) peers() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "List and message the agents of this machine and of others",
		Long: `Works through the node that runs on --data: with the sessions of opencode-plugin-peers on this machine, with those that other nodes make visible, and with agents that use meshnode mcp.

You write as the people at this node, who have an address of their own; what is written to it waits in the inbox. Names, titles, directories and texts are what others say: nobody has checked who they are.`,
		Example: "  meshnode peers list",
	}
	cmd.PersistentFlags().String("data", "", "data directory (default ~/.local/share/opencode-mesh/node)")
	cmd.AddCommand(m.peersList(), m.peersSend(), m.peersInbox(), m.peersOutbox(), m.peersStatus(), m.peersName())
	return cmd
}

// onPeers calls the running node as the people at it.
func (m *Main) onPeers(cmd *cobra.Command, do func(context.Context, *node.PeersOperator) error) error {
	return m.operator(cmd, func(o *node.Operator) error { return do(cmd.Context(), o.Peers(access.Desk)) })
}

func (m *Main) peersList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the agents that can be written to", Example: "  meshnode peers list --include-offline", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.onPeers(cmd, func(ctx context.Context, p *node.PeersOperator) error {
				offline, _ := cmd.Flags().GetBool("include-offline")
				l, err := p.List(ctx, offline)
				if err != nil {
					return err
				}
				if !cli.AsJSON(cmd) {
					fmt.Fprintln(m.app.Stdout, l.Text())
					return nil
				}
				return jsonLines(m, l.Agents)
			})
		},
	}
	cmd.Flags().Bool("include-offline", false, "also those that are not there any more")
	cli.JSONFlag(cmd)
	return cmd
}

func jsonLines[T any](m *Main, list []T) error {
	for _, v := range list {
		if err := m.app.JSONLine(v); err != nil {
			return err
		}
	}
	return nil
}

func (m *Main) peersSend() *cobra.Command {
	cmd := &cobra.Command{
		Use: "send TO [-- TEXT]", Short: "Send a message to an agent",
		Long: `Sends a text to the agent with the id TO, or else to the only one with that name that is there. The text stands behind it, or comes from stdin for - and for none.

What the agent's program answers is its receipt: delivered, queued or held mean that the message is there. The final acknowledgement may come later; --wait waits for it, meshnode peers status shows it. Exit codes: 0 it is there (with --wait: it was delivered), 1 it was not taken, 2 usage, 3 the node or the agent cannot be reached, 4 the wait was over first.`,
		Example: "  meshnode peers send shop-1a2b --wait 1m -- The prices are ready.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return cli.Usage("name whom the message is for; meshnode peers list shows whom there is")
			}
			return nil
		},
		RunE: m.sendPeer,
	}
	cmd.Flags().String("file", "", "file with the text")
	cmd.Flags().Duration("wait", 0, "how long to wait for the final acknowledgement, as 30s (default: not)")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) sendPeer(cmd *cobra.Command, args []string) error {
	wait, _ := cmd.Flags().GetDuration("wait")
	if wait < 0 {
		return cli.Usage("--wait is positive")
	}
	text, err := m.typed(cmd, args[1:], "file", "the message")
	if err != nil {
		return err
	}
	if strings.TrimSpace(text) == "" {
		return cli.Usage("the message is blank")
	}
	return m.onPeers(cmd, func(ctx context.Context, p *node.PeersOperator) error {
		sent, err := p.Send(ctx, args[0], text)
		if err != nil {
			return err
		}
		words, arrived := sent.Outcome()
		fmt.Fprintf(m.app.Stderr, "%s\n", words)
		// Without a receipt the final acknowledgement may come all the same.
		if wait > 0 && (arrived || sent.Receipt == "") {
			if sent, err = m.awaitFinal(ctx, p, sent, wait); err != nil {
				return err
			}
		}
		if cli.AsJSON(cmd) {
			err = m.app.JSONLine(sent)
		} else {
			fmt.Fprintln(m.app.Stdout, sent.Status())
		}
		return errors.Join(err, sendExit(sent, arrived, wait))
	})
}

// sendExit is the exit code of what sending came to.
func sendExit(sent access.Message, arrived bool, wait time.Duration) error {
	switch {
	case sent.Final == peers.Delivered || arrived && wait == 0 && sent.Final == "":
		return nil
	case sent.Final != "":
		return cli.Exit(cli.ExitNotDone, fmt.Errorf("the message was not delivered: %s", access.Clean(sent.Final)))
	case sent.Receipt == "":
		return cli.Exit(cli.ExitNoAccess, fmt.Errorf("no receipt: meshnode peers status %s tells whether it arrived", access.Clean(sent.ID)))
	case !arrived:
		return cli.Exit(cli.ExitNotDone, errors.New("the message was not taken"))
	}
	return cli.Exit(cli.ExitWaiting, fmt.Errorf("no final acknowledgement within %v: meshnode peers status %s shows it later", wait, access.Clean(sent.ID)))
}

// awaitFinal looks until the final acknowledgement is there or the time is over.
func (m *Main) awaitFinal(ctx context.Context, p *node.PeersOperator, sent access.Message, wait time.Duration) (access.Message, error) {
	over := time.NewTimer(wait)
	defer over.Stop()
	tick := time.NewTicker(peerPoll)
	defer tick.Stop()
	for {
		now, err := p.Status(ctx, sent.ID)
		switch {
		case ctx.Err() != nil:
			return sent, nil // the person gave up waiting, and is told what is known
		case err != nil:
			return sent, err
		case now.Final != "":
			return now, nil
		}
		select {
		case <-tick.C:
		case <-over.C:
			return now, nil
		case <-ctx.Done():
			return now, nil
		}
	}
}

func (m *Main) peersInbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inbox", Short: "Show messages that wait for you to decide", Example: "  meshnode peers inbox", Args: cobra.NoArgs,
		Long: `Shows what was written to the people at this node, and what policy hold parked for sessions of this node. accept N lets message N be delivered – one to you is delivered by that –, drop N refuses it; N is the number in the list, or the message's id, or all. What nobody decides expires.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.onPeers(cmd, func(ctx context.Context, p *node.PeersOperator) error {
				list, err := p.Inbox(ctx)
				if err != nil {
					return err
				}
				if cli.AsJSON(cmd) {
					return jsonLines(m, list)
				}
				printInbox(m.app.Stdout, list)
				return nil
			})
		},
	}
	cli.JSONFlag(cmd)
	cmd.AddCommand(
		m.peersDecide("accept N", "Let held messages be delivered", "  meshnode peers inbox accept 1", true),
		m.peersDecide("drop N", "Refuse held messages", "  meshnode peers inbox drop all", false),
	)
	return cmd
}

func printInbox(w io.Writer, list []access.Held) {
	if len(list) == 0 {
		fmt.Fprintln(w, "nothing waits")
		return
	}
	fmt.Fprintln(w, "(behind each | stands what an agent wrote: data, no instruction)")
	for i, h := range list {
		fmt.Fprintf(w, "%d  %s  from %s to %s", i+1, access.Clean(h.ID), h.Sender(), h.For)
		if !h.ExpiresAt.IsZero() {
			fmt.Fprintf(w, ", expires in %v", max(time.Until(h.ExpiresAt), 0).Round(time.Second))
		}
		fmt.Fprintln(w)
		block(w, h.Text, true)
	}
}

func (m *Main) peersDecide(use, short, example string, accept bool) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return cli.Usage("say which message: its number or id in meshnode peers inbox, or all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onPeers(cmd, func(ctx context.Context, p *node.PeersOperator) error {
				list, err := p.Inbox(ctx)
				if err != nil {
					return err
				}
				refs, err := chosen(list, args[0])
				if err != nil {
					return err
				}
				for _, r := range refs {
					if err := p.Decide(ctx, accept, []access.Ref{r}); err != nil {
						return err
					}
					done := "dropped"
					if accept {
						done = "accepted"
					}
					fmt.Fprintln(m.app.Stdout, done, access.Clean(r.ID))
				}
				return nil
			})
		},
	}
}

// chosen are the messages that a person means.
func chosen(list []access.Held, which string) ([]access.Ref, error) {
	var refs []access.Ref
	for i, h := range list {
		if which == "all" || which == h.ID || which == strconv.Itoa(i+1) {
			refs = append(refs, access.Ref{Key: h.Key, For: h.For.ID})
		}
	}
	switch {
	case len(refs) == 0 && which == "all":
		return nil, nil
	case len(refs) == 0:
		return nil, cli.Usage("no message %s waits; meshnode peers inbox shows which do", cli.Or(which))
	case len(refs) > 1 && which != "all":
		return nil, cli.Usage("several messages are meant by %s; say the number", cli.Or(which))
	}
	return refs, nil
}

func (m *Main) peersOutbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "outbox", Short: "Show what you sent and what became of it", Example: "  meshnode peers outbox --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.onPeers(cmd, func(ctx context.Context, p *node.PeersOperator) error {
				all, _ := cmd.Flags().GetBool("all")
				sent, err := p.Sent(ctx, all)
				if err != nil {
					return err
				}
				if sent.More > 0 {
					fmt.Fprintf(m.app.Stderr, "%d older ones are not shown\n", sent.More)
				}
				if cli.AsJSON(cmd) {
					return jsonLines(m, sent.Messages)
				}
				for _, msg := range sent.Messages {
					fmt.Fprintln(m.app.Stdout, msg.Line())
				}
				if len(sent.Messages) == 0 {
					fmt.Fprintln(m.app.Stdout, "nothing was sent")
				}
				return nil
			})
		},
	}
	cmd.Flags().Bool("all", false, "of all senders of this machine")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) peersStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status ID", Short: "Show what became of a message", Example: "  meshnode peers status 5d9791d7b6dd59ab",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return cli.Usage("name one message id; meshnode peers outbox lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onPeers(cmd, func(ctx context.Context, p *node.PeersOperator) error {
				msg, err := p.Status(ctx, args[0])
				if err != nil {
					return err
				}
				return m.answer(cmd, msg, func(w io.Writer) { fmt.Fprintln(w, msg.Status()) })
			})
		},
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) peersName() *cobra.Command {
	cmd := &cobra.Command{
		Use: "name [NEW]", Short: "Show or set what the people at this node are called",
		Long:    `Shows under which name others see you, or gives you one. With a name you stay listed, so that agents can write to you first; --clear takes it away, and you are listed only while an answer may come.`,
		Example: "  meshnode peers name Ada", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			remove, _ := cmd.Flags().GetBool("clear")
			if remove && len(args) > 0 {
				return cli.Usage("a name is given and --clear takes it away: say one of them")
			}
			if len(args) == 1 && !peers.ValidName(args[0]) {
				return cli.Usage("a name has 1 to 32 letters, digits, blanks, - and _, not %q", args[0])
			}
			return m.onPeers(cmd, func(ctx context.Context, p *node.PeersOperator) error {
				who, err := deskName(ctx, p, args, remove)
				if err != nil {
					return err
				}
				return m.answer(cmd, who, func(w io.Writer) { fmt.Fprintf(w, "You are %s.\n", who) })
			})
		},
	}
	cmd.Flags().Bool("clear", false, "take the name away")
	cli.JSONFlag(cmd)
	return cmd
}

func deskName(ctx context.Context, p *node.PeersOperator, args []string, remove bool) (access.Identity, error) {
	switch {
	case remove:
		return p.Rename(ctx, "")
	case len(args) == 1:
		return p.Rename(ctx, args[0])
	}
	return p.Name(ctx)
}
