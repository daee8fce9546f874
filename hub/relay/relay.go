// Package relay carries tasks from controllers to nodes and results back. It is
// the state machine of a task's life (design.md, semantics.md).
//
// The store is the truth: every change is a compare-and-set on the record's
// revision, and what callers were told is on disk. The relay keeps a copy of the
// tasks that are not settled, sorted into lanes, so that an idle hub does nothing
// and a busy one does not read back what it just wrote; after a crash it loads
// them and goes on. It knows nothing of HTTP: a connected node is the Node
// interface.
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
	// UnknownAfter is how long a node may be away before its accepted and running
	// tasks are shown as unknown.
	UnknownAfter = 30 * time.Second
	// SweepEvery is how often bounds are checked.
	SweepEvery = time.Second
	// KeepSettled and KeepCount are the default retention of settled tasks.
	KeepSettled = 30 * 24 * time.Hour
	KeepCount   = 100000
	// casTries bounds retries of a change that lost a race; losing that often means
	// a bug, not bad luck.
	casTries = 32
)

// Node is a connected node as the relay calls it.
type Node interface {
	Offer(ctx context.Context, o api.Offer) (api.Receipt, error)
	Withdraw(ctx context.Context, w api.Withdraw) (api.Receipt, error)
	Reconcile(ctx context.Context, q api.Reconcile) (api.Reconciled, error)
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
	// KeepSettled and KeepCount bound settled tasks by age and number; zero means
	// the constants.
	KeepSettled time.Duration
	KeepCount   int
}

// Relay is the running state machine. Safe for concurrent use.
type Relay struct {
	cfg   Config
	st    store.Store
	bus   *events.Bus
	clock Clock
	log   *slog.Logger
	hubID string

	// mu guards the following fields and the fields of entries, queues and lanes.
	mu       sync.Mutex
	tasks    map[string]*entry
	queues   map[string]*queue // by target identity
	byAuthor map[string]int    // open tasks by controller identity
	rates    map[string]*rate  // of dispatches by controller identity
}

// entry is an open task. Its task is replaced, never changed in place.
type entry struct {
	task    store.Task
	text    []byte        // of the current turn, while its offer is imminent; else nil
	changed chan struct{} // closed at the next change
	busy    chan struct{} // one token: changes of one task go one after the other
	lane    *lane         // where it waits for its offer, nil when it does not
	tried   bool          // an offer to task.Journal may have been sent
	barrier uint64        // see lane.inflight
}

// New loads the open tasks of the store.
func New(ctx context.Context, cfg Config) (*Relay, error) {
	if cfg.Store == nil || cfg.Bus == nil || cfg.Clock == nil || cfg.Observer == nil || cfg.Log == nil || len(cfg.Secret) < 32 {
		return nil, errors.New("relay: store, bus, clock, observer, log and a secret of 32 bytes are needed")
	}
	if cfg.UnknownAfter == 0 {
		cfg.UnknownAfter = UnknownAfter
	}
	if cfg.SweepEvery == 0 {
		cfg.SweepEvery = SweepEvery
	}
	if cfg.KeepSettled == 0 {
		cfg.KeepSettled = KeepSettled
	}
	if cfg.KeepCount == 0 {
		cfg.KeepCount = KeepCount
	}
	r := &Relay{
		cfg: cfg, st: cfg.Store, bus: cfg.Bus, clock: cfg.Clock, log: cfg.Log,
		hubID: cfg.Store.Info().HubID,
		tasks: map[string]*entry{}, queues: map[string]*queue{}, byAuthor: map[string]int{}, rates: map[string]*rate{},
	}
	err := cfg.Store.OpenTasks(ctx, func(t store.Task) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.add(t, nil).tried = t.Journal != ""
		return nil
	})
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
		running, waiting = q.running, q.open-q.running
	}
	return running, waiting
}

// States counts the open tasks by state, for metrics.
func (r *Relay) States() map[api.State]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := map[api.State]int{}
	for _, e := range r.tasks {
		m[e.task.State]++
	}
	return m
}

// add enters an open task. Called with mu held.
func (r *Relay) add(t store.Task, text []byte) *entry {
	e := &entry{task: t, text: text, changed: make(chan struct{}), busy: make(chan struct{}, 1)}
	r.tasks[t.ID] = e
	q := r.queue(t.Target.ID)
	q.count(t, +1)
	r.byAuthor[t.Controller.ID]++
	r.place(e)
	return e
}

