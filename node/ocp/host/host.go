package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

const (
	// QueryTimeout is how long a provider may take to answer, from when its query is sent.
	// It is granted in full, whoever waited before and whoever goes away meanwhile.
	QueryTimeout = 15 * time.Second
	// WaitTimeout is how long a query waits for those before it at a provider.
	WaitTimeout = 10 * time.Second
	// LegTimeout is how long a query waits for a provider in all: less than
	// api.ContextLegLimit, so that the hub hears of the others. It breaks off no program.
	LegTimeout = 18 * time.Second
	// IdleTimeout is how long a program that nobody asks is kept.
	IdleTimeout = 5 * time.Minute
	// BackoffMin is the wait before a program that failed twice in a row is started again;
	// it doubles each time.
	BackoffMin = time.Second
	// BackoffMax is the longest wait before that.
	BackoffMax = time.Minute
	// maxWaiting is how many queries wait for one provider.
	maxWaiting = 32
)

// Config says whom a Host asks. Path is required.
type Config struct {
	// Providers are asked, and told of, in this order; at most api.MaxContextProviders.
	Providers []Provider
	// Path is the file of the consents, in a directory that is there.
	Path string
	// Timeout bounds a provider's start, and then its answer to a query; 0: QueryTimeout.
	Timeout time.Duration
	// Wait bounds the wait for queries before this one; 0: WaitTimeout.
	Wait time.Duration
	// Idle is how long a program that nobody asks is kept; 0: IdleTimeout.
	Idle time.Duration
	// BackoffMin and BackoffMax; 0: the constants of these names.
	BackoffMin, BackoffMax time.Duration
	// Log gets what an operator should see, such as a provider that lies; nil: discarded.
	Log *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	spawn    func(transport.Command) (transport.Conn, error) // nil: transport.Spawn
	identify func(command []string) (program, error)         // nil: programOf
}

// Host asks the providers of a node. Safe for concurrent use.
type Host struct {
	cfg      Config
	consents *consents
	members  []*member
	life     context.Context // ends with Close
	end      context.CancelCauseFunc

	mu     sync.Mutex // guards the following
	closed bool
	work   sync.WaitGroup // what is under way, for a caller or after it
}

var errClosed = errors.New("the node is stopping")

// New checks the configuration and reads the consents. Nothing is started or sent yet.
// After New, Close must be called.
func New(cfg Config) (*Host, error) {
	switch {
	case cfg.Path == "":
		return nil, errors.New("context providers: no file for the consents")
	case len(cfg.Providers) > api.MaxContextProviders:
		return nil, fmt.Errorf("there are %d context providers, %d may be", len(cfg.Providers), api.MaxContextProviders)
	}
	names := map[string]bool{}
	for _, p := range cfg.Providers {
		if err := p.Check(); err != nil {
			return nil, err
		}
		if names[p.Name] {
			return nil, fmt.Errorf("two context providers are called %s", p.Name)
		}
		names[p.Name] = true
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.Timeout, QueryTimeout)
	def(&cfg.Wait, WaitTimeout)
	def(&cfg.Idle, IdleTimeout)
	def(&cfg.BackoffMin, BackoffMin)
	def(&cfg.BackoffMax, max(BackoffMax, cfg.BackoffMin))
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.spawn == nil {
		cfg.spawn = func(c transport.Command) (transport.Conn, error) { return transport.Spawn(c) }
	}
	if cfg.identify == nil {
		cfg.identify = programOf
	}
	store, err := openConsents(cfg.Path, cfg.Log)
	if err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, consents: store}
	h.life, h.end = context.WithCancelCause(context.Background())
	for _, p := range cfg.Providers {
		h.members = append(h.members, h.newMember(p))
	}
	return h, nil
}

// Run ends programs that nobody asks, until ctx ends; then it closes the Host.
func (h *Host) Run(ctx context.Context) {
	defer h.Close()
	tick := time.NewTicker(max(h.cfg.Idle/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var work sync.WaitGroup
		for _, m := range h.members {
			work.Go(m.retire)
		}
		work.Wait()
	}
}

// Close breaks off what is under way, says goodbye to the programs and ends them. Nothing is
// left of them once it returns; for queries of a Source see there.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.end(errClosed)
	h.work.Wait()
	var work sync.WaitGroup
	for _, m := range h.members {
		work.Go(m.close)
	}
	work.Wait()
}

// begin joins a call to the life of the Host. The caller calls done.
func (h *Host) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, api.Errorf(api.CodeShuttingDown, "%v", errClosed)
	}
	h.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.life, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		h.work.Done()
	}, nil
}

