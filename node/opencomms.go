package node

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
)

// startOpencomms begins to carry channels to other nodes and to deliver to the members
// that the agent hosts.
func (n *Node) startOpencomms(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	work.Go(func() {
		if err := n.across.Run(ctx); err != nil {
			n.cfg.Log.Error("opencomms: no channel is carried to other nodes", "err", err)
		}
	})
	work.Go(func() { n.push.Run(ctx) })
	n.endOpencomms = func() {
		cancel()
		work.Wait()
	}
}

// projects are the directories in which the node takes part in OpenComms: its
// workspaces, and those whose channels are linked. Each is there once, links of the file
// system resolved.
func (n *Node) projects() []string {
	var dirs []string
	for _, w := range n.cfg.Workspaces {
		dirs = append(dirs, w.Dir)
	}
	links, err := n.across.Links()
	if err != nil {
		n.cfg.Log.Error("opencomms: links cannot be read", "err", err)
	}
	for _, l := range links {
		dirs = append(dirs, l.Project)
	}
	for i, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dirs[i] = real
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
