// Package agent is the seam between a node's runner and whatever does the work:
// a coding agent with sessions (agent/opencode) or any program (agent/command).
//
// An Agent executes turns. One (task, attempt, turn) is executed at most once
// (semantics 1): an agent makes durable, through Host.Checkpoint and before it
// starts anything, whatever it needs to tell later whether it had started. After
// a crash the runner hands the same turn over again with Resumed set and the last
// checkpoint, and the agent looks before it acts.
package agent

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// Causes with which the runner ends a turn's context; read them with
// context.Cause.
var (
	// ErrCanceled: the controller canceled, or the hub revoked. Abort the work and
	// return an outcome in state canceled.
	ErrCanceled = errors.New("canceled by the controller")
	// ErrDeadline: the attempt ran out of time. Abort the work and return
	// failed/deadline.
	ErrDeadline = errors.New("deadline reached")
	// ErrStopping: the node is stopping. Leave the work in a state that a later
	// Run with Resumed can take up and return ErrDetached.
	ErrStopping = errors.New("node is stopping")
)

// ErrDetached is returned by Run when the turn has no outcome yet and goes on
// without this process, or can be taken up by the next one. The journal keeps
// the turn as running.
var ErrDetached = errors.New("turn goes on without this process")

// Workspace is a directory that the node offers for work.
type Workspace struct {
	Name string
	Dir  string // absolute
}

// Session is the bound session that a turn enters. Agents without sessions
// ignore it.
type Session struct {
	// Key names the lane: controller identity, workspace and generation. At most
	// one session is made for it (semantics 13).
	Key        string
	Generation uint64
	// ID is the session to use; "" when none was made yet.
	ID    string
	Title string
	// Compaction is the task that hands over to this session, in a TurnResume; ""
	// otherwise. The session is looked for and made with that mark.
	Compaction string
}

// Turn is one unit of execution.
type Turn struct {
	api.Triple
	HubID      string
	Kind       string // api.TurnTask …; agents without sessions get the first three only
	Controller api.Party
	Workspace  Workspace
	Mode       mesh.Mode
	// Text is the envelope as it goes to the agent.
	Text    string
	Session Session
	// Token is the lineage token of the task; agents pass it on to what they start
	// (semantics 20).
	Token string
	// Resumed says that an earlier process had taken this turn up; Checkpoint is
	// what it saved last, nil when it saved nothing.
	Resumed    bool
	Checkpoint []byte
}

// Host is what the runner offers to a running turn. Safe for concurrent use.
type Host interface {
	// Checkpoint replaces the turn's durable record and returns once it is on disk.
	// An error means that the turn must not go on to its next irreversible step.
	Checkpoint(ctx context.Context, data []byte) error
	// SessionMade records durably which session belongs to the turn's lane.
	SessionMade(ctx context.Context, id string) error
	// Progress tells the hub what goes on, best effort: the newest counts.
	Progress(a api.Activity)
	// Ask puts a question of the running turn to the controller and waits for the
	// answer, over restarts of the hub and losses of the link. id is the agent's own;
	// after a restart of the node the same question is asked again with the same id
	// and gets the answer that was given meanwhile. The turn's deadline stands still
	// while the hub knows of the question. ErrNoAnswer: the time for it is over.
	// When ctx ends the question is withdrawn and its cause returned.
	Ask(ctx context.Context, id string, asked api.Asked) (answer string, err error)
}

// ErrNoAnswer is returned by Host.Ask when nobody answered in time.
var ErrNoAnswer = errors.New("nobody answered in time")

// Agent executes turns. Run is called concurrently for different lanes, never
// for two turns of one session at once.
type Agent interface {
	// Kind is "opencode" or "command".
	Kind() string
	// HasSessions says whether turns of one lane must run one after the other in
	// one session. Without sessions turns start in order and run in parallel.
	HasSessions() bool
	// Start brings the agent up and returns when it has begun to (it may become
	// healthy later). Stop ends what Start began and returns when all of it ended.
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	// Run executes a turn and returns its outcome, or ErrDetached. Any other error
	// is a failure of the mesh and settles the turn as failed/agent_unavailable.
	Run(ctx context.Context, turn Turn, host Host) (api.Outcome, error)
	// Status is the agent's health now; it must not block beyond a short limit.
	Status(ctx context.Context) api.AgentStatus
}

// Notifier is an Agent that tells of changes at once.
type Notifier interface {
	// Changed is closed when Status, or the server that the agent has, is next about to
	// be another one. Whoever must miss nothing asks for it first and looks then.
	Changed() <-chan struct{}
}

// Cleaner is an Agent that can delete the sessions that controllers left on this
// machine (mesh-protocol.md §9, inbound clean-up).
type Cleaner interface {
	// Clean deletes every session in a workspace of the node whose title starts with
	// SessionTitle, but those that keep says are still needed, and tells each one that
	// is gone. Called once, after the last turn ended and before Stop.
	Clean(ctx context.Context, keep func(session string) bool, removed func(Removed)) error
}

// SessionTitle begins the title of every session that the mesh makes.
const SessionTitle = "opencode-mesh "

// Removed is a session that Clean deleted.
type Removed struct {
	Session   string    `json:"session"`
	Title     string    `json:"title"`
	Workspace string    `json:"workspace"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// Summary is that of the last result in it, "" when there is none.
	Summary string `json:"summary"`
}

// Forgetter is an Agent that keeps something of its own on disk for each turn.
type Forgetter interface {
	// Forget removes it. The runner calls it when the turn's outcome and its
	// acknowledgement are both in the journal, and again before the journal drops
	// the turn: an error (somebody still looks after the run) is tried again then.
	Forget(t api.Triple) error
}
