package tunnel

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"
)

// Phase is what Keep is doing.
type Phase uint8

// The phases, in the order in which they follow each other.
const (
	Connecting Phase = iota
	Up
	Waiting
	Stopped
)

// String returns the phase's name.
func (p Phase) String() string {
	return [...]string{"connecting", "up", "waiting", "stopped"}[p]
}

// State is what Keep reports.
type State struct {
	Phase Phase
	// Session is set in phase Up.
	Session *Session
	// Err is why the last attempt or session ended; in phases Waiting and Stopped.
	Err error
	// Wait is how long until the next attempt; in phase Waiting.
	Wait time.Duration
	// Fruitless is how many attempts and short sessions there were in a row.
	Fruitless int
	// Permanent says that Err will not go away by itself: a person has to act.
	Permanent bool
}

// KeepConfig says how to keep a tunnel up.
type KeepConfig struct {
	// Dial makes one attempt; see Dial. Required.
	Dial func(ctx context.Context) (*Session, error)
	// Serve uses a session and returns when it is done with it, which it must be
	// soon after ctx has ended: when the session ends or Keep is to stop. Keep then
	// closes the session. An error other than the session's own counts as the
	// reason for the next wait. Required.
	Serve func(ctx context.Context, s *Session) error
	// Permanent says of an error that trying again is of no use. nil: IsPermanent.
	Permanent func(error) bool
	// Backoff between attempts.
	Backoff Backoff
	// OnState is told of each change of phase, in order, from the goroutine of
	// Keep. It must not block. nil: nobody is.
	OnState func(State)

	// Now, Sleep and Draw (from [0,1)) replace the clock and chance in tests.
	// Sleep returns early with ctx's error. nil: the real ones.
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error
	Draw  func() float64
}

// Validate reports what is missing or makes no sense.
func (c KeepConfig) Validate() error {
	if c.Dial == nil || c.Serve == nil {
		return errors.New("keep config: Dial and Serve are required")
	}
	return c.Backoff.validate()
}

func (c KeepConfig) withDefaults() KeepConfig {
	c.Backoff = c.Backoff.withDefaults()
	if c.Permanent == nil {
		c.Permanent = IsPermanent
	}
	if c.OnState == nil {
		c.OnState = func(State) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Sleep == nil {
		c.Sleep = sleep
	}
	if c.Draw == nil {
		c.Draw = rand.Float64
	}
	return c
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// IsPermanent is the usual KeepConfig.Permanent: the credential was refused (401,
// 403, 410) or revoked, or another process took the name over. Coming back on its
// own would be a flood in the first case and a fight in the second.
func IsPermanent(err error) bool {
	if IsReason(err, ReasonSuperseded) || IsReason(err, ReasonRevoked) {
		return true
	}
	var refused *RefusedError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusGone:
		return true
	}
	return false
}

// Keep holds a tunnel up until ctx ends, whose error it then returns, or until a
// permanent error, which it returns unless Backoff.SlowLane is set. Another
// process having taken over the name (ReasonSuperseded) always ends it. Everything
// else, a network that is not there yet included, is tried again for ever.
func Keep(ctx context.Context, cfg KeepConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	fruitless := 0
	for {
		cfg.OnState(State{Phase: Connecting, Fruitless: fruitless})
		useful, err := cfg.once(ctx)
		if useful {
			fruitless = 0
		}
		st := State{Phase: Waiting, Err: err, Fruitless: fruitless, Permanent: cfg.Permanent(err)}
		if ctx.Err() != nil {
			st.Permanent = false
			err = ctx.Err()
		}
		if ctx.Err() != nil || IsReason(err, ReasonSuperseded) || st.Permanent && cfg.Backoff.SlowLane == 0 {
			st.Phase = Stopped
			cfg.OnState(st)
			return err
		}
		st.Wait = cfg.wait(st)
		fruitless++
		cfg.OnState(st)
		if err := cfg.Sleep(ctx, st.Wait); err != nil {
			cfg.OnState(State{Phase: Stopped, Err: st.Err})
			return err
		}
	}
}

// wait is how long to stay away after st.
func (c KeepConfig) wait(st State) time.Duration {
	draw := c.Draw()
	if st.Permanent {
		return half(c.Backoff.SlowLane, draw)
	}
	// A hub that says it restarts is expected back soon, once: if it is not there
	// then, the usual waits follow.
	if IsReason(st.Err, ReasonShutdown) && st.Fruitless == 0 {
		return time.Duration(draw * float64(c.Backoff.Restart))
	}
	wait := c.Backoff.wait(st.Fruitless, draw)
	var refused *RefusedError
	if errors.As(st.Err, &refused) && refused.RetryAfter > 0 {
		// At least what was asked, and not all at the same moment after it.
		wait = max(wait, refused.RetryAfter+time.Duration(draw*float64(c.Backoff.Restart)))
	}
	return wait
}

// once dials and serves one session, and reports whether it was of use and why
// it ended.
func (c KeepConfig) once(ctx context.Context) (useful bool, err error) {
	s, err := c.Dial(ctx)
	if err != nil {
		return false, err
	}
	began := c.Now()
	c.OnState(State{Phase: Up, Session: s})

	serving, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.Done():
			cancel()
		case <-serving.Done():
		}
	}()
	err = c.Serve(serving, s)
	cancel()
	<-ended
	// The session's own end says more than what Serve made of it, unless Serve
	// was the one that ended it.
	select {
	case <-s.Done():
		err = s.Err()
	default:
	}
	_ = s.Close()
	if err == nil {
		err = s.Err()
	}
	return s.useful.Load() || c.Now().Sub(began) >= c.Backoff.UsefulAfter, err
}
