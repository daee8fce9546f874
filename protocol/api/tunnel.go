package api

import "time"

// ProtocolVersion is the version of the interfaces inside the tunnel. A hub
// refuses a node of another major version with CodeUnsupportedVersion.
const ProtocolVersion = 1

// Hello is what a node says first on each new tunnel: POST /v1/hello on the
// hub's side of it. The node has written Epoch to its journal before it sends.
type Hello struct {
	Protocol  int    `json:"protocol"`
	Version   string `json:"version"`
	OS        string `json:"os"`   // GOOS
	Arch      string `json:"arch"` // GOARCH
	JournalID string `json:"journal_id"`
	// Epoch is the fencing epoch that the node proposes: one more than the last it
	// stored. A hub that has seen this epoch of the journal already answers
	// CodeJournalForked (semantics 5).
	Epoch       uint64      `json:"epoch"`
	Agent       AgentStatus `json:"agent"`
	Sessions    bool        `json:"sessions"` // whether the agent has sessions, hence lanes of one
	Policy      string      `json:"policy"`
	MaxParallel int         `json:"max_parallel"`
	Workspaces  []string    `json:"workspaces,omitempty"` // first is the default
	Services    []Service   `json:"services,omitempty"`
	// AcceptFrom are the controllers that may use this node and its services, by
	// name or identity id; empty: all.
	AcceptFrom []string       `json:"accept_from,omitempty"`
	Bound      []BoundSession `json:"bound,omitempty"`
	// Instance is random per process: it tells a reconnect from a second process.
	Instance string `json:"instance"`
}

// BoundSession says which session a node made for a binding's generation.
type BoundSession struct {
	Controller string `json:"controller"` // identity id
	Workspace  string `json:"workspace,omitempty"`
	Generation uint64 `json:"generation"`
	Session    string `json:"session"`
}

// Welcome answers a Hello that was taken.
type Welcome struct {
	HubID       string `json:"hub_id"`
	Generation  string `json:"generation"`
	Name        string `json:"name"`
	IdentityID  string `json:"identity_id"`
	Version     string `json:"version"`
	HeartbeatMS int64  `json:"heartbeat_ms"`
}

// Party is a controller or target: the random identity and the name that it had
// when the record was made.
type Party struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Triple is the unit of execution (semantics 1).
type Triple struct {
	Task    string `json:"task"`
	Attempt int    `json:"attempt"` // from 1
	Turn    int    `json:"turn"`    // from 1 within the attempt
}

// Kinds of turn: what the text of an offer asks of the agent.
const (
	TurnTask   = "task"   // the envelope of the dispatch
	TurnAnswer = "answer" // the answer to a question
	TurnAssume = "assume" // no answer came: go on by assumption
	// The turns of operations on a session (mesh-protocol.md §9).
	TurnDigest = "digest" // compact: condense the bound session; never makes one
	TurnResume = "resume" // compact: hand the digest over to a new session
	TurnDelete = "delete" // clear, and the roll-back of compact: delete the session
)

// Binding is the bound session that a turn enters.
type Binding struct {
	Generation uint64 `json:"generation"`
	// Session is the session's id; "" when the node is to make one.
	Session string `json:"session,omitempty"`
	Title   string `json:"title"`
	// Compaction is the task that makes this session, in a TurnResume; "" otherwise.
	// Such a session is nobody's until the hub binds it: it is marked with the
	// compaction, and no turn but those of the compaction finds it by its generation.
	Compaction string `json:"compaction,omitempty"`
}

// Offer is the body of PUT /v1/tasks/{id} on the node's side of the tunnel.
// Durations are what remained when the hub sent it.
type Offer struct {
	Triple
	HubID      string `json:"hub_id"`
	JournalID  string `json:"journal_id"`
	Epoch      uint64 `json:"epoch"`
	Hash       string `json:"hash"` // of this triple's body, hex
	Seq        uint64 `json:"seq"`  // the hub's commit order
	Kind       string `json:"kind"` // TurnTask, TurnAnswer, TurnAssume
	Controller Party  `json:"controller"`
	// CreatedMS is the hub's stamp of the task's creation, Unix milliseconds of
	// the hub's clock; compared by the node with its low-water mark only.
	CreatedMS  int64 `json:"created_ms"`
	TTLMS      int64 `json:"ttl_ms"`
	DeadlineMS int64 `json:"deadline_ms"` // 0: the node's default
	// QuestionMS is how long a question inside the turn may wait for its answer; 0:
	// DefaultQuestionTimeout.
	QuestionMS int64   `json:"question_ms,omitempty"`
	Mode       string  `json:"mode"`
	Workspace  string  `json:"workspace,omitempty"`
	Binding    Binding `json:"binding"`
	Text       string  `json:"text"`
	// Token is the lineage token of the task (semantics 20).
	Token string `json:"token,omitempty"`
}

// Receipt answers an offer (202 taken now, 200 known already) once the node's
// journal has it on disk.
type Receipt struct {
	Triple
	State State `json:"state"`
	// Outcome is the recorded result when the triple is settled at the node.
	Outcome *Outcome `json:"outcome,omitempty"`
}

// Withdraw is the body of DELETE /v1/tasks/{id} on the node's side: cancel or
// expiry. The node decides and answers with a Receipt (semantics 7).
type Withdraw struct {
	Triple
	JournalID string `json:"journal_id"`
	Epoch     uint64 `json:"epoch"`
	// Reason is WithdrawCancel, WithdrawExpire or WithdrawRevoke.
	Reason    string `json:"reason"`
	CreatedMS int64  `json:"created_ms"`
}

