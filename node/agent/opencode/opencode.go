// Package opencode runs turns in sessions of an opencode server (1.x): one that
// the node starts and supervises, or one that is given by its URL.
//
// A turn is prompted once. The message and part ids are derived from (hub, task,
// attempt, turn, session), so a repeat of the request is no second message; what
// was done is on record at the host before the request goes out, and after a
// crash Run looks before it prompts (semantics 3). An accepted request is not
// taken for an execution: a turn has an outcome only when assistant messages
// answer its own message, whatever events arrive or get lost.
//
// A supervised server never outlives its node: a guard process owns it and ends
// it, with everything that it started, when the node is gone. It keeps the user's
// providers, login and configuration but has a database of its own.
//
// What a session asks a human for is decided by the node's policy or put to the
// controller through the host, so that nothing waits for ever.
//
// The package does not decide what runs when.
package opencode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

const (
	defaultUsername       = "opencode"
	defaultAgent          = "build"
	defaultPollInterval   = 2 * time.Second
	defaultHealthInterval = 5 * time.Second
	defaultStallAfter     = 6 * time.Second
	defaultReadyWait      = time.Minute
	defaultStopGrace      = 5 * time.Second
)

// Config says which server to use and how. Either URL is set, or the node starts
// a server of its own.
type Config struct {
	// URL is the base URL of a running server; "" starts and supervises one.
	URL string
	// Username and Password are the credentials of the server at URL. Username ""
	// means "opencode"; Password "" sends none.
	Username string
	Password string

	// Bin is the opencode binary to supervise, a path or a name on PATH; ""
	// means "opencode".
	Bin string
	// GuardCommand starts the guard: a command whose main calls GuardMain.
	// Required without URL.
	GuardCommand []string
	// DataDir holds the supervised server's database and the record of its
	// processes; made if need be. Required without URL. One process at a time.
	DataDir string
	// Env is the environment to derive the server's from; nil means the process's.
	// MESH… variables are always left out.
	Env []string

	// Workspaces are the directories that turns may run in; at least one. The
	// first is the server's own directory.
	Workspaces []agent.Workspace
	// Model is "provider/model" for every prompt; "" takes what opencode is
	// configured with.
	Model string
	// AgentName is opencode's agent for every prompt; "" means "build".
	AgentName string
	// Permissions is what to do when a session asks for a permission: PermissionAsk,
	// PermissionAllow or PermissionDeny; "" means PermissionAsk.
	Permissions string
	// PermissionRules come before Permissions; the first that matches counts. A
	// supervised server is made to ask for what a rule asks or denies.
	PermissionRules []PermissionRule

	// PollInterval is how often a turn's state is read when no event hastens it;
	// 0 means 2 s.
	PollInterval time.Duration
	// StallAfter is how long an idle session may show no answer to a prompt before
	// the prompt is repeated, and then given up; 0 means 6 s.
	StallAfter time.Duration
	// ReadyWait is how long a turn that has not begun waits for a healthy server;
	// 0 means 1 min.
	ReadyWait time.Duration
	// HealthInterval is how often the server's health is probed; 0 means 5 s.
	HealthInterval time.Duration
	// StopGrace is how long the supervised server has for each of the two gentle
	// ways to end before it is killed; 0 means 5 s.
	StopGrace time.Duration
	// MaxReply is the largest reply that an outcome holds, in bytes; 0 means
	// api.MaxReply.
	MaxReply int

	// Log receives what operators should know; nil discards it.
	Log *slog.Logger
}

