package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/tunnel"
)

func TestBackoffDoublesUpToItsLimitAndJittersByHalf(t *testing.T) {
	b := tunnel.Backoff{}
	for n, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second} {
		if got := b.Wait(n, 0); got != want/2 {
			t.Errorf("attempt %d: the shortest wait is %v, want %v", n, got, want/2)
		}
		if got := b.Wait(n, 0.999999999); got > want || got < want-time.Millisecond {
			t.Errorf("attempt %d: the longest wait is %v, want %v", n, got, want)
		}
	}
	if got := b.Wait(1<<40, 0); got != 15*time.Second {
		t.Errorf("after very many attempts: %v", got)
	}
}

// script runs Keep over attempts that fail with the given errors, then stops it,
// and returns the waits and the states.
func script(t *testing.T, cfg tunnel.KeepConfig, errs ...error) (waits []time.Duration, states []tunnel.State, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	cfg.Dial = func(context.Context) (*tunnel.Session, error) {
		n++
		return nil, errs[n-1]
	}
	cfg.Serve = func(context.Context, *tunnel.Session) error { return nil }
	cfg.Sleep = func(ctx context.Context, d time.Duration) error {
		waits = append(waits, d)
		if n == len(errs) {
			cancel()
		}
		return ctx.Err()
	}
	if cfg.Draw == nil {
		cfg.Draw = func() float64 { return 0.5 }
	}
	cfg.OnState = func(s tunnel.State) { states = append(states, s) }
	err = tunnel.Keep(ctx, cfg)
	return waits, states, err
}

func refusal(status int) error { return fmt.Errorf("dial: %w", &tunnel.RefusedError{Status: status}) }

func TestKeepTriesAgainForEverWithGrowingWaits(t *testing.T) {
	down := errors.New("network is unreachable")
	waits, states, err := script(t, tunnel.KeepConfig{}, down, down, refusal(502), down)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Keep gives %v", err)
	}
	ms := time.Millisecond
	if want := []time.Duration{375 * ms, 750 * ms, 1500 * ms, 3000 * ms}; !slices.Equal(waits, want) {
		t.Errorf("the waits are %v, want %v", waits, want)
	}
	var phases []string
	for _, s := range states {
		phases = append(phases, s.Phase.String())
	}
	if got := fmt.Sprint(phases); got != "[connecting waiting connecting waiting connecting waiting connecting waiting stopped]" {
		t.Errorf("the phases are %s", got)
	}
	if s := states[1]; !errors.Is(s.Err, down) || s.Wait != 375*ms || s.Permanent {
		t.Errorf("the first wait is reported as %+v", s)
	}
	if last := states[len(states)-1]; !errors.Is(last.Err, down) {
		t.Errorf("the end is reported as %+v", last)
	}
}

func TestKeepStopsAtAPermanentRefusal(t *testing.T) {
	for _, status := range []int{401, 403, 410} {
		waits, states, err := script(t, tunnel.KeepConfig{}, errors.New("down"), refusal(status))
		refused, ok := errors.AsType[*tunnel.RefusedError](err)
		if !ok || refused.Status != status {
			t.Errorf("%d: Keep gives %v", status, err)
		}
		if len(waits) != 1 {
			t.Errorf("%d: Keep waited %v", status, waits)
		}
		if last := states[len(states)-1]; last.Phase != tunnel.Stopped || !last.Permanent || last.Err == nil {
			t.Errorf("%d: the end is reported as %+v", status, last)
		}
	}
}

func TestKeepTakesTheSlowLaneWhenToldTo(t *testing.T) {
	cfg := tunnel.KeepConfig{Backoff: tunnel.Backoff{SlowLane: 4 * time.Minute}}
	waits, states, _ := script(t, cfg, refusal(401), refusal(401))
	if want := []time.Duration{3 * time.Minute, 3 * time.Minute}; !slices.Equal(waits, want) {
		t.Errorf("the waits are %v, want %v", waits, want)
	}
	if !states[1].Permanent {
		t.Error("nobody is told that somebody has to act")
	}
}

func TestKeepUsesTheCallersIdeaOfPermanent(t *testing.T) {
	pin := errors.New("pin mismatch")
	cfg := tunnel.KeepConfig{Permanent: func(err error) bool { return errors.Is(err, pin) }}
	if waits, _, err := script(t, cfg, refusal(401), pin); !errors.Is(err, pin) || len(waits) != 1 {
		t.Errorf("Keep gives %v after %v", err, waits)
	}
}

func TestKeepStaysAwayAsLongAsTheHubAsks(t *testing.T) {
	limited := &tunnel.RefusedError{Status: 429, RetryAfter: time.Minute}
	waits, _, _ := script(t, tunnel.KeepConfig{}, limited)
	if want := []time.Duration{61 * time.Second}; !slices.Equal(waits, want) {
		t.Errorf("the waits are %v, want %v", waits, want)
	}
}

