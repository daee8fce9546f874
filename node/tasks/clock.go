package tasks

import (
	"sync"
	"time"
)

// clock counts how long an agent has had a turn, and tells when that is as long as
// the deadline allows. It can be held: while a question of the turn waits for its
// answer, nobody works, so that this time counts neither for the deadline nor in
// RanMS. Safe for concurrent use.
type clock struct {
	mu    sync.Mutex // guards the following fields
	ran   time.Duration
	since time.Time // ran grows since then, unless it is held
	holds int
	limit time.Duration // of ran; set by arm
	timer *time.Timer   // calls over when the limit is reached; nil before arm
	over  func()
}

func newClock() *clock { return &clock{since: time.Now()} }

// elapsed is how long it has run so far.
func (c *clock) elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// now is elapsed. Callers hold mu.
func (c *clock) now() time.Duration {
	if c.holds > 0 {
		return c.ran
	}
	return c.ran + time.Since(c.since)
}

// arm has over called, once, in a goroutine of its own, when the clock has run for
// limit; at once when it has already. It is called once.
func (c *clock) arm(limit time.Duration, over func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.over = limit, over
	c.timer = time.AfterFunc(limit-c.now(), c.ring)
	if c.holds > 0 {
		c.timer.Stop()
	}
}

// ring is called by the timer, which a hold may have stopped too late.
func (c *clock) ring() {
	c.mu.Lock()
	var over func()
	if c.holds == 0 && c.now() >= c.limit { // else release sets the timer again
		over, c.over = c.over, nil
	}
	c.mu.Unlock()
	if over != nil {
		over()
	}
}

// disarm stops the timer; the clock goes on counting.
func (c *clock) disarm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = nil
	if c.timer != nil {
		c.timer.Stop()
	}
}

// hold stops the clock until as many calls of release followed.
func (c *clock) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds++; c.holds > 1 {
		return
	}
	c.ran += time.Since(c.since)
	if c.timer != nil {
		c.timer.Stop()
	}
}

// release ends one hold.
func (c *clock) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds--; c.holds > 0 {
		return
	}
	c.since = time.Now()
	if c.over != nil {
		c.timer.Reset(c.limit - c.ran)
	}
}
