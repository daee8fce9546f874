package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
)

// Reason says why a session ended. The set is closed; String gives a name that
// is fit for a metric label.
type Reason uint8

// The reasons. Those marked local never travel: they are what one side
// concludes by itself.
const (
	ReasonNone       Reason = iota // closed on purpose, nothing to add
	ReasonSuperseded               // a newer tunnel of the same name took over; do not come back
	ReasonRevoked                  // the credential was revoked; do not come back
	ReasonShutdown                 // the other side stops or restarts; come back soon
	ReasonProtocol                 // the other side sent what the protocol forbids
	ReasonStalled                  // local: a write did not get through in time
	ReasonLost                     // local: the connection broke or fell silent
)

var reasonNames = [...]string{
	ReasonNone:       "closed",
	ReasonSuperseded: "superseded",
	ReasonRevoked:    "revoked",
	ReasonShutdown:   "shutdown",
	ReasonProtocol:   "protocol",
	ReasonStalled:    "stalled",
	ReasonLost:       "lost",
}

// String returns the reason's name.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// closeCode is the WebSocket close code that carries r, 0 when r never travels.
func (r Reason) closeCode() int {
	switch r {
	case ReasonNone:
		return 1000
	case ReasonProtocol:
		return 1002
	case ReasonShutdown:
		return 1012
	case ReasonSuperseded:
		return 4001
	case ReasonRevoked:
		return 4002
	default:
		return 0
	}
}

// reasonOfCode is the reason that a received close code stands for; a code that
// is not of the set is a loss.
func reasonOfCode(code int) Reason {
	if code == 1001 {
		return ReasonShutdown
	}
	for r := range reasonNames {
		if c := Reason(r).closeCode(); c != 0 && c == code {
			return Reason(r)
		}
	}
	return ReasonLost
}

// CloseError is how every session ends, and what its streams then fail with. It
// matches net.ErrClosed.
type CloseError struct {
	Reason Reason
	// Remote says that the other side gave the reason.
	Remote bool
	// Err is the cause below, when there was one.
	Err error
}

// Error implements error.
func (e *CloseError) Error() string {
	by := ""
	if e.Remote {
		by = " by the other side"
	}
	if e.Err == nil {
		return fmt.Sprintf("tunnel ended%s: %s", by, e.Reason)
	}
	return fmt.Sprintf("tunnel ended%s: %s: %v", by, e.Reason, e.Err)
}

// Unwrap returns the cause below. It is never io.EOF: a connection that just ended
// must not pass for the end of a stream.
func (e *CloseError) Unwrap() error {
	if errors.Is(e.Err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return e.Err
}

// Is makes every CloseError match net.ErrClosed.
func (e *CloseError) Is(target error) bool { return target == net.ErrClosed }

// IsReason reports whether err holds a CloseError with reason r.
func IsReason(err error, r Reason) bool {
	var e *CloseError
	return errors.As(err, &e) && e.Reason == r
}

// ResetCode says why one stream was reset. It travels in the RST frame.
type ResetCode uint32

// The reset codes. A peer may send others; they mean no more than a reset.
const (
	ResetCanceled    ResetCode = 0 // closed before it was finished; also: too many streams
	ResetUnknownKind ResetCode = 1 // the kind is not known here
	ResetBadPreamble ResetCode = 2 // the preamble was malformed or late
	ResetNoService   ResetCode = 3 // no service of that name is offered
	ResetUnreachable ResetCode = 4 // the service is offered but did not take the connection
	ResetBroken      ResetCode = 5 // the connection to the service broke
	ResetGoingAway   ResetCode = 6 // no new streams here any more
	ResetBusy        ResetCode = 7 // nobody took the stream in time
	ResetTimeout     ResetCode = 8 // the service did not take the connection in time
	ResetFragments   ResetCode = 9 // too much came in pieces of a few bytes and was not read
)

// String describes the code for people.
func (c ResetCode) String() string {
	switch c {
	case ResetCanceled:
		return "canceled"
	case ResetUnknownKind:
		return "unknown kind"
	case ResetBadPreamble:
		return "bad preamble"
	case ResetNoService:
		return "no such service"
	case ResetUnreachable:
		return "service unreachable"
	case ResetBroken:
		return "connection to the service broke"
	case ResetGoingAway:
		return "going away"
	case ResetBusy:
		return "not accepted in time"
	case ResetTimeout:
		return "service did not answer in time"
	case ResetFragments:
		return "too many small pieces that are not read"
	default:
		return fmt.Sprintf("code %d", uint32(c))
	}
}

// ResetError is what reading or writing a stream gives after a reset.
type ResetError struct {
	Code ResetCode
	// Remote says that the other side reset it.
	Remote bool
}

// Error implements error.
func (e *ResetError) Error() string {
	if e.Remote {
		return "stream reset by the other side: " + e.Code.String()
	}
	return "stream reset: " + e.Code.String()
}

var (
	// ErrGoingAway is what Open gives after either side called GoAway.
	ErrGoingAway = errors.New("tunnel is going away and opens no further streams")
	// ErrBadKind is what Open gives for a kind that cannot be written.
	ErrBadKind = errors.New("not a stream kind")
	// ErrNoService is for Config.ServiceDial to return (or wrap) when it offers
	// no service of that name: the opener sees ResetNoService instead of
	// ResetUnreachable.
	ErrNoService = errors.New("no such service")
)
