package opencomms

import "slices"

// DerivedEndpoint is what an endpoint can do as its mode of delivery says.
func DerivedEndpoint(mode string) EndpointCapabilities {
	switch mode {
	case ModePush:
		return EndpointCapabilities{Push: true, Pull: true, QueueWhileBusy: true}
	case ModeSpawnPush:
		return EndpointCapabilities{Push: true, Pull: true, Resume: true}
	case ModePull, ModePoll:
		return EndpointCapabilities{Pull: true, QueueWhileBusy: true}
	case ModeManagedThread:
		return EndpointCapabilities{Push: true, Pull: true, Resume: true, QueueWhileBusy: true}
	}
	return EndpointCapabilities{}
}

// Clone returns a copy that shares nothing that can be changed.
func (m *Member) Clone() *Member {
	c := *m
	if m.Policy != nil {
		policy := *m.Policy
		c.Policy = &policy
	}
	if m.Endpoint != nil {
		endpoint := *m.Endpoint
		c.Endpoint = &endpoint
	}
	c.Capabilities = slices.Clone(m.Capabilities)
	return &c
}