func TestKeepIsNotConfiguredByHalf(t *testing.T) {
	dial := func(context.Context) (*tunnel.Session, error) { return nil, errors.New("down") }
	use := func(context.Context, *tunnel.Session) error { return nil }
	for name, cfg := range map[string]tunnel.KeepConfig{
		"no Dial":      {Serve: use},
		"no Serve":     {Dial: dial},
		"negative":     {Dial: dial, Serve: use, Backoff: tunnel.Backoff{SlowLane: -1}},
		"max over min": {Dial: dial, Serve: use, Backoff: tunnel.Backoff{Min: time.Minute, Max: time.Second}},
	} {
		if err := tunnel.Keep(t.Context(), cfg); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

// TestKeepWaitsInRealTime uses the default clock, in a bubble.
func TestKeepWaitsInRealTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		start := time.Now()
		var dials []time.Duration
		err := tunnel.Keep(ctx, tunnel.KeepConfig{
			Dial: func(context.Context) (*tunnel.Session, error) {
				dials = append(dials, time.Since(start))
				return nil, errors.New("down")
			},
			Serve: func(context.Context, *tunnel.Session) error { return nil },
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Keep gives %v", err)
		}
		// 0.5+1+2+4+8+16 s and then 30 s each, between half of it and all of it.
		if n := len(dials); n < 24 || n > 48 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		for i := 1; i < len(dials); i++ {
			if gap := dials[i] - dials[i-1]; gap > 30*time.Second || gap < 250*time.Millisecond {
				t.Errorf("attempt %d came after %v", i, gap)
			}
		}
	})
}

func TestNodesThatLostTheHubTogetherDoNotReturnTogether(t *testing.T) {
	seen := map[time.Duration]int{}
	const nodes = 50
	synctest.Test(t, func(t *testing.T) {
		for range nodes {
			ctx, cancel := context.WithCancel(t.Context())
			_ = tunnel.Keep(ctx, tunnel.KeepConfig{
				Dial: func(context.Context) (*tunnel.Session, error) {
					return nil, &tunnel.CloseError{Reason: tunnel.ReasonShutdown}
				},
				Serve: func(context.Context, *tunnel.Session) error { return nil },
				Sleep: func(ctx context.Context, d time.Duration) error {
					seen[d/(200*time.Millisecond)]++
					cancel()
					return ctx.Err()
				},
			})
		}
	})
	for bucket, n := range seen {
		if bucket >= 10 {
			t.Errorf("%d nodes return only after %v", n, bucket*200*time.Millisecond)
		}
		if n > nodes/2 {
			t.Errorf("%d of %d nodes return within the same 200 ms", n, nodes)
		}
	}
}

