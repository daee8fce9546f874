package tunnel

import (
	"context"
	"io"
	"net"
	"time"
)

// What the external tests need beyond the exported API.

// SetWallClock replaces the clock that sleep is detected with.
func SetWallClock(c *Config, now func() time.Time) { c.wallClock = now }

// OpenAny opens a stream of a kind that Open would refuse.
func OpenAny(s *Session, k Kind) (*Stream, error) { return s.open(context.Background(), k) }

// OpenBare opens a stream and writes no preamble.
func OpenBare(s *Session) (net.Conn, error) { return s.mux.OpenStream(context.Background()) }

// ReadPreamble and AppendPreamble are the two ends of the preamble.
func ReadPreamble(r io.Reader) (Kind, error)        { return readPreamble(r) }
func AppendPreamble(dst []byte, k Kind) []byte      { return appendPreamble(dst, k) }
func (k Kind) Openable() bool                       { return k.openable() }
func (b Backoff) Wait(n int, draw float64) Duration { return b.withDefaults().wait(n, draw) }

// Duration shortens the line above.
type Duration = time.Duration

// Pulse is pulse.
type Pulse = pulse

// NewPulse makes a pulse that looked at the clock last when it showed wall.
func NewPulse(heartbeat, timeout, probeTimeout, check time.Duration, wall time.Time) *Pulse {
	return &pulse{heartbeat: heartbeat, timeout: timeout, probeTimeout: probeTimeout, check: check, lastWall: wall, planned: check}
}

// Look is look.
func (p *pulse) Look(now time.Duration, wall time.Time, lastRecv time.Duration) (string, time.Duration) {
	v, next := p.look(now, wall, lastRecv)
	return [...]string{alive: "alive", probe: "probe", dead: "dead"}[v], next
}

// Counted is how many streams a session counts the unread frames of.
func Counted(s *Session) int {
	s.conn.sieve.mu.Lock()
	defer s.conn.sieve.mu.Unlock()
	return len(s.conn.sieve.open)
}

// Limits that tests reach for.
const (
	MaxKind      = maxKind
	LingerBytes  = lingerBytes
	NotSentLowat = notSentLowat
	SmallUnread  = maxSmallUnread
)
