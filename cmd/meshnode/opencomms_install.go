package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/install"
)

func (m *Main) ocmInstall() *cobra.Command {
	cmd := &cobra.Command{
		Use: "install-member", Short: "Let an agent's program take part, as a member of its own", Args: cobra.NoArgs,
		Example: "  meshnode opencomms install-member --host opencode",
		Long: `Gives an agent's program an identity in this project and the tools to use it: writes .opencomms/pins/ID.json, and into the project's configuration of the program the entry opencomms, which starts meshnode mcp for that member. The project needs a channel first.

Known are ` + strings.Join(install.Hosts(), ", ") + `; for another --host the pin is written and the entry printed. A configuration keeps everything else that it has, and a copy of what was there stays beside it. One that cannot be read is left as it is.

A host has one member. Doing it again is refused, and with the member's --id brings its entry up to date. Another --id makes another member, which is started by the command that is printed. Identities belong to one project: nothing is written into your own configuration.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return m.onProject(cmd, func(_ context.Context, p *opencomms.Project) error { return m.installMember(cmd, p.Dir()) })
		},
	}
	f := cmd.Flags()
	f.String("host", "", "the agent's program: "+strings.Join(install.Hosts(), ", ")+" or another")
	f.String("id", "", "the member's id (default: a new one)")
	f.Bool("replace", false, "take over an entry that starts another program or serves another member")
	f.Bool("print", false, "write nothing, print what would be")
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) installMember(cmd *cobra.Command, dir string) error {
	f := cmd.Flags()
	r := install.Request{Project: dir}
	r.Host, _ = f.GetString("host")
	r.ID, _ = f.GetString("id")
	r.Replace, _ = f.GetBool("replace")
	r.DryRun, _ = f.GetBool("print")
	if r.Host == "" {
		return cli.Usage("--host names the agent's program: %s or another", strings.Join(install.Hosts(), ", "))
	}
	var err error
	if r.Command, err = self(); err != nil {
		return err
	}
	res, err := install.Install(r)
	switch {
	case errors.Is(err, install.ErrNoState):
		return cli.Exit(cli.ExitNotDone, fmt.Errorf("%w: meshnode opencomms create NAME", err))
	case errors.Is(err, install.ErrPinned):
		return cli.Exit(cli.ExitNotDone, fmt.Errorf("%w; say --id with that id to bring its configuration up to date (with --replace also one that starts another program), or with a new id to add a member", err))
	case errors.Is(err, install.ErrInvalid):
		return cli.Exit(cli.ExitUsage, err)
	case err != nil:
		return err
	}
	if err := m.answer(cmd, res, func(w io.Writer) { printInstalled(w, r, res) }); err != nil {
		return err
	}
	if res.Config == install.ByHand && !r.DryRun {
		return cli.Exit(cli.ExitNotDone, fmt.Errorf("the configuration of %s is not written: %s", r.Host, cli.Or(res.Reason)))
	}
	return nil
}

// self is the path of this program for a configuration: that by which a shell finds
// it, which outlives an upgrade, else that of its file.
func self() (string, error) {
	file, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("where this program is: %w", err)
	}
	found, err := exec.LookPath("meshnode")
	if err != nil {
		return file, nil
	}
	if found, err = filepath.Abs(found); err != nil {
		return file, nil
	}
	a, errA := os.Stat(file)
	b, errB := os.Stat(found)
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		return file, nil
	}
	return found, nil
}

// printInstalled says what was done, or would be.
func printInstalled(w io.Writer, r install.Request, res install.Result) {
	did := "wrote"
	if r.DryRun {
		did = "would write"
	}
	fmt.Fprintf(w, "%s is the member %s\n", res.Host, res.MemberID)
	fmt.Fprintf(w, "%s %s\n", did, res.PinFile)
	switch res.Config {
	case install.Written:
		fmt.Fprintf(w, "%s %s\n", did, res.ConfigFile)
		if res.Backup != "" {
			fmt.Fprintf(w, "what was there is in %s\n", res.Backup)
		}
		if r.DryRun {
			fmt.Fprint(w, "\n"+res.Entry+"\n")
		}
		fmt.Fprintln(w, res.Hint+"; it joins a channel by its tool opencomms_join, or by meshnode opencomms join")
	case install.Unchanged:
		fmt.Fprintf(w, "%s has its entry already\n", res.ConfigFile)
	case install.OtherMember:
		fmt.Fprintf(w, "%s serves another member; start %s as this one by\n\n  %s\n", res.ConfigFile, res.Host, res.Start)
	case install.ByHand:
		where := res.ConfigFile
		if where == "" {
			where = "the configuration of " + res.Host
		}
		fmt.Fprintf(w, "add this to %s by hand:\n\n%s", where, res.Entry)
		if res.ConfigFile != "" {
			fmt.Fprintf(w, "\nor repair that file and say: meshnode opencomms install-member --host %s --id %s\n", res.Host, res.MemberID)
		}
	}
}

func (m *Main) ocmRemoveMember() *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove-member ID", Short: "Take back what install-member wrote", Example: "  meshnode opencomms remove-member sess_9a41c0de7b2f4c6d8e01aa55",
		Long: "Removes the pin of a member, and the entry opencomms from its program's configuration if that serves it. The member stays in its channels until it leaves or is removed from them.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage("the id of one member is wanted; meshnode opencomms status shows them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.onProject(cmd, func(_ context.Context, p *opencomms.Project) error {
				res, err := install.Remove(p.Dir(), args[0], time.Now())
				if errors.Is(err, install.ErrNotPinned) {
					return cli.Exit(cli.ExitUsage, err)
				}
				if err != nil {
					return err
				}
				return m.answer(cmd, res, func(w io.Writer) {
					fmt.Fprintf(w, "%s is no member of %s any more\n", res.MemberID, cli.Or(res.Host))
					if res.ConfigFile != "" {
						fmt.Fprintf(w, "took its entry out of %s; what was there is in %s\n", res.ConfigFile, res.Backup)
					}
					if res.Reason != "" {
						fmt.Fprintf(w, "look for an entry opencomms by hand: %s\n", cli.Or(res.Reason))
					}
				})
			})
		},
	}
	cli.JSONFlag(cmd)
	return cmd
}