// Reasons of a Withdraw. An expiry does not touch a task that has started.
const (
	WithdrawCancel = "cancel"
	WithdrawExpire = "expire"
	WithdrawRevoke = "revoke"
)

// Reconcile is the body of POST /v1/reconcile on the node's side: the triples
// that the hub holds open for it.
type Reconcile struct {
	JournalID string   `json:"journal_id"`
	Epoch     uint64   `json:"epoch"`
	Tasks     []Triple `json:"tasks"`
}

// Reconciled answers it in the same order; State is "" for an id never seen.
type Reconciled struct {
	Tasks []Receipt `json:"tasks"`
}

// Progress is the body of PUT /v1/tasks/{id}/progress on the hub's side.
type Progress struct {
	Triple
	JournalID string `json:"journal_id"`
	Epoch     uint64 `json:"epoch"`
	State     State  `json:"state"` // running or held
	// RanMS is how long the attempt has run.
	RanMS   int64    `json:"ran_ms"`
	Session string   `json:"session,omitempty"`
	Flags   []string `json:"flags,omitempty"`
	Activity
}

// Activity is what a running turn does, for people. Nothing of it is durable.
type Activity struct {
	// Note is what the node says, such as that it waits for the agent's server.
	Note string `json:"note,omitempty"`
	// Tool is the tool call that runs or ran last, with its title.
	Tool string `json:"tool,omitempty"`
	// Line is the last line that the agent wrote.
	Line string `json:"line,omitempty"`
	// Tokens is the context fill so far.
	Tokens *Tokens `json:"tokens,omitempty"`
}

// Ask is the body of PUT /v1/tasks/{id}/question on the hub's side: the agent asks
// in the middle of a turn, which goes on when it is answered. The node repeats it
// on each connection until the hub has it, and until Asked is answered or withdrawn.
type Ask struct {
	Triple
	JournalID string `json:"journal_id"`
	Epoch     uint64 `json:"epoch"`
	// Question is the agent's id of what it asks, unique within the turn.
	Question string `json:"question"`
	// Asked is nil when the question is withdrawn: it was answered elsewhere, or what
	// asked it is gone.
	Asked *Asked `json:"asked,omitempty"`
}

// Reply is the body of POST /v1/tasks/{id}/answer on the node's side: the answer to
// an Ask. A repeat is no error; CodeQuestionGone when nothing asks that any more.
type Reply struct {
	Triple
	JournalID string `json:"journal_id"`
	Epoch     uint64 `json:"epoch"`
	Question  string `json:"question"` // as in Ask
	// Text is one of the question's options or the controller's own words; of a
	// permission PermitOnce, PermitAlways or PermitReject, the latter perhaps followed
	// by a blank and a message for the agent.
	Text string `json:"text"`
}

// The options of a permission.
const (
	PermitOnce   = "once"
	PermitAlways = "always"
	PermitReject = "reject"
)

// Outcome is how a turn ended.
type Outcome struct {
	// State is done, partial, failed, question, canceled, expired or refused.
	State     State    `json:"state"`
	Summary   string   `json:"summary,omitempty"`
	Artifacts []string `json:"artifacts,omitempty"`
	// Files says what the node found at the paths of Artifacts when the turn ended,
	// in their order.
	Files      []Artifact `json:"files,omitempty"`
	Reply      string     `json:"reply,omitempty"`
	Question   *Asked     `json:"question,omitempty"`
	Session    string     `json:"session,omitempty"`
	NewSession bool       `json:"new_session,omitempty"`
	Tokens     *Tokens    `json:"tokens,omitempty"`
	Flags      []Flag     `json:"flags,omitempty"`
	Error      *TaskError `json:"error,omitempty"`
	// RanMS is how long the agent ran; 0 when it never started.
	RanMS int64 `json:"ran_ms,omitempty"`
}

// Asked is what an agent asks: in an Outcome in state question, or in an Ask.
type Asked struct {
	Kind    string   `json:"kind"`
	Text    string   `json:"text"`
	Options []string `json:"options,omitempty"`
}

// Result is the body of PUT /v1/tasks/{id}/result on the hub's side. The node
// sends it until it is acknowledged (the final ACK).
type Result struct {
	Triple
	JournalID string  `json:"journal_id"`
	Epoch     uint64  `json:"epoch"`
	Outcome   Outcome `json:"outcome"`
	// AgoMS is how long ago the turn ended when this was sent.
	AgoMS int64 `json:"ago_ms"`
	// Recover is what a hub needs to adopt a task that it does not know; sent
	// after CodeUnknownTask only (semantics 10).
	Recover *Recover `json:"recover,omitempty"`
}

// Recover describes a task to a hub that was restored to a time before it.
type Recover struct {
	// Kind is the kind of the turn; "" is TurnTask. Of an operation on a session
	// nothing is adopted: it is acknowledged and forgotten.
	Kind       string `json:"kind,omitempty"`
	Controller Party  `json:"controller"`
	Hash       string `json:"hash"`
	Mode       string `json:"mode"`
	Workspace  string `json:"workspace,omitempty"`
	CreatedMS  int64  `json:"created_ms"`
	Text       string `json:"text"`
}

// NodeReport is the body of PUT /v1/status on the hub's side: what changed at
// the node since its hello.
type NodeReport struct {
	Agent   AgentStatus `json:"agent"`
	Running int         `json:"running"`
	Waiting int         `json:"waiting"`
	// Draining is set by a node that is stopping: no new offers.
	Draining bool `json:"draining,omitempty"`
	// Services are all that the node offers now; nil when it does not say.
	Services []Service `json:"services,omitempty"`
}

// Millis converts a duration to whole milliseconds, rounding up so that a
// positive duration never becomes zero.
func Millis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
