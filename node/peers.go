package node

import (
	"context"
	"sync"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/adopt"
	"opencode-mesh/node/peers/board"
	"opencode-mesh/node/peers/relay"
)

// newPeers makes the node's part in opencode-plugin-peers; nil when it takes none.
func newPeers(cfg Config) (*peers.Service, error) {
	if cfg.NoPeers {
		return nil, nil //nolint:nilnil // nil is what a node without peers has
	}
	return peers.New(cfg.Peers)
}

// newRelay makes what carries messages of peers between machines; nil when the node takes
// no part.
func newRelay(p *peers.Service, box *mail.Box, cfg Config) *relay.Relay {
	if p == nil {
		return nil
	}
	of := p.Config()
	return relay.New(relay.Config{
		Box: box, Service: p, Node: of.Node, Shows: of.Shows, Options: of.Options, Log: cfg.Log,
		Sole: relay.Sole(of.StorageDir, cfg.Profile.HubID),
	})
}

// newPeerBoard makes what shows the node's peers to the operators of its hub.
func newPeerBoard(p *peers.Service, r *relay.Relay, cfg Config) *board.Board {
	of := board.Config{Log: cfg.Log}
	if p != nil {
		of.Service, of.Relay = p, r
	}
	return board.New(of)
}

// Relay carries messages of peers between machines; nil when the node takes no part.
func (n *Node) Relay() *relay.Relay { return n.relay }

// Peers is the node's part in opencode-plugin-peers, which runs while Run does; nil when it
// takes none.
func (n *Node) Peers() *peers.Service { return n.peers }

// startPeers begins to take part, and whatever publishes endpoints.
func (n *Node) startPeers(ctx context.Context) {
	if n.peers == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	service, endService := context.WithCancel(ctx)
	var serves sync.WaitGroup
	serves.Go(func() {
		if err := n.peers.Run(service); err != nil {
			n.cfg.Log.Error("peers: this node takes no part any more", "err", err)
		}
	})
	parts, endParts := context.WithCancel(ctx)
	var work sync.WaitGroup
	if cfg := n.peers.Config(); cfg.Show != peers.ShowOff {
		sessions := adopt.New(adopt.Config{Agent: n.cfg.Agent, Service: n.peers, Box: n.desk.box,
			Permissions: cfg.Permissions, PermissionsRemote: cfg.PermissionsRemote, Log: n.cfg.Log})
		work.Go(func() { sessions.Run(parts) })
	}
	work.Go(func() { n.relay.Run(parts) })
	// Agents of MCP processes.
	work.Go(func() { n.access.Run(parts) })
	n.peersUp.Store(true)
	n.endPeers = func() {
		// What publishes ends first; then the service takes everything back.
		endParts()
		work.Wait()
		endService()
		serves.Wait()
	}
}
