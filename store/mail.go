package store

import (
	"time"

	"opencode-mesh/protocol/api"
)

// Mail is what the hub keeps of a mail between two nodes, without its body. Its state
// only goes forward, queued → delivered or returned → gone, and nothing else of it ever
// changes: the state is the revision that a change is compared with.
type Mail struct {
	// Seq is the order in which the store took the mails, stamped by AddMail.
	Seq uint64 `json:"-"`
	// ID is unique among the mails of one sender's name.
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// From is the sender as it was; To is a name, which may be another identity's when
	// the mail is delivered. ToID is the only identity that may get it, "": any.
	From api.Party `json:"from"`
	To   string    `json:"to"`
	ToID string    `json:"to_id,omitempty"`
	Lane string    `json:"lane,omitempty"`
	// Hash is of kind, target, lane and body, so that a repeat is told from another mail.
	Hash string `json:"hash"`
	// Size is the body's, in bytes.
	Size int `json:"size"`
	// SentAt is when the sender first offered it, by the hub's clock.
	SentAt time.Time `json:"sent_at"`
	// State is api.MailQueued, api.MailDelivered or api.MailReturned.
	State string `json:"state"`
	// Code, Message and MayHaveArrived are the receipt's.
	Code           string `json:"code,omitempty"`
	Message        string `json:"message,omitempty"`
	MayHaveArrived bool   `json:"may_have_arrived,omitempty"`
}

// MailChange moves a mail forward.
type MailChange struct {
	Seq uint64
	// Gone removes the mail; else Receipt ends it, and its body goes.
	Gone    bool
	Receipt api.MailReceipt
}
