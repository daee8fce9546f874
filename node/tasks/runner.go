package tasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// Hub is how a runner reaches its hub: one call of the interface that the hub
// serves inside the tunnel. in is sent as JSON; the answer goes to out unless that
// is nil. A refusal of the hub is an *api.Error; any other error means that the
// hub may or may not have had the call. Safe for concurrent use.
type Hub interface {
	Call(ctx context.Context, method, path string, in, out any) error
}

// Runner has an agent execute what a hub offers and delivers the results. All
// methods are safe for concurrent use.
type Runner struct {
	cfg      Config
	log      *slog.Logger
	journal  *journal
	outbox   *outbox
	reporter *reporter
	asks     *asks

	quit     chan struct{} // closed by Stop
	arming   chan struct{} // room for one; begins the wait of Start
	wg       sync.WaitGroup
	drained  chan struct{} // closed once nothing is left to do after Park
	stopOnce sync.Once
	stopErr  error
	// needed is for Needed; set by Stop.
	needed    []string
	neededErr error

	mu       sync.Mutex // guards the following fields
	armed    bool       // Start was called
	started  bool
	parked   bool // takes and starts nothing more
	stopping bool
	lanes    *lanes
	running  map[uint64]*turn // by arrival
	looking  map[*turn]bool   // those that have ended and gave their slot free
}

// Open opens the journal, or makes one, and returns a runner that takes offers and
// starts nothing before Start. A journal that is damaged, of a newer version, of
// another hub or in use by another process is an error (see boltdb.Open).
func Open(cfg Config) (*Runner, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	j, err := openJournal(cfg)
	if err != nil {
		return nil, err
	}
	r := &Runner{
		cfg: cfg, log: cfg.Log, journal: j,
		quit:    make(chan struct{}),
		arming:  make(chan struct{}, 1),
		drained: make(chan struct{}),
		lanes:   newLanes(cfg.Agent.HasSessions()),
		running: make(map[uint64]*turn),
		looking: make(map[*turn]bool),
	}
	r.outbox = newOutbox(j, cfg, r.checkDrained)
	r.reporter = newReporter(j, cfg)
	r.asks = newAsks(j, cfg)
	for _, rec := range j.undelivered() {
		r.outbox.add(rec)
	}
	r.wg.Add(1)
	go r.upkeep()
	return r, nil
}

// Start lets turns start, those first that an earlier process left. It is called
// after the hub took this process's hello: a copied data directory must not run
// anything before its hub could say that it is one (semantics 5). What was left
// waits further until the hub has withdrawn what is canceled or expired meanwhile,
// which it does before it reconciles or offers anything, or for
// Config.StartDelay. A repeat does nothing.
func (r *Runner) Start() {
	r.mu.Lock()
	first := !r.armed
	r.armed = true
	r.mu.Unlock()
	switch {
	case !first:
	case len(r.journal.unfinished()) == 0:
		r.begin()
	default:
		signal(r.arming)
	}
}

// begin takes up what an earlier process had running, queues what it had accepted
// and starts turns from now on. It does nothing before Start and when repeated.
func (r *Runner) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.armed || r.started || r.parked || r.stopping {
		return
	}
	r.started = true
	for _, rec := range r.journal.unfinished() {
		key := laneKey(&rec.spec, r.lanes.exclusive)
		if rec.resumed {
			r.launch(rec, r.lanes.occupy(key))
		} else {
			r.lanes.push(key, rec)
		}
	}
	r.schedule()
}

// Connect gives the runner its hub, or takes it away with nil. Results and questions
// that wait are told at once.
func (r *Runner) Connect(hub Hub) {
	r.outbox.connect(hub)
	r.reporter.connect(hub)
	r.asks.connect(hub)
}

// Propose moves the journal's fencing epoch on and returns it, once it is on disk,
// with the journal's id.
func (r *Runner) Propose() (journalID string, epoch uint64, err error) { return r.journal.propose() }

// Bound lists the newest sessions of this node for a hello.
func (r *Runner) Bound() []api.BoundSession { return r.journal.bound(api.MaxSessionsInHello) }

// Policy is the policy in force.
func (r *Runner) Policy() string { return r.cfg.Policy }

// MaxParallel is how many turns run at once.
func (r *Runner) MaxParallel() int { return r.cfg.MaxParallel }

// Failed is closed when a sync of the journal failed: nothing is acknowledged any
// more, and only a restart tells what was kept (semantics 21).
func (r *Runner) Failed() <-chan struct{} { return r.journal.failed() }

// Park makes the runner take and start nothing more; what runs goes on and is
// delivered. There is no way back but a new process (semantics 9).
func (r *Runner) Park() {
	r.mu.Lock()
	r.parked = true
	r.mu.Unlock()
	r.checkDrained()
}

// Revoke parks the runner and aborts what runs (semantics 15).
func (r *Runner) Revoke() {
	r.Park()
	r.abort(agent.ErrCanceled)
}

// Drained is closed once the runner was parked, nothing runs and every result was
// acknowledged.
func (r *Runner) Drained() <-chan struct{} { return r.drained }

