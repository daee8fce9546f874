package opencomms

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/opencomms"
)

// DefaultProjectID stands for "some local project" and matches every other id.
const DefaultProjectID = "local-project"

// Options of a Project.
type Options struct {
	ProjectID string           // "" is DefaultProjectID
	Now       func() time.Time // nil is time.Now
	Log       *slog.Logger     // nil drops what is logged
}

// Project is one project directory. Its methods may be used by many at once, and
// by any number of processes.
//
// Their errors are *engine.Refusal where a rule says no, and otherwise those of
// package statefile.
type Project struct {
	dir      string
	id       string
	file     *statefile.Store
	archives archives
	eng      engine.Engine
}

// Open returns the project in dir, which must be there. It makes nothing: the
// first change does.
func Open(dir string, opt Options) (*Project, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open the project: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("open the project: %s is not a directory", dir)
	}
	if opt.ProjectID == "" {
		opt.ProjectID = DefaultProjectID
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Project{
		dir: dir, id: opt.ProjectID,
		file:     statefile.Open(dir, statefile.Options{Log: opt.Log}),
		archives: archives{dir: ArchivesDir(dir), log: opt.Log},
		eng:      engine.Engine{Now: opt.Now},
	}, nil
}

// Dir is the project directory, absolute.
func (p *Project) Dir() string { return p.dir }

// ID is the project id that members bring along from here.
func (p *Project) ID() string { return p.id }

// Engine is the engine of the project, for what is done within Update.
func (p *Project) Engine() engine.Engine { return p.eng }

// Read returns the state as it is now, without the lock.
func (p *Project) Read(ctx context.Context) (*opencomms.State, error) { return p.file.Read(ctx) }

// Update changes the state under the lock. When fn fails, nothing is written and
// its error is returned as it is. fn must not do anything slow.
func (p *Project) Update(ctx context.Context, fn func(*opencomms.State) error) error {
	return p.file.Update(ctx, fn)
}

// Touch rewrites the state file as it is, which wakes whoever watches it.
func (p *Project) Touch(ctx context.Context) error { return p.file.Touch(ctx) }

// Watch tells of changes of the state file until ctx ends; then the channel is
// closed.
func (p *Project) Watch(ctx context.Context) <-chan struct{} { return p.file.Watch(ctx) }

// change is an Update that returns something.
func change[R any](ctx context.Context, p *Project, fn func(*opencomms.State) (R, error)) (R, error) {
	var result R
	err := p.file.Update(ctx, func(s *opencomms.State) (err error) {
		result, err = fn(s)
		return err
	})
	if err != nil {
		var none R
		return none, err
	}
	return result, nil
}

// look is a Read that returns something.
func look[R any](ctx context.Context, p *Project, fn func(*opencomms.State) (R, error)) (R, error) {
	s, err := p.file.Read(ctx)
	if err != nil {
		var none R
		return none, err
	}
	return fn(s)
}

// Create makes a channel. Without a worktree or project id in r, the project's
// own are taken.
func (p *Project) Create(ctx context.Context, r engine.CreateRequest) (engine.Created, error) {
	r.ProjectID, r.Worktree = orElse(r.ProjectID, p.id), orElse(r.Worktree, p.dir)
	return change(ctx, p, func(s *opencomms.State) (engine.Created, error) { return p.eng.Create(s, r) })
}

// Join makes a session a member of a channel. Without a project id in r the
// project's own is taken, and without a worktree the channel's, if this directory
// lies in it.
func (p *Project) Join(ctx context.Context, r engine.JoinRequest) (engine.Joined, error) {
	r.ProjectID = orElse(r.ProjectID, p.id)
	named := r.Worktree
	return change(ctx, p, func(s *opencomms.State) (engine.Joined, error) {
		r.Worktree = orElse(named, p.dir)
		if ch := engine.Find(s, r.Channel); ch != nil && named == "" && len(ch.Members) > 0 && holds(ch.Worktree, p.dir) {
			r.Worktree = ch.Worktree
		}
		return p.eng.Join(s, r)
	})
}

