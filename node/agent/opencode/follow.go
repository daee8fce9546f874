package opencode

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// connectWait is how long the first prompt waits for the event stream, which
	// alone says why a prompt was not stored.
	connectWait = time.Second
	// maxDepth is how deep sub-agents' sessions are followed to their parents.
	maxDepth = 16
)

// signs is what the event stream says about a turn. Safe for concurrent use.
type signs struct {
	changed chan struct{} // cap 1: look again

	// mu guards the following fields.
	mu       sync.Mutex
	text     string // of the first fault since the last prompt
	disposed bool   // the server ended what ran since the last prompt
}

func newSigns() *signs { return &signs{changed: make(chan struct{}, 1)} }

func (s *signs) hasten() {
	select {
	case s.changed <- struct{}{}:
	default: // a look is due anyway
	}
}

func (s *signs) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.disposed = "", false
}

func (s *signs) fault() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

func (s *signs) wasDisposed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disposed
}

// note takes an event in; session is the turn's.
func (s *signs) note(e event, session string) {
	if e.session != "" && e.session != session {
		return
	}
	s.mu.Lock()
	switch {
	case e.kind == eventFault && s.text == "":
		s.text = e.text
	case e.kind == eventDisposed:
		s.disposed = true
	}
	s.mu.Unlock()
	s.hasten()
}

// follow keeps an event stream open until stop is called, which waits for its end.
// It returns when the stream is up or did not come up in time.
func (r *run) follow(ctx context.Context, c client) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	up := make(chan struct{})
	var once sync.Once
	var work sync.WaitGroup
	session, dir := r.session, r.dir
	work.Go(func() {
		for {
			err := c.watch(ctx, dir, r.progress.ours, func(e event) {
				if e.kind == eventConnected {
					once.Do(func() { close(up) })
				}
				if !r.progress.see(e) {
					r.signs.note(e, session)
				}
			})
			r.progress.blind()
			if ctx.Err() != nil {
				return
			}
			r.log.Debug("event stream ended", "error", err)
			r.signs.hasten() // nothing is replayed
			select {
			case <-ctx.Done():
				return
			case <-time.After(r.cfg.PollInterval):
			}
		}
	})
	timer := time.NewTimer(connectWait)
	defer timer.Stop()
	select {
	case <-up:
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {
		cancel()
		work.Wait()
	}
}

// isKin reports whether a session is the turn's or descends from it.
func (r *run) isKin(ctx context.Context, c client, id string) (bool, error) {
	kin := false
	for at, depth := id, 0; depth < maxDepth; depth++ {
		if at == r.session {
			kin = true
			break
		}
		if known, ok := r.kin[at]; ok {
			kin = known
			break
		}
		s, err := c.session(ctx, at)
		if errors.Is(err, errNotFound) || err == nil && s.parent == "" {
			break
		}
		if err != nil {
			return false, err
		}
		at = s.parent
	}
	r.kin[id] = kin
	return kin, nil
}
