package ocp

// message is a type of message.
type message struct {
	in Family
	// begin makes an envelope one of this type, for its fields to fill.
	begin  func(*Envelope)
	fields []field[Envelope]
}

func messageNamed(name string) *message {
	if m, ok := messages[name]; ok {
		return &m
	}
	return nil
}

// messages are the types of messages. Their own type comes first when they are
// written.
var messages = map[string]message{
	"handshake": {both, func(e *Envelope) { e.Handshake = new(Handshake) }, []field[Envelope]{
		version(func(e *Envelope) *string { return &e.Handshake.ProtocolVersion }),
	}},
	"handshake_ack": {both, func(e *Envelope) { e.HandshakeAck = new(HandshakeAck) }, []field[Envelope]{
		version(func(e *Envelope) *string { return &e.HandshakeAck.ProtocolVersion }),
		record("provider", both, true, providerFields, func(e *Envelope) *ProviderInfo { return &e.HandshakeAck.Provider }),
		record("capabilities", both, true, capabilityFields, func(e *Envelope) *Capabilities { return &e.HandshakeAck.Capabilities }),
	}},
	"query": {both, func(e *Envelope) { e.Query = new(Query) }, []field[Envelope]{
		correlation(),
		record("query", both, true, queryFields, func(e *Envelope) *Query { return e.Query }),
	}},
	"frames": {both, func(e *Envelope) { e.Frames = new(Result) }, []field[Envelope]{
		correlation(),
		record("result", both, true, resultFields, func(e *Envelope) *Result { return e.Frames }),
	}},
	"verify": {FamilyContextgraph, func(e *Envelope) { e.Verify = new(Verify) }, []field[Envelope]{
		record("request", FamilyContextgraph, true, verifyFields, func(e *Envelope) *Verify { return e.Verify }),
	}},
	"verified": {FamilyContextgraph, func(e *Envelope) { e.Verified = new(Verified) }, []field[Envelope]{
		record("response", FamilyContextgraph, true, verifiedFields, func(e *Envelope) *Verified { return e.Verified }),
	}},
	"shutdown": {both, func(e *Envelope) { e.Shutdown = true }, nil},
	"error": {both, func(e *Envelope) { e.Error = new(Error) }, []field[Envelope]{
		correlation(),
		optionalText("code", FamilyContextgraph, func(e *Envelope) *string { return &e.Error.Code }),
		text("message", both, func(e *Envelope) *string { return &e.Error.Message }),
	}},
}

func version(get func(*Envelope) *string) field[Envelope] {
	return text("protocol_version", both, get).unless(func(e *Envelope, f Family) string {
		if !validVersion(*get(e), f) {
			return "is no version of " + f.String()
		}
		return ""
	})
}

func correlation() field[Envelope] {
	return optionalText("id", FamilyContextgraph, func(e *Envelope) *string { return &e.ID })
}