// put takes a stored record over. force is for a copy that turned out wrong.
func (r *Relay) put(t store.Task, force bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tasks[t.ID]
	if e == nil {
		if !t.State.Settled() {
			e = r.add(t, nil)
			r.publish(t)
		}
		return
	}
	if t.Rev <= e.task.Rev && !force {
		return
	}
	old := e.task
	e.task = t
	close(e.changed)
	e.changed = make(chan struct{})
	q := r.queue(t.Target.ID)
	q.count(old, -1)
	if t.State.Settled() {
		r.unplace(e)
		delete(r.tasks, t.ID)
		if r.byAuthor[t.Controller.ID]--; r.byAuthor[t.Controller.ID] <= 0 {
			delete(r.byAuthor, t.Controller.ID)
		}
		r.forgetQueue(q)
	} else {
		q.count(t, +1)
		r.place(e)
	}
	if t.State.Settled() && !old.State.Settled() {
		code := ""
		if t.Outcome != nil && t.Outcome.Error != nil {
			code = t.Outcome.Error.Code
		}
		r.cfg.Observer.Settled(t.State, code, t.EndedAt.Sub(t.CreatedAt))
	}
	r.publish(t)
}

// publish hands the change on while mu keeps the order of changes; the bus never
// blocks.
func (r *Relay) publish(t store.Task) {
	v := View(t)
	r.bus.Task(t.Controller.ID, v)
}

// current returns the copy of an open task, or the stored record.
func (r *Relay) current(ctx context.Context, id string) (store.Task, *entry, error) {
	r.mu.Lock()
	e := r.tasks[id]
	if e != nil {
		t := e.task
		r.mu.Unlock()
		return t, e, nil
	}
	r.mu.Unlock()
	t, err := r.st.Task(ctx, id)
	return t, nil, err
}

// errNoChange ends a change without writing.
var errNoChange = errors.New("no change")

// change is one compare-and-set on a task: fn gets the newest record and returns
// the next one with parts to store beside it. fn may run several times and must
// only compute. errNoChange leaves the record alone. It returns once the change
// is on disk.
func (r *Relay) change(ctx context.Context, id string, fn func(store.Task) (store.Task, []store.Part, error)) (store.Task, error) {
	release, err := r.acquire(ctx, id)
	if err != nil {
		return store.Task{}, err
	}
	defer release()
	for range casTries {
		t, e, err := r.current(ctx, id)
		if err != nil {
			return store.Task{}, err
		}
		next, parts, err := fn(t)
		if errors.Is(err, errNoChange) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		next.Life = step(t, next, r.clock.Now())
		got, err := r.st.UpdateTask(ctx, next, parts...)
		if errors.Is(err, store.ErrConflict) {
			if err := r.reload(ctx, id, e != nil); err != nil {
				return t, err
			}
			continue
		}
		if err != nil {
			return t, err
		}
		r.put(got, false)
		return got, nil
	}
	return store.Task{}, fmt.Errorf("task %s: %w", id, store.ErrConflict)
}

// note is change without waiting for the disk, for states that a crash may
// forget because the node reports them again. Only of open tasks.
func (r *Relay) note(ctx context.Context, id string, fn func(store.Task) (store.Task, error)) {
	release, err := r.acquire(ctx, id)
	if err != nil {
		return
	}
	defer release()
	r.mu.Lock()
	e := r.tasks[id]
	if e == nil {
		r.mu.Unlock()
		return
	}
	t := e.task
	r.mu.Unlock()
	next, err := fn(t)
	if err != nil {
		return
	}
	next.Life = step(t, next, r.clock.Now())
	got, err := r.st.UpdateTaskLater(next, func(err error) {
		r.log.Warn("a task's state could not be noted", "task", id, "err", err)
	})
	if err != nil {
		return // refused (full queue, disk trouble): the node will report it again
	}
	r.put(got, false)
}

// acquire waits for the turn to change one task of this process. Correctness
// rests on the revisions; this only spares the retries.
func (r *Relay) acquire(ctx context.Context, id string) (func(), error) {
	r.mu.Lock()
	e := r.tasks[id]
	r.mu.Unlock()
	if e == nil {
		return func() {}, nil
	}
	select {
	case e.busy <- struct{}{}:
		return func() { <-e.busy }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// reload replaces the copy by what is stored.
func (r *Relay) reload(ctx context.Context, id string, have bool) error {
	t, err := r.st.Task(ctx, id)
	if err != nil {
		return err
	}
	if have {
		r.put(t, true)
	}
	return nil
}

// step appends to a task's life when its state, attempt or turn changed.
func step(old, next store.Task, now time.Time) []api.Step {
	if old.State == next.State && old.Attempt == next.Attempt && old.Turn == next.Turn {
		return next.Life
	}
	life := append([]api.Step(nil), next.Life...)
	s := api.Step{At: now, State: next.State, Attempt: next.Attempt, Turn: next.Turn}
	if o := next.Outcome; next.State.Settled() && o != nil && o.Error != nil {
		s.Note = o.Error.Code
	}
	life = append(life, s)
	if len(life) > store.MaxLife { // keep the first step and the newest
		life = append(life[:1], life[len(life)-store.MaxLife+1:]...)
	}
	return life
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
		if t.State.Settled() || questions && t.State == api.StateQuestion {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return t, nil
		}
	}
}
