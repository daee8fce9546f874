package spool

import (
	"cmp"
	"strings"

	"opencode-mesh/protocol/peers"
)

// State is where a message is, and the name of its directory.
type State string

// The states.
const (
	StateHeld     State = "held"     // until a person decides, or until it expires
	StateQueued   State = "queued"   // to be delivered
	StateInflight State = "inflight" // being delivered
	StateDone     State = "done"     // final
)

// Key is what a message is known by: the endpoint that sent it and the id that it has
// there.
type Key struct{ From, ID string }

// StoredMessage is a message as records have it. From.InstanceID is the endpoint that the
// final acknowledgement is for.
type StoredMessage struct {
	ID        string       `json:"id"`
	From      peers.Sender `json:"from"`
	Text      string       `json:"text"`
	Via       []string     `json:"via"`
	SentAt    float64      `json:"sentAt"`              // Unix milliseconds, as all times here
	HeldAt    float64      `json:"heldAt,omitempty"`    // held only
	ExpiresAt float64      `json:"expiresAt,omitempty"` // held only
}

// StoredAck is a final acknowledgement as records have it.
type StoredAck struct {
	Version        int     `json:"version"`
	MessageID      string  `json:"messageId"`
	FromEndpoint   string  `json:"fromEndpointId"`
	ToEndpoint     string  `json:"toEndpointId"`
	Status         string  `json:"status"`
	AcknowledgedAt float64 `json:"acknowledgedAt"`
}

// Record is what the spool has of a message. Its fields are in the order of the files.
type Record struct {
	Version    int           `json:"version"` // 2
	State      State         `json:"state"`
	Message    StoredMessage `json:"message"`
	HeldAt     float64       `json:"heldAt,omitempty"`    // held only
	ExpiresAt  float64       `json:"expiresAt,omitempty"` // held only
	AcceptedAt float64       `json:"acceptedAt,omitempty"`
	// Sequence is the message's place among those of its endpoint; 0 in records that are
	// older than sequences.
	Sequence    float64    `json:"sequence,omitempty"`
	Ack         *StoredAck `json:"ack,omitempty"`                  // done only
	AckSentAt   float64    `json:"ackSentAt,omitempty"`            // 0: the sender did not take it yet
	DuplicateOf string     `json:"duplicateOfMessageId,omitempty"` // of a repeated content
}

// Key is what the message is known by.
func (r Record) Key() Key { return Key{From: r.Message.From.InstanceID, ID: r.Message.ID} }

// FinalAck is the record's final acknowledgement, and false if it has none.
func (r Record) FinalAck() (peers.Ack, bool) {
	if r.Ack == nil {
		return peers.Ack{}, false
	}
	return peers.Ack{
		MessageID: r.Ack.MessageID, FromEndpoint: r.Ack.FromEndpoint, ToEndpoint: r.Ack.ToEndpoint,
		Status: r.Ack.Status, AcknowledgedAt: r.Ack.AcknowledgedAt,
	}, true
}

// receipt is what is answered to a message that is here already.
func (r Record) receipt() string {
	switch r.State {
	case StateHeld:
		return peers.Held
	case StateDone:
		return r.Ack.Status
	default:
		return peers.Queued
	}
}

// place is the number that records are ordered by.
func (r Record) place() float64 { return cmp.Or(r.Sequence, r.AcceptedAt, r.Message.SentAt) }

// compare orders records by their places. Equal ones have an order, too, or they would
// change it from one reading to the next.
func compare(a, b Record) int {
	return cmp.Or(
		cmp.Compare(a.place(), b.place()),
		cmp.Compare(a.AcceptedAt, b.AcceptedAt),
		strings.Compare(a.Message.From.InstanceID, b.Message.From.InstanceID),
		strings.Compare(a.Message.ID, b.Message.ID),
	)
}
