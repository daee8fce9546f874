package agent

import (
	"context"
	"errors"
	"time"
)

// Errors of a Prompter. Any other says nothing about what happened.
var (
	// ErrNoSession: the agent's server has no such session.
	ErrNoSession = errors.New("the agent has no such session")
	// ErrNotRun: a message is in a session's history and nothing answers it.
	ErrNotRun = errors.New("the session has the message, but nothing runs it")
)

// Prompter is an Agent that can prompt the sessions of its server outside of any
// task, also those that no controller made.
type Prompter interface {
	// Hosted looks for a session on the agent's own server, or returns ErrNoSession.
	Hosted(ctx context.Context, session string) (Hosted, error)
	// Plugin says which plugin the server loads for a directory whose name holds one of
	// names, in any case; "" when there is none.
	Plugin(ctx context.Context, dir string, names []string) (string, error)
	// Visit waits until no turn and no other visit of this node is in a session and
	// keeps them out until Leave. ctx must last as long. Without the session it returns
	// ErrNoSession, as the methods of Visit do.
	Visit(ctx context.Context, session string) (Visit, error)
}

// Hosted is a session of an agent's server.
type Hosted struct {
	Session string
	Dir     string // absolute, as the server spells it
	Parent  string // of a sub-agent's session, which belongs to the turn of another one; else ""
	Title   string
	Status  string // StatusIdle, StatusBusy or StatusRetry
	Created time.Time
	Updated time.Time
}

// What a session does.
const (
	StatusIdle  = "idle"
	StatusBusy  = "busy"
	StatusRetry = "retry" // busy: the provider failed and is asked again
)

// Prompt is a message for a session. What it is stored under is Message, or else derived
// from the session and Key: the same message again is no second one.
type Prompt struct {
	Key string
	// Message is an id as the agent's server makes them. Nobody else may use it: such ids
	// are global.
	Message string
	System  string // for this turn, beside the session's own; "" is none
	Text    string
	// Synthetic marks the text as no person's; Metadata is kept with it.
	Synthetic bool
	Metadata  map[string]any
	// Decide decides what the turn asks a human, when Finish waits for its end; nil has
	// the node's own policy decide, and rejects what that would ask somebody. It is asked
	// again about what it leaves, every few seconds. why is told to the model with a
	// rejection; it must not be "".
	Decide func(r Request) (v Verdict, why string)
}

// Request is what a turn asks a human.
type Request struct {
	ID       string
	Session  string
	Question bool // else a permission
	// Permission is what kind of permission, Patterns what for, Details what is known of
	// the call, as "name: value". The agent's words, not to be trusted.
	Permission string
	Patterns   []string
	Details    []string
	Origin     Origin
	Since      time.Time // when the visit saw it first
}

// Origin says which message the turn of a request answers.
type Origin int

// Origins.
const (
	OriginUnknown Origin = iota // a sub-agent asks, or it cannot be told
	OriginPrompt                // the prompted message
	OriginOther                 // another one of the same session, such as a person's
)

// Verdict is what is done about a request.
type Verdict int

// Verdicts.
const (
	Leave  Verdict = iota // a person may decide it
	Allow                 // this once; no answer to a question
	Reject                // the model goes on without
)

// Visit is the time that a session is kept for a Prompter's caller, who uses it from
// one goroutine. With a sub-agent's session those are kept whose turns it belongs to.
type Visit interface {
	// Idle waits until nothing runs in the session, nor in those that it belongs to.
	Idle(ctx context.Context) error
	// Prompt hands a message over and returns once it is in the session's history.
	// After an error it may be there nevertheless: Stored tells.
	Prompt(ctx context.Context, p Prompt) error
	// Stored says whether a message is in the session's history.
	Stored(ctx context.Context, p Prompt) (bool, error)
	// Finish waits until the turn of a stored message has ended. What it asks a human is
	// decided meanwhile, so that it never waits for somebody who is not there, unless
	// Decide wants that. A message that nothing answers, or whose turn the end of the
	// server cut off, is run again, a few times, before ErrNotRun is returned. resumed says
	// that an earlier process waited for that end already.
	Finish(ctx context.Context, p Prompt, resumed bool) error
	// Leave ends the visit.
	Leave()
}

// Watcher is a Prompter that tells which sessions of its server live.
type Watcher interface {
	Prompter
	// Watch tells, until ctx ends, of every session of whatever directory that is made,
	// changed or deleted, and that begins or ends to work: sign names it, and Hosted says
	// how it is. What happened while nothing was heard is not told: missed is called, at
	// first too, and then sign for every session that works in a directory that missed
	// returns or that is a workspace, or that was made or changed there since Watch began or
	// missed was called before. Both must not block and be safe for concurrent use, and
	// hear of a session as often as it changes.
	Watch(ctx context.Context, sign func(session string), missed func() (dirs []string))
}
