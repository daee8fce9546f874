package spool

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Defaults of a Config, which are those of the original.
const (
	DefaultMaxQueue   = 50
	DefaultMaxHeld    = 100
	DefaultHeldExpiry = 5 * time.Minute
)

// Config is what a Spool is made of.
type Config struct {
	Dir        string           // the storage directory; all is in its directory spool
	MaxQueue   int              // messages of one endpoint that are queued or inflight; 0: DefaultMaxQueue
	MaxHeld    int              // messages of one endpoint that are held; 0: DefaultMaxHeld
	HeldExpiry time.Duration    // how long a message is held; 0: DefaultHeldExpiry
	Now        func() time.Time // nil: time.Now
	Log        *slog.Logger     // nil: none
}

// What a change may be refused with. Nothing was changed then.
var (
	// ErrFull says that the endpoint has as many messages queued as it may have.
	ErrFull = errors.New("the queue is full, try again once some of it was delivered")
	// ErrUnknown says that the endpoint has no such message.
	ErrUnknown = errors.New("there is no such message")
)

// A StateError says that a message is in a state that does not allow the change.
type StateError struct {
	Key   Key
	State State
}

func (e *StateError) Error() string {
	return fmt.Sprintf("message %s from %s is %s", e.Key.ID, e.Key.From, e.State)
}

// Decision is what the gate says of a message.
type Decision int

// The decisions.
const (
	Enqueue Decision = iota // deliver it as soon as possible
	Hold                    // keep it until a person decides
	Refuse                  // keep only that it was refused
)

// Spool is the spool of a storage directory. It is safe for concurrent use.
type Spool struct{ cfg Config }

// New returns the Spool of a storage directory. It reads and makes nothing.
func New(cfg Config) *Spool { return &Spool{cfg: cfg} }

// Queue is the part of an endpoint. It reads and makes nothing.
func (s *Spool) Queue(endpoint string) *Queue { return &Queue{name: endpoint} }

// Endpoints lists the endpoints that have any record.
func (s *Spool) Endpoints() ([]string, error) { return nil, errors.ErrUnsupported }
