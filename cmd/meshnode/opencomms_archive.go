package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
)

func (m *Main) ocmSave() *cobra.Command {
	cmd := &cobra.Command{
		Use: "save CHANNEL", Short: "Move a channel into an archive", Args: oneChannel,
		Example: "  meshnode opencomms save review --summary 'The shop is reviewed.'",
		Long:    "Moves a channel with its members and messages into an archive in .opencomms/archives. What waits is not delivered any more. resume-session continues it in a new channel.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				c, err := caller(ctx, cmd, p, args[0])
				if err != nil {
					return err
				}
				summary, _ := cmd.Flags().GetString("summary")
				saved, err := p.SaveSession(ctx, c, engine.SaveRequest{Channel: args[0], Summary: summary})
				if err != nil {
					return err
				}
				return m.answer(cmd, saved, func(w io.Writer) {
					fmt.Fprintf(w, "saved %s with %s as %s\n", args[0], count(saved.MessageCount, "message"), saved.ArchiveID)
				})
			})
		},
	}
	asFlag(cmd, asMember)
	cmd.Flags().String("summary", "", "what was achieved, for whoever goes on")
	cli.JSONFlag(cmd)
	return cmd
}

// oneArchive is what commands about an archive take.
func oneArchive(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usage("one archive is wanted, by channel name or id; meshnode opencomms archives lists what there is")
	}
	return nil
}

func (m *Main) ocmResumeSession() *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume-session ARCHIVE", Short: "Continue an archived channel in a new one", Args: oneArchive,
		Example: "  meshnode opencomms resume-session review",
		Long:    "Makes a new, empty channel that continues an archived one, which is named by channel name or id and stays. Its name is the old one, or the old one with -r2 and so on if that is taken.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				name, _ := cmd.Flags().GetString("new-name")
				resumed, err := p.ResumeSession(ctx, engine.Caller{Operator: true}, args[0], engine.ResumeSessionRequest{NewName: name})
				if err != nil {
					return err
				}
				return m.answer(cmd, resumed, func(w io.Writer) {
					fmt.Fprintf(w, "created channel %s, which continues %s; its members must join again\n", resumed.Name, cli.Or(resumed.ArchiveName))
				})
			})
		},
	}
	cmd.Flags().String("new-name", "", "name of the new channel (default: the archived one's)")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) ocmArchives() *cobra.Command {
	cmd := &cobra.Command{
		Use: "archives [ARCHIVE]", Short: "List the archived channels, or show one", Args: cobra.MaximumNArgs(1),
		Example: "  meshnode opencomms archives",
		Long:    "Lists the archived channels, newest first. With an archive, by channel name or id, its summary is shown; with --messages, what was said in it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			messages, _ := cmd.Flags().GetBool("messages")
			if messages && len(args) == 0 {
				return cli.Usage("--messages is of one archive: name it")
			}
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				switch {
				case messages:
					return m.archivedMessages(ctx, cmd, p, args[0])
				case len(args) == 1:
					text, err := p.ArchiveContext(ctx, engine.Caller{Operator: true}, args[0])
					if err != nil {
						return err
					}
					return m.answer(cmd, text, func(w io.Writer) { lines(w, text.Context) })
				}
				list, err := p.Archives(ctx, engine.Caller{Operator: true})
				if err != nil {
					return err
				}
				return m.answer(cmd, archiveList{list}, func(w io.Writer) { printArchives(w, list) })
			})
		},
	}
	cmd.Flags().Bool("messages", false, "show the messages of the archive, newest first")
	cmd.Flags().Int("limit", 0, "how many messages, at most 500 (default 50)")
	cmd.Flags().Bool("full", false, "show long messages whole")
	cli.JSONFlag(cmd)
	return cmd
}

// archiveList is the list as the tools have it.
type archiveList struct {
	Archives []opencomms.ArchiveSummary `json:"archives"`
}

func printArchives(w io.Writer, list []opencomms.ArchiveSummary) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CHANNEL\tSAVED\tMEMBERS\tMESSAGES\tID\tSUMMARY")
	for _, a := range list {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%s\n", cli.Or(a.Name), when(a.SavedAt), a.MemberCount, a.MessageCount, cli.Or(a.ChannelID), cli.Or(a.Summary))
	}
	_ = tw.Flush()
}

func (m *Main) archivedMessages(ctx context.Context, cmd *cobra.Command, p *opencomms.Project, archive string) error {
	limit, _ := cmd.Flags().GetInt("limit")
	got, err := p.ArchiveMessages(ctx, engine.Caller{Operator: true}, archive, limit)
	if err != nil {
		return err
	}
	return m.answer(cmd, got, func(w io.Writer) {
		full, _ := cmd.Flags().GetBool("full")
		list := make([]engine.Message, len(got.Messages))
		for i, a := range got.Messages {
			list[i] = engine.Message{
				ID: a.ID, SenderRole: a.SenderRole, RecipientRole: a.RecipientRole, Type: a.Type,
				Content: a.Content, Timestamp: a.Timestamp, Hops: a.Hops, Status: a.Status,
			}
		}
		printMessages(w, list, full)
	})
}

func (m *Main) ocmDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete CHANNEL|ARCHIVE", Aliases: []string{"delete-archive"}, Short: "Delete a channel with its archive, or an archive, for good",
		Example: "  meshnode opencomms delete review --yes",
		Long:    "Deletes a channel with its messages and what is archived of it; if there is no such channel, the archive of that name or id. It asks before it does.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage("one channel or archive is wanted; meshnode opencomms channels and archives list what there is")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(ctx context.Context, p *opencomms.Project) error {
				what, err := named(ctx, p, args[0])
				if err != nil {
					return err
				}
				if err := m.sure(cmd, what); err != nil {
					return err
				}
				id, err := p.DeleteSession(ctx, engine.Caller{Operator: true}, args[0], true)
				if err != nil {
					return err
				}
				return m.answer(cmd, deleted{id}, func(w io.Writer) { fmt.Fprintf(w, "deleted %s\n", what) })
			})
		},
	}
	cmd.Flags().Bool("yes", false, "do not ask")
	cli.JSONFlag(cmd)
	return cmd
}

type deleted struct {
	ChannelID string `json:"channel_id"`
}

// named says what a name of a channel or archive stands for.
func named(ctx context.Context, p *opencomms.Project, name string) (string, error) {
	s, err := p.Read(ctx)
	if err != nil {
		return "", err
	}
	if ch := engine.Find(s, name); ch != nil {
		n := 0
		for _, row := range s.Messages.All() {
			if row.ChannelID == ch.ID {
				n++
			}
		}
		return fmt.Sprintf("channel %s with %s and %s", ch.Name, count(len(ch.Members), "member"), count(n, "message")), nil
	}
	list, err := p.Archives(ctx, engine.Caller{Operator: true})
	if err != nil {
		return "", err
	}
	for _, a := range list { // the newest of a name, as the deletion
		if strings.EqualFold(a.Name, strings.TrimSpace(name)) || a.ChannelID == strings.TrimSpace(name) {
			return fmt.Sprintf("the archive of %s (%s) with %s", cli.Or(a.Name), a.ChannelID, count(a.MessageCount, "message")), nil
		}
	}
	return "", engine.NoArchive(name)
}
