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
	Errors      []ErrorEntry       // oldest first, at most MaxErrors are written

	kept kept
}

// ErrorEntry is a line of the file's own trouble list.
type ErrorEntry struct {
	At      int64
	Message string

	kept kept
}

// kept is what a record had in the file: its text, its members in their order
// and its values then.
type kept struct {
	raw []byte
}
