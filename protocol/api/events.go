package api

import "time"

// Event types of GET /v1/events. The id of an event is
// "<store generation>-<boot>-<number>"; a client that resumes with an id that
// the hub no longer has gets EventResync first and reloads state.
const (
	EventTask   = "task"   // data: Task
	EventNode   = "node"   // data: Node
	EventResync = "resync" // data: Resync
	EventBeat   = "beat"   // data: Beat; a real event, so that watchdogs see it
	EventCut    = "cut"    // data: Cut; the last one: the hub ends the stream
)

// EventHeartbeat is how often a silent event stream sends EventBeat.
const EventHeartbeat = 15 * time.Second

// Resync tells a client that events were missed.
type Resync struct {
	Reason string `json:"reason"`
}

// Beat keeps an event stream alive and carries the hub's time.
type Beat struct {
	At time.Time `json:"at"`
}

// Cut tells a client that did not keep up that its stream ends. It may come back and
// resume.
type Cut struct {
	Reason string `json:"reason"`
}

// Event is one event as a client hands it on.
type Event struct {
	ID   string
	Type string
	Data []byte
}
