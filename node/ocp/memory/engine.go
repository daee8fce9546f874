package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/blevesearch/bleve/v2/index/scorch"
	index "github.com/blevesearch/bleve_index_api"
)

// engineConfig is that of the engine: one file of older states is kept, so that a crash
// while it writes loses nothing that was acknowledged. It does not wait without end for another
// that has the files.
func engineConfig(dir string) map[string]any {
	return map[string]any{"path": dir, "numSnapshotsToKeep": 1, "bolt_timeout": closeLimit.String(), "asyncErrorCallbackName": pausing}
}

// startEngine opens the engine on a directory.
func startEngine(dir string, queue *index.AnalysisQueue, readOnly bool) (index.Index, error) {
	cfg := engineConfig(dir)
	cfg["read_only"] = readOnly
	e, err := scorch.NewScorch(scorch.Name, cfg, queue)
	if err == nil {
		err = e.Open()
	}
	return e, err
}

// engines is the engine that is used now. It knows who uses which, so that one is taken
// away first, closed when nobody uses it any more, and nobody waits for that who only wants
// to ask: under its lock nothing is read or written. Safe for concurrent use.
type engines struct {
	mu     sync.Mutex // guards the following
	now    *heldEngine
	closed bool
}

// heldEngine is an engine with those who use it; guarded by engines.mu.
type heldEngine struct {
	index.Index
	users int
	taken bool          // it is not used any more by who comes now
	idle  chan struct{} // closed once it was taken and nobody uses it
}

// use runs fn with the engine, which stays open until fn returns.
func (s *engines) use(ctx context.Context, fn func(index.Index) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	e := s.now
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	e.users++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.users--
		e.rest()
	}()
	return guarded(func() error { return fn(e.Index) })
}

func (e *heldEngine) rest() {
	if e.taken && e.users == 0 {
		close(e.idle)
	}
}

// put makes another engine the one that is used, and returns the one before, nil for none.
// ErrClosed: it is too late, and next is the caller's still.
func (s *engines) put(next index.Index) (before *heldEngine, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	before = s.take()
	s.now = &heldEngine{Index: next, idle: make(chan struct{})}
	return before, nil
}

// end takes the engine away for good; nil if that was done before.
func (s *engines) end() *heldEngine {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.take()
}

// take takes the engine away. Called with mu.
func (s *engines) take() *heldEngine {
	e := s.now
	if e != nil {
		e.taken = true
		e.rest()
	}
	return e
}

// shut waits until nobody uses an engine that was taken away, and closes it; for both
// together no longer than a limit.
func (e *heldEngine) shut(limit time.Duration) error {
	if e == nil {
		return nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-e.idle:
	case <-timer.C:
		return fmt.Errorf("%w: the memory is being asked, and is not closed", errStuck)
	}
	done := make(chan error, 1)
	go func() { done <- guarded(e.Close) }()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: the memory is not closed", errStuck)
	}
}

// none is the engine of an index that cannot be read for now.
type none struct{ index.Index }

var errAway = errors.New("the memory cannot be read for now; the log of the node says why")

func (none) Reader() (index.IndexReader, error) { return nil, errAway }
func (none) Batch(*index.Batch) error           { return errAway }
func (none) Close() error                       { return nil }