// withDefaults checks c and fills what is zero.
func (c Config) withDefaults() (Config, error) {
	if len(c.Workspaces) == 0 {
		return c, errors.New("opencode agent: no workspace")
	}
	for _, w := range c.Workspaces {
		if !filepath.IsAbs(w.Dir) {
			return c, fmt.Errorf("opencode agent: workspace %q: %q is not an absolute path", w.Name, w.Dir)
		}
	}
	if c.Model != "" {
		if _, _, ok := splitModel(c.Model); !ok {
			return c, fmt.Errorf("opencode agent: model %q is not of the form provider/model", c.Model)
		}
	}
	if err := c.checkPermissions(); err != nil {
		return c, fmt.Errorf("opencode agent: %w", err)
	}
	if c.URL == "" {
		if len(c.GuardCommand) == 0 {
			return c, errors.New("opencode agent: a supervised server needs a guard command")
		}
		if !filepath.IsAbs(c.DataDir) {
			return c, fmt.Errorf("opencode agent: data directory %q is not an absolute path", c.DataDir)
		}
	}
	for _, d := range []*time.Duration{&c.PollInterval, &c.StallAfter, &c.ReadyWait, &c.HealthInterval, &c.StopGrace} {
		if *d < 0 {
			return c, errors.New("opencode agent: negative duration")
		}
	}
	if c.MaxReply < 0 {
		return c, errors.New("opencode agent: negative reply limit")
	}
	setDefault(&c.Bin, "opencode")
	setDefault(&c.AgentName, defaultAgent)
	setDefault(&c.Permissions, PermissionAsk)
	setDefault(&c.PollInterval, defaultPollInterval)
	setDefault(&c.StallAfter, defaultStallAfter)
	setDefault(&c.ReadyWait, defaultReadyWait)
	setDefault(&c.HealthInterval, defaultHealthInterval)
	setDefault(&c.StopGrace, defaultStopGrace)
	setDefault(&c.MaxReply, api.MaxReply)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Agent runs turns on an opencode server. Safe for concurrent use.
type Agent struct {
	cfg        Config
	lanes      *lanes
	health     *health
	supervisor *supervisor // nil with a given URL

	start  sync.Once
	stop   sync.Once
	cancel context.CancelFunc
	ctx    context.Context // of the background work
	work   sync.WaitGroup
	ended  chan struct{}
}

var (
	_ agent.Agent    = (*Agent)(nil)
	_ agent.Notifier = (*Agent)(nil)
)

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Agent, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, lanes: newLanes(), ended: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.health = newHealth(cfg)
	if cfg.URL == "" {
		a.supervisor = newSupervisor(cfg, a.health)
		return a, nil
	}
	at, err := parseEndpoint(strings.TrimSpace(cfg.URL), cfg.Username, cfg.Password)
	if err != nil {
		return nil, fmt.Errorf("opencode agent: %w", err)
	}
	a.health.up(at, nil)
	return a, nil
}

// Kind implements agent.Agent.
func (a *Agent) Kind() string { return "opencode" }

// HasSessions implements agent.Agent.
func (a *Agent) HasSessions() bool { return true }

// Start implements agent.Agent: it begins to probe the server and, without a
// given URL, to supervise one. What is left of an earlier node's server is ended
// before a new one starts. Further calls do nothing.
func (a *Agent) Start(context.Context) error {
	a.start.Do(func() {
		a.work.Go(func() { a.health.run(a.ctx) })
		if a.supervisor != nil {
			a.work.Go(func() { a.supervisor.run(a.ctx) })
		}
	})
	return nil
}

// Stop implements agent.Agent: the supervised server is disposed, terminated and
// at last killed. Running turns must have been told to stop before. Further calls
// wait for the first.
func (a *Agent) Stop(ctx context.Context) error {
	a.stop.Do(func() {
		a.cancel()
		go func() {
			defer close(a.ended)
			a.work.Wait()
			a.health.close()
		}()
	})
	select {
	case <-a.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the opencode server: %w", ctx.Err())
	}
}

// Status implements agent.Agent. It returns what the last probe found.
func (a *Agent) Status(context.Context) api.AgentStatus { return a.health.status() }

// Changed implements agent.Notifier.
func (a *Agent) Changed() <-chan struct{} { return a.health.news() }

// Server is where the healthy server listens and the credentials that it takes,
// for whoever passes its interface on. ok is false while there is none.
func (a *Agent) Server() (url, username, password string, ok bool) {
	at, ok := a.health.endpoint()
	if !ok {
		return "", "", "", false
	}
	return at.base.String(), at.username, at.password, true
}
