package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	ocm "opencode-mesh/protocol/opencomms"
)

// maxTyped is how many bytes a message or role prompt may have on stdin or in a
// file; what the rules allow is less.
const maxTyped = 4 * ocm.MaxContent

// opencomms is the group of what a person does with the channels of a project.
func (m *Main) opencomms() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "opencomms",
		Short: "The channels through which the agents of a project talk",
		Long: `Works on the channels of a project, which stand in .opencomms/state.json of its directory: no node has to run and no hub is needed, and other programs may use the file at the same time. Agents take part by the tools of meshnode mcp; install-member sets that up.

Whoever types these commands is the operator: sends as "operator", sees everything and may change everything. --as acts as a member instead, with a member's rights. Role prompts become instructions of an agent, so nobody but the operator and the member itself can set them, and what you write there should be yours.

The project is the directory that has .opencomms, the current one or the nearest above it; without one, the root of the git repository, else the current directory. --project names another.`,
		Example: "  meshnode opencomms status",
	}
	cmd.PersistentFlags().String("project", "", "directory of the project (default: the nearest one that has .opencomms)")
	cmd.AddCommand(
		m.ocmStatus(), m.ocmChannels(), m.ocmWatch(),
		m.ocmCreate(), m.ocmJoin(), m.ocmLeave(), m.ocmKick(), m.ocmUpdateRole(), m.ocmPause(), m.ocmResume(), m.ocmTimer(),
		m.ocmSend(), m.ocmInbox(), m.ocmPull(), m.ocmHistory(),
		m.ocmSave(), m.ocmResumeSession(), m.ocmArchives(), m.ocmDelete(),
		m.ocmInstall(), m.ocmRemoveMember(),
		m.ocmLink(), m.ocmUnlink(), m.ocmLinks(),
	)
	return cmd
}

// asFlag adds --as.
func asFlag(cmd *cobra.Command, usage string) { cmd.Flags().String("as", "", usage) }

const asMember = "act as this member, a session id or a role (default: as the operator)"

// projectDir is the directory of the project that a command is about.
func (m *Main) projectDir(cmd *cobra.Command) (string, error) {
	if dir, _ := cmd.Flags().GetString("project"); dir != "" {
		return filepath.Abs(dir)
	}
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("project: %w", err)
	}
	dir := nearest(here)
	if dir != here {
		fmt.Fprintln(m.app.Stderr, "project", dir)
	}
	return dir, nil
}

