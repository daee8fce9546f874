// Package outbox keeps what was sent to peers from this machine, in the files of
// opencode-plugin-peers: what was sent, what its receiver answered, and what became of it.
//
// What Begin wrote is on the disk before anything is sent, so a final acknowledgement
// always finds its record, however early it comes. News of one record may come from many
// sides at once; none of them is lost within this process. Another process that changes
// the same record at the same moment may lose ours: the original has no lock either, and
// nobody else sends in the name of our endpoints.
package outbox

import (
	"errors"
	"time"

	"opencode-mesh/protocol/peers"
)

// ErrNone says that there is no such record.
var ErrNone = errors.New("there is no record of such a message")

// Record is what is known of a message that was sent. Its fields are in the order of the
// files; times are Unix milliseconds.
type Record struct {
	Version      int     `json:"version"` // 1
	MessageID    string  `json:"messageId"`
	FromEndpoint string  `json:"fromEndpointId"`
	ToEndpoint   string  `json:"toEndpointId"`
	ToName       string  `json:"toName"`
	Text         string  `json:"text"`
	CreatedAt    float64 `json:"createdAt"`
	UpdatedAt    float64 `json:"updatedAt"`
	// FinalStatus and AcknowledgedAt are those of the last final acknowledgement.
	FinalStatus    string  `json:"finalStatus,omitempty"`
	AcknowledgedAt float64 `json:"acknowledgedAt,omitempty"`
	ReceiptStatus  string  `json:"receiptStatus,omitempty"` // what the receiver answered
	Error          string  `json:"error,omitempty"`         // why there was no answer
}

// Outbox is the outbox of a storage directory. It is safe for concurrent use.
type Outbox struct {
	dir string
	now func() time.Time
}

// New returns the Outbox of a storage directory, which is read and made when it is
// needed. now may be nil.
func New(storageDir string, now func() time.Time) *Outbox {
	return &Outbox{dir: storageDir, now: now}
}

// Begin writes the record of a message that is about to be sent: its ids, the name of
// whom it is for, and its text. The rest is filled in.
func (o *Outbox) Begin(r Record) error { return errors.ErrUnsupported }

// Receipt notes what the receiver answered. An error from before is forgotten.
func (o *Outbox) Receipt(from, id, status string) error { return errors.ErrUnsupported }

// Failed notes why there was no answer. err is of a kind that may be shown to people: it
// has no secret in it.
func (o *Outbox) Failed(from, id string, err error) error { return errors.ErrUnsupported }

// Ack notes a final acknowledgement, if there is a record of its message to the endpoint
// that it names, and says whether there is. The last one counts.
func (o *Outbox) Ack(a peers.Ack) (applied bool, err error) { return false, errors.ErrUnsupported }

// Get returns a record. ErrNone: there is none.
func (o *Outbox) Get(from, id string) (Record, error) { return Record{}, errors.ErrUnsupported }

// List returns the records of some senders, or of all, newest first.
func (o *Outbox) List(from ...string) ([]Record, error) { return nil, errors.ErrUnsupported }
