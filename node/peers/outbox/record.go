package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

// MaxRecord bounds the file of a message.
const MaxRecord = 1 << 20

// Record is what is known of a message that was sent. Times are Unix milliseconds.
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

	receiptFirst bool // the receipt came first, and stands first in the file
}

// unsentMark begins the error of a message that did not get to its receiver.
const unsentMark = "was not sent: "

// known says whether anything was heard of the message.
func (r Record) known() bool { return r.ReceiptStatus != "" || r.FinalStatus != "" }

// Unsent says whether the message did not get to its receiver for sure, and why; "" is
// the reason of one that does not know its address any more.
func (r Record) Unsent() (why string, unsent bool) {
	why, marked := strings.CutPrefix(r.Error, unsentMark)
	return why, !r.known() && (marked || r.Error == "" && r.UpdatedAt > r.CreatedAt)
}

// Awaits says whether a final acknowledgement is to come: none is for what was not taken,
// and peers of version 1 send none.
func (r Record) Awaits() bool {
	_, unsent := r.Unsent()
	return r.FinalStatus == "" && r.ReceiptStatus != peers.Full && r.ReceiptStatus != peers.Dropped && !unsent && !peers.ProcessIDLike(r.ToEndpoint)
}

// Finished says whether nothing more is expected of the message. It may come all the
// same, and counts then.
func (r Record) Finished() bool {
	return !r.Awaits() || r.ReceiptStatus == peers.Refused || r.ReceiptStatus == peers.Expired
}

// encode is the record as it stands in its file, where what is known has the order in
// which it came.
func (r Record) encode() ([]byte, error) {
	var v any = r
	if r.receiptFirst {
		early := struct {
			Record
			FinalStatus    string  `json:"finalStatus,omitempty"` // these hide those of the Record
			AcknowledgedAt float64 `json:"acknowledgedAt,omitempty"`
			Error          string  `json:"error,omitempty"`
		}{Record: r, FinalStatus: r.FinalStatus, AcknowledgedAt: r.AcknowledgedAt, Error: r.Error}
		v = early
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// load reads a file.
func load(sys files.FS, path string) (Record, error) {
	data, err := files.Read(sys, path, MaxRecord)
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, err
	}
	if r.Version != 1 || r.MessageID == "" || r.FromEndpoint == "" || r.ToEndpoint == "" {
		return Record{}, errors.New("it is no record of a message")
	}
	// Neither can be part of a text, where the quotes have backslashes.
	final := bytes.Index(data, []byte(`,"finalStatus":`))
	r.receiptFirst = r.ReceiptStatus != "" && (final < 0 || bytes.Index(data, []byte(`,"receiptStatus":`)) < final)
	return r, nil
}
