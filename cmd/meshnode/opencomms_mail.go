package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

func (m *Main) ocmSend() *cobra.Command {
	cmd := &cobra.Command{
		Use: "send CHANNEL [-- TEXT]", Short: "Send a message to a member of a channel",
		Example: "  meshnode opencomms send review --to Builder -- Please look at the failing test first.",
		Long: `Queues a message. It is delivered when the member's program takes it: opencode sessions with a plugin are prompted, all others fetch it with their tool opencomms_pull. The text stands behind --, in --file, or on stdin.

As the operator you name one member with --to. As a member (--as) --broadcast sends to all others, and without --to the only other member is meant.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usage("a channel is wanted; meshnode opencomms channels lists what there is")
			}
			return nil
		},
		RunE: m.sendOCM,
	}
	f := cmd.Flags()
	asFlag(cmd, asMember)
	f.String("to", "", "the recipient, a session id or a role")
	f.Bool("broadcast", false, "to all other members")
	f.String("type", "", "manual, review_request or review_response (default manual)")
	f.String("reply-to", "", "id of the message that this one answers")
	f.String("describe", "", "what the channel is about, if it has no description yet")
	f.String("file", "", "file with the text")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) sendOCM(cmd *cobra.Command, args []string) error {
	return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
		f := cmd.Flags()
		r := engine.SendRequest{Channel: args[0]}
		r.To, _ = f.GetString("to")
		r.Broadcast, _ = f.GetBool("broadcast")
		r.Type, _ = f.GetString("type")
		r.ReplyTo, _ = f.GetString("reply-to")
		r.Description, _ = f.GetString("describe")
		if r.To != "" && r.Broadcast {
			return cli.Usage("--to and --broadcast exclude each other")
		}
		c, err := caller(ctx, cmd, p, args[0])
		if err != nil {
			return err
		}
		if c.Operator {
			if err := notAcross(ctx, p, r); err != nil {
				return err
			}
		}
		if r.Content, err = m.typed(cmd, args[1:], "file", "the message"); err != nil {
			return err
		}
		sent, err := p.Send(ctx, c, r)
		if err != nil {
			return err
		}
		roles, err := rolesIn(ctx, p, args[0])
		if err != nil {
			return err
		}
		return m.answer(cmd, sent, func(w io.Writer) {
			for i, id := range sent.MessageIDs {
				fmt.Fprintf(w, "queued %s for %s (%s)\n", id, cli.Or(roles[sent.Recipients[i]]), cli.Or(sent.Recipients[i]))
			}
		})
	})
}

// rolesIn are the roles of a channel by session id.
func rolesIn(ctx context.Context, p *opencomms.Project, channel string) (map[string]string, error) {
	s, err := p.Read(ctx)
	if err != nil {
		return nil, err
	}
	roles := map[string]string{}
	if ch := engine.Find(s, channel); ch != nil {
		for _, member := range ch.Members {
			roles[member.SessionID] = member.Role
		}
	}
	return roles, nil
}

func (m *Main) ocmInbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inbox CHANNEL", Short: "Show what waits for a member, without taking it", Args: oneChannel,
		Example: "  meshnode opencomms inbox review --as Reviewer",
		Long:    "Shows what waits for a member in all its channels. Nothing is taken, nothing changes. CHANNEL is one of the member's.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needsMember(cmd); err != nil {
				return err
			}
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				limit, _ := cmd.Flags().GetInt("limit")
				in, err := p.Inbox(ctx, c, args[0], limit)
				if err != nil {
					return err
				}
				return m.answer(cmd, in, func(w io.Writer) {
					fmt.Fprintf(w, "%s waiting\n", count(in.Pending, "message"))
					full, _ := cmd.Flags().GetBool("full")
					printMessages(w, in.Messages, full)
				})
			})
		},
	}
	asFlag(cmd, "the member, a session id or a role")
	readFlags(cmd)
	return cmd
}

func readFlags(cmd *cobra.Command) {
	cmd.Flags().Int("limit", 0, "how many messages, at most 100 (default 20)")
	cmd.Flags().Bool("full", false, "show long messages whole")
	cli.JSONFlag(cmd)
}

func (m *Main) ocmHistory() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history CHANNEL", Short: "Show what was said in a channel, newest first", Args: oneChannel,
		Example: "  meshnode opencomms history review --limit 5",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				limit, _ := cmd.Flags().GetInt("limit")
				h, err := p.History(ctx, c, args[0], limit)
				if err != nil {
					return err
				}
				return m.answer(cmd, h, func(w io.Writer) {
					full, _ := cmd.Flags().GetBool("full")
					printMessages(w, h.Messages, full)
				})
			})
		},
	}
	asFlag(cmd, asMember)
	readFlags(cmd)
	return cmd
}

// printMessages shows messages to people.
func printMessages(w io.Writer, list []engine.Message, full bool) {
	if len(list) > 0 {
		fmt.Fprintln(w, written)
	}
	for _, msg := range list {
		printMessage(w, msg, full)
	}
}

func printMessage(w io.Writer, msg engine.Message, full bool) {
	fmt.Fprintf(w, "%s  %s\n", when(msg.Timestamp), strings.Join(messageFacts(msg), "  "))
	block(w, msg.Content, full)
}

// messageFacts are what stands above a message.
func messageFacts(msg engine.Message) []string {
	who := cli.Or(msg.SenderRole)
	if msg.RecipientRole != "" {
		who += " to " + cli.Or(msg.RecipientRole)
	}
	if msg.Channel != "" {
		who += " in " + cli.Or(msg.Channel)
	}
	out := []string{who, cli.Or(msg.Type), cli.Or(msg.Status), cli.Or(msg.ID)}
	if msg.ReplyTo != nil {
		out = append(out, fmt.Sprintf("hop %d", msg.Hops), "answers "+cli.Or(*msg.ReplyTo))
	}
	return out
}

func (m *Main) ocmPull() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pull CHANNEL", Short: "Take the mail of a member, in its place", Args: oneChannel,
		Example: "  meshnode opencomms pull review --as Reviewer",
		Long:    "Takes what waits for a member in all its channels and prints it as its program would get it. It counts as delivered then: the member will not see it. To look only, use inbox. CHANNEL is one of the member's.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needsMember(cmd); err != nil {
				return err
			}
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				pulled, err := p.Pull(ctx, c)
				if err != nil {
					return err
				}
				if n := len(pulled.Messages); n > 0 {
					fmt.Fprintf(m.app.Stderr, "%s now delivered to %s, who will not see it again\n", count(n, "message"), c.Session)
				}
				if pulled.Remaining > 0 {
					fmt.Fprintf(m.app.Stderr, "%d more wait: pull again\n", pulled.Remaining)
				}
				return m.answer(cmd, pulled, func(w io.Writer) {
					if len(pulled.Messages) == 0 {
						fmt.Fprintln(w, "nothing to take")
					}
					for i, msg := range pulled.Messages {
						if i > 0 {
							fmt.Fprint(w, "\n---\n\n")
						}
						lines(w, msg.Framed)
					}
				})
			})
		},
	}
	asFlag(cmd, "the member, a session id or a role")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) ocmWatch() *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch [CHANNEL]", Short: "Show messages as they are sent and delivered, until Ctrl-C", Args: cobra.MaximumNArgs(1),
		Example: "  meshnode opencomms watch review",
		Long:    "Shows each new message of a project, or of a channel, and each change of a message's state. What was there before is not shown; history has it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				return m.watchOCM(ctx, cmd, p, strings.Join(args, ""))
			})
		},
	}
	cmd.Flags().Bool("full", false, "show long messages whole")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) watchOCM(ctx context.Context, cmd *cobra.Command, p *opencomms.Project, channel string) error {
	ctx, cancel := context.WithCancel(ctx)
	changes := p.Watch(ctx)
	defer func() { // the watch ends before the command does
		cancel()
		for range changes {
		}
	}()
	full, _ := cmd.Flags().GetBool("full")
	var known map[string]string // states by message id
	for {
		s, err := p.Read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if channel != "" && known == nil && engine.Find(s, channel) == nil {
			_, err := p.History(ctx, engine.Caller{Operator: true}, channel, 1)
			return err
		}
		names := engine.ChannelNames(s)
		now := make(map[string]string, s.Messages.Len())
		for id, row := range s.Messages.All() {
			if channel != "" && (engine.Find(s, channel) == nil || engine.Find(s, channel).ID != row.ChannelID) {
				continue
			}
			now[id] = row.Status
			if before, seen := known[id]; known == nil || seen && before == row.Status {
				continue
			} else if err := m.showRow(cmd, id, row, names[row.ChannelID], seen, full); err != nil {
				return err
			}
		}
		if known == nil {
			fmt.Fprintln(m.app.Stderr, "watching; Ctrl-C ends it")
		}
		known = now
		if _, ok := <-changes; !ok {
			return nil
		}
	}
}

// showRow shows a message, or that the state of one has changed.
func (m *Main) showRow(cmd *cobra.Command, id string, row *ocm.Envelope, channel string, seen, full bool) error {
	msg := engine.View(id, row)
	msg.Channel = channel
	return m.answer(cmd, msg, func(w io.Writer) {
		if seen {
			fmt.Fprintf(w, "%s  %s\n", cli.Or(msg.ID), cli.Or(msg.Status))
			return
		}
		printMessage(w, msg, full)
	})
}
