// Package relay carries tasks from controllers to nodes and results back. It is
// the state machine of a task's life (design.md, semantics.md).
//
// The store is the truth: every change is a compare-and-set on the record's
// revision, and what callers were told is on disk. The relay keeps a copy of the
// tasks that are not settled, sorted into queues and lanes, so that an idle hub
// does nothing and a busy one does not read back what it just wrote; after a crash
// it loads them and goes on. It knows nothing of HTTP: a connected node is the
// Node interface.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"opencode-mesh/hub/events"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

const (
	// OfferTimeout bounds one offer, withdrawal or reconcile call to a node.
	OfferTimeout = 30 * time.Second
	// MaxOffersInFlight is how many offers may be under way to one node at once.
	MaxOffersInFlight = 64
	// UnknownAfter is how long a node may be away before its offered, accepted and
	// running tasks are shown as unknown.
	UnknownAfter = 30 * time.Second
	// SweepEvery is how often bounds are checked.
	SweepEvery = time.Second
	// KeepSettled is how long settled tasks are kept by default.
	KeepSettled = 30 * 24 * time.Hour
	// KeepCount is how many settled tasks are kept by default.
	KeepCount = 100000
)

// Node is a connected node as the relay calls it.
type Node interface {
	Offer(ctx context.Context, o api.Offer) (api.Receipt, error)
	Withdraw(ctx context.Context, w api.Withdraw) (api.Receipt, error)
	Reconcile(ctx context.Context, q api.Reconcile) (api.Reconciled, error)
	// Answer gives the answer to a question that was asked in the middle of a turn.
	Answer(ctx context.Context, a api.Reply) (api.Receipt, error)
}

// Clock is the hub's clock.
type Clock interface {
	Now() time.Time
	MayExpire() bool
}

// Observer is told what happens, for metrics and the audit log. Calls must not
// block; several come at once.
type Observer interface {
	Settled(state api.State, code string, d time.Duration)
	Offered(result string)
	LateResult(reason string)
}

// Config is what a relay needs.
type Config struct {
	Store    store.Store
	Bus      *events.Bus
	Clock    Clock
	Observer Observer
	Log      *slog.Logger
	// Secret keys the lineage tokens; 32 bytes kept in the store.
	Secret []byte
	// UnknownAfter, SweepEvery: zero means the constants of those names.
	UnknownAfter time.Duration
	SweepEvery   time.Duration
	// RetryMin is the first pause after a call to a node that failed for a passing
	// reason; zero means retryMin.
	RetryMin time.Duration
	// KeepSettled and KeepCount bound settled tasks by age and number; zero means
	// the constants.
	KeepSettled time.Duration
	KeepCount   int
}

// complete checks a configuration and fills the defaults in.
func (c *Config) complete() error {
	switch {
	case c.Store == nil || c.Bus == nil || c.Clock == nil || c.Observer == nil || c.Log == nil || len(c.Secret) < 32:
		return errors.New("relay: store, bus, clock, observer, log and a secret of 32 bytes are needed")
	case c.UnknownAfter < 0 || c.SweepEvery < 0 || c.RetryMin < 0 || c.KeepSettled < 0 || c.KeepCount < 0:
		return errors.New("relay: a limit is negative")
	}
	for d, def := range map[*time.Duration]time.Duration{
		&c.UnknownAfter: UnknownAfter, &c.SweepEvery: SweepEvery, &c.RetryMin: retryMin, &c.KeepSettled: KeepSettled,
	} {
		if *d == 0 {
			*d = def
		}
	}
	if c.KeepCount == 0 {
		c.KeepCount = KeepCount
	}
	return nil
}

// Relay is the running state machine. Safe for concurrent use.
type Relay struct {
	cfg      Config
	st       store.Store
	bus      *events.Bus
	clock    Clock
	log      *slog.Logger
	hubID    string
	restored bool // the store was a backup once: nodes may be ahead of it

	// mu guards the following fields and the fields of entries, queues, lanes and
	// connections.
	mu       sync.Mutex
	tasks    map[string]*entry
	turns    map[string]*turn  // of the records that are being changed
	queues   map[string]*queue // by target identity
	noting   map[store.BindingKey]*noting
	byAuthor map[string]int    // open tasks, and those under way, by controller identity
	states   map[api.State]int // open tasks by state
	rates    map[string]*rate  // of dispatches by controller identity
	// gone holds the identities that left in this process's life, or before it with
	// tasks still open, and why: api.TaskTargetRevoked or api.TaskTargetReplaced.
	gone      map[string]string
	textBytes int      // of all entries' text
	work      []*entry // operations that the relay has to go on with, each at most once
	ended     uint64   // counts the operations that ended
	overtaken overtaken

	due chan struct{} // room for one: there is work
}

// New loads the open tasks of the store.
func New(ctx context.Context, cfg Config) (*Relay, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	info := cfg.Store.Info()
	r := &Relay{
		cfg: cfg, st: cfg.Store, bus: cfg.Bus, clock: cfg.Clock, log: cfg.Log,
		hubID: info.HubID, restored: !info.RestoredAt.IsZero(),
		tasks: map[string]*entry{}, turns: map[string]*turn{}, queues: map[string]*queue{}, noting: map[store.BindingKey]*noting{}, byAuthor: map[string]int{},
		states: map[api.State]int{}, rates: map[string]*rate{}, gone: map[string]string{},
		due: make(chan struct{}, 1), overtaken: newOvertaken(),
	}
	err := cfg.Store.OpenTasks(ctx, func(t store.Task) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.add(t).tried = t.Journal != ""
		return nil
	})
	if err == nil {
		err = r.loadGone(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("load open tasks: %w", err)
	}
	return r, nil
}

// Open is how many tasks are not settled.
func (r *Relay) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tasks)
}

// Counts says how many tasks of a target run and how many wait.
func (r *Relay) Counts(target string) (running, waiting int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[target]; q != nil {
		running, waiting = q.running, len(q.tasks)-q.running
	}
	return running, waiting
}

// States counts the open tasks by state, for metrics.
func (r *Relay) States() map[api.State]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := make(map[api.State]int, len(r.states))
	for s, n := range r.states {
		m[s] = n
	}
	return m
}

// Wait blocks until the task is settled or, when questions is set, waits for an
// answer; or until ctx ends, which is not an error: the record is returned as it
// is. A task that is unknown goes on being waited for (semantics 8).
func (r *Relay) Wait(ctx context.Context, id string, questions bool) (store.Task, error) {
	for {
		r.mu.Lock()
		e := r.tasks[id]
		if e == nil {
			r.mu.Unlock()
			return r.st.Task(context.WithoutCancel(ctx), id)
		}
		t, changed := e.task, e.changed
		r.mu.Unlock()
		if questions && t.State == api.StateQuestion {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return t, nil
		}
	}
}

// Task returns the newest record of a task: the copy of an open one, else the
// stored one. store.ErrNotFound says that there is none; of one that retention
// removed the error is store.ErrForgotten, without ErrNotFound.
func (r *Relay) Task(ctx context.Context, id string) (store.Task, error) {
	t, err := r.current(ctx, id)
	if errors.Is(err, store.ErrForgotten) {
		return t, store.ErrForgotten
	}
	return t, err
}
