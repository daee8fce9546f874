package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"opencode-mesh/node/link"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/ocp/host"
	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/opencomms/push"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/access"
	"opencode-mesh/node/peers/relay"
	"opencode-mesh/node/tasks"
)

// ErrJournalFailed ends a node whose journal or mail box could not be synced: what is on disk
// is only known after a restart, so nothing more is acknowledged (semantics 21).
var ErrJournalFailed = errors.New("the journal could not be synced to disk; start the node again once the disk is sound")

// Node is one node of the mesh.
type Node struct {
	cfg     Config
	started time.Time
	desk    *desk
	link    *link.Link
	admin   *admin
	across  *across.Across
	push    *push.Pusher
	// endOpencomms ends both of them and waits for that, before the box is closed.
	endOpencomms func()
	peers        *peers.Service // nil: the node takes no part
	relay        *relay.Relay   // nil as well then
	// access is used once peersUp.
	access  *access.Access
	peersUp atomic.Bool
	// endPeers ends it, and what publishes with it, before the box is closed.
	endPeers func()
	// memory is nil without one; syncer fills it.
	memory *memory.Index
	syncer *memory.Syncer
	// context asks the node's context providers.
	context *host.Host
	// endContext ends it and them, before the memory is closed.
	endContext func()
	// endMemory tells the syncer to end; filling is done when it has.
	endMemory func()
	filling   sync.WaitGroup
	// endAgent ends the context that the agent was started with.
	endAgent context.CancelFunc
	agentUp  bool // it was started
}

// New opens the data directory of a node: journal and mail box. One in use by another
// process gives *boltdb.LockedError, which names the holder; one that cannot be read, its
// error: it is never made anew silently. After New, Run must be called.
func New(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p, err := newPeers(cfg)
	if err != nil {
		return nil, err
	}
	d, err := newDesk(cfg)
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, started: time.Now().UTC(), desk: d, peers: p, endOpencomms: func() {}, endPeers: func() {}, endMemory: func() {}}
	n.across = across.New(across.Config{Box: d.box, Node: cfg.Profile.Name, Log: cfg.Log})
	d.across = n.across
	n.relay = newRelay(p, d.box, cfg)
	d.relay = n.relay
	d.peers = newPeerBoard(p, n.relay, cfg)
	n.push = push.New(push.Config{Enabled: cfg.OpencommsPush, Agent: cfg.Agent, Box: d.box, Projects: n.projects, Log: cfg.Log})
	if p != nil {
		n.access = access.New(access.Config{Service: p, Log: cfg.Log})
	}
	n.memory, n.syncer = newMemory(cfg)
	d.syncer = n.syncer
	if n.context, err = newHost(cfg, n.memory); err != nil {
		n.closeMemory()
		return nil, errors.Join(err, d.close(context.Background()))
	}
	n.endContext = n.context.Close
	d.context = contextDesk{host: n.context, off: cfg.NoContext, log: cfg.Log}
	d.status = n.Status
	d.board = n.newBoard()
	n.link, err = link.New(link.Config{
		Profile: cfg.Profile, Host: d, Tunnel: cfg.Tunnel, Backoff: cfg.Backoff,
		ReportInterval: cfg.ReportInterval, Log: cfg.Log,
	})
	if err == nil {
		n.admin, err = newAdmin(n)
	}
	if err != nil {
		n.context.Close()
		n.closeMemory()
		return nil, errors.Join(err, d.close(context.Background()))
	}
	return n, nil
}

// Run starts the agent, connects to the hub and works until ctx ends; then it
// stops within Config.StopTimeout and returns nil, or what did not stop. It returns
// earlier when the agent cannot be started, with ErrJournalFailed, or with an
// error of link.Link.Run that only a person can mend. It is called once.
func (n *Node) Run(ctx context.Context) error {
	n.admin.start()
	defer n.admin.close()
	if err := n.startAgent(ctx); err != nil {
		if ctx.Err() != nil {
			return n.stop(ctx, nil)
		}
		return errors.Join(fmt.Errorf("start the %s agent: %w", n.cfg.Agent.Kind(), err), n.stop(ctx, nil))
	}
	n.agentUp = true
	n.startPeers(ctx)
	n.startOpencomms(ctx)
	n.startMemory(ctx)
	n.startContext(ctx)
	// The link lives on while the node stops: results are delivered until the end.
	linkCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.link.Run(linkCtx) }()
	closeLink := func() {
		cancel()
		<-ended //nolint:errcheck // it was told to
	}
	var err error
	select {
	case <-ctx.Done():
		talk, done := context.WithTimeout(context.WithoutCancel(ctx), drainingTimeout)
		n.link.Draining(talk)
		done()
	case err = <-ended:
		closeLink = nil
	case <-n.desk.runner().Failed():
		err = ErrJournalFailed
	case <-n.desk.box.Failed():
		err = ErrJournalFailed
	}
	return errors.Join(err, n.stop(ctx, closeLink))
}

// startAgent starts the agent. ctx ends the start only: an agent that holds on to
// its context must live until the turns have been told that the node stops.
func (n *Node) startAgent(ctx context.Context) error {
	starting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	n.endAgent = cancel
	err := n.cfg.Agent.Start(starting)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	return err
}

// stop ends the peers, the context providers, the channels, the runners, the link and the agent, in this order. If it was asked to
// by the end of ctx, sessions are cleaned up before the agent ends.
func (n *Node) stop(ctx context.Context, closeLink func()) error {
	graceful := ctx.Err() != nil
	ctx = context.WithoutCancel(ctx)
	all, cancel := context.WithTimeout(ctx, n.cfg.StopTimeout)
	defer cancel()
	turns, cancelTurns := context.WithTimeout(all, n.cfg.StopTimeout-n.cfg.StopTimeout/agentStopShare)
	defer cancelTurns()
	n.endPeers()
	n.endContext()
	n.closeMemory()
	n.endOpencomms()
	err := n.desk.close(turns)
	if closeLink != nil {
		closeLink()
	}
	defer n.endAgent()
	if n.cfg.Cleanup && graceful && n.agentUp && err == nil {
		err = n.clean(turns)
	}
	if stopErr := n.cfg.Agent.Stop(all); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("stop the %s agent: %w", n.cfg.Agent.Kind(), stopErr))
	}
	return err
}

// Mail is the node's post box. Applications register with Box.Handle between New and
// Run.
func (n *Node) Mail() *mail.Box { return n.desk.box }

// Across are the links of channels of OpenComms with other nodes.
func (n *Node) Across() *across.Across { return n.across }

// Held lists the tasks that wait for an operator.
func (n *Node) Held() ([]tasks.TaskInfo, error) { return n.desk.runner().Held() }

// Release lets a held task start; tasks.ErrNotHeld when there is none of that id.
func (n *Node) Release(task string) error { return n.desk.runner().Release(task) }

// Refuse ends a held task as refused; tasks.ErrNotHeld when there is none of that
// id.
func (n *Node) Refuse(task string) error { return n.desk.runner().Refuse(task) }