// Ask asks the providers that have the kinds of a query, all at once, and returns what
// became of each in the order of the configuration. scope is what the asker may see of
// this node's own memory. An error is that of the query itself, an *api.Error if the
// asker can mend it; a provider that fails is told among the legs.
func (h *Host) Ask(ctx context.Context, q ocp.Query, scope memory.Scope) ([]api.ContextAnswerLeg, error) {
	if err := api.CheckContextQuery(&q); err != nil {
		return nil, err
	}
	ctx, done, err := h.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	legs := make([]*api.ContextAnswerLeg, len(h.members))
	var work sync.WaitGroup
	for i, m := range h.members {
		work.Go(func() { legs[i] = m.leg(ctx, q, scope) })
	}
	work.Wait()
	out := []api.ContextAnswerLeg{}
	for _, l := range legs {
		if l != nil {
			out = append(out, *l)
		}
	}
	return out, nil
}

// Providers tells of all providers. Those that were not met yet are met for that: a
// handshake says nothing of a goal or a workspace. What is told of one has a name, Shown,
// to which a consent that comes later can be tied. Consents to providers that are not configured any more
// come last.
func (h *Host) Providers(ctx context.Context) (api.ContextProviders, error) {
	out := api.ContextProviders{Providers: []api.ContextProvider{}}
	ctx, done, err := h.begin(ctx)
	if err != nil {
		return out, err
	}
	defer done()
	list := make([]api.ContextProvider, len(h.members))
	var work sync.WaitGroup
	for i, m := range h.members {
		work.Go(func() { list[i] = m.show(ctx) })
	}
	work.Wait()
	out.Providers = append(out.Providers, list...)
	for _, c := range h.consents.list() {
		if h.member(c.Provider) == nil {
			out.Providers = append(out.Providers, api.ContextProvider{
				ID: c.Provider, Name: c.Name, DataFlow: c.DataFlow, Consent: given(c), Error: "it is not configured any more",
			})
		}
	}
	return out, nil
}

func (h *Host) member(name string) *member {
	for _, m := range h.members {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Consent records that a provider may have queries, as it is now. Whoever says what they
// were shown consents to nothing else: if it is another by now, that is api.CodeConflict. It
// is there for good once this returns. Errors are *api.Error where the caller can mend them.
func (h *Host) Consent(ctx context.Context, name string, c api.ContextConsent) error {
	m := h.member(name)
	if m == nil {
		return unknown(name)
	}
	ctx, done, err := h.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	c.Scope = strings.TrimSpace(c.Scope)
	switch {
	case c.Scope == "":
		return api.Errorf(api.CodeBadRequest, "say in words what may leave, and where to")
	case len(c.Scope) > api.MaxContextScope || ocp.Line(c.Scope, api.MaxContextScope) != c.Scope:
		return api.Errorf(api.CodeBadRequest, "what may leave is said in a line of at most %d bytes", api.MaxContextScope)
	}
	s, err := m.subject(ctx, c.Shown)
	if err != nil {
		return err
	}
	consent := ocp.Consent{
		Provider: s.Provider, Name: s.Name, URL: s.URL, DataFlow: s.DataFlow,
		GrantedScope: c.Scope, GrantedAt: h.cfg.Now().UTC(), GrantedBy: ocp.Line(c.GrantedBy, maxWord),
	}
	if err := h.consents.record(consent); err != nil {
		return err
	}
	h.cfg.Log.Info("a context provider has consent", "provider", name, "called", s.Name, "where", s.URL, "scope", c.Scope, "by", c.GrantedBy)
	return nil
}

// Revoke takes a consent back. Once it returns without an error, no query is sent to the
// provider any more: one that is under way is broken off. A consent that is not there is
// api.CodeNotFound, and breaks off nothing.
func (h *Host) Revoke(ctx context.Context, name string) error {
	m := h.member(name)
	ctx, done, err := h.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	had, err := h.consents.revoke(name)
	if had && m != nil {
		err = errors.Join(err, m.interrupt(ctx))
	}
	switch {
	case err != nil:
		return err
	case !had && m == nil:
		return unknown(name)
	case !had:
		return api.Errorf(api.CodeNotFound, "there is no consent to %s", name)
	}
	h.cfg.Log.Info("a context provider has no consent any more", "provider", name)
	return nil
}

func unknown(name string) error {
	return api.Errorf(api.CodeNotFound, "this node has no context provider %q", name)
}

func given(c ocp.Consent) *api.ContextConsent {
	return &api.ContextConsent{Scope: c.GrantedScope, GrantedAt: c.GrantedAt, GrantedBy: c.GrantedBy}
}
