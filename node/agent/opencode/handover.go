package opencode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"opencode-mesh/protocol/api"
)

// The turns of operations on a session (mesh-protocol.md §9): a digest is asked of a
// session that is there, a hand-over goes to a session of its own, and a session is
// deleted without a prompt.

// condensed is the session that a digest is asked of; none is made for it.
func (r *run) condensed(ctx context.Context, c client) (session, *api.Outcome, error) {
	s, err := r.existing(ctx, c, r.turn.Session.ID)
	if errors.Is(err, errNotFound) {
		return s, r.gone(), nil
	}
	return s, nil, err
}

// gone is the outcome of a turn whose session is no more.
func (r *run) gone() *api.Outcome {
	const text = "the session is gone"
	if r.turn.Kind == api.TurnDigest {
		return r.failed(api.TaskSessionGone, text)
	}
	return r.interrupted(text)
}

// fresh is the session that a compaction hands over to: the one that it made
// already, else a new one. What other compactions made for this generation was
// never bound and is deleted first.
func (r *run) fresh(ctx context.Context, c client) (session, error) {
	if err := r.clearAbandoned(ctx, c); err != nil {
		return session{}, err
	}
	return r.markedOrNew(ctx, c)
}

func (r *run) clearAbandoned(ctx context.Context, c client) error {
	list, err := c.sessions(ctx, r.turn.Workspace.Dir, "")
	if err != nil {
		return err
	}
	ours := markOf(r.turn)
	for _, s := range list {
		if s.mark == nil || s.mark.Compaction == "" || s.mark.Compaction == ours.Compaction {
			continue
		}
		theirs := *s.mark
		theirs.Compaction = ours.Compaction
		if theirs != ours || !sameDir(s.dir, r.turn.Workspace.Dir) {
			continue
		}
		r.log.Info("the session of an abandoned compaction is deleted", "session", s.id, "compaction", s.mark.Compaction)
		if err := discard(ctx, c, s); err != nil {
			return err
		}
	}
	return nil
}

// erase carries a TurnDelete out. A session that is gone, or was never made, is as
// good as deleted; so is one of another directory, which is not the binding's.
func (r *run) erase(ctx context.Context, c client) (*api.Outcome, error) {
	done := &api.Outcome{State: api.StateDone, Summary: "the session was gone already"}
	id := r.turn.Session.ID
	if id == "" {
		return done, nil
	}
	s, err := r.existing(ctx, c, id)
	if errors.Is(err, errNotFound) {
		return done, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.takeLane(ctx, s.id); err != nil {
		return nil, err
	}
	if err := discard(ctx, c, s); err != nil {
		return nil, err
	}
	done.Summary = fmt.Sprintf("session %s is deleted", s.id)
	return done, nil
}

// existing returns a session if it is there, in the turn's directory.
func (r *run) existing(ctx context.Context, c client, id string) (session, error) {
	s, err := c.session(ctx, id)
	if err == nil && !sameDir(s.dir, r.turn.Workspace.Dir) {
		return session{}, errNotFound
	}
	return s, err
}

// discard deletes a session. What runs in it is aborted first: it would run on.
func discard(ctx context.Context, c client, s session) error {
	limited, cancel := context.WithTimeout(ctx, abortLimit)
	defer cancel()
	for {
		statuses, err := c.statuses(limited, s.dir)
		if err != nil {
			return err
		}
		if _, busy := statuses[s.id]; !busy {
			return unlessGone(c.remove(ctx, s.id))
		}
		if err := c.abort(limited, s.id); err != nil {
			return err
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("session %s does not stop, it is not deleted", s.id)
		case <-time.After(abortPoll):
		}
	}
}