// holds reports whether a worktree is the directory or one above it. Channels of
// opencode have the root of the git worktree, which may be above, and paths are
// compared as they are written, which links make differ.
func holds(worktree, dir string) bool {
	above, err := filepath.EvalSymlinks(worktree)
	if err != nil {
		return false
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return false
	}
	rel, err := filepath.Rel(above, dir)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// Send queues a message. A recipient that its host pushes to is woken by the
// change of the file; see WakeOwners for when that is not enough.
func (p *Project) Send(ctx context.Context, c engine.Caller, r engine.SendRequest) (engine.Sent, error) {
	return change(ctx, p, func(s *opencomms.State) (engine.Sent, error) { return p.eng.Send(s, c, r) })
}

// Inbox shows what waits for a member, without taking it; see engine.Inbox.
func (p *Project) Inbox(ctx context.Context, c engine.Caller, channel string, limit int) (engine.Inbox, error) {
	return look(ctx, p, func(s *opencomms.State) (engine.Inbox, error) { return p.eng.Inbox(s, c, channel, limit) })
}

// History shows what was said in a channel, newest first.
func (p *Project) History(ctx context.Context, c engine.Caller, channel string, limit int) (engine.History, error) {
	return look(ctx, p, func(s *opencomms.State) (engine.History, error) { return p.eng.History(s, c, channel, limit) })
}

// Status is an overview of the caller's channels, or of one.
func (p *Project) Status(ctx context.Context, c engine.Caller, channel string) (engine.Status, error) {
	return look(ctx, p, func(s *opencomms.State) (engine.Status, error) { return p.eng.Status(s, c, channel) })
}

// Pause stops a channel; false says that it was paused already.
func (p *Project) Pause(ctx context.Context, c engine.Caller, channel string) (bool, error) {
	return change(ctx, p, func(s *opencomms.State) (bool, error) { return p.eng.Pause(s, c, channel) })
}

// Resume lets a channel go on; false says that it was not paused.
func (p *Project) Resume(ctx context.Context, c engine.Caller, channel string) (bool, error) {
	return change(ctx, p, func(s *opencomms.State) (bool, error) { return p.eng.Resume(s, c, channel) })
}

// Disconnect takes the caller out of a channel.
func (p *Project) Disconnect(ctx context.Context, c engine.Caller, channel string) (engine.Left, error) {
	return change(ctx, p, func(s *opencomms.State) (engine.Left, error) { return p.eng.Disconnect(s, c, channel) })
}

// Kick takes another member out of a channel.
func (p *Project) Kick(ctx context.Context, c engine.Caller, r engine.KickRequest) (engine.Kicked, error) {
	return change(ctx, p, func(s *opencomms.State) (engine.Kicked, error) { return p.eng.Kick(s, c, r) })
}

// UpdateRole replaces a role prompt and returns the member's role.
func (p *Project) UpdateRole(ctx context.Context, c engine.Caller, r engine.UpdateRoleRequest) (string, error) {
	return change(ctx, p, func(s *opencomms.State) (string, error) { return p.eng.UpdateRole(s, c, r) })
}

// SetStale marks a session as gone in every channel, or takes the mark back, and
// returns how many channels that changed.
func (p *Project) SetStale(ctx context.Context, session string, stale bool) (int, error) {
	return change(ctx, p, func(s *opencomms.State) (int, error) {
		if stale {
			return p.eng.SetStale(s, session), nil
		}
		return p.eng.ClearStale(s, session), nil
	})
}

// Timer does one action of the chess clock and returns how it stands then.
func (p *Project) Timer(ctx context.Context, c engine.Caller, r engine.TimerRequest) (engine.TimerView, error) {
	run := func(s *opencomms.State) (engine.TimerView, error) { return p.eng.Timer(s, c, r) }
	if r.Action == engine.TimerStatus {
		return look(ctx, p, run)
	}
	return change(ctx, p, run)
}

func orElse(s, byDefault string) string {
	if s == "" {
		return byDefault
	}
	return s
}
