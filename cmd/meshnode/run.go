package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/node"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/agent/command"
	"opencode-mesh/node/agent/opencode"
	"opencode-mesh/node/link"
	"opencode-mesh/protocol/api"
)

// The values of --agent.
const (
	agentOpencode = "opencode"
	agentCommand  = "command"
)

func (m *Main) run() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags] [-- CMD ARG…]",
		Short: "Run the node",
		Long: `Runs the node until SIGTERM or Ctrl-C. With --hub LINK --name NAME and a password it joins the hub first, if it has not yet.

--agent opencode starts and supervises an opencode server of its own, or uses the one at --opencode URL (its OPENCODE_SERVER_USERNAME and OPENCODE_SERVER_PASSWORD are read from the environment). --agent command runs CMD once per task: the prompt on stdin, the reply on stdout.

What a session of opencode asks leave for is put to the controller as a question of its task, with the options once, always and reject; --permissions allow or deny answers without asking. --permission decides by opencode's name of the permission and, after a colon, by what it is asked for: --permission 'bash:git push *=ask' --permission external_directory=deny. A server that the node starts is made to ask for what a rule asks or denies.

The first --workspace is the default one; without any, the current directory is offered as "default".`,
		Example: "  meshnode run --workspace main=. --max-parallel 2",
		RunE:    m.runNode,
	}
	f := cmd.Flags()
	dataFlag(cmd)
	joinFlags(cmd)
	f.String("hub", "", "join link, for a node that has not joined yet")
	f.StringArray("workspace", nil, "directory offered for work, as [NAME=]DIR (repeatable; default: the current directory)")
	f.String("agent", agentOpencode, "opencode, or command: run CMD for every task")
	f.String("opencode", "", "use the opencode server at this URL instead of starting one")
	f.String("opencode-bin", "", "the opencode program to start (default: opencode, on PATH)")
	f.String("opencode-agent", "", "opencode's agent for every task (default: build)")
	f.String("model", "", "model for every task, as provider/model (default: as opencode is configured)")
	f.String("permissions", opencode.PermissionAsk, "what opencode asks leave for: ask the controller, allow, or deny")
	f.StringArray("permission", nil, "rule that comes before --permissions, as TYPE[:GLOB]=ask, allow or deny (repeatable; the first that matches counts)")
	f.Bool("inbound-cleanup", false, "delete the sessions that controllers made here when the node is stopped, and keep a line of each in cleanup.jsonl")
	f.Bool("opencomms-push", false, "put OpenComms mail into the sessions of the node's opencode that are push members of channels in the workspaces, unless a plugin of opencode does")
	f.Bool("no-memory", false, "remember no results, digests, threads and files for queries of context")
	f.Bool("no-channels", false, "do not show OpenComms channels to the hub's operators (default: those of the workspaces and those that are linked)")
	contextFlags(f)
	peersFlags(f)
	f.String("stdin", string(command.StdinEnvelope), "what CMD reads: envelope, or body: the text alone")
	f.Bool("conduct", false, "put the receiver's conduct before the envelope that CMD reads")
	f.String("policy", api.PolicyAccept, "accept, hold: tasks wait for meshnode held release, or refuse")
	f.StringArray("accept-from", nil, "take tasks of this controller only (repeatable; default: all)")
	f.StringArray("service", nil, "local server to reach through the mesh, as NAME=URL (repeatable)")
	f.Bool("no-opencode-service", false, "do not offer the agent's own opencode server as the service opencode")
	f.Bool("opencode-filter", true, "have the hub keep keys back from callers of the service opencode, and refuse what changes its settings")
	f.Int("max-parallel", 0, "how many tasks run at once (default 4)")
	f.Duration("deadline", 0, "how long a task may run whose dispatch does not say (default 2h)")
	f.Duration("stop-timeout", 0, "how long a graceful stop may take (default 10s)")
	return cmd
}

func (m *Main) runNode(cmd *cobra.Command, args []string) error {
	log, err := m.app.Log(cmd)
	if err != nil {
		return err
	}
	dir, err := m.dataDir(cmd)
	if err != nil {
		return err
	}
	// What is wrong with the command line is said before anything is joined.
	cfg, err := m.config(cmd, args, dir, log)
	if err != nil {
		return err
	}
	cfg.Profile, err = m.enrolled(cmd, dir, log)
	if err != nil {
		if cmd.Context().Err() != nil {
			return nil // stopped while it waited for the hub
		}
		return err
	}
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	return runError(n.Run(cmd.Context()))
}

