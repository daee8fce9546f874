package api

import "time"

// Operations on the bound session of a controller and a target. Each is a task of
// its own and an entry in the lane's queue (semantics 12): what was dispatched
// before it comes first, what is dispatched after it waits for its end.
const (
	OpCompact = "compact" // hand the session over to a new one by a digest
	OpReset   = "reset"   // drop the binding; the session stays on its node
	OpClear   = "clear"   // delete the session and drop the binding
)

// Session is a binding as controllers see it: GET /v1/bindings lists them,
// GET /v1/bindings/{controller}/{target}?workspace= answers with one.
type Session struct {
	Controller string `json:"controller"`
	Target     string `json:"target"`
	Workspace  string `json:"workspace"`
	// Session is the bound session, nil while there is none: the next dispatch makes
	// one.
	Session    *string   `json:"session"`
	Title      string    `json:"title"`
	Generation uint64    `json:"generation"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsed   time.Time `json:"last_used"`
	Tokens     *Tokens   `json:"tokens"`
	CtxPercent *int      `json:"ctx_percent"`
	// Digest is the generation of the newest digest, 0 when there is none.
	Digest int `json:"digest"`
	// Operation is the operation that is under way or waits, nil when none is.
	Operation *Task `json:"operation,omitempty"`

	// Former are the sessions that were bound before, newest first, and Fills the
	// fill of the context over time, oldest first; both bounded, and only in the
	// answer to a request for one session. A listing has the newest fills of each if it
	// is asked for them.
	Former []FormerSession `json:"former,omitempty"`
	Fills  []Fill          `json:"fills,omitempty"`
}

// SessionList is the answer to GET /v1/bindings.
type SessionList struct {
	Sessions []Session `json:"sessions"`
}

// FormerSession is a session that was bound before.
type FormerSession struct {
	Generation uint64    `json:"generation"`
	Session    string    `json:"session"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsed   time.Time `json:"last_used"`
	EndedAt    time.Time `json:"ended_at"`
	Tokens     *Tokens   `json:"tokens,omitempty"`
	// Why is EndedNew, EndedReset, EndedClear, EndedCompact or EndedReplaced. Only a
	// cleared session was deleted, and a replaced one was gone.
	Why string `json:"why"`
}

// Reasons of FormerSession.
const (
	EndedNew      = "new"
	EndedReset    = OpReset
	EndedClear    = OpClear
	EndedCompact  = OpCompact
	EndedReplaced = "replaced"
)

// Fill is the fill of a bound session's context at one time.
type Fill struct {
	At         time.Time `json:"at"`
	Generation uint64    `json:"generation"`
	Tokens
}

// Operate is the body of POST /v1/bindings/{controller}/{target}/{compact, reset,
// clear}; the answer is the Task. The id is minted by the client, so that a repeat
// is no second operation.
type Operate struct {
	ID        string `json:"id"`
	Workspace string `json:"workspace,omitempty"`
}

// Digest is one generation of a binding's digest.
type Digest struct {
	Generation int       `json:"generation"`
	Task       string    `json:"task"` // the compaction that asked for it
	Session    string    `json:"session"`
	At         time.Time `json:"at"`
	Facts      []string  `json:"facts"`
	Pending    string    `json:"pending"`
	Refs       string    `json:"refs"`
}

// DigestList is the answer to GET /v1/digests?controller=&target=&workspace=, oldest
// first: all generations.
type DigestList struct {
	Digests []Digest `json:"digests"`
}

// Artifact is a file that a result names.
type Artifact struct {
	// Path is as the result names it.
	Path string `json:"path"`
	// Size is in bytes, and SHA256 in hex, as the task ended. The hash is "" of a file
	// beyond MaxHashed.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	// Problem says why the path leads to no file; "" when it does.
	Problem string `json:"problem,omitempty"`
}

// ArtifactList is the answer to GET /v1/tasks/{id}/artifacts. The content of one is
// GET /v1/tasks/{id}/artifacts/file?path=PATH, with range requests.
type ArtifactList struct {
	Artifacts []Artifact `json:"artifacts"`
}
