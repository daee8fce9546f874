package transport

import (
	"errors"
	"fmt"
	"time"

	"opencode-mesh/protocol/ocp"
)

// ErrBroken is an exchange on a connection that was given up before, or is closed.
var ErrBroken = errors.New("the connection was given up; start the provider again")

// VersionMismatchError is a provider of a protocol that is not spoken here.
type VersionMismatchError struct {
	Host            string // the version that the host named
	Provider        string // the name that the provider gave itself
	ProviderVersion string
}

func (e *VersionMismatchError) Error() string {
	return fmt.Sprintf("version mismatch: provider %q speaks %q, this host %q", ocp.Line(e.Provider, maxErrorBody), ocp.Line(e.ProviderVersion, maxErrorBody), e.Host)
}

// WireError is an answer that is no message.
type WireError struct {
	ID  string // of the provider, here and in the other errors
	Err error
}

func (e *WireError) Error() string { return fmt.Sprintf("wire: provider %s: %v", e.ID, e.Err) }

// Unwrap returns the cause, a *ocp.DecodeError as a rule.
func (e *WireError) Unwrap() error { return e.Err }

// ExchangeError is a connection that does not do what it should: a line without an
// end, an HTTP status that is no success.
type ExchangeError struct {
	ID      string
	Message string
}

func (e *ExchangeError) Error() string {
	return fmt.Sprintf("transport: provider %s: %s", e.ID, e.Message)
}

// ProviderCrashedError is a provider that closed its streams, or ended, while it was
// asked.
type ProviderCrashedError struct {
	ID string
}

func (e *ProviderCrashedError) Error() string {
	return fmt.Sprintf("provider %s crashed: it ended without an answer", e.ID)
}

// TimeoutError is a provider that took too long.
type TimeoutError struct {
	ID    string
	After time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("provider %s did not answer within %s", e.ID, e.After.Round(time.Millisecond))
}

// Timeout is true, as for a net.Error.
func (e *TimeoutError) Timeout() bool { return true }

// ProviderError is a provider that answered with an error message.
type ProviderError struct {
	ID      string
	Code    string // "" where it named none
	Message string
}

func (e *ProviderError) Error() string {
	if e.Code != "" {
		return fmt.Sprintf("provider %s refused, %s: %s", e.ID, ocp.Line(e.Code, maxErrorBody), ocp.Line(e.Message, maxErrorBody))
	}
	return fmt.Sprintf("provider %s refused: %s", e.ID, ocp.Line(e.Message, maxErrorBody))
}

// UnexpectedEnvelopeError is an answer of the wrong type.
type UnexpectedEnvelopeError struct {
	ID       string
	Expected string
	Got      string
}

func (e *UnexpectedEnvelopeError) Error() string {
	return fmt.Sprintf("unexpected envelope: provider %s answered %s, not %s", e.ID, e.Got, e.Expected)
}

// SpawnError is a provider that could not be started.
type SpawnError struct {
	ID  string
	Err error
}

func (e *SpawnError) Error() string { return fmt.Sprintf("spawn provider %s: %v", e.ID, e.Err) }

// Unwrap returns the cause.
func (e *SpawnError) Unwrap() error { return e.Err }

// UnauthorizedError is an HTTP provider that wants another token, or one at all.
type UnauthorizedError struct {
	ID string
}

func (e *UnauthorizedError) Error() string {
	return fmt.Sprintf("provider %s refused the token (HTTP 401)", e.ID)
}

// InsecureTransportError is an address without TLS that is not on this machine.
type InsecureTransportError struct {
	ID string
}

func (e *InsecureTransportError) Error() string {
	return fmt.Sprintf("provider %s: http:// is for this machine alone; use https://", e.ID)
}