// Archive renames the journal's file as that of a forked journal and goes on in it
// to finish what runs. It returns the new name.
func (r *Runner) Archive() (path string, err error) { return r.journal.archive() }

// Stop ends the runner: running turns are told agent.ErrStopping and waited for,
// results are delivered as far as the hub takes them, the journal is closed. It
// returns an error when something did not end before ctx did. Repeats wait and
// return the same.
func (r *Runner) Stop(ctx context.Context) error {
	r.stopOnce.Do(func() { r.stopErr = r.stop(ctx) })
	return r.stopErr
}

func (r *Runner) stop(ctx context.Context) error {
	r.mu.Lock()
	r.stopping = true
	n := len(r.running) + len(r.looking)
	r.mu.Unlock()
	close(r.quit)
	r.abort(agent.ErrStopping)

	ended := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(ended)
	}()
	var err error
	select {
	case <-ended:
		flush, cancel := context.WithTimeout(ctx, flushLimit)
		r.outbox.flush(flush)
		cancel()
	case <-ctx.Done():
		err = fmt.Errorf("%d turns did not stop in time; the next start takes them up", n)
	}
	r.outbox.close()
	r.reporter.close()
	r.asks.close()
	r.needed, r.neededErr = r.journal.needed()
	return errors.Join(err, r.journal.close())
}

// Needed lists the sessions of tasks that are not over: those that wait, run or are
// held here, and those that wait for an answer. It is called after Stop returned.
func (r *Runner) Needed() (sessions []string, err error) { return r.needed, r.neededErr }

// abort ends the context of every running turn.
func (r *Runner) abort(cause error) {
	r.mu.Lock()
	turns := make([]*turn, 0, len(r.running))
	for _, t := range r.running {
		turns = append(turns, t)
	}
	r.mu.Unlock()
	for _, t := range turns {
		t.cancel(cause)
	}
}

// enqueue gives a waiting turn to its lane.
func (r *Runner) enqueue(rec *record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started {
		return // begin finds it in the journal
	}
	r.lanes.push(laneKey(&rec.spec, r.lanes.exclusive), rec)
	r.schedule()
}

// schedule starts turns while slots are free. Callers hold mu.
func (r *Runner) schedule() {
	for r.started && !r.parked && !r.stopping && len(r.running) < r.cfg.MaxParallel {
		rec, l := r.lanes.next()
		if rec == nil {
			return
		}
		if !r.journal.claim(rec) {
			r.lanes.release(l)
			continue
		}
		r.launch(rec, l)
	}
}

// launch starts a turn that was claimed or is taken up again. Callers hold mu.
func (r *Runner) launch(rec *record, l *lane) {
	ranMS, canceled := r.journal.progress(rec)
	t := newTurn(rec, l, ranMS)
	if canceled {
		t.cancel(agent.ErrCanceled) // withdrawn before this process began
	}
	r.running[rec.arrival] = t
	r.asks.begin(t)
	r.wg.Add(1)
	go r.execute(t)
}

// yield gives the slot of a turn free whose agent has ended and whose artifacts are
// looked at, so that large ones hold up no other lane. A few at a time may do that.
func (r *Runner) yield(t *turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[t.rec.arrival] != t || len(r.looking) >= maxLooking {
		return
	}
	delete(r.running, t.rec.arrival)
	r.looking[t] = true
	r.schedule()
}

// finish gives a turn's slot and lane free.
func (r *Runner) finish(t *turn) {
	r.mu.Lock()
	delete(r.running, t.rec.arrival)
	delete(r.looking, t)
	r.lanes.release(t.lane)
	r.schedule()
	r.mu.Unlock()
	r.checkDrained()
}

// checkDrained closes drained when nothing is left to do.
func (r *Runner) checkDrained() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.parked || len(r.running)+len(r.looking) > 0 || !r.outbox.empty() {
		return
	}
	select {
	case <-r.drained:
	default:
		close(r.drained)
	}
}

// closedFor says why nothing is taken any more, nil while offers are welcome.
func (r *Runner) closedFor() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopping:
		return api.Errorf(api.CodeShuttingDown, "the node is stopping")
	case r.parked:
		return api.Errorf(api.CodeShuttingDown, "this process of the node was superseded")
	}
	return nil
}

// upkeep does what time asks for.
func (r *Runner) upkeep() {
	defer r.wg.Done()
	tick := time.NewTicker(r.cfg.Maintenance)
	defer tick.Stop()
	var begin, flush <-chan time.Time
	for {
		select {
		case <-r.quit:
			return
		case <-r.arming:
			begin = time.After(r.cfg.StartDelay)
			continue
		case <-begin:
			r.begin()
			continue
		case <-r.journal.marked:
			if flush == nil {
				flush = time.After(r.cfg.MarkDelay)
			}
			continue
		case <-flush:
			flush = nil
			r.journal.flush()
			r.journal.tidy()
			continue
		case <-tick.C:
		}
		r.refuseOverdue()
		r.journal.flush()
		r.journal.tidy()
		if n, err := r.journal.prune(); err != nil {
			r.log.Warn("journal not pruned", "err", err)
		} else if n > 0 {
			r.log.Debug("journal pruned", "forgotten", n)
		}
	}
}
