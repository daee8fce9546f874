package opencode

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"opencode-mesh/protocol/api"
)

// enter makes sure that the turn has a session that is alive, finds or makes one
// if need be, and takes its lane.
func (r *run) enter(ctx context.Context, c client) (*api.Outcome, error) {
	if r.begun() {
		s, err := c.session(ctx, r.session)
		if errors.Is(err, errNotFound) {
			return r.interrupted("the session is gone"), nil
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
	s, err := r.bound(ctx, c)
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
		s, err := c.session(ctx, id)
		switch {
		case err == nil && sameDir(s.dir, r.turn.Workspace.Dir):
			return s, nil
		case err != nil && !errors.Is(err, errNotFound):
			return session{}, err
		}
		r.cp.Replaced = true
		r.session = ""
		r.log.Warn("bound session is gone and is replaced", "session", id)
	}
	s, found, err := r.marked(ctx, c)
	if err != nil {
		return session{}, err
	}
	if !found {
		title := r.turn.Session.Title
		if title == "" {
			// Without a title opencode asks a model for one.
			title = "opencode-mesh " + r.turn.Controller.Name
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

// marked looks for a session that was made for this lane and generation, and that
// a crash kept from the records.
func (r *run) marked(ctx context.Context, c client) (session, bool, error) {
	if r.turn.Session.Key == "" {
		return session{}, false, nil
	}
	list, err := c.sessions(ctx, r.turn.Workspace.Dir)
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

// bind takes a session's lane.
func (r *run) bind(ctx context.Context, s session) error {
	r.session, r.dir = s.id, s.dir
	if r.lane == s.id {
		return nil
	}
	r.lane = s.id
	return r.enterLane(ctx, "session\x00"+s.id)
}

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
