package registry

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"opencode-mesh/protocol/peers"
)

// Peer is an agent as a Reader found it.
type Peer struct {
	peers.Entry
	// Alive is false for one that nothing can be sent to; Reason says why then.
	Alive  bool
	Reason string // ReasonStale, ReasonGone or ""
	// Own marks the endpoints of this process.
	Own bool
}

// Why a peer is not alive.
const (
	ReasonStale = "no heartbeat"
	ReasonGone  = "its process is gone"
)

// ReaderConfig is what a Reader needs.
type ReaderConfig struct {
	// StorageDir is the directory that has Dir in it. It need not be there.
	StorageDir string
	// Stale is the age of a heartbeat up to which it counts; 0: peers.DefaultStale.
	Stale time.Duration
	// Own says whether an endpoint is this process's; nil: none is.
	Own func(endpoint string) bool
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Log gets what was left out for its size or number; nil: nowhere.
	Log *slog.Logger
}

// Reader reads the registry. It may be used by any number of goroutines.
type Reader struct{ cfg ReaderConfig }

// NewReader makes a Reader.
func NewReader(cfg ReaderConfig) *Reader { return &Reader{cfg} }

// Read returns every agent that has a file, dead ones too, sorted by start and id. Each
// endpoint is in it once, and a process that has entries of version 2 has no other. Without
// a directory it is empty.
func (r *Reader) Read(ctx context.Context) ([]Peer, error) { return nil, nil }

// Watch tells when what Read returns may be different in more than heartbeats, any number
// of changes as one. Call it before the first Read, so that no change lies between. The
// channel is closed once ctx ended and nothing of the watch runs any more.
func (r *Reader) Watch(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{})
	go func() { <-ctx.Done(); close(changed) }()
	return changed
}

// Collapse leaves one agent of each process, the one that started last, as lists show them.
func Collapse(list []Peer) []Peer { return list }

// Errors of Resolve.
var (
	ErrUnknown   = errors.New("there is no such agent")
	ErrOffline   = errors.New("the agent is offline")
	ErrAmbiguous = errors.New("several agents have that name")
)

// Resolve finds the agent that a message is for, among all that Read returned without the
// one that sends it: the one with exactly this id, else the only one alive with this name.
// What looks like an id is never a name. The error wraps ErrUnknown, ErrOffline or
// ErrAmbiguous and names the ids to choose from.
func Resolve(list []Peer, target string) (Peer, error) { return Peer{}, ErrUnknown }
