package tunnel

import (
	"sync"
	"time"
)

// The mux pings after Heartbeat of silence and never gives up on a ping by
// itself (muxPatience): it is the source of traffic, not the judge. The judge is
// the pulse below, which knows only when a byte last came in. So a pong that is
// stuck behind a slow transfer kills nothing, and a ping whose write blocks
// delays no verdict.

// verdict is what a look at the pulse says.
type verdict int

const (
	alive verdict = iota
	probe         // provoke an answer at once: this machine slept
	dead
)

// pulse judges a connection by what was received. It has no clock of its own;
// all times are given to it.
type pulse struct {
	heartbeat, timeout, probeTimeout, check time.Duration

	lastWall time.Time     // wall clock at the last look
	planned  time.Duration // when the next look was due, after the last
	probing  bool
	probedAt time.Duration
}

// look judges at now, a monotonic time on the same axis as lastRecv; wall is the
// wall clock, which goes on while a machine sleeps and the other may not. next
// is when to look again.
func (p *pulse) look(now time.Duration, wall time.Time, lastRecv time.Duration) (v verdict, next time.Duration) {
	defer func() { p.planned = next }()
	late := wall.Sub(p.lastWall) - p.planned
	p.lastWall = wall
	if late > p.heartbeat {
		// Asleep, stopped, or the clock was set. How long nothing came in says
		// nothing now: ask, and expect an answer soon.
		p.probing, p.probedAt = true, now
		return probe, p.probeTimeout
	}
	if p.probing && lastRecv > p.probedAt {
		p.probing = false
	}
	last, limit := lastRecv, p.heartbeat+p.timeout
	if p.probing {
		last, limit = p.probedAt, p.probeTimeout
	}
	left := last + limit - now
	if left <= 0 {
		return dead, 0
	}
	return alive, min(left, p.check)
}

// watchdog looks at a link's pulse from a timer, so an idle tunnel has no
// goroutine for it.
type watchdog struct {
	link   *link
	wall   func() time.Time
	onDead func(silence time.Duration)
	onJump func() // must not block

	running sync.WaitGroup // looks that are due or under way

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool

	pulse pulse // belongs to the look under way; there is one at a time
}

func newWatchdog(l *link, cfg Config) *watchdog {
	return &watchdog{
		link: l,
		wall: cfg.wallClock,
		pulse: pulse{
			heartbeat:    cfg.Heartbeat,
			timeout:      cfg.HeartbeatTimeout,
			probeTimeout: cfg.ProbeTimeout,
			check:        cfg.ClockCheck,
			// Without the monotonic reading, which sleeps with the machine.
			lastWall: cfg.wallClock().Round(0),
			planned:  cfg.ClockCheck,
		},
	}
}

func (w *watchdog) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running.Add(1)
	w.timer = time.AfterFunc(w.pulse.check, w.look)
}

func (w *watchdog) look() {
	defer w.running.Done()
	now := time.Since(w.link.start)
	v, next := w.pulse.look(now, w.wall().Round(0), time.Duration(w.link.lastRecv.Load()))
	switch v {
	case dead:
		w.onDead(w.link.silence())
		return
	case probe:
		w.onJump()
	case alive:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.running.Add(1)
		w.timer.Reset(next)
	}
}

// stop ends the looking and waits for a look under way.
func (w *watchdog) stop() {
	w.mu.Lock()
	if !w.stopped {
		w.stopped = true
		if w.timer.Stop() {
			w.running.Done()
		}
	}
	w.mu.Unlock()
	w.running.Wait()
}