// runError gives the ends that only a person can mend their exit code.
func runError(err error) error {
	var wrong *link.WrongHubError
	switch {
	case errors.Is(err, link.ErrRevoked), errors.Is(err, link.ErrRefused), errors.Is(err, link.ErrVersion),
		errors.Is(err, auth.ErrPinMismatch), errors.As(err, &wrong):
		return cli.Exit(cli.ExitNoAccess, err)
	}
	return err
}

// enrolled is the node's credential; when there is none, it joins.
func (m *Main) enrolled(cmd *cobra.Command, dir string, log *slog.Logger) (auth.Profile, error) {
	hub, _ := cmd.Flags().GetString("hub")
	name, _ := cmd.Flags().GetString("name")
	p, joined, err := profile(dir)
	switch {
	case err != nil:
		return p, cli.Exit(cli.ExitNoAccess, err)
	case joined:
		return m.checked(p, hub, name, dir, log)
	case hub == "":
		return p, cli.Usage("this node has not joined a hub: meshnode join LINK --name NAME (meshhub link prints the link), or give --hub and --name")
	}
	e, err := m.enrollment(cmd, dir, hub, name)
	if err != nil {
		return p, err
	}
	p, err = e.patiently(cmd.Context(), log)
	if err != nil {
		return p, cli.Exit(cli.ExitNoAccess, err)
	}
	log.Info("joined the hub", "name", p.Name, "hub", p.Link.BaseURL())
	return p, nil
}

// checked holds a joined node against --hub and --name, which stay in service
// files. The same pin is the same hub, wherever it is now; any other link needs a
// new join (semantics 10).
func (m *Main) checked(p auth.Profile, hub, name, dir string, log *slog.Logger) (auth.Profile, error) {
	if name != "" && name != p.Name {
		return p, cli.Usage("%s holds the node %s, not %s: name another --data for a second node, or join again to rename", dir, p.Name, name)
	}
	if hub == "" {
		return p, nil
	}
	given, err := auth.ParseLink(hub)
	switch {
	case err != nil:
		return p, cli.Exit(cli.ExitUsage, err)
	case given == p.Link:
		return p, nil
	case given.Pin == "" || given.Pin != p.Link.Pin:
		return p, cli.Usage("this node has joined another hub, at %s: join the one of --hub first (meshnode join)", p.Link.BaseURL())
	}
	log.Info("the hub has another address than when the node joined", "was", p.Link.BaseURL(), "now", given.BaseURL())
	p.Link = given
	return p, auth.SaveProfile(filepath.Join(dir, profileName), p)
}

// config is everything but the credential.
func (m *Main) config(cmd *cobra.Command, args []string, dir string, log *slog.Logger) (node.Config, error) {
	f := cmd.Flags()
	cfg := node.Config{DataDir: dir, Version: cli.Version, Log: log}
	cfg.Policy, _ = f.GetString("policy")
	cfg.AcceptFrom, _ = f.GetStringArray("accept-from")
	cfg.MaxParallel, _ = f.GetInt("max-parallel")
	cfg.DefaultDeadline, _ = f.GetDuration("deadline")
	cfg.StopTimeout, _ = f.GetDuration("stop-timeout")
	cfg.Cleanup, _ = f.GetBool("inbound-cleanup")
	cfg.OpencommsPush, _ = f.GetBool("opencomms-push")
	cfg.NoMemory, _ = f.GetBool("no-memory")
	cfg.NoChannels, _ = f.GetBool("no-channels")
	switch {
	case cfg.Policy != api.PolicyAccept && cfg.Policy != api.PolicyHold && cfg.Policy != api.PolicyRefuse:
		return cfg, cli.Usage("--policy is accept, hold or refuse, not %q", cfg.Policy)
	case cfg.MaxParallel < 0:
		return cfg, cli.Usage("--max-parallel is at least 1")
	case cfg.DefaultDeadline < 0 || cfg.StopTimeout < 0:
		return cfg, cli.Usage("--deadline and --stop-timeout are positive")
	}
	// Given but empty it would let everybody in.
	if f.Changed("accept-from") && (len(cfg.AcceptFrom) == 0 || slices.Contains(cfg.AcceptFrom, "")) {
		return cfg, cli.Usage("--accept-from names a controller")
	}
	list, _ := f.GetStringArray("workspace")
	var err error
	if cfg.Workspaces, err = workspaces(list); err != nil {
		return cfg, err
	}
	list, _ = f.GetStringArray("service")
	if cfg.Services, err = services(list); err != nil {
		return cfg, err
	}
	cfg.NoOpencode, _ = f.GetBool("no-opencode-service")
	if cfg.NoPeers, cfg.Peers, err = peersConfig(f); err != nil {
		return cfg, cli.Exit(cli.ExitUsage, err)
	}
	if cfg.ContextProviders, err = contextProviders(f); err != nil {
		return cfg, cli.Exit(cli.ExitUsage, err)
	}
	cfg.NoContext, _ = f.GetBool("no-context")
	filter, _ := f.GetBool("opencode-filter")
	cfg.NoFilter = !filter
	cfg.Agent, err = m.agent(cmd, args, cfg, log)
	return cfg, err
}

