// Package transport carries the messages of protocol/ocp between a host and a
// provider, which is a child process (Spawn) or an HTTP address (Dial).
//
// It guarantees that an exchange ends within its time-out whatever the provider does,
// that a message has at most ocp.MaxMessage bytes, that an answer that comes late is
// never taken for that of the next request, and that a child has nothing of this
// process's environment but what it needs to run. It asks for no consent and checks no
// budget: that is the host's. It restricts neither files nor network of a child.
package transport

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"opencode-mesh/protocol/ocp"
)

const (
	// HandshakeTimeout bounds a handshake.
	HandshakeTimeout = 10 * time.Second
	// ExchangeTimeout bounds an exchange of a connection that was given no other.
	ExchangeTimeout = 30 * time.Second
	// ShutdownGrace is how long a provider may take to end after shutdown.
	ShutdownGrace = 2 * time.Second
)

// Conn is a connection to one provider.
type Conn interface {
	// Exchange sends a message and returns the answer. Exchanges of a connection come
	// one after the other; it is safe for concurrent use. Errors are those of this
	// package. After an error a child is given up and every further Exchange fails with
	// ErrBroken, unless the message itself could not be sent by the rules.
	//
	// The answer to a handshake decides the version in which the following messages
	// are written and read. A correlation id is added where the provider wants one.
	Exchange(ctx context.Context, e ocp.Envelope) (ocp.Envelope, error)
	// Close says shutdown, waits ShutdownGrace for a child to end and ends it then, with
	// its process group. It returns once nothing of the connection is left. Only the
	// first Close does something.
	Close() error
}

// Handshake greets a provider with a version and checks its answer: it may be of either
// family, whichever the host named, since published providers know their own only.
// Another version is a *VersionMismatchError.
func Handshake(ctx context.Context, c Conn, id, version string) (ocp.HandshakeAck, error) {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	answer, err := c.Exchange(ctx, ocp.Envelope{Handshake: &ocp.Handshake{ProtocolVersion: version}})
	if err != nil {
		return ocp.HandshakeAck{}, err
	}
	if answer.HandshakeAck == nil {
		return ocp.HandshakeAck{}, &UnexpectedEnvelopeError{ID: id, Expected: "handshake_ack", Got: answer.Type()}
	}
	ack := *answer.HandshakeAck
	if _, ok := ocp.FamilyOf(ack.ProtocolVersion); !ok {
		return ocp.HandshakeAck{}, &VersionMismatchError{Host: version, Provider: ack.Provider.Name, ProviderVersion: ack.ProtocolVersion}
	}
	return ack, nil
}

// Ask sends a query and returns its frames as the provider sent them: neither checked
// nor audited. An error message is a *ProviderError.
func Ask(ctx context.Context, c Conn, id string, q ocp.Query) (ocp.Result, error) {
	answer, err := c.Exchange(ctx, ocp.Envelope{Query: &q})
	switch {
	case err != nil:
		return ocp.Result{}, err
	case answer.Error != nil:
		return ocp.Result{}, &ProviderError{ID: id, Code: answer.Error.Code, Message: answer.Error.Message}
	case answer.Frames == nil:
		return ocp.Result{}, &UnexpectedEnvelopeError{ID: id, Expected: "frames", Got: answer.Type()}
	}
	return *answer.Frames, nil
}

// session is what a connection remembers of its provider. Not for concurrent use.
type session struct {
	id          string // the host's name of the provider
	version     string // of the provider, "" before the handshake
	correlation bool
	sent        int // correlation ids given away
	look        func(answer []byte)
}

// errNoHandshake is a message before the version is known in which to write it.
var errNoHandshake = errors.New("no handshake yet")

// encode writes a message for the provider, and returns it as it was sent.
func (s *session) encode(e ocp.Envelope) (ocp.Envelope, []byte, error) {
	version := s.version
	if e.Handshake != nil {
		version = e.Handshake.ProtocolVersion
	}
	family, ok := ocp.FamilyOf(version)
	if !ok {
		if version == "" {
			return e, nil, errNoHandshake
		}
		return e, nil, fmt.Errorf("version %q is not spoken here", version)
	}
	switch {
	case !s.correlation:
		e.ID = "" // others were never asked to understand it
	case e.ID == "" && e.Query != nil:
		s.sent++
		e.ID = strconv.Itoa(s.sent)
	}
	line, err := ocp.Encode(e, family)
	return e, line, err
}

// decode reads the answer to a message.
func (s *session) decode(request ocp.Envelope, line []byte) (ocp.Envelope, error) {
	if s.look != nil {
		s.look(line)
	}
	read := ocp.Decode
	if request.Handshake == nil {
		read = func(line []byte) (ocp.Envelope, error) { return ocp.DecodeFor(s.version, line) }
	}
	answer, err := read(line)
	if err != nil {
		return ocp.Envelope{}, &WireError{ID: s.id, Err: err}
	}
	if request.ID != "" && answer.ID != request.ID {
		return ocp.Envelope{}, &WireError{ID: s.id, Err: errors.New("the answer carries the id of another request")}
	}
	if ack := answer.HandshakeAck; ack != nil && request.Handshake != nil {
		if family, ok := ocp.FamilyOf(ack.ProtocolVersion); ok {
			s.version = ack.ProtocolVersion
			s.correlation = ack.Capabilities.Correlation && family == ocp.FamilyContextgraph
		}
	}
	return answer, nil
}
