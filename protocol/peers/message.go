package peers

import (
	"encoding/json"
	"net/http"
)

// What a receiver answers to a message, its receipt. Those of Final are final
// acknowledgements, too.
const (
	Delivered = "delivered" // the host took it
	Queued    = "queued"    // kept, delivered as soon as possible
	Held      = "held"      // kept until a person decides
	Refused   = "refused"
	Expired   = "expired" // held for too long
	Dropped   = "dropped" // by a person; as a receipt: the receiver stops and kept nothing
	Full      = "full"    // nothing was kept
	Duplicate = "duplicate"
)

// Final says whether a status is that of a final acknowledgement.
func Final(status string) bool {
	switch status {
	case Delivered, Refused, Expired, Dropped, Duplicate:
		return true
	}
	return false
}

// HTTPStatus is the status code that goes with a receipt.
func HTTPStatus(receipt string) int {
	switch receipt {
	case Refused:
		return http.StatusForbidden
	case Full:
		return http.StatusTooManyRequests
	}
	return http.StatusAccepted
}

// EncodeReceipt makes the body of an answer to a message.
func EncodeReceipt(receipt string) []byte {
	return encode(struct {
		Status string `json:"status"`
	}{receipt})
}

// ReadReceipt is the receipt in the body of an answer, "" if none is in it.
func ReadReceipt(body []byte) string {
	o, err := readObject(body)
	if err != nil || !o.truthy("status") {
		return ""
	}
	return o.word("status")
}

// Inbound policies. Any other word counts as PolicyAccept.
const (
	PolicyAccept = "accept"
	PolicyAuto   = "auto" // accept from the same directory, hold from others
	PolicyHold   = "hold"
	PolicyRefuse = "refuse"
)

// MaxVia is how many endpoints a message may have passed.
const MaxVia = 4

// Sender is what a message says of its sender. Nobody has checked it.
type Sender struct {
	InstanceID string `json:"instanceId"`
	Name       string `json:"name"`
	Directory  string `json:"directory"`
}

// Message is a message of either version, as receivers see it.
type Message struct {
	ID string
	// FromEndpoint is where the final acknowledgement goes; a message of version 1 has
	// what its sender calls itself.
	FromEndpoint string
	// ToEndpoint is "" in a message of version 1, which goes to the process.
	ToEndpoint string
	// From has FromEndpoint as its InstanceID once it was read, whatever it was.
	From   Sender
	Text   string
	Via    []string // never nil once it was read
	SentAt float64  // Unix milliseconds, finite
	V1     bool
}

// ReadMessage reads the body of a message. A version that is not the number 2 is 1. The
// error is ErrJSON or wraps ErrShape. The size of the text and its time are the receiver's
// to judge.
func ReadMessage(body []byte) (Message, error) {
	o, err := readObject(body)
	if err != nil {
		return Message{}, err
	}
	m := Message{V1: !o.is("version", 2)}
	id := "messageId"
	if m.V1 {
		id = "id"
	}
	var ok bool
	if m.ID, ok = o.some(id); !ok {
		return Message{}, shape("%s is missing", id)
	}
	if !m.V1 {
		if m.FromEndpoint, ok = o.some("fromEndpointId"); !ok {
			return Message{}, shape("fromEndpointId is missing")
		}
		if m.ToEndpoint, ok = o.some("toEndpointId"); !ok {
			return Message{}, shape("toEndpointId is missing")
		}
	}
	if m.From, err = readSender(o.object("from")); err != nil {
		return Message{}, err
	}
	if m.V1 {
		m.FromEndpoint = m.From.InstanceID
	} else {
		m.From.InstanceID = m.FromEndpoint
	}
	if m.Text, ok = o.text("text"); !ok {
		return Message{}, shape("text is no text")
	}
	if m.Via, err = readVia(o["via"]); err != nil {
		return Message{}, err
	}
	if m.SentAt, ok = o.finite("sentAt"); !ok {
		return Message{}, shape("sentAt is no number")
	}
	return m, nil
}

func readSender(o object) (s Sender, err error) {
	var ok bool
	if s.InstanceID, ok = o.some("instanceId"); !ok {
		return s, shape("from.instanceId is missing")
	}
	if s.Name, ok = o.some("name"); !ok {
		return s, shape("from.name is missing")
	}
	if s.Directory, ok = o.some("directory"); !ok {
		return s, shape("from.directory is missing")
	}
	return s, nil
}

func readVia(raw json.RawMessage) ([]string, error) {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil || items == nil {
		return nil, shape("via is no array")
	}
	if len(items) > MaxVia {
		return nil, shape("it went by %d endpoints, more than %d", len(items), MaxVia)
	}
	via := make([]string, len(items))
	for i, item := range items {
		if item[0] != '"' || json.Unmarshal(item, &via[i]) != nil {
			return nil, shape("via holds something else than texts")
		}
	}
	return via, nil
}

// Encode makes the body of the message, in its version.
func (m Message) Encode() []byte {
	via := m.Via
	if via == nil {
		via = []string{}
	}
	from := m.From
	if m.FromEndpoint != "" {
		from.InstanceID = m.FromEndpoint
	}
	if m.V1 {
		return encode(struct {
			ID     string   `json:"id"`
			From   Sender   `json:"from"`
			Text   string   `json:"text"`
			Via    []string `json:"via"`
			SentAt float64  `json:"sentAt"`
		}{m.ID, from, m.Text, via, m.SentAt})
	}
	return encode(struct {
		Version int      `json:"version"`
		ID      string   `json:"messageId"`
		FromID  string   `json:"fromEndpointId"`
		ToID    string   `json:"toEndpointId"`
		From    Sender   `json:"from"`
		Text    string   `json:"text"`
		Via     []string `json:"via"`
		SentAt  float64  `json:"sentAt"`
	}{2, m.ID, m.FromEndpoint, m.ToEndpoint, from, m.Text, via, m.SentAt})
}
