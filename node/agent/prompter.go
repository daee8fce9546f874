package agent

import (
	"context"
	"errors"
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
	Dir string // absolute, as the server spells it
	Sub bool   // a sub-agent's: it belongs to the turn of another one
}

// Prompt is a message for a session. What it is stored under is derived from the
// session and Key: the same message again is no second one.
type Prompt struct {
	Key    string
	System string // for this turn, beside the session's own; "" is none
	Text   string
}

// Visit is the time that a session is kept for a Prompter's caller, who uses it from
// one goroutine.
type Visit interface {
	// Idle waits until nothing runs in the session.
	Idle(ctx context.Context) error
	// Prompt hands a message over and returns once it is in the session's history.
	// After an error it may be there nevertheless: Stored tells.
	Prompt(ctx context.Context, p Prompt) error
	// Stored says whether the message of a key is in the session's history.
	Stored(ctx context.Context, key string) (bool, error)
	// Finish waits until the turn of a stored message has ended. What it asks a human is
	// decided meanwhile, so that it never waits for somebody who is not there. A message
	// that nothing answers, or whose turn the end of the server cut off, is run again, a
	// few times, before ErrNotRun is returned. resumed says that an earlier process waited
	// for that end already.
	Finish(ctx context.Context, key string, resumed bool) error
	// Leave ends the visit.
	Leave()
}