// agentFlags are those that only one kind of agent understands.
var agentFlags = map[string][]string{
	agentOpencode: {"opencode", "opencode-bin", "opencode-agent", "model", "permissions", "permission", "inbound-cleanup", "opencomms-push"},
	agentCommand:  {"stdin", "conduct"},
}

// agent makes the agent of --agent.
func (m *Main) agent(cmd *cobra.Command, args []string, cfg node.Config, log *slog.Logger) (agent.Agent, error) {
	kind, _ := cmd.Flags().GetString("agent")
	if kind != agentOpencode && kind != agentCommand {
		return nil, cli.Usage("--agent is opencode or command, not %q", kind)
	}
	for other, flags := range agentFlags {
		for _, name := range flags {
			if other != kind && cmd.Flags().Changed(name) {
				return nil, cli.Usage("--%s goes with --agent %s", name, other)
			}
		}
	}
	at := cmd.ArgsLenAtDash()
	switch {
	case at > 0 || at < 0 && len(args) > 0:
		return nil, cli.Usage("%q is no flag; the command of --agent command comes after --", args[0])
	case kind == agentOpencode && len(args) > 0:
		return nil, cli.Usage("a command after -- goes with --agent command")
	case kind == agentCommand && len(args) == 0:
		return nil, cli.Usage("--agent command needs a command after --")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program to start its helpers: %w", err)
	}
	var a agent.Agent
	if kind == agentCommand {
		a, err = m.commandAgent(cmd, args, cfg, self, log)
	} else {
		a, err = m.opencodeAgent(cmd, cfg, self, log)
	}
	if err != nil {
		return nil, cli.Exit(cli.ExitUsage, err)
	}
	return a, nil
}

func (m *Main) commandAgent(cmd *cobra.Command, args []string, cfg node.Config, self string, log *slog.Logger) (*command.Agent, error) {
	stdin, _ := cmd.Flags().GetString("stdin")
	conduct, _ := cmd.Flags().GetBool("conduct")
	return command.New(command.Config{
		Command: args, Stdin: command.Stdin(stdin), Conduct: conduct, Env: m.app.Env,
		RunsDir: filepath.Join(cfg.DataDir, "runs"), ShimCommand: []string{self, "shim"}, Log: log,
	})
}

func (m *Main) opencodeAgent(cmd *cobra.Command, cfg node.Config, self string, log *slog.Logger) (*opencode.Agent, error) {
	c := opencode.Config{
		GuardCommand: []string{self, "guard"}, DataDir: filepath.Join(cfg.DataDir, "opencode"),
		Env: m.app.Env, Workspaces: cfg.Workspaces, Log: log,
	}
	f := cmd.Flags()
	c.URL, _ = f.GetString("opencode")
	c.Bin, _ = f.GetString("opencode-bin")
	c.Model, _ = f.GetString("model")
	c.AgentName, _ = f.GetString("opencode-agent")
	c.Permissions, _ = f.GetString("permissions")
	if c.Permissions == "" {
		return nil, errors.New("--permissions is ask, allow or deny")
	}
	var err error
	if c.PermissionRules, err = permissionRules(f); err != nil {
		return nil, err
	}
	if c.URL != "" {
		// opencode's own names for them, so that both sides read the same.
		c.Username, _ = m.app.Getenv("OPENCODE_SERVER_USERNAME")
		c.Password, _ = m.app.Getenv("OPENCODE_SERVER_PASSWORD")
	}
	return opencode.New(c)
}

// permissionRules reads --permission.
func permissionRules(f *pflag.FlagSet) ([]opencode.PermissionRule, error) {
	list, _ := f.GetStringArray("permission")
	rules := make([]opencode.PermissionRule, len(list))
	for i, s := range list {
		var err error
		if rules[i], err = opencode.ParsePermissionRule(s); err != nil {
			return nil, fmt.Errorf("--permission: %w", err)
		}
	}
	return rules, nil
}
