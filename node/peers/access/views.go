package access

import (
	"time"

	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
)

// Identity is an endpoint as others see it.
type Identity struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Agent is one that can be written to, or could be.
type Agent struct {
	Identity
	Directory string `json:"directory"`
	Title     string `json:"title"`
	Session   string `json:"session"`
	Status    string `json:"status"` // idle, busy or retry
	Policy    string `json:"inbound"`
	// Offline says why nothing can be sent to it, "" if something can.
	Offline   string    `json:"offline,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
}

// Listing is who there is, without the one who asks.
type Listing struct {
	Agents []Agent  `json:"agents"` // by start and id
	You    Identity `json:"you"`
}

// Message is one that was sent from this machine. Receipt is what the receiver answered,
// Final its final acknowledgement; both are "" while they are awaited.
type Message struct {
	ID             string    `json:"id"`
	From           string    `json:"from"`
	To             string    `json:"to"`
	ToName         string    `json:"to_name"`
	Text           string    `json:"text"`
	Receipt        string    `json:"receipt,omitempty"`
	Final          string    `json:"final,omitempty"`
	Error          string    `json:"error,omitempty"`
	CreatedAt      time.Time `json:"created_at"`
	AcknowledgedAt time.Time `json:"acknowledged_at,omitzero"`
	// Unsent says that it did not get to its receiver, and Error why, if that is known.
	Unsent bool `json:"unsent,omitempty"`
	// NoFinal says that no final acknowledgement will come.
	NoFinal bool `json:"no_final,omitempty"`
}

// Key names a message of an endpoint's spool: who it is from, and its id there.
type Key struct {
	From string `json:"from"`
	ID   string `json:"id"`
}

// Received is a message for an endpoint of this node.
type Received struct {
	Key
	Name       string    `json:"from_name"`
	Directory  string    `json:"from_directory"`
	Text       string    `json:"text"`
	ReceivedAt time.Time `json:"received_at"`
}

// Held is a message that waits for a person to decide.
type Held struct {
	Received
	For       Identity  `json:"for"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Unread is what waits for an agent to read it, in the order of arrival.
type Unread struct {
	Messages []Received `json:"messages"`
	More     int        `json:"more,omitempty"` // how many wait beside these
}

// Sent is a part of an outbox, newest first.
type Sent struct {
	Messages []Message `json:"messages"`
	More     int       `json:"more,omitempty"` // how many older ones there are
}

func agent(p registry.Peer) Agent {
	a := Agent{
		Identity: Identity{ID: p.EndpointID, Name: p.Name}, Directory: p.Directory, Title: p.Title, Session: p.SessionID,
		Status: p.Status, Policy: p.InboundPolicy, StartedAt: at(p.StartedAt),
	}
	if !p.Alive {
		a.Offline = p.Reason
	}
	return a
}

func message(r outbox.Record) Message {
	why, unsent := r.Unsent()
	if !unsent {
		why = r.Error
	}
	return Message{
		ID: r.MessageID, From: r.FromEndpoint, To: r.ToEndpoint, ToName: r.ToName, Text: r.Text, Receipt: r.ReceiptStatus,
		Final: r.FinalStatus, Error: why, CreatedAt: at(r.CreatedAt), AcknowledgedAt: at(r.AcknowledgedAt),
		Unsent: unsent, NoFinal: r.FinalStatus == "" && !r.Awaits(),
	}
}

func received(r spool.Record) Received {
	m := r.Message
	return Received{
		Key: Key{From: m.From.InstanceID, ID: m.ID}, Name: m.From.Name, Directory: m.From.Directory, Text: m.Text,
		ReceivedAt: at(r.AcceptedAt),
	}
}

// maxMillis is the last time of others that is taken for one, in Unix milliseconds:
// JSON knows no later year.
const maxMillis = 253_402_300_799_000

// at reads a time that somebody wrote; what is none is the zero time.
func at(millis float64) time.Time {
	if !(millis > 0 && millis <= maxMillis) {
		return time.Time{}
	}
	return time.UnixMilli(int64(millis)).UTC()
}
