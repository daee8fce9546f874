package ocp

// Envelope is one message. Exactly one of its members beside ID is set.
type Envelope struct {
	// ID ties an answer to its query (contextgraph/1 only). A host sends one only to a
	// provider that declares Correlation; a provider gives it back as it is.
	ID string

	Handshake    *Handshake    // host → provider
	HandshakeAck *HandshakeAck // provider → host
	Query        *Query        // host → provider
	Frames       *Result       // provider → host
	Verify       *Verify       // host → provider, contextgraph/1 only
	Verified     *Verified     // provider → host, contextgraph/1 only
	Shutdown     bool          // host → provider
	Error        *Error        // provider → host
}

// Type is the name of the message on the wire, "" for an empty envelope.
func (e Envelope) Type() string {
	switch {
	case e.Handshake != nil:
		return "handshake"
	case e.HandshakeAck != nil:
		return "handshake_ack"
	case e.Query != nil:
		return "query"
	case e.Frames != nil:
		return "frames"
	case e.Verify != nil:
		return "verify"
	case e.Verified != nil:
		return "verified"
	case e.Shutdown:
		return "shutdown"
	case e.Error != nil:
		return "error"
	default:
		return ""
	}
}

// Handshake begins a connection.
type Handshake struct {
	ProtocolVersion string
}

// HandshakeAck answers Handshake.
type HandshakeAck struct {
	ProtocolVersion string
	Provider        ProviderInfo
	Capabilities    Capabilities
}

// Error says that a request was not done.
type Error struct {
	// Code is of an open set (contextgraph/1 only); "" and unknown ones mean internal.
	Code    string
	Message string
}

// Error is the message with its code.
func (e *Error) Error() string {
	if e.Code == "" {
		return e.Message
	}
	return e.Code + ": " + e.Message
}

// Codes of Error.
const (
	CodeBadRequest                = "bad_request"
	CodeUnsupportedKind           = "unsupported_kind"
	CodeUnsupportedRepresentation = "unsupported_representation"
	CodeIncompatibleVersion       = "incompatible_version"
	CodeBudgetUnsatisfiable       = "budget_unsatisfiable"
	CodeUnavailable               = "unavailable"   // worth another try later
	CodeShuttingDown              = "shutting_down" // worth another try after a new start
	CodeInternal                  = "internal"
)

// Verify asks whether frames still hold, by their identity alone.
type Verify struct {
	Frames []FrameID
}

// FrameID is the identity of a frame's exact content.
type FrameID struct {
	ProviderID    string
	FrameID       string
	ContentDigest string
}

// Verified answers Verify. A frame without a verdict is unknown.
type Verified struct {
	Verdicts []Verdict
}

// Verdict is what became of a frame. Only valid permits its further use.
type Verdict struct {
	Frame             FrameID
	Status            VerdictStatus
	ReplacementDigest string // of a stale frame's content now, where it is known
}

// VerdictStatus is valid, stale, gone or unknown.
type VerdictStatus string

// The verdicts.
const (
	VerdictValid   VerdictStatus = "valid"
	VerdictStale   VerdictStatus = "stale"
	VerdictGone    VerdictStatus = "gone"
	VerdictUnknown VerdictStatus = "unknown"
)
