package clock_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/hub/clock"
	"opencode-mesh/store/bolt"
)

// source is a machine clock that tests set.
type source struct {
	wall time.Time
	mono time.Duration
}

func (s *source) source() clock.Source {
	return clock.Source{Wall: func() time.Time { return s.wall }, Mono: func() time.Duration { return s.mono }}
}

func (s *source) pass(d time.Duration) { s.wall, s.mono = s.wall.Add(d), s.mono+d }

func open(t *testing.T, dir string) *bolt.Store {
	t.Helper()
	st, err := bolt.Open(bolt.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func newClock(t *testing.T, st *bolt.Store, s *source) *clock.Clock {
	t.Helper()
	c, err := clock.New(context.Background(), st, s.source(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestHubTimeNeverRunsBehindItsLastPersistedValue(t *testing.T) {
	dir := t.TempDir()
	st := open(t, dir)
	s := &source{wall: noon}
	c := newClock(t, st, s)
	s.pass(time.Hour)
	if err := c.Persist(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	st = open(t, dir)
	defer st.Close()
	s = &source{wall: noon.AddDate(-1, 0, 0)} // the box woke in another year
	c = newClock(t, st, s)
	if now := c.Now(); now.Before(noon.Add(time.Hour)) {
		t.Fatalf("time went back to %s", now)
	}
	before := c.Now()
	s.mono += 10 * time.Second
	if got := c.Now().Sub(before); got != 10*time.Second {
		t.Errorf("a wrong wall clock stops the hub's time: %s passed", got)
	}
}

func TestNothingExpiresSoonAfterAStart(t *testing.T) {
	st := open(t, t.TempDir())
	defer st.Close()
	s := &source{wall: noon}
	c := newClock(t, st, s)
	if c.MayExpire() {
		t.Error("it may expire at once")
	}
	s.pass(clock.Grace - time.Second)
	if c.MayExpire() {
		t.Error("it may expire too early")
	}
	s.pass(2 * time.Second)
	if !c.MayExpire() {
		t.Error("it never may expire")
	}
}

func TestNothingExpiresSoonAfterAJumpForward(t *testing.T) {
	st := open(t, t.TempDir())
	defer st.Close()
	s := &source{wall: noon}
	c := newClock(t, st, s)
	s.pass(2 * clock.Grace)
	if !c.MayExpire() {
		t.Fatal("the start's grace lasts too long")
	}
	s.wall = s.wall.Add(clock.Jump + time.Minute) // asleep: the wall clock went on alone
	if c.MayExpire() {
		t.Error("it expires right after the jump")
	}
	s.pass(clock.Grace + time.Second)
	if !c.MayExpire() {
		t.Error("the jump's grace never ends")
	}
}

func TestAPersistedMarkOfAnotherProcessStands(t *testing.T) {
	st := open(t, t.TempDir())
	defer st.Close()
	s := &source{wall: noon}
	a, b := newClock(t, st, s), newClock(t, st, s)
	s.pass(time.Minute)
	if err := a.Persist(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := b.Persist(context.Background()); err != nil {
		t.Errorf("a lost race is not an error: %v", err)
	}
}

func TestReadersAtOnceDoNotMakeTimeRunFaster(t *testing.T) {
	st := open(t, t.TempDir())
	defer st.Close()
	var ticks atomic.Int64
	wall := noon
	c, err := clock.New(context.Background(), st, clock.Source{
		Wall: func() time.Time { return wall },
		Mono: func() time.Duration { return time.Duration(ticks.Add(1)) },
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	first := c.Now()
	wall = noon.AddDate(0, 0, -1) // set back: the pace is the monotonic clock's now
	from := ticks.Load()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5000 {
				c.Now()
			}
		})
	}
	wg.Wait()
	if ran, passed := c.Now().Sub(first), time.Duration(ticks.Load()-from); ran > passed {
		t.Errorf("the hub's clock ran %d ticks while %d passed", ran, passed)
	}
}
