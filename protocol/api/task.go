package api

import "time"

// State is where a task is in its life.
type State string

// The states. A settled state never changes (semantics 7).
const (
	StateQueued   State = "queued"
	StateOffered  State = "offered"
	StateAccepted State = "accepted"
	StateHeld     State = "held"
	StateRunning  State = "running"
	StateQuestion State = "question"
	StateUnknown  State = "unknown"

	StateDone     State = "done"
	StatePartial  State = "partial"
	StateFailed   State = "failed"
	StateRefused  State = "refused"
	StateExpired  State = "expired"
	StateCanceled State = "canceled"
)

// Settled reports whether s is final.
func (s State) Settled() bool {
	switch s {
	case StateDone, StatePartial, StateFailed, StateRefused, StateExpired, StateCanceled:
		return true
	}
	return false
}

// Valid reports whether s is one of the states.
func (s State) Valid() bool {
	switch s {
	case StateQueued, StateOffered, StateAccepted, StateHeld, StateRunning, StateQuestion, StateUnknown:
		return true
	}
	return s.Settled()
}

// Flag marks something worth knowing about how a result came to be.
type Flag = string

// The flags.
const (
	FlagFreeReply          Flag = "free_reply"
	FlagUnterminated       Flag = "unterminated"
	FlagSummaryTooLong     Flag = "summary_too_long"
	FlagTruncated          Flag = "truncated"
	FlagMayHaveRun         Flag = "may_have_run"
	FlagResumed            Flag = "resumed"
	FlagRecovered          Flag = "recovered"
	FlagSessionReplaced    Flag = "session_replaced"
	FlagPermissionRejected Flag = "permission_rejected"
	FlagProviderError      Flag = "provider_error"
	FlagForgedMarker       Flag = "forged_marker"
	FlagAssumed            Flag = "assumed"
	FlagContextFull        Flag = "context_full"
	FlagDigestFromRecord   Flag = "digest_from_record"
)

// Codes of TaskError: why the mesh, and not the agent, settled a task.
const (
	TaskDeadline         = "deadline"
	TaskInterrupted      = "interrupted"
	TaskNodeLost         = "node_lost"
	TaskJournalLost      = "journal_lost"
	TaskTooOld           = "too_old"
	TaskResultRejected   = "result_rejected"
	TaskTargetReplaced   = "target_replaced"
	TaskTargetRevoked    = "target_revoked"
	TaskControllerGone   = "controller_revoked"
	TaskRefused          = "refused"
	TaskHeldTooLong      = "held_too_long"
	TaskAgentUnavailable = "agent_unavailable"
	TaskNotStarted       = "not_started"
	TaskExitCode         = "exit_code"
	TaskOutputLimit      = "output_limit"
	TaskBadWorkspace     = "bad_workspace"
	TaskConflict         = "task_conflict"

	// Of operations on a session.
	TaskNoSession       = "no_session"
	TaskSessionGone     = "session_gone"
	TaskSessionInUse    = "session_in_use"
	TaskMalformedDigest = "malformed_digest"
	TaskNoDigest        = "no_digest"
	TaskNotAcknowledged = "not_acknowledged"
	TaskBindingChanged  = "binding_changed"
)

// TaskError says why the mesh settled a task; nil when the agent did.
type TaskError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Tokens is the context fill that an agent reported with its reply.
type Tokens struct {
	// Total is how many tokens the session's context held.
	Total int64 `json:"total"`
	// Limit is the model's context size; 0 when unknown.
	Limit int64 `json:"limit"`
}

// Percent is the fill in whole per cent, nil when the limit is unknown.
func (t *Tokens) Percent() *int {
	if t == nil || t.Limit <= 0 {
		return nil
	}
	p := int((t.Total*100 + t.Limit/2) / t.Limit)
	return &p
}

// Question is what an agent wants to know before it goes on.
type Question struct {
	ID        string     `json:"id"`
	Kind      string     `json:"kind"` // QuestionText or QuestionPermission
	Text      string     `json:"text"`
	Options   []string   `json:"options"`
	AskedAt   time.Time  `json:"asked_at"`
	ExpiresAt *time.Time `json:"expires_at"`
}

// The kinds of question.
const (
	QuestionText       = "question"
	QuestionPermission = "permission"
)