// nearest is the first directory, from dir upwards, that has a state directory of
// OpenComms; without one the root of the repository, else dir.
func nearest(dir string) string {
	for _, name := range []string{statefile.Dir, statefile.LegacyDir, ".git"} {
		for at := dir; ; at = filepath.Dir(at) {
			if _, err := os.Stat(filepath.Join(at, name)); err == nil {
				return at
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return dir
}

// onProject opens the project of a command and does something with it.
func (m *Main) onProject(cmd *cobra.Command, do func(context.Context, *opencomms.Project) error) error {
	dir, err := m.projectDir(cmd)
	if err != nil {
		return err
	}
	p, err := opencomms.Open(dir, opencomms.Options{Log: m.app.Warnings()})
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	return explain(do(cmd.Context(), p))
}

// explain gives an error of the project its exit code, and a refusal the words
// that help a person on.
func explain(err error) error {
	var refusal *engine.Refusal
	var locked *statefile.LockedError
	switch {
	case errors.As(err, &refusal):
		text := fmt.Sprintf("refused, %s: %s", refusal.Code, cli.Or(refusal.Message))
		if hint := hints[refusal.Code]; hint != "" {
			text += "; " + hint
		}
		return cli.Exit(refusalExit(refusal.Code), errors.New(text))
	case errors.As(err, &locked):
		return cli.Exit(cli.ExitNoAccess, err)
	}
	return err
}

// hints are the commands that help after a refusal whose own words name none.
var hints = map[engine.Code]string{
	engine.ChannelMissing:     "meshnode opencomms channels lists what there is",
	engine.NotMember:          "meshnode opencomms status lists the members, join adds one",
	engine.Paused:             "meshnode opencomms resume lets it go on",
	engine.ChannelFull:        "meshnode opencomms kick makes room",
	engine.ArchiveMissing:     "meshnode opencomms archives lists what there is",
	engine.RolePromptRequired: "say --prompt TEXT or --prompt-file FILE",
	engine.InvalidRole:        "say --role NAME",
}

// refusalExit tells what is not possible now and what is not allowed from what
// should be asked differently.
func refusalExit(code engine.Code) int {
	switch code {
	case engine.NotMember, engine.NotCoordinator, engine.NotArchivedMember, engine.ProjectMismatch, engine.WorktreeMismatch:
		return cli.ExitNoAccess
	case engine.Paused, engine.RateLimited, engine.Duplicate, engine.HopLimit, engine.RuntimeExhausted, engine.DeliveredExhausted,
		engine.RecipientStale, engine.NoLiveRecipient, engine.NoOtherMember, engine.NotActive, engine.ChannelExists,
		engine.AlreadyMember, engine.TwoRoles, engine.ChannelFull, engine.RoleTaken, engine.MessageExists, engine.NamesExhausted:
		return cli.ExitNotDone
	}
	return cli.ExitUsage
}

// caller is who acts: the operator, or the member of --as. A role is looked for in
// the channel, or in all of them when none is named.
func caller(ctx context.Context, cmd *cobra.Command, p *opencomms.Project, channel string) (engine.Caller, error) {
	as, _ := cmd.Flags().GetString("as")
	if as == "" {
		return engine.Caller{Operator: true}, nil
	}
	s, err := p.Read(ctx)
	if err != nil {
		return engine.Caller{}, err
	}
	var sessions, roles []string
	for _, ch := range s.Channels.All() {
		if channel != "" && ch != engine.Find(s, channel) {
			continue
		}
		for _, member := range ch.Members {
			if strings.EqualFold(member.SessionID, as) {
				sessions = append(sessions, member.SessionID)
			}
			if strings.EqualFold(member.Role, as) {
				roles = append(roles, member.SessionID)
			}
		}
	}
	for _, found := range [][]string{sessions, roles} {
		for _, id := range found {
			if id != found[0] {
				return engine.Caller{}, cli.Usage("several members are called %s; say --as with a session id: %s", as, strings.Join(found, ", "))
			}
		}
		if len(found) > 0 {
			return engine.Caller{Session: found[0]}, nil
		}
	}
	if channel != "" && engine.Find(s, channel) == nil {
		return engine.Caller{Session: as}, nil // the rules refuse the channel
	}
	return engine.Caller{}, &engine.Refusal{Code: engine.NotMember, Message: fmt.Sprintf("%q is the session id or role of no member", as)}
}

// needsMember refuses a command that only a member can do.
func needsMember(cmd *cobra.Command) error {
	if as, _ := cmd.Flags().GetString("as"); as == "" {
		return cli.Usage("%s needs --as MEMBER, a session id or a role: the operator is no member", cmd.CommandPath())
	}
	return nil
}

// answer prints a result: as JSON, or in words.
func (m *Main) answer(cmd *cobra.Command, v any, words func(w io.Writer)) error {
	if cli.AsJSON(cmd) {
		return m.app.JSONLine(v)
	}
	words(m.app.Stdout)
	return nil
}

// typed is a text: the words of the command line, a file, or stdin for - and for
// nothing at all.
func (m *Main) typed(cmd *cobra.Command, words []string, fileFlag, what string) (string, error) {
	file, _ := cmd.Flags().GetString(fileFlag)
	text := strings.Join(words, " ")
	switch {
	case file != "" && len(words) > 0:
		return "", cli.Usage("%s is given twice, by --%s and on the command line", what, fileFlag)
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			return "", cli.Usage("--%s: %w", fileFlag, err)
		}
		defer f.Close()
		return readTyped(f, what)
	case len(words) > 0 && text != "-":
		return text, nil
	}
	if m.app.StdinTerminal {
		fmt.Fprintf(m.app.Stderr, "type %s, end with Ctrl-D:\n", what)
	}
	return cli.Await(cmd.Context(), m.app, func() (string, error) { return readTyped(m.app.Stdin, what) })
}

func readTyped(r io.Reader, what string) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxTyped+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	if len(data) > maxTyped {
		return "", cli.Usage("%s is larger than %d bytes; put it into a file of the project and name the file", what, maxTyped)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

// oneChannel is what most commands take.
func oneChannel(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return cli.Usage("one channel is wanted; meshnode opencomms channels lists what there is")
	}
	return nil
}
