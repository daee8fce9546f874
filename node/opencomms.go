package node

import (
	"context"
	"path/filepath"
	"slices"
	"sync"

	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/opencomms/board"
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

// newBoard makes what shows the node's channels to the operators of its hub.
func (n *Node) newBoard() *board.Board {
	cfg := board.Config{Projects: n.shown, Log: n.cfg.Log}
	if n.cfg.NoChannels {
		cfg.Projects = nil
	}
	return board.New(cfg)
}

// shown are the projects whose channels are shown: the workspaces, which tasks of the
// hub may read anyway, and of other directories the channels that are linked, whose
// messages pass the hub.
func (n *Node) shown() []board.Project {
	at := map[string]int{}
	var list []board.Project
	project := func(p board.Project) *board.Project {
		if real, err := filepath.EvalSymlinks(p.Dir); err == nil {
			p.Dir = real
		}
		i, known := at[p.Dir]
		if !known {
			i, at[p.Dir] = len(list), len(list)
			p.Linked = map[string][]string{}
			list = append(list, p)
		}
		return &list[i]
	}
	for _, w := range n.cfg.Workspaces {
		project(board.Project{Name: w.Name, Dir: w.Dir})
	}
	links, err := n.across.Links()
	if err != nil {
		n.cfg.Log.Error("opencomms: links cannot be read", "err", err)
	}
	for _, l := range links {
		if l.State != across.LinkClosing {
			p := project(board.Project{Name: filepath.Base(l.Project), Dir: l.Project, LinkedOnly: true})
			p.Linked[l.ChannelID] = append(p.Linked[l.ChannelID], l.Node)
		}
	}
	return list
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