// Task is a task as controllers see it; the fields up to Error are the contract
// of cli.md.
type Task struct {
	Task       string     `json:"task"`
	Controller string     `json:"controller"`
	Target     string     `json:"target"`
	State      State      `json:"state"`
	Summary    string     `json:"summary"`
	Artifacts  []string   `json:"artifacts"`
	Question   *Question  `json:"question"`
	Session    *string    `json:"session"`
	NewSession bool       `json:"new_session"`
	Tokens     *Tokens    `json:"tokens"`
	CtxPercent *int       `json:"ctx_percent"`
	CreatedAt  time.Time  `json:"created_at"`
	StartedAt  *time.Time `json:"started_at"`
	EndedAt    *time.Time `json:"ended_at"`
	DurationMS *int64     `json:"duration_ms"`
	Attempt    int        `json:"attempt"`
	Flags      []Flag     `json:"flags"`
	Error      *TaskError `json:"error"`

	// Op is OpCompact, OpReset or OpClear when this is an operation on a session, and
	// "" for a task that somebody dispatched.
	Op        string    `json:"op,omitempty"`
	Turn      int       `json:"turn"`
	Mode      string    `json:"mode"`
	Workspace string    `json:"workspace,omitempty"`
	Since     time.Time `json:"since"`
	ExpiresAt time.Time `json:"expires_at"`
	// Activity is what the agent does while the task runs.
	Activity   *Activity  `json:"activity,omitempty"`
	CancelAt   *time.Time `json:"cancel_requested_at,omitempty"`
	LateResult bool       `json:"late_result,omitempty"`
	// Header and Text are the envelope as it is sent, Reply is the reply as received;
	// only in the answer to a request for one task.
	Header string `json:"header,omitempty"`
	Text   string `json:"text,omitempty"`
	Reply  string `json:"reply,omitempty"`
	// Files says what was found at the artifacts' paths when the task ended; only in
	// the answer to a request for one task.
	Files []Artifact `json:"files,omitempty"`
	// Life is every state the task went through, oldest first, bounded; only in
	// the answer to a request for one task.
	Life []Step `json:"life,omitempty"`
}

// Step is one change in a task's life.
type Step struct {
	At      time.Time `json:"at"`
	State   State     `json:"state"`
	Attempt int       `json:"attempt"`
	Turn    int       `json:"turn"`
	Note    string    `json:"note,omitempty"`
}

// TaskTokenHeader carries the lineage token of the task that a dispatch comes
// from (semantics 20); TaskTokenEnv is the variable that hands it to a task's
// program.
const (
	TaskTokenHeader = "Mesh-Task-Token"
	TaskTokenEnv    = "MESH_TASK_TOKEN"
)

// DispatchTarget is one target of a dispatch with the task id that the client
// minted for it before its first send (semantics 4).
type DispatchTarget struct {
	Name string `json:"name"`
	ID   string `json:"id"`
}

// Dispatch is the body of POST /v1/tasks. Either all of its tasks are created
// or none. Zero durations mean the defaults.
type Dispatch struct {
	Targets           []DispatchTarget `json:"targets"`
	Text              string           `json:"text"`
	Mode              string           `json:"mode,omitempty"`
	New               bool             `json:"new,omitempty"`
	Workspace         string           `json:"workspace,omitempty"`
	TTLMS             int64            `json:"ttl_ms,omitempty"`
	DeadlineMS        int64            `json:"deadline_ms,omitempty"`
	QuestionTimeoutMS int64            `json:"question_timeout_ms,omitempty"`
	// AutoAnswer decides questions of the agent: AutoAnswerFirst takes the first
	// option, AutoAnswerNone or "" leaves them to a person, anything else is a regular
	// expression (RE2): the first option that matches is taken. A question without a
	// fitting option waits for a person; a permission always does.
	AutoAnswer string `json:"auto_answer,omitempty"`
	// AutoCompact compacts the bound session first when its context is filled to this
	// percentage or more; 0 never does.
	AutoCompact int `json:"auto_compact,omitempty"`
	// ContextQuery is the id of the context query whose frames are in Text, so that it is
	// known what they were used for. "": there are none.
	ContextQuery string `json:"context_query,omitempty"`
}

// The fixed values of Dispatch.AutoAnswer.
const (
	AutoAnswerFirst = "first"
	AutoAnswerNone  = "none"
)

// Dispatched is the answer to a Dispatch: the tasks in the order of the targets.
type Dispatched struct {
	Tasks []Task `json:"tasks"`
}

// TaskPage is one page of tasks, newest first; Next is the cursor of the next
// page, "" at the end.
type TaskPage struct {
	Tasks []Task `json:"tasks"`
	Next  string `json:"next,omitempty"`
	// Stopped says that a search ended at the bound of what one request looks at: the
	// page may have fewer tasks than there are, and Next goes on from there.
	Stopped bool `json:"stopped,omitempty"`
}

// Answer is the body of POST /v1/tasks/{id}/answer.
type Answer struct {
	// Question is the id of the question that is answered; "" means the one that
	// waits now.
	Question string `json:"question,omitempty"`
	// Text is the answer, or the number of an option.
	Text string `json:"text"`
}
