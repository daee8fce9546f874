package store

import (
	"cmp"
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
	// Lane is the generation of the binding that began the lane in which the task
	// waits: operations move the generation on, and the lane goes with it. 0 in
	// records of older hubs: Generation; and of agents without sessions.
	Lane uint64 `json:"lane,omitempty"`
	// Generation is that of the session that the task enters. It is found when the
	// task is first offered, because an operation before it in the lane moves it on;
	// 0 until then.
	Generation uint64 `json:"generation"`
	// Op is api.OpCompact, api.OpReset or api.OpClear, "" for a dispatched task.
	Op string `json:"op,omitempty"`
	// Handover is how far an operation got.
	Handover *Handover `json:"handover,omitempty"`

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
	// Asking is the agent's id of Question when it is asked in the middle of the turn,
	// which goes on once it is answered; "" when the turn ended with the question.
	Asking string `json:"asking,omitempty"`
	// Answer is what the node is still to be told about what was asked so.
	Answer *GivenAnswer `json:"answer,omitempty"`
	// AutoAnswer decides questions, see api.Dispatch.
	AutoAnswer string       `json:"auto_answer,omitempty"`
	Late       *api.Outcome `json:"late,omitempty"` // a result after the end (semantics 7)
	Flags      []api.Flag   `json:"flags,omitempty"`
	Life       []api.Step   `json:"life,omitempty"` // bounded by MaxLife

	// Via names the controllers above this task, oldest first; Parent is the task
	// that it was dispatched from (semantics 20).
	Via    []string `json:"via,omitempty"`
	Parent string   `json:"parent,omitempty"`
}

// GivenAnswer is the answer to a question that was asked in the middle of a turn.
type GivenAnswer struct {
	Asking string `json:"asking"` // the agent's id of the question
	Text   string `json:"text"`   // as in api.Reply
}

// Handover is the state of an operation on a session beside its turn (semantics 13).
type Handover struct {
	// Generation and Session are the bound session's when the operation began to work.
	Generation uint64 `json:"generation"`
	Session    string `json:"session"`
	// Before is the fill then.
	Before *api.Tokens `json:"before,omitempty"`
	// Digest is the generation that is asked for, or handed over; 0 for none.
	Digest int `json:"digest,omitempty"`
	// Fresh is the session that was made for the hand-over.
	Fresh string `json:"fresh,omitempty"`
	// Ending is what the operation ends with once what it made is deleted.
	Ending *api.Outcome `json:"ending,omitempty"`
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
	// Text selects tasks that have it, in any case, in their id, the names of their
	// parties, the summary or the text of the dispatch.
	Text string
	// Before continues a listing: tasks with a Seq below it. 0 starts at the newest.
	Before uint64
	Limit  int // 1 … api.MaxPage
}

// TaskPage is one page, newest first; Next is the Before of the next page, 0 at
// the end.
type TaskPage struct {
	Tasks []Task
	Next  uint64
	// Stopped says that a search ended the page at its bound and not because the page
	// was full: what is older was not looked at.
	Stopped bool
}

// Bounds of one page of a search.
const (
	// MaxSearch is how many tasks are looked at.
	MaxSearch = 5000
	// MaxSearchBytes is after how many bytes of texts no further task is looked at.
	MaxSearchBytes = 16 << 20
)

// SettledQuery selects the settled tasks in which Party, an identity, is controller or
// target and that come after After.
type SettledQuery struct {
	Party string
	After SettledMark
	Limit int // 1 … api.MaxPage
}

// SettledMark is a place in the order in which tasks ended. The zero mark comes before all
// of them.
type SettledMark struct {
	Ended int64 // Unix nanoseconds
	Seq   uint64
}

// Mark is a settled task's place.
func (t *Task) Mark() SettledMark {
	ended := t.EndedAt
	if ended.IsZero() {
		ended = t.Since
	}
	return SettledMark{Ended: ended.UnixNano(), Seq: t.Seq}
}

// Compare orders marks.
func (m SettledMark) Compare(to SettledMark) int {
	return cmp.Or(cmp.Compare(m.Ended, to.Ended), cmp.Compare(m.Seq, to.Seq))
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
// only; a higher one wins. It is never deleted while its parties live, because a
// generation that came again would find the session of its first time.
type Binding struct {
	Rev        Rev `json:"-"`
	BindingKey `json:"key"`
	Generation uint64 `json:"generation"`
	// Lane is the generation that began the lane: only --new begins one. What moves the
	// binding on in its turn, as an entry of the lane's queue, keeps it. 0: Generation.
	Lane uint64 `json:"lane,omitempty"`
	// Context is the generation that began the context: all but a compaction begin
	// one. 0: Lane.
	Context   uint64      `json:"context,omitempty"`
	Session   string      `json:"session,omitempty"` // "" until the node made one
	Title     string      `json:"title"`
	CreatedAt time.Time   `json:"created_at"`
	LastUsed  time.Time   `json:"last_used"`
	Tokens    *api.Tokens `json:"tokens,omitempty"`
	// BoundAt is when Session was bound.
	BoundAt time.Time `json:"bound_at,omitzero"`
	// Digest is the newest digest's generation; it grows over all lanes.
	Digest int `json:"digest,omitempty"`
	// Former are the sessions before, oldest first, at most MaxFormerSessions.
	Former []FormerSession `json:"former,omitempty"`
	// Fills counts the fills that were ever stored with it; PutBinding counts on.
	Fills uint64 `json:"fills,omitempty"`
}

// FormerSession is a session that was bound, or a generation that had none.
type FormerSession struct {
	api.FormerSession
	Lane uint64 `json:"lane"`
}

// Digest is one generation of a binding's digest.
type Digest struct {
	api.Digest
	// Context is that of the binding: only a digest of the same context is merged.
	Context uint64 `json:"context"`
}

// Bounds of what is kept with a binding.
const (
	// MaxFormerSessions is how many former sessions are listed, newest.
	MaxFormerSessions = 64
	// MaxFills is how many fills are kept of each binding, newest.
	MaxFills = 512
)
