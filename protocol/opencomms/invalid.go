package opencomms

import (
	"strconv"

	"opencode-mesh/protocol/mesh"
)

// InvalidError says why a file, or what was to become one, breaks the rules by
// which the programs that share it reject a file whole.
type InvalidError struct {
	Path   string // where, for example channels["review"].members[0].role
	Reason string
}

func (e *InvalidError) Error() string {
	if e.Path == "" {
		return "invalid OpenComms file: " + e.Reason
	}
	return "invalid OpenComms file: " + e.Path + ": " + e.Reason
}

// under puts a path before that of an error.
func (e *InvalidError) under(path string) *InvalidError {
	switch {
	case e.Path == "" || e.Path[0] == '[':
		path += e.Path
	default:
		path += "." + e.Path
	}
	return &InvalidError{Path: path, Reason: e.Reason}
}

// quoteKey makes a key of the file fit to be shown.
func quoteKey(key string) string {
	return `["` + mesh.CleanLine(Cut(Valid(key), 64)) + `"]`
}

func quoteIndex(i int) string { return "[" + strconv.Itoa(i) + "]" }

// Validate reports with *InvalidError why Encode would refuse.
func (s *State) Validate() error {
	if err := s.check(); err != nil {
		return err
	}
	return nil
}

func (s *State) check() *InvalidError {
	for name, c := range s.Channels.All() {
		if c == nil {
			return &InvalidError{"channels" + quoteKey(name), "no channel"}
		}
		if err := c.check(name); err != nil {
			return err.under("channels" + quoteKey(name))
		}
	}
	for id, e := range s.Messages.All() {
		if e == nil {
			return &InvalidError{"messages" + quoteKey(id), "no message"}
		}
	}
	return nil
}

// check has the rules for a channel that are not about the types of its fields.
func (c *Channel) check(key string) *InvalidError {
	switch {
	case c.Name != key:
		return &InvalidError{"name", "is not its key"}
	case len(c.Members) > MaxMembers:
		return &InvalidError{"members", "more than " + strconv.Itoa(MaxMembers)}
	case len(c.Members) == 0 && c.Lifecycle != LifecycleActive:
		return &InvalidError{"members", "none, in a channel that is not active"}
	}
	for i, m := range c.Members {
		if err := m.check(); err != nil {
			return err.under("members" + quoteIndex(i))
		}
	}
	return nil
}

// memberDepth is how deep a member stands in a state file.
const memberDepth = 5

func (m *Member) check() *InvalidError {
	switch {
	case m == nil:
		return &InvalidError{"", "no member"}
	case m.SessionID == "":
		return &InvalidError{"session_id", "is empty"}
	case !validRole(m.Role):
		return &InvalidError{"role", ErrRoleForm.Error()}
	case len(m.Capabilities) > 0:
		s := newScanner(m.Capabilities, 0)
		s.depth = memberDepth
		s.value()
		s.end()
		if s.err != nil {
			return s.err.under("capabilities")
		}
	}
	return nil
}
