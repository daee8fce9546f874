package memory

import (
	"context"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

// loud is a feed that says when it was asked, and may be filled at any time.
type loud struct {
	mu sync.Mutex
	feed
	calls chan struct{}
}

func newLoud(items ...api.MemoryItem) *loud {
	return &loud{feed: feed{page: 100, items: items}, calls: make(chan struct{}, 100)}
}

func (l *loud) Call(ctx context.Context, method, path string, in, out any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.calls <- struct{}{} }()
	return l.feed.Call(ctx, method, path, in, out)
}

func (l *loud) add(m api.MemoryItem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, m)
}

// asked waits until it was.
func (l *loud) asked(t *testing.T) {
	t.Helper()
	select {
	case <-l.calls:
	case <-time.After(time.Minute):
		t.Fatal("the hub is not asked")
	}
}

// running runs a Syncer and returns what ends it and waits for that.
func running(t *testing.T, s *Syncer) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	end = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(end)
	return end
}

func TestANudgeBringsWhatTheHubHasNowWithoutThePoll(t *testing.T) {
	x := newIndex(t, Config{})
	s := NewSyncer(SyncConfig{Index: x, Poll: time.Hour, Gather: time.Millisecond})
	hub := newLoud(result("t1", "one"))
	s.Attach(hub, "idB")
	end := running(t, s)
	hub.asked(t)
	hub.add(result("t2", "two"))
	s.Nudge()
	for x.Count() < 2 {
		hub.asked(t)
		s.Nudge()
	}
	end()
}

func TestManyNudgesAreOneRoundAndAHelloIsNotKeptWaiting(t *testing.T) {
	x := newIndex(t, Config{})
	s := NewSyncer(SyncConfig{Index: x, Poll: time.Hour, Gather: time.Hour})
	for range 100 {
		s.Nudge()
	}
	end := running(t, s)
	hub := newLoud(result("t1", "one"))
	s.Attach(hub, "idB") // what gathers goes with this round
	hub.asked(t)
	for range 100 {
		s.Nudge()
	}
	end()
	if n := len(hub.calls); n > 1 { // one for the hello, if a round was under way then
		t.Errorf("the hub was asked %d times more", n)
	}
}
