package opencomms

import "errors"

// InvalidError says why a state file, or a State that was to become one, breaks the
// rules by which the programs that share it reject a file whole.
type InvalidError struct {
	Path   string // where, for example channels["review"].members[0].role
	Reason string
}

func (e *InvalidError) Error() string {
	if e.Path == "" {
		return "invalid state file: " + e.Reason
	}
	return "invalid state file: " + e.Path + ": " + e.Reason
}

// New returns an empty state.
func New() *State { return &State{} }

// Decode reads a state file. It fails with *InvalidError where the programs that
// share the file would reject it.
func Decode(data []byte) (*State, error) { return nil, errors.New("not yet") }

// Encode writes the state as a file. It fails with *InvalidError, and gives nothing,
// where Decode or the programs that share the file would reject it.
func (s *State) Encode() ([]byte, error) { return nil, errors.New("not yet") }

// Validate reports with *InvalidError why Encode would refuse.
func (s *State) Validate() error { return nil }

// ConvertV1 reads a state file of schema version 1 as one of version 2.
func ConvertV1(data []byte) (*State, error) { return nil, errors.New("not yet") }

// Inert reports whether nothing ever happened in s: no messages, nothing queued or
// delivered, only active channels without members. Only such a state may be put
// behind one that was converted from version 1.
func (s *State) Inert() bool { return false }

// Adopt adds the channels of an inert state whose names are free, and its errors.
func (s *State) Adopt(inert *State) {}

// DerivedEndpoint is what an endpoint can do by its mode of delivery alone.
func DerivedEndpoint(mode string) EndpointCapabilities { return EndpointCapabilities{} }

// Clone returns a copy that shares nothing that can be changed.
func (m *Member) Clone() *Member { c := *m; return &c }
