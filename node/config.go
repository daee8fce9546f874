package node

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/node/agent"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/ocp/host"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

const (
	// DefaultStopTimeout is how long a graceful stop may take in all.
	DefaultStopTimeout = 10 * time.Second
	// agentStopShare is the part of the stop that is kept for the agent's own end.
	agentStopShare = 3
	// drainingTimeout bounds the words to the hub that this node stops.
	drainingTimeout = time.Second
	// statusTimeout bounds the look at the agent's health.
	statusTimeout = 3 * time.Second
)

// Config says what a node is. DataDir, Profile and Agent are required.
type Config struct {
	// DataDir holds the journal and the admin socket; it is made (0700) when missing.
	DataDir string
	// Profile is the credential that a join left.
	Profile auth.Profile
	// Agent does the work; Run starts and stops it.
	Agent agent.Agent
	// Workspaces are the directories offered for work, by unique name with absolute
	// path; the first is the default.
	Workspaces []agent.Workspace
	// Policy is api.PolicyAccept, PolicyHold or PolicyRefuse; "": accept.
	Policy string
	// AcceptFrom lists the controllers that may dispatch here, by name or identity
	// id; empty: all.
	AcceptFrom []string
	// MaxParallel is how many turns run at once; 0: tasks.DefaultMaxParallel.
	MaxParallel int
	// DefaultDeadline is how long an attempt may run whose dispatch named no
	// deadline; 0: api.DefaultDeadline.
	DefaultDeadline time.Duration
	// Services are the local servers that are reachable through the tunnel, as
	// name → http://host:port, https://host:port or tcp://host:port. A stream to
	// one is piped byte for byte. A user and password in the URL are told to the hub,
	// which adds them to every request.
	Services map[string]string
	// NoOpencode leaves the agent's own server out, which is the service "opencode"
	// unless Services names another.
	NoOpencode bool
	// NoFilter asks the hub not to filter that service.
	NoFilter bool
	// NoChannels keeps the node's OpenComms channels from the operators of its hub.
	// Without it they see those of the workspaces, and those that are linked.
	NoChannels bool
	// NoMemory keeps the node from remembering results, digests, threads and files for
	// queries of context; what it has remembered stays on the disk as it is.
	NoMemory bool
	// ContextProviders are asked for context beside the memory, which is MemoryProvider.
	ContextProviders []host.Provider
	// NoContext keeps the hub from asking the node's context providers, and from being
	// told of them; the owner of the machine may ask them still.
	NoContext bool
	// OpencommsPush delivers to the push members of OpenComms channels in the workspaces
	// whose sessions the agent hosts; the agent must be an agent.Prompter.
	OpencommsPush bool
	// NoPeers keeps the node out of opencode-plugin-peers; Peers says how it takes part
	// otherwise. Its Node, DataDir, Version and Log are filled in.
	NoPeers bool
	Peers   peers.Config
	// Version is the program's, for the hub and for people.
	Version string

	// Tunnel tunes the tunnel; a zero Heartbeat takes what the hub says. ServiceDial
	// is filled in.
	Tunnel tunnel.Config
	// Backoff between attempts to connect.
	Backoff tunnel.Backoff
	// Tasks tunes journal and runner: limits and intervals. What this Config names
	// itself is filled in.
	Tasks tasks.Config
	// Mail tunes the mail box: limits and intervals. What this Config names itself is
	// filled in.
	Mail mail.Config
	// ReportInterval is how often the agent's health is looked at; 0:
	// link.DefaultReportInterval.
	ReportInterval time.Duration
	// Cleanup deletes, at a graceful stop, the sessions that controllers left on this
	// machine, but those that unfinished tasks need; the agent must be an
	// agent.Cleaner. Each is kept as a line of CleanupFile in DataDir.
	Cleanup bool
	// StopTimeout bounds a graceful stop; 0: DefaultStopTimeout.
	StopTimeout time.Duration
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger

	services *services // made of the above
}

// withDefaults returns a checked copy with the zero values filled in.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.DataDir == "":
		return c, errors.New("node config: no data directory")
	case c.Agent == nil:
		return c, errors.New("node config: no agent")
	case c.Profile.HubID == "" || c.Profile.Name == "":
		return c, errors.New("node config: the profile names no hub or no node; join a hub first")
	case c.Profile.Role != api.RoleNode:
		return c, fmt.Errorf("node config: the credential of %s is that of a %s, not of a node", c.Profile.Name, c.Profile.Role)
	case c.Cleanup && !canClean(c.Agent):
		return c, fmt.Errorf("node config: the %s agent has no sessions to clean up", c.Agent.Kind())
	case c.OpencommsPush && !canPrompt(c.Agent):
		return c, fmt.Errorf("node config: the %s agent has no sessions to deliver to", c.Agent.Kind())
	case slices.ContainsFunc(c.ContextProviders, func(p host.Provider) bool { return p.Name == MemoryProvider }):
		return c, fmt.Errorf("node config: the context provider %s is the node's own memory; give yours another name", MemoryProvider)
	case c.StopTimeout < 0:
		return c, errors.New("node config: a duration is negative")
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = DefaultStopTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	if c.services, err = newServices(c.Services, c.Agent, !c.NoOpencode, !c.NoFilter); err != nil {
		return c, err
	}
	c.Tunnel.ServiceDial = c.services.dial

	c.Peers.Node, c.Peers.DataDir, c.Peers.Version, c.Peers.Log = c.Profile.Name, c.DataDir, c.Version, c.Log

	t := &c.Tasks
	t.Path = tasks.JournalPath(c.DataDir, c.Profile.HubID)
	t.HubID, t.Agent, t.Workspaces = c.Profile.HubID, c.Agent, c.Workspaces
	t.Policy, t.AcceptFrom = c.Policy, c.AcceptFrom
	t.MaxParallel, t.DefaultDeadline, t.Log = c.MaxParallel, c.DefaultDeadline, c.Log
	c.Mail.Path, c.Mail.HubID, c.Mail.Log = mail.Path(c.DataDir, c.Profile.HubID), c.Profile.HubID, c.Log
	return c, nil
}

// canPrompt reports whether an agent has sessions that can be delivered to.
func canPrompt(a agent.Agent) bool {
	_, ok := a.(agent.Prompter)
	return ok
}
