package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"opencode-mesh/protocol/peers"
)

// Dir is the registry's directory within the storage directory.
const Dir = "peers.d"

// PublisherConfig is what a Publisher needs.
type PublisherConfig struct {
	// StorageDir is the directory that has Dir in it; nothing is made before the first
	// Publish.
	StorageDir string
	// Heartbeat is the time between two rewritings; 0: peers.DefaultHeartbeat.
	Heartbeat time.Duration
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Log gets what went wrong with files that nobody waits for; nil: nowhere.
	Log *slog.Logger
}

// Publisher keeps the files of this process's endpoints. It may be used by any number of
// goroutines; Run has to run for as long as it is used.
type Publisher struct {
	dir       string
	heartbeat time.Duration
	now       func() time.Time
	log       *slog.Logger
	pid       int
	started   float64

	// turn is taken around all work on files, so that a heartbeat brings nothing back
	// that was withdrawn. Its holder may use what is below.
	turn   chan struct{}
	shown  map[string]peers.Entry // by endpoint
	closed bool
}

// ErrStopped says that the Publisher has stopped.
var ErrStopped = errors.New("the registry's publisher has stopped")

// NewPublisher makes a Publisher. It does nothing yet.
func NewPublisher(cfg PublisherConfig) *Publisher {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{
		dir: filepath.Join(cfg.StorageDir, Dir), heartbeat: cmp.Or(cfg.Heartbeat, peers.DefaultHeartbeat), now: cfg.Now, log: cfg.Log,
		pid: os.Getpid(), started: float64(cfg.Now().UnixMilli()), turn: make(chan struct{}, 1), shown: map[string]peers.Entry{},
	}
}

// Publish writes the files of an endpoint, which may be new or have changed: one of
// version 2, and with an InboxURL one of version 1. EndpointID, ProcessID, SessionID and
// Transport are needed; PID and the times of the entry are set here, and StartedAt if it is
// 0. The files stay, and are rewritten at every heartbeat, until Withdraw or the end of Run.
func (p *Publisher) Publish(ctx context.Context, e peers.Entry) error {
	if e.EndpointID == "" || e.ProcessID == "" || e.SessionID == "" || e.Transport == (peers.Transport{}) {
		return fmt.Errorf("publish endpoint %q: without id, process, session or transport nobody can see it", e.EndpointID)
	}
	return errors.New("not there yet")
}

// Withdraw removes the files of an endpoint. One that is not published is none.
func (p *Publisher) Withdraw(ctx context.Context, endpoint string) error {
	return errors.New("not there yet")
}

// Run rewrites the files at every heartbeat and clears away after dead processes, until ctx
// ends. Then it removes all files that are its own and returns nil.
func (p *Publisher) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
