package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"opencode-mesh/protocol/api"
)

// Defaults and limits of a Config.
const (
	// DefaultWriteTimeout is how long one write to the connection may take.
	DefaultWriteTimeout = 10 * time.Second
	// DefaultWindow is the largest receive window of a stream. A stream moves at
	// most one window per round trip: 1 MiB is 25 MB/s at 40 ms.
	DefaultWindow = 1 << 20
	// MinWindow is the smallest window, which every yamux peer starts from.
	MinWindow = 256 << 10
	// MaxWindow is the largest window; what one stalled stream may hold in memory.
	MaxWindow = 16 << 20
	// DefaultNodeStreams is how many streams the hub may have open to a node.
	DefaultNodeStreams = 10000
	// DefaultHubStreams is how many streams a node may have open to the hub.
	DefaultHubStreams = 64
	// DefaultPreambleTimeout is how long an opened stream may take to say its kind.
	DefaultPreambleTimeout = 10 * time.Second
	// DefaultProbeTimeout is how long a peer may take to answer after this machine
	// slept.
	DefaultProbeTimeout = 3 * time.Second
	// maxClockCheck is the longest default interval between looks at the clock.
	maxClockCheck = 5 * time.Second
)

// Config tunes a session. Its zero value is good; both sides need not agree.
type Config struct {
	// Heartbeat is the silence after which the peer is pinged. 0: 15 s.
	Heartbeat time.Duration
	// HeartbeatTimeout is the further silence after which the session is lost:
	// Heartbeat + HeartbeatTimeout after the last byte that came in, whatever was
	// sent meanwhile. 0: 15 s.
	HeartbeatTimeout time.Duration
	// ProbeTimeout replaces HeartbeatTimeout when the clock shows that this
	// machine slept. 0: 3 s, or HeartbeatTimeout if that is less.
	ProbeTimeout time.Duration
	// ClockCheck is how often the clock is looked at for such a jump. 0: a third
	// of Heartbeat, at most 5 s.
	ClockCheck time.Duration
	// WriteTimeout is how long one write (a frame or a part of it, at most 64 KiB)
	// may take before the session ends with ReasonStalled; a link that moves less
	// than 64 KiB in that time counts as stalled. 0: 10 s.
	WriteTimeout time.Duration
	// Window is the largest receive window per stream, in bytes, from MinWindow to
	// MaxWindow. A stream whose reader does not keep up stays at MinWindow.
	// 0: 1 MiB.
	Window uint32
	// MaxIncomingStreams is how many streams the peer may have open; those beyond
	// are reset. 0: 10,000 for Dial, 64 for Accept.
	MaxIncomingStreams int
	// PreambleTimeout is how long an incoming stream may take to say its kind, and
	// then to find somebody in Accept. 0: 10 s.
	PreambleTimeout time.Duration
	// ServiceDial connects an incoming service/<name> stream: it looks the name up
	// in what this side offers and dials that. It must honour its context, which
	// ends after 10 s or with the session. An error that is ErrNoService says that
	// the name is not offered. The connection is closed by the session. nil: no
	// services.
	ServiceDial func(ctx context.Context, name string) (net.Conn, error)
	// Inbox takes the incoming api streams in place of Session.Accept, which then
	// gives none. nil: Session.Accept.
	Inbox *Inbox
	// Log gets details at debug level; what matters is in errors. nil: nothing.
	Log *slog.Logger

	// wallClock is the clock that sleep is detected with; tests replace it.
	wallClock func() time.Time
}

// Validate reports the first setting that makes no sense. Zero values are fine.
func (c Config) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Heartbeat", c.Heartbeat},
		{"HeartbeatTimeout", c.HeartbeatTimeout},
		{"ProbeTimeout", c.ProbeTimeout},
		{"ClockCheck", c.ClockCheck},
		{"WriteTimeout", c.WriteTimeout},
		{"PreambleTimeout", c.PreambleTimeout},
	} {
		if d.value < 0 {
			return fmt.Errorf("tunnel config: %s is negative", d.name)
		}
	}
	if c.Window != 0 && (c.Window < MinWindow || c.Window > MaxWindow) {
		return fmt.Errorf("tunnel config: Window is %d, not from %d to %d", c.Window, MinWindow, MaxWindow)
	}
	if c.MaxIncomingStreams < 0 {
		return fmt.Errorf("tunnel config: MaxIncomingStreams is negative")
	}
	return nil
}

// withDefaults fills in the zero values; streams is the side's default of
// MaxIncomingStreams.
func (c Config) withDefaults(streams int) Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Heartbeat, api.DefaultHeartbeat)
	def(&c.HeartbeatTimeout, api.DefaultHeartbeatTimeout)
	def(&c.ProbeTimeout, min(DefaultProbeTimeout, c.HeartbeatTimeout))
	def(&c.ClockCheck, max(time.Millisecond, min(maxClockCheck, c.Heartbeat/3)))
	def(&c.WriteTimeout, DefaultWriteTimeout)
	def(&c.PreambleTimeout, DefaultPreambleTimeout)
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.MaxIncomingStreams == 0 {
		c.MaxIncomingStreams = streams
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.wallClock == nil {
		c.wallClock = time.Now
	}
	return c
}
