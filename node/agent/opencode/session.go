package opencode

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// sessionInUse is what is told of a turn that waits for its session.
const sessionInUse = "waiting: the session is in use"

// enter makes sure that the turn has a session that is alive, finds or makes one
// if need be, and takes its lane.
func (r *run) enter(ctx context.Context, c client) (*api.Outcome, error) {
	if r.begun() {
		s, err := c.session(ctx, r.session)
		if errors.Is(err, errNotFound) {
			return r.gone(), nil
		}
		if err != nil {
			return nil, err
		}
		return nil, r.bind(ctx, s)
	}
	// opencode accepts a directory that is not there, and fails later.
	if info, err := os.Stat(r.turn.Workspace.Dir); err != nil || !info.IsDir() {
		return r.failed(api.TaskBadWorkspace, "the workspace's directory is not there"), nil
	}
	var s session
	var err error
	switch r.turn.Kind {
	case api.TurnDigest:
		var out *api.Outcome
		if s, out, err = r.condensed(ctx, c); out != nil {
			return out, nil
		}
	case api.TurnResume:
		s, err = r.fresh(ctx, c)
	default:
		s, err = r.bound(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	return nil, r.bind(ctx, s)
}

// bound returns the session of the turn's lane: the one that is named, else one
// that bears the lane's mark, else a new one.
func (r *run) bound(ctx context.Context, c client) (session, error) {
	id := r.session
	if id == "" {
		id = r.turn.Session.ID
	}
	if id != "" {
		s, err := r.existing(ctx, c, id)
		if err == nil || !errors.Is(err, errNotFound) {
			return s, err
		}
		r.cp.Replaced = true
		r.session = ""
		r.log.Warn("bound session is gone and is replaced", "session", id)
	}
	return r.markedOrNew(ctx, c)
}

// markedOrNew returns the session that bears the turn's mark, and makes it if there
// is none.
func (r *run) markedOrNew(ctx context.Context, c client) (session, error) {
	s, found, err := r.marked(ctx, c)
	if err != nil {
		return session{}, err
	}
	if !found {
		title := r.turn.Session.Title
		if title == "" {
			// Without a title opencode asks a model for one.
			title = agent.SessionTitle + r.turn.Controller.Name
		}
		if s, err = c.newSession(ctx, r.turn.Workspace.Dir, title, markOf(r.turn)); err != nil {
			return session{}, err
		}
	}
	r.cp.New = true
	if err := r.host.SessionMade(ctx, s.id); err != nil {
		return session{}, &hostError{err}
	}
	return s, nil
}

// marked looks for a session that was made for this lane, generation and compaction,
// and that a crash kept from the records.
func (r *run) marked(ctx context.Context, c client) (session, bool, error) {
	if r.turn.Session.Key == "" {
		return session{}, false, nil
	}
	list, err := c.sessions(ctx, r.turn.Workspace.Dir, "")
	if err != nil {
		return session{}, false, err
	}
	for _, s := range list {
		if s.mark != nil && *s.mark == markOf(r.turn) && sameDir(s.dir, r.turn.Workspace.Dir) {
			return s, true, nil
		}
	}
	return session{}, false, nil
}

// bind enters a session and takes its lane.
func (r *run) bind(ctx context.Context, s session) error {
	r.session, r.dir = s.id, s.dir
	r.progress.enter(s.id)
	return r.takeLane(ctx, s.id)
}

// takeLane takes the lane of a session, once.
func (r *run) takeLane(ctx context.Context, id string) error {
	if r.lane == id {
		return nil
	}
	r.lane = id
	name := sessionLane(id)
	if r.lanes.taken(name) {
		r.tell(sessionInUse)
	}
	return r.enterLane(ctx, name)
}

// sessionLane names the lane of a session.
func sessionLane(id string) string { return "session\x00" + id }

// sameDir compares directories as the server spells them, with links resolved.
func sameDir(a, b string) bool {
	if a == b {
		return true
	}
	ra, err := filepath.EvalSymlinks(a)
	if err != nil {
		return false
	}
	rb, err := filepath.EvalSymlinks(b)
	return err == nil && ra == rb
}
