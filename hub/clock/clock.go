// Package clock is the hub's time: it alone decides ages and expiry
// (semantics 16).
//
// Now never runs behind the last value that was persisted, so a machine whose
// clock was set back (or that boots without one) does not make old tasks young.
// MayExpire holds everything back for a while after a start and after a jump
// forward, so that a machine that slept, or woke in the wrong year, does not
// expire at once what its clients had no chance to take.
package clock

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"time"

	"opencode-mesh/store"
)

const (
	// Grace is how long nothing expires after a start or a jump.
	Grace = 60 * time.Second
	// Jump is the step forward, beyond what the monotonic clock saw, that counts
	// as one.
	Jump = 5 * time.Minute
	// PersistEvery is how often the high-water mark is stored.
	PersistEvery = time.Minute

	settingKey = "clock/high-water"
)

// Clock is the hub's clock. Safe for concurrent use.
type Clock struct {
	wall func() time.Time
	mono func() time.Duration
	st   store.Store
	log  *slog.Logger

	// mu guards the following fields.
	mu        sync.Mutex
	last      time.Time     // highest time given out
	lastMono  time.Duration // when it was given out
	holdUntil time.Duration // on the monotonic clock
	rev       store.Rev     // of the stored mark
	stored    time.Time
}

// Source is where a clock takes its readings from; tests inject one.
type Source struct {
	Wall func() time.Time
	Mono func() time.Duration // since any fixed instant, not running while asleep is fine
}

// System is the machine's own source.
func System() Source {
	start := time.Now()
	return Source{Wall: func() time.Time { return time.Now().UTC().Round(0) }, Mono: func() time.Duration { return time.Since(start) }}
}

// New loads the high-water mark from st.
func New(ctx context.Context, st store.Store, src Source, log *slog.Logger) (*Clock, error) {
	c := &Clock{wall: src.Wall, mono: src.Mono, st: st, log: log}
	b, rev, err := st.Setting(ctx, settingKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return nil, err
	case len(b) == 8:
		c.stored = time.UnixMilli(int64(binary.BigEndian.Uint64(b))).UTC()
		c.last, c.rev = c.stored, rev
	}
	c.lastMono = c.mono()
	c.holdUntil = c.lastMono + Grace
	if w := c.wall(); w.Before(c.last) {
		log.Warn("the machine's clock is behind the hub's last time; using the latter", "clock", w, "last", c.last)
	}
	return c, nil
}

// Now is the hub's time in UTC.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Read inside the lock: readings that overtook each other would count time twice.
	w, m := c.wall(), c.mono()
	elapsed := m - c.lastMono
	if w.Before(c.last) {
		// The wall clock stands behind: go on at the pace of the monotonic one.
		w = c.last.Add(elapsed)
	} else if !c.last.IsZero() && w.Sub(c.last) > elapsed+Jump {
		c.holdUntil = m + Grace
	}
	c.last, c.lastMono = w, m
	return w
}

// MayExpire reports whether anything may expire now.
func (c *Clock) MayExpire() bool {
	c.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastMono >= c.holdUntil
}

// Persist stores the high-water mark. Two hubs writing at once is harmless: a
// conflict means that somebody else's mark stands.
func (c *Clock) Persist(ctx context.Context) error {
	now := c.Now()
	c.mu.Lock()
	rev, stored := c.rev, c.stored
	c.mu.Unlock()
	if !now.After(stored) {
		return nil
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(now.UnixMilli()))
	rev, err := c.st.PutSetting(ctx, settingKey, b[:], rev)
	if errors.Is(err, store.ErrConflict) {
		_, rev, err = c.st.Setting(ctx, settingKey)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.rev, c.stored = rev, now
	c.mu.Unlock()
	return nil
}

// Run persists the mark every PersistEvery until ctx ends.
func (c *Clock) Run(ctx context.Context) {
	t := time.NewTicker(PersistEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := c.Persist(ctx); err != nil && ctx.Err() == nil {
				c.log.Warn("could not store the hub's time", "err", err)
			}
		}
	}
}
