package tunnel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"opencode-mesh/tunnel"
)

func TestPulseJudgesByReceivedBytesOnly(t *testing.T) {
	const (
		heartbeat = 15 * time.Second
		timeout   = 10 * time.Second
		probe     = 3 * time.Second
		check     = 5 * time.Second
	)
	wall := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	type look struct {
		now, wall, lastRecv time.Duration // since the start
		want                string
		next                time.Duration
	}
	for name, looks := range map[string][]look{
		"bytes that keep coming keep it alive": {
			{5 * time.Second, 5 * time.Second, 4 * time.Second, "alive", check},
			{10 * time.Second, 10 * time.Second, 9 * time.Second, "alive", check},
		},
		"silence ends it after interval and time-out, to the moment": {
			{5 * time.Second, 5 * time.Second, 0, "alive", check},
			{10 * time.Second, 10 * time.Second, 0, "alive", check},
			{15 * time.Second, 15 * time.Second, 0, "alive", check},
			{20 * time.Second, 20 * time.Second, 0, "alive", check},
			{25*time.Second - 1, 25*time.Second - 1, 0, "alive", 1},
			{25 * time.Second, 25 * time.Second, 0, "dead", 0},
		},
		"the next look is not later than the verdict can be": {
			{5 * time.Second, 5 * time.Second, 0, "alive", check},
			{23 * time.Second, 10 * time.Second, 0, "alive", 2 * time.Second},
		},
		"a sleep that stops the monotonic clock is answered by a probe": {
			{5 * time.Second, 5 * time.Second, 4 * time.Second, "alive", check},
			{8 * time.Second, time.Hour, 4 * time.Second, "probe", probe},
			{11 * time.Second, time.Hour + 3*time.Second, 4 * time.Second, "dead", 0},
		},
		"a sleep that both clocks saw is no verdict before the probe": {
			{5 * time.Second, 5 * time.Second, 4 * time.Second, "alive", check},
			{time.Hour, time.Hour, 4 * time.Second, "probe", probe},
			{time.Hour + 3*time.Second, time.Hour + 3*time.Second, time.Hour + time.Second, "alive", check},
		},
		"an answer to the probe ends the short limit": {
			{5 * time.Second, time.Hour, 4 * time.Second, "probe", probe},
			{8 * time.Second, time.Hour + 3*time.Second, 6 * time.Second, "alive", check},
			{13 * time.Second, time.Hour + 8*time.Second, 6 * time.Second, "alive", check},
		},
		"what came in before the probe is no answer": {
			{5 * time.Second, time.Hour, 5 * time.Second, "probe", probe},
			{7 * time.Second, time.Hour + 2*time.Second, 5 * time.Second, "alive", time.Second},
			{8 * time.Second, time.Hour + 3*time.Second, 5 * time.Second, "dead", 0},
		},
		"a look that is late by less than an interval is no sleep": {
			{19 * time.Second, 19 * time.Second, 10 * time.Second, "alive", check},
		},
		"a clock that was set back is no sleep": {
			{5 * time.Second, -time.Hour, 4 * time.Second, "alive", check},
			{10 * time.Second, -time.Hour + 5*time.Second, 9 * time.Second, "alive", check},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := tunnel.NewPulse(heartbeat, timeout, probe, check, wall)
			for i, l := range looks {
				got, next := p.Look(l.now, wall.Add(l.wall), l.lastRecv)
				if got != l.want || next != l.next {
					t.Fatalf("look %d says %s and %v, want %s and %v", i, got, next, l.want, l.next)
				}
			}
		})
	}
}

// quick is a configuration that notices a loss within a few hundred milliseconds.
func quick() tunnel.Config {
	return tunnel.Config{Heartbeat: 200 * time.Millisecond, HeartbeatTimeout: 200 * time.Millisecond}
}

func TestAFrozenNetworkIsNoticedAtBothEnds(t *testing.T) {
	t.Parallel() // it mostly waits
	t.Run("when idle", func(t *testing.T) {
		h := newHub(t, quick(), nil)
		f, addr := newFreezer(t, h.URL)
		nodeSide := dial(t, addr, quick())
		hubSide := h.next(t)
		f.freeze()
		wantEnd(t, nodeSide, tunnel.ReasonLost)
		wantEnd(t, hubSide, tunnel.ReasonLost)
	})
	t.Run("while writes still seem to succeed", func(t *testing.T) {
		h := newHub(t, quick(), nil)
		f, addr := newFreezer(t, h.URL)
		nodeSide := dial(t, addr, quick())
		opener, _ := streamOf(t, h.next(t), nodeSide)
		f.freeze()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		written := 0
		for ; opener.Session().Err() == nil; written++ {
			if written > 1000 {
				t.Fatal("the hub writes into the void for ever")
			}
			<-tick.C
			_, _ = opener.Write([]byte("x"))
		}
		wantEnd(t, opener.Session(), tunnel.ReasonLost)
	})
	t.Run("when the sender is stuck in a write", func(t *testing.T) {
		h := newHub(t, quick(), nil)
		f, addr := newFreezer(t, h.URL)
		nodeSide := dial(t, addr, quick())
		hubSide := h.next(t)
		f.freeze()
		flood(t, hubSide)
		// The write time-out is 10 s: a ping that waits behind it decides nothing.
		wantEnd(t, hubSide, tunnel.ReasonLost)
		wantEnd(t, nodeSide, tunnel.ReasonLost)
	})
}

