package across

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms"
)

// Config of an Across. Box and Node are required.
type Config struct {
	// Box is the node's mail box, where the journal is too.
	Box *mail.Box
	// Node is the name of this node.
	Node string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Retry is the time until something that has to wait is tried again, unless the file
	// changes before; 0: DefaultRetry.
	Retry time.Duration
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger
}

// Across keeps the links of a node. Its methods are safe for concurrent use.
type Across struct {
	box   *mail.Box
	node  string
	now   func() time.Time
	log   *slog.Logger
	retry time.Duration

	linking sync.Mutex // held by Link and Unlink

	mu      sync.Mutex // guards the following fields
	ctx     context.Context
	cancel  context.CancelFunc // of ctx
	parked  bool
	workers map[string]*worker // by project directory
	met     map[string]string  // peer identity by link, of those whose name another used
	work    sync.WaitGroup
}

// New makes the links of a box and registers them there as what knows the mail of
// OpenComms. Call it before the box is attached to a hub, and then Run.
func New(cfg Config) *Across {
	a := &Across{box: cfg.Box, node: cfg.Node, now: cfg.Now, log: cfg.Log, retry: cfg.Retry, workers: map[string]*worker{}, met: map[string]string{}}
	if a.now == nil {
		a.now = time.Now
	}
	if a.retry <= 0 {
		a.retry = DefaultRetry
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	cfg.Box.Handle(kindPrefix, a)
	return a
}

// Run carries messages until ctx ends; then it returns when nothing of it runs any
// more. It is called once, and the box is closed after it.
func (a *Across) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	if a.parked {
		cancel()
	}
	a.ctx, a.cancel = ctx, cancel
	a.mu.Unlock()
	all, err := a.links(func(*link) bool { return true })
	if err == nil {
		for _, l := range all {
			a.serve(l.Project)
		}
		<-ctx.Done()
	}
	cancel()
	a.mu.Lock()
	a.ctx = nil // nothing is started any more
	a.mu.Unlock()
	a.work.Wait()
	return err
}

// Park ends the work for good: another process has the name of this node, and what this
// one took out of a file would lie in a box that sends nothing. It does not wait.
func (a *Across) Park() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parked = true
	if a.cancel != nil {
		a.cancel()
	}
}

// serve starts the worker of a project, unless it runs, and wakes it.
func (a *Across) serve(project string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx == nil {
		return
	}
	w := a.workers[project]
	if w == nil {
		w = newWorker(a, project)
		a.workers[project] = w
		ctx := a.ctx
		a.work.Go(func() { w.run(ctx) })
	}
	w.poke()
}

// wake makes all workers look again.
func (a *Across) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		w.poke()
	}
}

// meet notes that a mail came under the name of a link's peer from another.
func (a *Across) meet(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.met[l.ID] = l.PeerID
	if w := a.workers[l.Project]; w != nil {
		w.poke()
	}
}

// strangers writes down whom meet saw for a link.
func (a *Across) strangers(ctx context.Context, l *link) error {
	a.mu.Lock()
	id, ok := a.met[l.ID]
	delete(a.met, l.ID)
	a.mu.Unlock()
	if !ok {
		return nil
	}
	return a.box.Update(ctx, func(tx *bolt.Tx) error { return estrange(tx, l.Peer, id) })
}

// retire ends the worker of a project without links. It reports false if it got one
// meanwhile.
func (a *Across) retire(w *worker) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-w.woken:
		return false
	default:
		delete(a.workers, w.dir)
		return true
	}
}

func (a *Across) nowMS() int64 { return a.now().UnixMilli() }

// links reads the links that pick chooses.
func (a *Across) links(pick func(*link) bool) (out []*link, err error) {
	err = a.box.View(func(tx *bolt.Tx) (err error) {
		out, err = links(tx, pick)
		return err
	})
	return out, err
}

// open opens a project as the links use it.
func (a *Across) open(dir string) (*opencomms.Project, error) {
	return opencomms.Open(dir, opencomms.Options{Now: a.now, Log: a.log})
}

// unfinished reports whether an error is the end of the process and nothing to tell.
func unfinished(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ctx.Err()))
}
