package opencomms

// Kinds of message. TypeSystem is for the notices of the engine only.
const (
	TypeReviewRequest  = "review_request"
	TypeReviewResponse = "review_response"
	TypeManual         = "manual"
	TypeSystem         = "system"
)

// States of a message.
const (
	StatusPending   = "pending"
	StatusInFlight  = "in_flight"
	StatusDelivered = "delivered" // the host session accepted it, or the member read it
	StatusFailed    = "failed"
	StatusRejected  = "rejected"
	StatusStale     = "stale"
)

// The sender of what a person sends without being a member.
const (
	OperatorSession = "operator"
	OperatorRole    = "Operator"
)

// Envelope is a message to one recipient.
type Envelope struct {
	EnvelopeFields

	kept   kept
	before EnvelopeFields // as it was read
}

// EnvelopeFields are what an envelope says. They are comparable.
type EnvelopeFields struct {
	ID            string // message_id, ocm_ and 32 hex digits
	ChannelID     string
	Sender        string // session id
	SenderRole    string
	Recipient     string // session id
	RecipientRole string
	Timestamp     int64 // when it was sent, or came from another machine; the copies of a broadcast of this one share it
	Type          string
	Content       string // at most MaxContent UTF-16 units
	ReplyTo       string // message id
	Root          string // message id of the chain's first; "" on that one
	Hops          int
	Status        string
	Correlation   string // cor_ and 32 hex digits, shared by a chain
	DeliveredAt   int64
	Attempts      int    // drains
	Method        string // delivery_method: how it was delivered
}
