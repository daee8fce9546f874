package opencode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
)

const (
	// probeTimeout bounds one probe.
	probeTimeout = 2 * time.Second
	// probeRetry is how soon a server that is not healthy is probed again, if the
	// health interval is not shorter.
	probeRetry = time.Second
	// failuresToFlip is how many probes in a row must fail before a healthy server
	// counts as lost; one success makes it healthy again.
	failuresToFlip = 2
	// failuresAtStart is the same for a supervised server that was just started.
	failuresAtStart = 5
)

// health knows the server at hand: where it is, how it is, and by which interface
// to talk to it. Its endpoint changes whenever a supervised server is started.
type health struct {
	cfg  Config
	log  *slog.Logger
	kick chan struct{} // cap 1: probe now

	// mu guards the following fields.
	mu       sync.Mutex
	at       *endpoint
	number   int // of the endpoint, from 1
	memory   func() int64
	client   client // nil until the server was healthy once
	pipes    *transport
	state    string
	detail   string
	version  string
	rss      int64
	warnings []string
	failures int
	changed  chan struct{} // closed and replaced when state or client change
}

func newHealth(cfg Config) *health {
	return &health{cfg: cfg, log: cfg.Log, kick: make(chan struct{}, 1), state: api.HealthStarting, changed: make(chan struct{})}
}

// up says that a server listens at an endpoint; memory, if not nil, measures it.
func (h *health) up(at endpoint, memory func() int64) {
	h.mu.Lock()
	old := h.pipes
	h.at, h.memory, h.client, h.pipes = &at, memory, nil, newTransport(at)
	h.number++
	h.failures = 0
	h.set(api.HealthStarting, "")
	h.mu.Unlock()
	if old != nil {
		old.close()
	}
	h.probeSoon()
}

// down says that the supervised server is gone, and why.
func (h *health) down(state, detail string) {
	h.mu.Lock()
	old := h.pipes
	h.at, h.memory, h.client, h.pipes, h.rss = nil, nil, nil, nil, 0
	h.set(state, detail)
	h.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// set changes the state; the caller holds mu.
func (h *health) set(state, detail string) {
	if h.state == state && h.detail == detail {
		return
	}
	if h.state != state {
		h.log.Info("opencode server", "health", state, "detail", detail, "version", h.version)
	}
	h.state, h.detail = state, detail
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *health) probeSoon() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// run probes until ctx ends.
func (h *health) run(ctx context.Context) {
	for {
		pause := h.check(ctx)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-h.kick:
			timer.Stop()
		}
	}
}

func (h *health) close() {
	h.mu.Lock()
	pipes := h.pipes
	h.mu.Unlock()
	if pipes != nil {
		pipes.close()
	}
}

// check probes once and says when to probe next.
func (h *health) check(ctx context.Context) time.Duration {
	h.mu.Lock()
	number, pipes, known, measure := h.number, h.pipes, h.client, h.memory
	h.mu.Unlock()
	if pipes == nil {
		return h.cfg.HealthInterval
	}
	probeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
	found, version, err := detect(probeCtx, pipes)
	cancel()
	if ctx.Err() != nil {
		return h.cfg.HealthInterval
	}
	var rss int64
	var warnings []string
	if err == nil {
		if measure != nil {
			rss = measure()
		} else if known == nil || h.wasLost() {
			// The server may have been started anew with other settings.
			warnings = h.readWarnings(ctx, found)
		}
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if h.number != number {
		return 0 // another server by now
	}
	if err != nil {
		h.failures++
		if h.failures >= h.patience() {
			h.set(stateOf(err), err.Error())
		}
		return min(h.cfg.HealthInterval, probeRetry)
	}
	h.failures, h.rss, h.version = 0, rss, version
	if warnings != nil {
		h.warnings = warnings
	}
	if h.client == nil {
		h.client = found
	}
	if h.state != api.HealthHealthy {
		h.set(api.HealthHealthy, "")
	}
	return h.cfg.HealthInterval
}

// patience is how many failures in a row change the state; the caller holds mu.
func (h *health) patience() int {
	switch {
	case h.state == api.HealthHealthy:
		return failuresToFlip
	case h.state == api.HealthStarting && h.cfg.URL == "":
		return failuresAtStart
	}
	return 1
}

func (h *health) wasLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state != api.HealthHealthy
}

