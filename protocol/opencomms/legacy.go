package opencomms

// What members have that came from a file of version 1.
const (
	legacyHost = "opencode-comms"
)

// ConvertV1 reads a state file of schema version 1 as one of version 2: members
// become those of the one host that there was, everything else stays. It fails with
// *InvalidError where the file breaks the rules of its version. The caller notes the
// conversion in Errors.
func ConvertV1(data []byte) (*State, error) {
	s, err := decode(data, 1)
	if err != nil {
		return nil, err
	}
	for _, c := range s.Channels.All() {
		for i, old := range c.Members {
			endpoint := DerivedEndpoint(ModePush)
			c.Members[i] = &Member{
				SessionID: old.SessionID, Role: old.Role, RolePrompt: old.RolePrompt, JoinedAt: old.JoinedAt,
				Host: legacyHost, Surface: SurfaceCLI, Mode: ModePush, HostSessionID: old.SessionID,
				Policy:   &StalePolicy{Mode: StaleWindow, Window: DefaultStale.Milliseconds()},
				Endpoint: &endpoint,
			}
		}
	}
	return s, nil
}

// Inert reports whether nothing ever happened in s: no messages, nothing queued or
// delivered, and only active channels without members. Such a file may give way to
// one that is converted from version 1; any other stays as it is.
func (s *State) Inert() bool {
	if s.Messages.Len() > 0 {
		return false
	}
	for _, queue := range s.Queues.All() {
		if len(queue) > 0 {
			return false
		}
	}
	for _, to := range s.DeliveredTo.All() {
		if len(to) > 0 {
			return false
		}
	}
	for _, c := range s.Channels.All() {
		if c.Lifecycle != LifecycleActive || len(c.Members) > 0 {
			return false
		}
	}
	return true
}

// Adopt adds to a converted state what an inert one has: the channels whose names
// are free, and its errors.
func (s *State) Adopt(inert *State) {
	for name, c := range inert.Channels.All() {
		if _, taken := s.Channels.Get(name); !taken {
			s.Channels.Set(name, c)
		}
	}
	s.Errors = append(s.Errors, inert.Errors...)
}