// flood writes to more streams than any buffer on the way takes, until the
// session ends.
func flood(t *testing.T, s *tunnel.Session) {
	t.Helper()
	var wg sync.WaitGroup
	for range 48 {
		c, err := s.Open(within(t), tunnel.KindAPI)
		if err != nil {
			break // ended already
		}
		wg.Go(func() { _, _ = c.Write(make([]byte, tunnel.MinWindow)) })
	}
	t.Cleanup(wg.Wait)
}

func TestAnIdleTunnelLivesOnHeartbeatsAlone(t *testing.T) {
	// Only one side pings; what the other receives by it is enough for both.
	hubSide, nodeSide := pair(t,
		tunnel.Config{Heartbeat: 20 * time.Millisecond, HeartbeatTimeout: patience},
		tunnel.Config{Heartbeat: patience, HeartbeatTimeout: patience})
	in := nodeSide.Stats().BytesIn
	await(t, "ten pings", func() bool { return nodeSide.Stats().BytesIn >= in+10*14 })
	if hubSide.Err() != nil || nodeSide.Err() != nil {
		t.Errorf("the tunnel ended: %v, %v", hubSide.Err(), nodeSide.Err())
	}
}

func TestBytesThatComeInOutweighAPongThatDoesNot(t *testing.T) {
	t.Parallel() // it mostly waits
	// The hub's side is a peer of the test's own: it answers no ping but sends one
	// mux frame of its own after the other.
	raw, nodeSide := bareHub(t, tunnel.Config{Heartbeat: 100 * time.Millisecond, HeartbeatTimeout: 700 * time.Millisecond})
	go func() { _, _ = io.Copy(io.Discard, raw) }()
	tick := time.NewTicker(40 * time.Millisecond)
	defer tick.Stop()
	for range 40 { // twice the limit
		<-tick.C
		if _, err := raw.Write(serverFrame(muxPong(99))); err != nil {
			t.Fatalf("the tunnel is gone: %v, %v", err, nodeSide.Err())
		}
	}
	if nodeSide.Err() != nil {
		t.Fatalf("the tunnel ended: %v", nodeSide.Err())
	}
	// And then it falls silent.
	wantEnd(t, nodeSide, tunnel.ReasonLost)
}

func TestAStalledWriteEndsTheSessionOnBothSides(t *testing.T) {
	t.Parallel()                                               // it mostly waits
	cfg := tunnel.Config{WriteTimeout: 200 * time.Millisecond} // heartbeats far away
	check := func(t *testing.T, f *freezer, hubSide, nodeSide *tunnel.Session) {
		f.freeze()
		flood(t, hubSide)
		wantEnd(t, hubSide, tunnel.ReasonStalled)
		f.thaw() // what reaches the node now is the reset
		wantEnd(t, nodeSide, tunnel.ReasonLost)
	}
	t.Run("over TCP", func(t *testing.T) {
		h := newHub(t, cfg, nil)
		f, addr := newFreezer(t, h.URL)
		nodeSide := dial(t, addr, tunnel.Config{})
		check(t, f, h.next(t), nodeSide)
	})
	t.Run("over TLS", func(t *testing.T) {
		h := newTLSHub(t, cfg)
		f, addr := newFreezer(t, h.URL)
		nodeSide, err := tunnel.Dial(t.Context(), tunnel.DialConfig{URL: addr, Proxy: noProxy, TLS: h.trust()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nodeSide.Close() })
		check(t, f, receive(t, h.sessions, "the session"), nodeSide)
	})
}