// readWarnings returns an empty list, not nil, when there is nothing to warn of.
func (h *health) readWarnings(ctx context.Context, c client) []string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	warnings, err := c.warnings(ctx, h.cfg.Workspaces[0].Dir)
	if err != nil {
		return []string{"the settings of the opencode server could not be read: " + err.Error()}
	}
	if h.cfg.asksFor() {
		warnings = append(warnings, unasked)
	}
	return append([]string{}, warnings...)
}

// stateOf names the state that goes with a failed probe.
func stateOf(err error) string {
	var s *statusError
	switch {
	case errors.Is(err, errUnauthorized):
		return api.HealthAuthFailed
	case errors.Is(err, errNotOpencode), errors.As(err, &s), errors.Is(err, errUnhealthy):
		return api.HealthUnhealthy
	}
	return api.HealthUnreachable
}

// status is a copy of what is known.
func (h *health) status() api.AgentStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return api.AgentStatus{Kind: "opencode", Health: h.state, Version: h.version, Detail: h.detail, Memory: h.rss,
		Warnings: append([]string(nil), h.warnings...)}
}

// news is closed at the next change of the state.
func (h *health) news() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *health) endpoint() (endpoint, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == nil || h.state != api.HealthHealthy {
		return endpoint{}, false
	}
	return *h.at, true
}

// server is a healthy server as a turn uses it.
type server struct {
	client client
	number int // changes when a supervised server was started anew
}

// errNotReady: no healthy server within the time.
var errNotReady = errors.New("no healthy opencode server")

// ready waits for a healthy server, for as long as wait allows; 0 waits until ctx
// ends. With a wait, refused credentials end it at once.
func (h *health) ready(ctx context.Context, wait time.Duration) (server, error) {
	var expired <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		expired = timer.C
	}
	for {
		h.mu.Lock()
		s, state, detail, changed := server{h.client, h.number}, h.state, h.detail, h.changed
		h.mu.Unlock()
		if state == api.HealthHealthy && s.client != nil {
			return s, nil
		}
		if wait > 0 && state == api.HealthAuthFailed {
			return server{}, fmt.Errorf("%w: %s", errNotReady, detail)
		}
		select {
		case <-changed:
		case <-expired:
			return server{}, fmt.Errorf("%w: %s %s", errNotReady, state, detail)
		case <-ctx.Done():
			return server{}, context.Cause(ctx)
		}
	}
}

// errUnhealthy: the server says so itself.
var errUnhealthy = errors.New("the opencode server says that it is not healthy")

// detect probes a server on fresh connections and returns a client for the
// interface that it speaks, and its version.
func detect(ctx context.Context, t *transport) (client, string, error) {
	var one struct {
		Healthy bool   `json:"healthy"`
		Version string `json:"version"`
	}
	_, err := t.exchange(ctx, t.fresh, call{method: http.MethodGet, path: "/global/health", out: &one})
	switch {
	case err == nil && !one.Healthy:
		return nil, "", errUnhealthy
	case err == nil:
		return &v1Client{t: t}, one.Version, nil
	case !errors.Is(err, errNotOpencode):
		return nil, "", err
	}
	var two struct {
		Version string `json:"version"`
	}
	if _, second := t.exchange(ctx, t.fresh, call{method: http.MethodGet, path: "/api/info", out: &two}); second == nil {
		return nil, "", fmt.Errorf("%w 1: this is opencode %s, whose interface this node does not speak", errNotOpencode, two.Version)
	}
	return nil, "", err
}
