package store

import (
	"fmt"
	"time"

	"opencode-mesh/protocol/api"
)

// Task is a task's record. Its texts are kept apart as parts, so that a change
// of state rewrites little.
type Task struct {
	Rev Rev `json:"-"`
	// Seq is the commit order of creation, unique and growing: the start order of a
	// lane (semantics 12).
	Seq uint64 `json:"seq"`
	ID  string `json:"id"`
	// Hash covers controller, target, workspace, mode, new and text (semantics 4).
	Hash       string    `json:"hash"`
	Controller api.Party `json:"controller"`
	Target     api.Party `json:"target"`
	// Platform is the controller's GOOS/GOARCH, "" when unknown.
	Platform  string `json:"platform,omitempty"`
	Workspace string `json:"workspace,omitempty"`
	Mode      string `json:"mode"`
	New       bool   `json:"new,omitempty"`
	// Generation is that of the binding whose session the task enters.
	Generation uint64 `json:"generation"`

	State     api.State `json:"state"`
	Since     time.Time `json:"since"`
	CreatedAt time.Time `json:"created_at"`
	// ExpiresAt is when the TTL ends; it counts until the first start only.
	ExpiresAt time.Time `json:"expires_at"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	RanMS     int64     `json:"ran_ms,omitempty"`

	Attempt int    `json:"attempt"` // from 1
	Turn    int    `json:"turn"`    // from 1 within the attempt
	Kind    string `json:"kind"`    // of the turn: api.TurnTask …
	// TurnHash is the hash of the turn's own body.
	TurnHash string `json:"turn_hash"`

	Deadline        time.Duration `json:"deadline,omitempty"` // 0: the node's default
	QuestionTimeout time.Duration `json:"question_timeout,omitempty"`

	// Journal is the node's journal that the current attempt was offered to, ""
	// before the first offer; it is committed before the offer is sent and the
	// attempt never goes to another (semantics 5).
	Journal string `json:"journal,omitempty"`
	// Received says that the node's receipt arrived for the current triple.
	Received bool `json:"received,omitempty"`
	// CancelAt and ExpireAt are when the hub asked the node to end the task
	// (semantics 7); the node's answer changes the state.
	CancelAt     time.Time `json:"cancel_at,omitzero"`
	CancelReason string    `json:"cancel_reason,omitempty"`
	ExpireAt     time.Time `json:"expire_at,omitzero"`

	Outcome  *api.Outcome  `json:"outcome,omitempty"` // without Reply: see PartReply
	Results  []TripleHash  `json:"results,omitempty"` // first result per triple (semantics 14)
	Question *api.Question `json:"question,omitempty"`
	Late     *api.Outcome  `json:"late,omitempty"` // a result after the end (semantics 7)
	Progress string        `json:"progress,omitempty"`
	Flags    []api.Flag    `json:"flags,omitempty"`
	Life     []api.Step    `json:"life,omitempty"` // bounded by MaxLife

	// Via names the controllers above this task, oldest first; Parent is the task
	// that it was dispatched from (semantics 20).
	Via    []string `json:"via,omitempty"`
	Parent string   `json:"parent,omitempty"`
}

// Triple is the unit of execution that the task is at.
func (t Task) Triple() api.Triple {
	return api.Triple{Task: t.ID, Attempt: t.Attempt, Turn: t.Turn}
}

// TripleHash remembers which result was stored for a triple.
type TripleHash struct {
	Attempt int    `json:"attempt"`
	Turn    int    `json:"turn"`
	Hash    string `json:"hash"`
}

// Bounds of a task's record.
const (
	// MaxLife is how many steps of a task's life are kept: the first and the newest.
	MaxLife = 64
	// MaxResults is how many triples' result hashes are kept, newest.
	MaxResults = 64
)

// NewTask is a task to create with the text of its first turn.
type NewTask struct {
	Task Task
	Text []byte
}

// ExistsError names the task id that exists already; errors.Is ErrExists.
type ExistsError struct{ Task Task }

func (e *ExistsError) Error() string { return fmt.Sprintf("store: task %s exists already", e.Task.ID) }

// Unwrap makes errors.Is(err, ErrExists) hold.
func (e *ExistsError) Unwrap() error { return ErrExists }

// PartKind is a kind of text kept beside a task.
type PartKind string

// The kinds: the text that a turn's offer carries, the reply that a turn gave,
// and the reply of a late result.
const (
	PartText  PartKind = "text"
	PartReply PartKind = "reply"
	PartLate  PartKind = "late"
)

// PartKey names one text of a task.
type PartKey struct {
	Kind    PartKind
	Attempt int
	Turn    int
}

// Part is a text to store beside a task.
type Part struct {
	Key  PartKey
	Data []byte
}

// TaskQuery selects tasks; zero fields do not restrict.
type TaskQuery struct {
	Controller string // identity id
	Target     string // identity id
	States     []api.State
	Open       bool // only tasks that are not settled
	// Before continues a listing: tasks with a Seq below it. 0 starts at the newest.
	Before uint64
	Limit  int // 1 … api.MaxPage
}

// TaskPage is one page, newest first; Next is the Before of the next page, 0 at
// the end.
type TaskPage struct {
	Tasks []Task
	Next  uint64
}

// Tombstone is what is left of a task that retention removed (semantics 6): a
// repeat of its id is answered 410, never run.
type Tombstone struct {
	ID         string    `json:"id"`
	Hash       string    `json:"hash"`
	Controller string    `json:"controller"`
	Target     string    `json:"target"`
	State      api.State `json:"state"`
	Until      time.Time `json:"until"`
}

// Retention says which settled tasks Prune removes: those that ended before
// Before, and the oldest beyond Keep. Their tombstones stay until
// TombstonesUntil; tombstones whose time is before Now go.
type Retention struct {
	Now             time.Time
	Before          time.Time // zero: no limit by age
	Keep            int       // 0: no limit by number
	TombstonesUntil time.Time
}

// BindingKey is controller × target × workspace, by identity (semantics 13).
type BindingKey struct {
	Controller string `json:"controller"`
	Target     string `json:"target"`
	Workspace  string `json:"workspace"`
}

// Binding is the bound session of a key. Generation changes by compare-and-set
// only; a higher one wins.
type Binding struct {
	Rev        Rev `json:"-"`
	BindingKey `json:"key"`
	Generation uint64      `json:"generation"`
	Session    string      `json:"session,omitempty"` // "" until the node made one
	Title      string      `json:"title"`
	CreatedAt  time.Time   `json:"created_at"`
	LastUsed   time.Time   `json:"last_used"`
	Tokens     *api.Tokens `json:"tokens,omitempty"`
}
