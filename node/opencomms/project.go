package opencomms

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"opencode-mesh/node/opencomms/engine"
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

// Project is one project directory. Its methods may be used by many at once.
type Project struct {
	dir string
	opt Options
	eng engine.Engine
}

var errNotYet = errors.New("opencomms: this is not implemented yet")

// Open returns the project in dir, which must be there. It creates nothing.
func Open(dir string, opt Options) (*Project, error) {
	return &Project{dir: dir, opt: opt, eng: engine.Engine{Now: opt.Now}}, nil
}

// Dir is the project directory, absolute and without symbolic links.
func (p *Project) Dir() string { return p.dir }

// Read returns the state as it is now, without the lock.
func (p *Project) Read(ctx context.Context) (*opencomms.State, error) { return nil, errNotYet }

// Update changes the state under the lock. When fn fails, nothing is written and
// its error is returned as it is.
func (p *Project) Update(ctx context.Context, fn func(*opencomms.State) error) error {
	return errNotYet
}

// Touch rewrites the state file as it is, which wakes whoever watches it.
func (p *Project) Touch(ctx context.Context) error { return errNotYet }

// Watch tells of changes of the state file until ctx ends.
func (p *Project) Watch(ctx context.Context) <-chan struct{} { return nil }

// Engine is the engine of the project, for what is done within Update.
func (p *Project) Engine() engine.Engine { return p.eng }

// Create makes a channel. Without a worktree or project id in r, the project's
// own are taken.
func (p *Project) Create(ctx context.Context, r engine.CreateRequest) (engine.Created, error) {
	return engine.Created{}, errNotYet
}

// Join makes a session a member of a channel. Without a worktree in r, the
// channel's is taken when it holds this directory.
func (p *Project) Join(ctx context.Context, r engine.JoinRequest) (engine.Joined, error) {
	return engine.Joined{}, errNotYet
}

// Send queues a message.
func (p *Project) Send(ctx context.Context, c engine.Caller, r engine.SendRequest) (engine.Sent, error) {
	return engine.Sent{}, errNotYet
}

// Inbox shows what waits for a member, without taking it.
func (p *Project) Inbox(ctx context.Context, c engine.Caller, channel string, limit int) (engine.Inbox, error) {
	return engine.Inbox{}, errNotYet
}

// Pull takes what waits for a member in all its channels: drained, marked as
// delivered and framed in one locked step.
func (p *Project) Pull(ctx context.Context, c engine.Caller) (Pulled, error) {
	return Pulled{}, errNotYet
}

// History shows what was said in a channel, newest first.
func (p *Project) History(ctx context.Context, c engine.Caller, channel string, limit int) (engine.History, error) {
	return engine.History{}, errNotYet
}

// Status is an overview of the caller's channels, or of one.
func (p *Project) Status(ctx context.Context, c engine.Caller, channel string) (engine.Status, error) {
	return engine.Status{}, errNotYet
}

// Pause stops a channel; false says that it was paused already.
func (p *Project) Pause(ctx context.Context, c engine.Caller, channel string) (bool, error) {
	return false, errNotYet
}

// Resume lets a channel go on; false says that it was not paused.
func (p *Project) Resume(ctx context.Context, c engine.Caller, channel string) (bool, error) {
	return false, errNotYet
}

// Disconnect takes the caller out of a channel.
func (p *Project) Disconnect(ctx context.Context, c engine.Caller, channel string) (engine.Left, error) {
	return engine.Left{}, errNotYet
}

// Kick takes another member out of a channel.
func (p *Project) Kick(ctx context.Context, c engine.Caller, r engine.KickRequest) (engine.Kicked, error) {
	return engine.Kicked{}, errNotYet
}

// UpdateRole replaces a role prompt and returns the member's role.
func (p *Project) UpdateRole(ctx context.Context, c engine.Caller, r engine.UpdateRoleRequest) (string, error) {
	return "", errNotYet
}

// SetStale marks a session as gone in every channel, or takes the mark back, and
// returns in how many channels.
func (p *Project) SetStale(ctx context.Context, session string, stale bool) (int, error) {
	return 0, errNotYet
}

// Timer does one action of the chess clock.
func (p *Project) Timer(ctx context.Context, c engine.Caller, r engine.TimerRequest) (engine.TimerView, error) {
	return engine.TimerView{}, errNotYet
}

// SaveSession moves a channel out of the state into an archive.
func (p *Project) SaveSession(ctx context.Context, c engine.Caller, r engine.SaveRequest) (Saved, error) {
	return Saved{}, errNotYet
}

// ResumeSession makes a new channel that continues an archive, which is named by
// channel name or archive id and stays.
func (p *Project) ResumeSession(ctx context.Context, c engine.Caller, archive string, r engine.ResumeSessionRequest) (engine.Resumed, error) {
	return engine.Resumed{}, errNotYet
}

// DeleteSession removes a channel with its messages and archive, or an archive,
// for good. It needs confirm. It returns the channel's id.
func (p *Project) DeleteSession(ctx context.Context, c engine.Caller, channel string, confirm bool) (string, error) {
	return "", errNotYet
}

// Archives lists the archives in which the caller was a member, newest first; an
// operator's list has all.
func (p *Project) Archives(ctx context.Context, c engine.Caller) ([]ArchiveSummary, error) {
	return nil, errNotYet
}

// ArchiveContext is the short text about an archive.
func (p *Project) ArchiveContext(ctx context.Context, c engine.Caller, archive string) (ArchiveContext, error) {
	return ArchiveContext{}, errNotYet
}

// ArchiveMessages are an archive's messages, newest first. limit 0 is 50, at
// most 500.
func (p *Project) ArchiveMessages(ctx context.Context, c engine.Caller, archive string, limit int) (ArchiveMessages, error) {
	return ArchiveMessages{}, errNotYet
}
