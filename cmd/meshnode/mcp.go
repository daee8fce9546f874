package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node/mcp"
	"opencode-mesh/node/opencomms"
	ocmtools "opencode-mesh/node/opencomms/mcp"
	"opencode-mesh/node/opencomms/pins"
)

// Variables of the original, by which a host's configuration says who its agent is.
const (
	envMember  = "OPENCOMMS_MEMBER_ID"
	envProject = "OPENCOMMS_PROJECT_ID"
)

func (m *Main) mcp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve OpenComms to one agent, as tools of an MCP server",
		Long: `Serves the channels of a project to the agent that starts it, as an MCP server on stdin and stdout, until stdin ends. meshnode opencomms install-member writes the configuration by which opencode, Claude Code and Codex start it.

Who the agent is comes from OPENCOMMS_MEMBER_ID in the environment and from nothing that the agent says. The member must be in a channel of the project, or be pinned in .opencomms/pins to come into one.`,
		Example: "  OPENCOMMS_MEMBER_ID=sess_9a41c0de7b2f4c6d8e01aa55 meshnode mcp --project .",
		Args:    cobra.NoArgs,
		RunE:    m.serveMCP,
	}
	f := cmd.Flags()
	f.String("project", "", "directory of the project (default: the nearest one that has .opencomms)")
	f.String("host", "", "what the agent's program is called in channels that it comes into (default: as its pin says, else mcp)")
	f.Bool("admin", false, "offer opencomms_kick too, which removes members")
	return cmd
}

func (m *Main) serveMCP(cmd *cobra.Command, _ []string) error {
	log, err := m.app.Log(cmd)
	if err != nil {
		return err
	}
	host, _ := cmd.Flags().GetString("host")
	admin, _ := cmd.Flags().GetBool("admin")
	if host != "" && !pins.ValidHost(host) {
		return cli.Usage("--host is a word of a-z, 0-9, dots, - and _, not %q", host)
	}
	dir, err := m.projectDir(cmd)
	if err != nil {
		return err
	}
	member, _ := m.app.Getenv(envMember)
	projectID, _ := m.app.Getenv(envProject)
	project, err := opencomms.Open(dir, opencomms.Options{ProjectID: strings.TrimSpace(projectID), Log: log})
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	in := m.app.Stdin
	if in == os.Stdin {
		// Closing it would not end a read of it, and the process ends anyhow.
		in = io.NopCloser(in)
	}
	channels := ocmtools.New(ocmtools.Config{Project: project, Member: strings.TrimSpace(member), Host: host, Admin: admin, Log: log})
	defer channels.Close()
	return mcp.Run(cmd.Context(), mcp.Config{
		Name: ocmtools.ServerName, Instructions: ocmtools.Instructions, Tools: channels.Tools(),
		Version: cli.Version, In: in, Out: m.app.Stdout, Log: log,
	})
}
