package opencomms

// SchemaVersion is the version of the state file that this package reads and
// writes; a file of any other is invalid.
const SchemaVersion = 2

// State is a state file. Times are milliseconds since 1970; where the file may
// say null, the zero value stands for it. It is not safe for concurrent use.
type State struct {
	Channels    Ordered[*Channel]  // by name
	Messages    Ordered[*Envelope] // by message id
	Queues      Ordered[[]string]  // message ids by recipient, first in first out
	DeliveredTo Ordered[[]string]  // who drained a message, by its id
	Errors      []ErrorEntry       // oldest first, the newest MaxErrors are written

	// members of the file in their order; the text is "" of those that are above.
	members Ordered[string]
	size    int // of the file
}

// New returns an empty state.
func New() *State { return &State{} }

// OfFile reports whether the state was read from a file, and is not what stands for one
// that is not there.
func (s *State) OfFile() bool { return s.size > 0 }

// ErrorEntry is a line of the file's own trouble list.
type ErrorEntry struct {
	At      int64
	Message string

	kept kept
}
