package peers

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// Endpoint is an agent that this process publishes.
type Endpoint struct {
	ID        string // peers.EndpointID of the session, peers.ProxyID of an agent elsewhere
	Session   string // never empty
	Parent    string // the session that began this one; "": none
	Title     string
	Name      string // for people; "": as the original makes one from the directory
	Directory string
	Status    string // idle, busy or retry; "": idle
	// Policy is accept, auto, hold or refuse; "": that of Config. Permissions is for
	// listings only.
	Policy, Permissions string
	StartedAt           time.Time // zero: now
	// Receiver gets what is sent to it.
	Receiver Receiver
	// Hidden keeps it out of the registry: it only takes what comes to its address.
	Hidden bool
}

// Receiver gets the messages of an endpoint. Its methods are called by one goroutine per
// endpoint for Deliver and by any for Acked.
type Receiver interface {
	// Deliver hands a message over, within peers.DeliverTimeout and in the order of arrival. nil
	// ends it as delivered and *Final with its status. ErrPending leaves it to
	// Service.Settle. Any other error, ErrLater among them, keeps this and all later
	// messages for the next arrival or sweep.
	//
	// After a crash the same message may come again.
	Deliver(ctx context.Context, r spool.Record) error
	// Acked takes the final acknowledgement of a message from this endpoint that the
	// outbox does not know; false: nobody knows it.
	Acked(ctx context.Context, a peers.Ack) (bool, error)
}

// What Receiver.Deliver answers besides nil and *Final.
var (
	// ErrLater keeps a message and all later ones; wrap it with the reason.
	ErrLater = errors.New("not now")
	// ErrPending means that Service.Settle will say what became of the message.
	ErrPending = errors.New("under way")
)

// Final ends a message with a status other than delivered.
type Final struct{ Status string }

func (f *Final) Error() string { return "the message ended as " + f.Status }
