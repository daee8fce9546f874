package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node"
	"opencode-mesh/node/mcp"
	"opencode-mesh/node/opencomms"
	ocmtools "opencode-mesh/node/opencomms/mcp"
	"opencode-mesh/node/opencomms/pins"
	"opencode-mesh/node/peers/access"
	peertools "opencode-mesh/node/peers/mcp"
	ocm "opencode-mesh/protocol/opencomms"
	"opencode-mesh/protocol/peers"
)

// Variables of the original, by which a host's configuration says who its agent is.
const (
	envMember  = "OPENCOMMS_MEMBER_ID"
	envProject = "OPENCOMMS_PROJECT_ID"
)

func (m *Main) mcp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve OpenComms and peers to one agent, as tools of an MCP server",
		Long: `Serves the agent that starts it, as an MCP server on stdin and stdout, until stdin ends: the channels of a project (opencomms_…), and the agents of this machine and others (list_agents, send_message, peer_message_status, read_messages). meshnode opencomms install-member writes the configuration by which opencode, Claude Code and Codex start it.

Who the agent is comes from OPENCOMMS_MEMBER_ID in the environment and from nothing that the agent says. For channels the member must be in a channel of the project, or be pinned in .opencomms/pins to come into one. Peers need no member and no project: without a member id the agent has an address of its own until the server ends. They need a node that runs on this machine.`,
		Example: "  OPENCOMMS_MEMBER_ID=sess_9a41c0de7b2f4c6d8e01aa55 meshnode mcp --project .",
		Args:    cobra.NoArgs,
		RunE:    m.serveMCP,
	}
	f := cmd.Flags()
	f.String("project", "", "directory of the project (default: the nearest one that has .opencomms)")
	f.String("host", "", "what the agent's program is called in channels that it comes into (default: as its pin says, else mcp)")
	f.Bool("admin", false, "offer opencomms_kick too, which removes members")
	f.String("peer-name", "", "what the agent is called among peers (default: after the directory)")
	dataFlag(cmd)
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
	member = strings.TrimSpace(member)
	projectID, _ := m.app.Getenv(envProject)
	project, err := opencomms.Open(dir, opencomms.Options{ProjectID: strings.TrimSpace(projectID), Log: log})
	if err != nil {
		return cli.Exit(cli.ExitUsage, err)
	}
	agent, err := m.peerAgent(cmd, dir, member, log)
	if err != nil {
		return err
	}
	in := m.app.Stdin
	if in == os.Stdin {
		// Closing it would not end a read of it, and the process ends anyhow.
		in = io.NopCloser(in)
	}
	channels := ocmtools.New(ocmtools.Config{Project: project, Member: member, Host: host, Admin: admin, Log: log})
	defer channels.Close()
	ctx, cancel := context.WithCancel(cmd.Context())
	var work sync.WaitGroup
	work.Go(func() { agent.Run(ctx) })
	defer func() { cancel(); work.Wait() }()
	return mcp.Run(cmd.Context(), mcp.Config{
		Name: ocmtools.ServerName, Instructions: ocmtools.Instructions + " " + peertools.Instructions,
		Tools:   append(channels.Tools(), agent.Tools()...),
		Version: cli.Version, In: in, Out: m.app.Stdout, Log: log,
	})
}

// peerAgent is the agent as the peers see it. Without a member id that stands for
// somebody it is one for this process alone.
func (m *Main) peerAgent(cmd *cobra.Command, dir, member string, log *slog.Logger) (*peertools.Agent, error) {
	name, _ := cmd.Flags().GetString("peer-name")
	if name != "" && !peers.ValidName(name) {
		return nil, cli.Usage("--peer-name has 1 to 32 letters, digits, blanks, - and _, not %q", name)
	}
	data, err := m.dataDir(cmd)
	if err != nil {
		return nil, err
	}
	r := access.Registration{Member: member, Directory: dir, Name: name}
	if member == "" || strings.EqualFold(member, ocm.OperatorSession) {
		r.Member, r.Once = "mcp-"+secret(), true
	}
	return peertools.New(peertools.Config{
		Node: node.NewOperator(data).Peers(secret()), Agent: r, Log: log,
		Absent: fmt.Sprintf("No node runs on %s, and without one there are no peers. A person starts it with: meshnode run, or names its directory to this server with --data.", data),
	}), nil
}

// secret is 32 hex digits of chance.
func secret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
