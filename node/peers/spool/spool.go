package spool

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/protocol/peers"
)

const spoolDir = "spool"

// Config is what a Spool is made of.
type Config struct {
	Dir        string           // the storage directory; all is in its directory spool
	MaxQueue   int              // messages of one endpoint that are queued or inflight; 0: peers.DefaultMaxQueue
	MaxHeld    int              // messages of one endpoint that are held; 0: peers.DefaultMaxHeld
	MaxDone    int              // messages of one endpoint that are done and still known; 0: DefaultMaxDone
	HeldExpiry time.Duration    // how long a message is held; 0: peers.DefaultHeldExpiry
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

// Spool is the spool of a storage directory. It is safe for concurrent use. What it
// remembers of an endpoint it remembers until Clear.
type Spool struct {
	cfg    Config
	sys    files.FS
	queues sync.Map // of *Queue, by name
}

// New returns the Spool of a storage directory. It reads and makes nothing.
func New(cfg Config) *Spool {
	cfg.MaxQueue = cmp.Or(cfg.MaxQueue, peers.DefaultMaxQueue)
	cfg.MaxHeld = cmp.Or(cfg.MaxHeld, peers.DefaultMaxHeld)
	cfg.MaxDone = cmp.Or(cfg.MaxDone, DefaultMaxDone)
	cfg.HeldExpiry = cmp.Or(cfg.HeldExpiry, peers.DefaultHeldExpiry)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Spool{cfg: cfg, sys: files.OS{}}
}

// endpointName is what the name of an endpoint's directory may be. Ids that are derived
// are like that; others could lead out of the spool.
var endpointName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Queue returns the part of an endpoint. It reads and makes nothing. Every use of one
// whose name cannot be that of a directory fails.
func (s *Spool) Queue(endpoint string) *Queue {
	if q, ok := s.queues.Load(endpoint); ok {
		return q.(*Queue)
	}
	q, _ := s.queues.LoadOrStore(endpoint, &Queue{
		name: endpoint, dir: filepath.Join(s.cfg.Dir, spoolDir, endpoint),
		cfg: s.cfg, sys: s.sys, turn: make(chan struct{}, 1),
	})
	return q.(*Queue)
}
