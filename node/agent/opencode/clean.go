package opencode

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/mesh"
)

var _ agent.Cleaner = (*Agent)(nil)

// Clean implements agent.Cleaner. Sessions that cannot be deleted do not keep it
// from the others; it needs a server that is healthy now.
func (a *Agent) Clean(ctx context.Context, keep func(session string) bool, removed func(agent.Removed)) error {
	s, err := a.health.ready(ctx, probeTimeout)
	if err != nil {
		return fmt.Errorf("clean up sessions: %w", err)
	}
	var problems []error
	for _, w := range a.cfg.Workspaces {
		if err := cleanWorkspace(ctx, s.client, w, keep, removed); err != nil {
			problems = append(problems, fmt.Errorf("clean up sessions of workspace %s: %w", w.Name, err))
		}
	}
	return errors.Join(problems...)
}

// cleanWorkspace goes on while a page of sessions was full and got shorter.
func cleanWorkspace(ctx context.Context, c client, w agent.Workspace, keep func(string) bool, removed func(agent.Removed)) error {
	var problems []error
	for {
		list, err := c.sessions(ctx, w.Dir, agent.SessionTitle)
		if err != nil {
			return errors.Join(append(problems, err)...)
		}
		gone := 0
		for _, s := range list {
			if !strings.HasPrefix(s.title, agent.SessionTitle) || !sameDir(s.dir, w.Dir) || keep(s.id) {
				continue
			}
			// Without its summary a session still goes.
			summary, err := c.lastResult(ctx, s.id)
			if err != nil {
				problems = append(problems, fmt.Errorf("session %s: read its last result: %w", s.id, err))
			}
			if err := discard(ctx, c, s); err != nil {
				problems = append(problems, fmt.Errorf("session %s: %w", s.id, err))
				continue
			}
			gone++
			removed(agent.Removed{Session: s.id, Title: mesh.CleanLine(s.title), Workspace: w.Name, CreatedAt: s.created, UpdatedAt: s.updated,
				Summary: mesh.CutSummary(mesh.CleanLine(summary))})
		}
		if len(list) < sessionPage || gone == 0 || ctx.Err() != nil {
			return errors.Join(problems...)
		}
	}
}
