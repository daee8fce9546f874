package node

import (
	"context"

	"opencode-mesh/node/ocp/memory"
)

// newMemory opens the node's memory, which is a cache: one that cannot be opened keeps the
// node from nothing else.
func newMemory(cfg Config) (*memory.Index, *memory.Syncer) {
	if cfg.NoMemory {
		return nil, nil
	}
	// Like the journal: what one hub told is not for those of another.
	x, err := memory.Open(memory.Config{Path: memory.Path(cfg.DataDir, cfg.Profile.HubID), Log: cfg.Log})
	if err != nil {
		cfg.Log.Error("the node remembers nothing for queries of context", "err", err)
		return nil, nil
	}
	return x, memory.NewSyncer(memory.SyncConfig{Index: x, Workspaces: cfg.Workspaces, Log: cfg.Log})
}

// startMemory begins to fill the memory.
func (n *Node) startMemory(ctx context.Context) {
	if n.syncer == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.endMemory = cancel
	n.filling.Go(func() { n.syncer.Run(ctx) })
}

// closeMemory ends what fills the memory and closes it. It is told to end first, and waited
// for last: closing breaks off a commit that waits for the disk.
func (n *Node) closeMemory() {
	if n.memory == nil {
		return
	}
	n.endMemory()
	if err := n.memory.Close(); err != nil {
		n.cfg.Log.Warn("the memory was not closed", "err", err)
	}
	n.filling.Wait()
}
