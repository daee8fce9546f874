package peers

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

// Inbound policies.
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
	// ToEndpoint is ""  in a message of version 1, which goes to the process.
	ToEndpoint string
	From       Sender
	Text       string
	Via        []string // never nil once it was read
	SentAt     float64  // Unix milliseconds
	V1         bool
}

// Ack is the final acknowledgement of a message, sent to its sender. From and To are
// those of the message.
type Ack struct {
	MessageID      string
	FromEndpoint   string
	ToEndpoint     string
	Status         string
	AcknowledgedAt float64 // Unix milliseconds
}
