package tunnel

import (
	"errors"
	"fmt"
	"time"
)

// Backoff says how long to wait between attempts. Its zero value is good.
type Backoff struct {
	// Min is the first wait, doubled each time up to Max. 0: 0.5 s and 30 s. The
	// wait is drawn from the upper half below the value, so that nodes which lost
	// the hub together do not come back together.
	Min, Max time.Duration
	// UsefulAfter is how long a session must have lasted for the next wait to be
	// the first again, unless MarkUseful was called on it. Merely having been
	// opened is nothing: a hub may accept and close in a loop. 0: 30 s.
	UsefulAfter time.Duration
	// Restart is the longest wait for a hub that said it restarts
	// (ReasonShutdown); the wait is drawn from all below it. 0: 2 s.
	Restart time.Duration
	// SlowLane is the wait after a permanent error. 0: no further attempt, Keep
	// returns the error.
	SlowLane time.Duration
}

func (b Backoff) withDefaults() Backoff {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&b.Min, 500*time.Millisecond)
	def(&b.Max, max(30*time.Second, b.Min))
	def(&b.UsefulAfter, 30*time.Second)
	def(&b.Restart, 2*time.Second)
	return b
}

func (b Backoff) validate() error {
	for _, d := range []time.Duration{b.Min, b.Max, b.UsefulAfter, b.Restart, b.SlowLane} {
		if d < 0 {
			return errors.New("keep config: a Backoff duration is negative")
		}
	}
	if b.Max != 0 && b.Max < b.Min {
		return fmt.Errorf("keep config: Backoff.Max %v is below Min %v", b.Max, b.Min)
	}
	return nil
}

// wait is the time before the next attempt after the given number of fruitless
// ones in a row; draw is from [0,1).
func (b Backoff) wait(attempt int, draw float64) time.Duration {
	d := b.Min
	for ; attempt > 0 && d < b.Max; attempt-- {
		d *= 2
	}
	return half(min(d, b.Max), draw)
}

// half draws from the upper half of d.
func half(d time.Duration, draw float64) time.Duration {
	return d/2 + time.Duration(draw*float64(d-d/2))
}
