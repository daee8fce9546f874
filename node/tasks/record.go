package tasks

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"opencode-mesh/protocol/api"
)

// spec is what an offer said; it never changes after the record was made. The
// text is kept beside it, so that a change of state rewrites little.
type spec struct {
	api.Triple
	Hash       string      `json:"hash,omitempty"` // "" in a tombstone
	Seq        uint64      `json:"seq,omitempty"`
	Kind       string      `json:"kind,omitempty"`
	Controller api.Party   `json:"controller,omitzero"`
	CreatedMS  int64       `json:"created_ms"`
	DeadlineMS int64       `json:"deadline_ms,omitempty"`
	QuestionMS int64       `json:"question_ms,omitempty"`
	Mode       string      `json:"mode,omitempty"`
	Workspace  string      `json:"workspace,omitempty"`
	Binding    api.Binding `json:"binding,omitzero"`
	Token      string      `json:"token,omitempty"`
	// TakenMS is when this node took it, Unix milliseconds of its own clock.
	TakenMS int64 `json:"taken_ms"`
}

// fate is how far a triple got.
type fate struct {
	State api.State `json:"state"`
	// StartedMS and EndedMS are Unix milliseconds of the node's clock.
	StartedMS int64 `json:"started_ms,omitempty"`
	EndedMS   int64 `json:"ended_ms,omitempty"`
	// RanMS is how long the agent had the turn, in processes that ended included.
	RanMS int64 `json:"ran_ms,omitempty"`
	// Cancel says that the hub withdrew it while it ran.
	Cancel bool `json:"cancel,omitempty"`
	// Acked says that the hub has the result, so that the id may be forgotten.
	Acked bool `json:"acked,omitempty"`
}

// row is a record as it is on disk.
type row struct {
	spec
	fate
}

// record is one triple in memory: one that is open, which means not settled or
// settled and not acknowledged. Acknowledged ones live on disk only.
type record struct {
	spec
	arrival uint64 // key in the journal, in the order of arrival here
	resumed bool   // an earlier process had it running; set before it is shared

	// The following fields are guarded by journal.mu.
	fate              // what the next write stores; ahead of shown while it is written
	shown   api.State // what is told to others: durable, or as good as it gets
	busy    chan struct{}
	text    string // "" when not kept in memory
	outcome []byte // encoded; nil when there is none or it is on disk only
	unsaved bool   // the outcome could not be journaled
}

// ended reports whether the turn is over: settled, or ended in a question.
func ended(s api.State) bool { return s.Settled() || s == api.StateQuestion }

// waiting reports whether a turn has not started.
func waiting(s api.State) bool { return s == api.StateAccepted || s == api.StateHeld }

// laneKey names the lane of a turn: the bound session of a controller, a
// workspace and a generation (semantics 12). Without sessions there is one lane
// per controller and workspace.
func laneKey(s *spec, sessions bool) string {
	if !sessions {
		return s.Controller.ID + "/" + s.Workspace
	}
	return sessionKey(s)
}

// sessionKey names the session of a binding's generation. One that a compaction
// makes has a key of its own: it is the generation's only once the hub has bound it.
func sessionKey(s *spec) string {
	key := fmt.Sprintf("%s/%s/%d", s.Controller.ID, s.Workspace, s.Binding.Generation)
	if s.Binding.Compaction != "" {
		key += "/" + s.Binding.Compaction
	}
	return key
}

// operation reports whether a turn is part of an operation on a session.
func operation(kind string) bool {
	return kind == api.TurnDigest || kind == api.TurnResume || kind == api.TurnDelete
}

// arrivalKey is a record's key in the journal's buckets.
func arrivalKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// decodeRow reads a row as it is on disk.
func decodeRow(data []byte) (row, error) {
	var r row
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read task record: %w", err)
	}
	if r.Task == "" || !r.State.Valid() {
		return r, fmt.Errorf("read task record: no task or state %q", r.State)
	}
	return r, nil
}
