package link

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// The states of a link.
const (
	StateConnecting = "connecting"
	StateOnline     = "online"
	StateWaiting    = "waiting"    // for the next attempt
	StateSuperseded = "superseded" // another process has the name
	StateRevoked    = "revoked"
	StateStopped    = "stopped"
)

// Status is how a link is.
type Status struct {
	State string `json:"state"`
	// Since is when it went online, or when it was last; before the first time, when
	// it began.
	Since time.Time `json:"since"`
	Hub   string    `json:"hub"` // address
	// Name is the node's name, HubVersion the hub's program version, as last heard.
	Name       string `json:"name"`
	HubVersion string `json:"hub_version,omitempty"`
	// LastError is why it is not online, or was not last time.
	LastError string `json:"last_error,omitempty"`
	// RetryAt is when the next attempt is made; in state waiting.
	RetryAt time.Time `json:"retry_at,omitzero"`
	// Attempts are those in a row that came to nothing.
	Attempts int `json:"attempts,omitempty"`
	// Connections counts the hellos that were taken.
	Connections int `json:"connections"`
}

// Link keeps one node connected. Its methods are safe for concurrent use; Run is
// called once.
type Link struct {
	cfg Config
	log *slog.Logger

	mu        sync.Mutex // guards the following fields
	status    Status
	client    *Client       // while online
	heartbeat time.Duration // as the hub said last
}

// New makes a link.
func New(cfg Config) (*Link, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Link{cfg: cfg, log: cfg.Log, status: Status{
		State: StateConnecting, Since: time.Now(), Hub: cfg.Profile.Link.BaseURL(), Name: cfg.Profile.Name,
	}}, nil
}

// Status returns how the link is now.
func (l *Link) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Run keeps the link up until ctx ends, whose error it then returns. It returns
// earlier with what only a person can mend: ErrRevoked, ErrRefused, ErrVersion,
// *WrongHubError or auth.ErrPinMismatch. A superseded link delivers what the host
// still has and then does nothing until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	err := tunnel.Keep(ctx, tunnel.KeepConfig{
		Dial:      func(ctx context.Context) (*tunnel.Session, error) { return l.dial(ctx, http.Header{}) },
		Serve:     l.serve,
		Permanent: l.permanent,
		Backoff:   l.cfg.Backoff,
		OnState:   l.observe,
	})
	if tunnel.IsReason(err, tunnel.ReasonSuperseded) {
		l.log.Error("another process of this node has taken its name: starting nothing more until this one is restarted")
		l.set(StateSuperseded, err)
		l.cfg.Host.Supersede()
		err = l.drain(ctx)
	}
	return l.end(ctx, err)
}

// end turns the end of Keep into the link's.
func (l *Link) end(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		l.set(StateStopped, nil)
		return ctx.Err()
	}
	err, _ = lasting(err)
	state := StateStopped
	if errors.Is(err, ErrRevoked) {
		state = StateRevoked
		l.cfg.Host.Revoke()
	}
	l.set(state, err)
	l.log.Error("the link to the hub ends", "err", err)
	return err
}

// Draining tells the hub, if it is there, that the node stops: no new offers,
// please.
func (l *Link) Draining(ctx context.Context) {
	l.mu.Lock()
	client := l.client
	l.mu.Unlock()
	if client == nil {
		return
	}
	report := l.cfg.Host.Report(ctx)
	report.Draining = true
	if err := client.Call(ctx, http.MethodPut, "/v1/status", report, nil); err != nil {
		l.log.Debug("hub not told that the node stops", "err", err)
	}
}

// dial makes one attempt to open a tunnel.
func (l *Link) dial(ctx context.Context, header http.Header) (*tunnel.Session, error) {
	cfg := l.cfg.Tunnel
	if cfg.Heartbeat == 0 {
		l.mu.Lock()
		cfg.Heartbeat = l.heartbeat
		l.mu.Unlock()
	}
	s, err := l.cfg.Dial(ctx, header, cfg)
	if err != nil {
		return nil, l.slow(err)
	}
	return s, nil
}

// slow adds the long wait to a refusal that only a person can mend, for a node that
// goes on trying.
func (l *Link) slow(err error) error {
	var refused *tunnel.RefusedError
	if _, yes := lasting(err); !yes || !errors.As(err, &refused) {
		return err
	}
	e := *refused
	e.RetryAfter = max(e.RetryAfter, l.cfg.SlowRetry)
	return &e
}

// permanent says of an error that the link ends with it.
func (l *Link) permanent(err error) bool {
	if tunnel.IsReason(err, tunnel.ReasonSuperseded) {
		return true
	}
	err, yes := lasting(err)
	if !yes {
		return false
	}
	l.mu.Lock()
	fresh := l.status.Connections == 0
	l.mu.Unlock()
	return fresh || final(err)
}

// observe follows what Keep does.
func (l *Link) observe(s tunnel.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Attempts = s.Fruitless
	switch s.Phase {
	case tunnel.Connecting:
		l.status.State, l.status.RetryAt = StateConnecting, time.Time{}
	case tunnel.Waiting:
		if l.status.State == StateOnline {
			l.status.Since = time.Now()
		}
		l.status.State = StateWaiting
		l.status.LastError = s.Err.Error()
		l.status.RetryAt = time.Now().Add(s.Wait)
	}
}

// set notes a state that the link came to by itself.
func (l *Link) set(state string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.State, l.status.Since, l.status.RetryAt = state, time.Now(), time.Time{}
	if err != nil {
		l.status.LastError = err.Error()
	}
}

// online notes a welcome.
func (l *Link) online(c *Client, w api.Welcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client = c
	l.heartbeat = time.Duration(w.HeartbeatMS) * time.Millisecond
	l.status = Status{
		State: StateOnline, Since: time.Now(), Hub: l.status.Hub, Name: w.Name, HubVersion: w.Version,
		Connections: l.status.Connections + 1,
	}
}

func (l *Link) offline() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client = nil
}