func TestWriteDeadlinesNeverEndAHealthySession(t *testing.T) {
	t.Parallel() // it mostly waits
	// Deadlines that run out between writes, and are set again right then: with
	// timers that cancel contexts this kills connections within a second.
	const limit = 120 * time.Millisecond // longer than a busy machine holds a goroutine back
	cfg := tunnel.Config{WriteTimeout: limit}
	var wg sync.WaitGroup
	for range 4 {
		hubSide, nodeSide := pair(t, cfg, cfg)
		opener, acceptor := streamOf(t, hubSide, nodeSide)
		wg.Go(func() { _, _ = io.Copy(acceptor, acceptor); _ = acceptor.CloseWrite() })
		wg.Go(func() {
			defer opener.CloseWrite()
			tick := time.NewTicker(limit + limit/4) // when a deadline set by the write before runs out
			defer tick.Stop()
			buf := make([]byte, 1)
			for range 10 {
				<-tick.C
				if _, err := opener.Write(buf); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				if _, err := io.ReadFull(opener, buf); err != nil {
					t.Errorf("read: %v", err)
					return
				}
			}
		})
	}
	t.Cleanup(wg.Wait)
}

// jumpyClock is a wall clock that a test can move.
type jumpyClock struct {
	mu     sync.Mutex
	offset time.Duration
}

func (c *jumpyClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

func (c *jumpyClock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

func TestAfterASleepTheTunnelIsProbedAtOnce(t *testing.T) {
	setup := func(t *testing.T, probe time.Duration) (*freezer, *jumpyClock, *tunnel.Session) {
		clock := new(jumpyClock)
		// Heartbeats are an hour away, so whatever happens is due to the probe.
		cfg := tunnel.Config{Heartbeat: time.Hour, HeartbeatTimeout: time.Hour, ClockCheck: 10 * time.Millisecond, ProbeTimeout: probe}
		tunnel.SetWallClock(&cfg, clock.now)
		h := newHub(t, tunnel.Config{Heartbeat: time.Hour}, nil)
		f, addr := newFreezer(t, h.URL)
		nodeSide := dial(t, addr, cfg)
		hubSide := h.next(t)
		await(t, "the first pings to be over", func() bool { return nodeSide.Stats().RTT > 0 && hubSide.Stats().RTT > 0 })
		return f, clock, nodeSide
	}
	t.Run("and given up if it is dead", func(t *testing.T) {
		f, clock, nodeSide := setup(t, 100*time.Millisecond)
		f.freeze()
		clock.jump(2 * time.Hour)
		wantEnd(t, nodeSide, tunnel.ReasonLost)
	})
	t.Run("and kept if it answers", func(t *testing.T) {
		_, clock, nodeSide := setup(t, patience)
		before := nodeSide.Stats().BytesIn
		clock.jump(2 * time.Hour)
		await(t, "the answer to the probe", func() bool { return nodeSide.Stats().BytesIn > before })
		if nodeSide.Err() != nil {
			t.Errorf("the tunnel ended: %v", nodeSide.Err())
		}
	})
}

func TestKeepRecoversAfterAThaw(t *testing.T) {
	t.Parallel() // it mostly waits
	h := newHub(t, quick(), nil)
	f, addr := newFreezer(t, h.URL)
	up := make(chan *tunnel.Session, 16)
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() {
		kept <- tunnel.Keep(ctx, tunnel.KeepConfig{
			Dial: func(ctx context.Context) (*tunnel.Session, error) {
				return tunnel.Dial(ctx, tunnel.DialConfig{URL: addr, Proxy: noProxy, Timeout: 200 * time.Millisecond, Config: quick()})
			},
			Serve: func(ctx context.Context, s *tunnel.Session) error {
				up <- s
				srv := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: patience}
				defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
				return srv.Serve(s)
			},
			Backoff: tunnel.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond},
		})
	}()
	first := receive(t, up, "the tunnel")
	h.next(t)
	f.freeze()
	wantEnd(t, first, tunnel.ReasonLost)
	f.thaw()
	receive(t, up, "the tunnel to come back")
	if got := get(t, client(t, awaitPeer(t, h)), "http://node/"); got != "404 page not found\n" {
		t.Errorf("the node answers %q", got)
	}
	cancel()
	if err := receive(t, kept, "Keep to return"); !errors.Is(err, context.Canceled) {
		t.Errorf("Keep gives %v", err)
	}
}

// awaitPeer is the hub's side of the session that the node holds; attempts that
// failed at the node have left others.
func awaitPeer(t *testing.T, h *hub) *tunnel.Session {
	t.Helper()
	for {
		s := h.next(t)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		c, err := s.Open(ctx, tunnel.KindAPI)
		cancel()
		if err != nil {
			continue
		}
		deadline(t, c)
		_, err = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		_ = c.Close()
		if err == nil {
			return s
		}
	}
}

var _ net.Listener = (*tunnel.Session)(nil)
