package across

import (
	"context"
	"errors"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/opencomms"
	ocm "opencode-mesh/protocol/opencomms"
)

// worker does everything for the links of one project, on one goroutine.
type worker struct {
	a     *Across
	dir   string
	woken chan struct{} // holds a token while there is something to look at

	// Of the goroutine:
	project  *opencomms.Project
	rates    map[string]*rate
	rosterAt map[string]time.Time // when a roster was sent last, by link
	again    time.Duration        // until the next pass; 0: at the next change
	state    *ocm.State           // as it was read last; nil: to be read again

	mu      sync.Mutex // guards the following fields, which are for people
	trouble string
	waits   map[string]string // by link, the code for which messages wait
}

func newWorker(a *Across, dir string) *worker {
	return &worker{
		a: a, dir: dir, woken: make(chan struct{}, 1),
		rates: map[string]*rate{}, rosterAt: map[string]time.Time{}, waits: map[string]string{},
	}
}

// poke makes the worker look.
func (w *worker) poke() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// run works until ctx ends or the project has no links any more.
func (w *worker) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var changed <-chan struct{}
	defer func() {
		cancel()
		if changed != nil {
			for range changed { // closed when the watch has ended
			}
		}
	}()
	for ctx.Err() == nil {
		if w.project == nil {
			if p, err := w.a.open(w.dir); err != nil {
				w.fail(ctx, err)
			} else {
				w.project, changed = p, p.Watch(ctx)
			}
		}
		if w.project != nil {
			left, err := w.pass(ctx)
			w.fail(ctx, err)
			if err == nil && left == 0 {
				if w.a.retire(w) {
					return
				}
				continue
			}
		}
		w.wait(ctx, changed)
	}
}

// fail keeps an error for people, and has the pass made again; nil: all is well.
func (w *worker) fail(ctx context.Context, err error) {
	if unfinished(ctx, err) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
		w.later(w.a.retry)
	}
	w.mu.Lock()
	before := w.trouble
	w.trouble = text
	w.mu.Unlock()
	if text != "" && text != before {
		w.a.log.Warn("opencomms: a linked project cannot be worked on, trying again", "project", w.dir, "err", err)
	}
}

// later has a pass made after d at the latest.
func (w *worker) later(d time.Duration) {
	if w.again == 0 || d < w.again {
		w.again = d
	}
}

// wait returns when there is something to look at.
func (w *worker) wait(ctx context.Context, changed <-chan struct{}) {
	var after <-chan time.Time
	if w.again > 0 {
		t := time.NewTimer(w.again)
		defer t.Stop()
		after = t.C
	}
	w.again = 0
	select {
	case <-w.woken:
	case <-changed:
	case <-after:
	case <-ctx.Done():
	}
}

// pass looks at everything once and returns how many links there are. What one link
// cannot do holds up no other.
func (w *worker) pass(ctx context.Context) (int, error) {
	all, err := w.a.links(func(l *link) bool { return l.Project == w.dir })
	if err != nil || len(all) == 0 {
		return len(all), err
	}
	w.state = nil
	var errs []error
	for _, l := range all {
		w.waiting(l, "")
		if err := errors.Join(w.a.strangers(ctx, l), w.serve(ctx, l.ID)); err != nil && !errors.Is(err, errNoLink) {
			errs = append(errs, err)
		}
	}
	return len(all), errors.Join(errs...)
}

// serve does what there is to do for one link. Each step sees what the one before has
// changed.
func (w *worker) serve(ctx context.Context, id string) error {
	for _, step := range []func(context.Context, *link, *ocm.State) error{
		w.announce, w.seat, w.takeIn, w.takeOut, w.send, w.followUp, w.tell, w.finish,
	} {
		s, err := w.read(ctx)
		if err != nil {
			return err
		}
		var l *link
		if err := w.a.box.View(func(tx *bolt.Tx) (err error) {
			l, err = getLink(tx, id)
			return err
		}); err != nil {
			return err
		}
		if err := l.readable(s); err != nil {
			return err
		}
		if l.channel(s) == nil && !l.Closed {
			w.waiting(l, codeChannelGone)
		}
		if err := step(ctx, l, s); err != nil {
			return err
		}
	}
	return nil
}

// read is the state as it is at this pass, with what the pass itself has changed. It
// must not be changed.
func (w *worker) read(ctx context.Context) (*ocm.State, error) {
	if w.state != nil {
		return w.state, nil
	}
	s, err := w.project.Read(ctx)
	w.state = s
	return s, err
}

// update changes the file for a link.
func (w *worker) update(ctx context.Context, l *link, fn func(*ocm.State) error) error {
	w.state = nil
	return w.project.Update(ctx, func(s *ocm.State) error {
		if err := l.readable(s); err != nil {
			return err
		}
		return fn(s)
	})
}

// waiting notes for people why messages of a link wait here; "": they do not.
func (w *worker) waiting(l *link, code string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits[l.ID] = code
}

// finish forgets a closed link when nothing of it is under way any more.
func (w *worker) finish(ctx context.Context, l *link, _ *ocm.State) error {
	if !l.Closed || len(l.Proxies) > 0 || l.RosterSum == "" {
		return nil
	}
	done := false
	err := w.a.box.Update(ctx, func(tx *bolt.Tx) error {
		done = false
		for _, bucket := range []string{bucketOut, bucketIn, bucketTell} {
			if count(tx, bucket, l.ID, 1) > 0 {
				return nil
			}
		}
		under := false
		err := walk(tx, bucketTraces, key(l.ID, ""), func(_ []byte, t *trace) error {
			under = under || t.State != stateQueued
			return nil
		})
		if err != nil || under {
			return err
		}
		done = true
		return drop(tx, l.ID)
	})
	if err == nil && done {
		w.mu.Lock()
		delete(w.waits, l.ID)
		w.mu.Unlock()
		delete(w.rates, l.ID)
		delete(w.rosterAt, l.ID)
		w.later(time.Millisecond) // the worker ends if that was the last
	}
	return err
}