// keepAt keeps a tunnel to h up, with waits that only say how long they were.
func keepAt(t *testing.T, h *hub, use func(context.Context, *tunnel.Session) error, b tunnel.Backoff) (waits chan time.Duration, result chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	waits, result = make(chan time.Duration, 64), make(chan error, 1)
	go func() {
		result <- tunnel.Keep(ctx, tunnel.KeepConfig{
			Dial: func(ctx context.Context) (*tunnel.Session, error) {
				return tunnel.Dial(ctx, tunnel.DialConfig{URL: h.URL, Proxy: noProxy})
			},
			Serve:   use,
			Backoff: b,
			Draw:    func() float64 { return 0.5 },
			Sleep: func(ctx context.Context, d time.Duration) error {
				select {
				case waits <- d:
					return ctx.Err()
				case <-ctx.Done():
					return ctx.Err()
				}
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-result
	})
	return waits, result
}

// untilDone is a Serve that does nothing.
func untilDone(ctx context.Context, _ *tunnel.Session) error {
	<-ctx.Done()
	return nil
}

func TestABareOpenDoesNotResetTheBackoff(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	waits, _ := keepAt(t, h, untilDone, tunnel.Backoff{})
	last := time.Duration(0)
	for i := range 5 {
		// The hub accepts and closes at once.
		_ = h.next(t).Close()
		w := receive(t, waits, "the wait")
		if w != 375*time.Millisecond<<i {
			t.Errorf("wait %d is %v after %v", i, w, last)
		}
		last = w
	}
}

func TestAUsefulSessionResetsTheBackoff(t *testing.T) {
	t.Run("because it says so", func(t *testing.T) {
		h := newHub(t, tunnel.Config{}, nil)
		n := 0
		waits, _ := keepAt(t, h, func(ctx context.Context, s *tunnel.Session) error {
			if n++; n == 4 {
				s.MarkUseful()
			}
			return untilDone(ctx, s)
		}, tunnel.Backoff{})
		var got []time.Duration
		for range 6 {
			_ = h.next(t).Close()
			got = append(got, receive(t, waits, "the wait"))
		}
		ms := time.Millisecond
		if want := []time.Duration{375 * ms, 750 * ms, 1500 * ms, 375 * ms, 750 * ms, 1500 * ms}; !slices.Equal(got, want) {
			t.Errorf("the waits are %v, want %v", got, want)
		}
	})
	t.Run("because it lasted", func(t *testing.T) {
		h := newHub(t, tunnel.Config{}, nil)
		waits, _ := keepAt(t, h, untilDone, tunnel.Backoff{UsefulAfter: time.Nanosecond})
		for range 3 {
			_ = h.next(t).Close()
			if w := receive(t, waits, "the wait"); w != 375*time.Millisecond {
				t.Errorf("the wait is %v", w)
			}
		}
	})
}

func TestASupersededTunnelDoesNotComeBack(t *testing.T) {
	for _, lane := range []time.Duration{0, time.Hour} {
		h := newHub(t, tunnel.Config{}, nil)
		_, result := keepAt(t, h, untilDone, tunnel.Backoff{SlowLane: lane})
		_ = h.next(t).CloseWith(tunnel.ReasonSuperseded)
		err := receive(t, result, "Keep to return")
		result <- nil // for the clean-up
		if !tunnel.IsReason(err, tunnel.ReasonSuperseded) {
			t.Errorf("Keep gives %v", err)
		}
		if len(h.Sessions) > 0 {
			t.Error("it came back")
		}
	}
}

func TestARevokedTunnelDoesNotComeBack(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	_, result := keepAt(t, h, untilDone, tunnel.Backoff{})
	_ = h.next(t).CloseWith(tunnel.ReasonRevoked)
	err := receive(t, result, "Keep to return")
	result <- nil
	if !tunnel.IsReason(err, tunnel.ReasonRevoked) {
		t.Errorf("Keep gives %v", err)
	}
}

func TestAHubThatRestartsIsReturnedToSoon(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	waits, _ := keepAt(t, h, untilDone, tunnel.Backoff{})
	_ = h.next(t).CloseWith(tunnel.ReasonShutdown)
	if w := receive(t, waits, "the wait"); w != time.Second { // half of Restart
		t.Errorf("the first wait is %v", w)
	}
	// One that says so each time is not believed.
	_ = h.next(t).CloseWith(tunnel.ReasonShutdown)
	if w := receive(t, waits, "the wait"); w != 750*time.Millisecond {
		t.Errorf("the second wait is %v", w)
	}
	_ = h.next(t).CloseWith(tunnel.ReasonShutdown)
	if w := receive(t, waits, "the wait"); w != 1500*time.Millisecond {
		t.Errorf("the third wait is %v", w)
	}
}

func TestAnErrorOfServeEndsTheSession(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	_, result := keepAt(t, h, func(context.Context, *tunnel.Session) error { return refusal(http.StatusForbidden) }, tunnel.Backoff{})
	wantEnd(t, h.next(t), tunnel.ReasonNone)
	err := receive(t, result, "Keep to return")
	result <- nil
	if refused, ok := errors.AsType[*tunnel.RefusedError](err); !ok || refused.Status != http.StatusForbidden {
		t.Errorf("Keep gives %v", err)
	}
}

func TestKeepEndsWithItsContext(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	var states []tunnel.State
	go func() {
		result <- tunnel.Keep(ctx, tunnel.KeepConfig{
			Dial: func(ctx context.Context) (*tunnel.Session, error) {
				return tunnel.Dial(ctx, tunnel.DialConfig{URL: h.URL, Proxy: noProxy})
			},
			Serve: func(ctx context.Context, s *tunnel.Session) error {
				<-ctx.Done()
				return s.CloseWith(tunnel.ReasonShutdown)
			},
			OnState: func(s tunnel.State) { states = append(states, s) },
		})
	}()
	hubSide := h.next(t)
	await(t, "the node's side to run", func() bool { return hubSide.Stats().RTT > 0 })
	cancel()
	if err := receive(t, result, "Keep to return"); !errors.Is(err, context.Canceled) {
		t.Errorf("Keep gives %v", err)
	}
	if e := wantEnd(t, hubSide, tunnel.ReasonShutdown); !e.Remote {
		t.Error("the hub was not told")
	}
	if len(states) != 3 || states[1].Phase != tunnel.Up || states[1].Session == nil || states[2].Phase != tunnel.Stopped {
		t.Errorf("the states are %+v", states)
	}
}
