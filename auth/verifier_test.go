package auth_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
)

// checkTime is what a check costs in the bubble's time.
const checkTime = 20 * time.Millisecond

func numbered(format string, i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(format, i)) }

// gate is a Check seam whose checks block until they are let through.
type gate struct {
	entered chan string // the password of each check that began
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan string, 64), open: make(chan struct{})} }

func (g *gate) check(_, pw string) (bool, error) {
	g.entered <- pw
	<-g.open
	return false, nil
}

// verdict is what a Verify in the background returned.
type verdict struct{ err error }

func verify(v *auth.Verifier, ctx context.Context, addr netip.Addr, pw string) <-chan verdict {
	c := make(chan verdict, 1)
	go func() {
		_, err := v.Verify(ctx, addr, "hash", pw)
		c <- verdict{err}
	}()
	return c
}

func wantLimited(t *testing.T, err error) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeRateLimited {
		t.Fatalf("got %v, want %s", err, api.CodeRateLimited)
	}
	if e.RetryAfter < time.Second {
		t.Fatalf("RetryAfter %v, want a second or more", e.RetryAfter)
	}
}

func TestVerifierChecksPasswords(t *testing.T) {
	v := must(auth.NewVerifier(auth.VerifierConfig{}))(t)
	hash := must(auth.HashPassword("open sesame"))(t)
	addr := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		hash, pw string
		want     bool
	}{{hash, "open sesame", true}, {hash, "open sesam", false}, {hash, "", false}, {"", "open sesame", false}, {"", "", false}} {
		if got := must(v.Verify(t.Context(), addr, c.hash, c.pw))(t); got != c.want {
			t.Errorf("hash %q, password %q: got %v", c.hash, c.pw, got)
		}
	}
	if _, err := v.Verify(t.Context(), addr, "damaged", "x"); !errors.Is(err, auth.ErrBadHash) {
		t.Errorf("got %v, want ErrBadHash", err)
	}
}

func TestVerifierDoesTheSameWorkWithoutAHash(t *testing.T) {
	var seen string
	v := must(auth.NewVerifier(auth.VerifierConfig{Check: func(hash, _ string) (bool, error) {
		seen = hash
		return true, nil
	}}))(t)
	if must(v.Verify(t.Context(), netip.Addr{}, "", "guess"))(t) {
		t.Error("a password matches although there is no hash")
	}
	gotT, gotM, err := auth.HashWork(seen)
	if err != nil {
		t.Fatalf("the decoy %q: %v", seen, err)
	}
	wantT, wantM, _ := auth.HashWork(must(auth.HashPassword("x"))(t))
	if gotT != wantT || gotM != wantM {
		t.Errorf("the decoy costs t=%d m=%d, a hash t=%d m=%d", gotT, gotM, wantT, wantM)
	}
}

func TestFloodOf64AddressesDoesNotKeepAnHonestOneOut(t *testing.T) {
	for name, addrOf := range map[string]func(i int) netip.Addr{
		"from 64 addresses": func(i int) netip.Addr { return numbered("198.51.100.%d", i) },
		"from one address":  func(int) netip.Addr { return numbered("198.51.100.%d", 1) },
		"from one IPv6 /64": func(i int) netip.Addr { return numbered("2001:db8::%d", i) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 1, Check: func(_, pw string) (bool, error) {
					time.Sleep(checkTime)
					return pw == "right", nil
				}}))(t)
				ctx, stop := context.WithCancel(t.Context())
				var attackers sync.WaitGroup
				var tried, refused atomic.Int64
				for i := range 64 {
					attackers.Go(func() {
						for ctx.Err() == nil {
							tried.Add(1)
							if _, err := v.Verify(ctx, addrOf(i), "hash", "guess"); err != nil {
								refused.Add(1)
								time.Sleep(5 * time.Millisecond)
							}
						}
					})
				}
				time.Sleep(time.Second)

				honest := netip.MustParseAddr("203.0.113.7")
				for range 4 {
					begin := time.Now()
					ok, err := v.Verify(t.Context(), honest, "hash", "right")
					if !ok || err != nil {
						t.Fatalf("the honest login got %v, %v", ok, err)
					}
					// One check that is under way, then its own.
					if took := time.Since(begin); took > 2*checkTime {
						t.Errorf("the honest login waited for %v, longer than one check before its own", took)
					}
					time.Sleep(time.Second)
				}
				stop()
				attackers.Wait()
				if tried.Load() < 500 || refused.Load() == 0 {
					t.Errorf("the flood was none: %d tries, %d refused", tried.Load(), refused.Load())
				}
			})
		})
	}
}

func TestVerifierServesAddressesInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 1, Check: g.check}))(t)
		a, b, c := numbered("192.0.2.%d", 1), numbered("192.0.2.%d", 2), numbered("192.0.2.%d", 3)
		// a runs and waits with a second try before b and c come.
		results := []<-chan verdict{verify(v, t.Context(), a, "a1")}
		for _, s := range []struct {
			addr netip.Addr
			pw   string
		}{{a, "a2"}, {b, "b1"}, {c, "c1"}} {
			synctest.Wait()
			results = append(results, verify(v, t.Context(), s.addr, s.pw))
		}
		synctest.Wait()
		close(g.open)
		for _, r := range results {
			if got := <-r; got.err != nil {
				t.Fatal(got.err)
			}
		}
		close(g.entered)
		var order []string
		for pw := range g.entered {
			order = append(order, pw)
		}
		if want := []string{"a1", "b1", "c1", "a2"}; !slices.Equal(order, want) {
			t.Errorf("served %v, want %v", order, want)
		}
	})
}

func TestVerifierQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 2, Queue: 3, Check: g.check}))(t)
		refused := func(i int) {
			begin := time.Now()
			_, err := v.Verify(t.Context(), numbered("192.0.2.%d", i), "hash", "x")
			wantLimited(t, err)
			if time.Since(begin) != 0 {
				t.Error("it had to wait for that")
			}
		}
		var results []<-chan verdict
		for i := range 5 { // two run, three wait
			results = append(results, verify(v, t.Context(), numbered("192.0.2.%d", i), "x"))
			synctest.Wait()
			if i == 3 {
				refused(3) // it has its one place, though another is free
			}
		}
		if n := len(g.entered); n != 2 {
			t.Errorf("%d checks run at once, want 2", n)
		}
		refused(3)
		// A newcomer takes the place of the one that tried three times.
		results = append(results, verify(v, t.Context(), numbered("192.0.2.%d", 9), "x"))
		synctest.Wait()
		refused(10) // nobody who waits now has tried more often
		close(g.open)
		for i, r := range results {
			switch got := <-r; {
			case i == 3:
				wantLimited(t, got.err)
			case got.err != nil:
				t.Errorf("login %d, which had a place, got %v", i, got.err)
			}
		}
	})
}

func TestVerifierGivesUpAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 1, Check: g.check}))(t)
		running := verify(v, t.Context(), numbered("192.0.2.%d", 1), "x")
		synctest.Wait()
		begin := time.Now()
		_, err := v.Verify(t.Context(), numbered("192.0.2.%d", 2), "hash", "x")
		wantLimited(t, err)
		if waited := time.Since(begin); waited != auth.DefaultVerifyWait {
			t.Errorf("waited %v, want %v", waited, auth.DefaultVerifyWait)
		}
		close(g.open)
		<-running
		// The one that gave up left no place behind.
		if _, err := v.Verify(t.Context(), numbered("192.0.2.%d", 2), "hash", "x"); err != nil {
			t.Errorf("the next try got %v", err)
		}
	})
}

func TestVerifierHonoursContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 1, Check: g.check}))(t)
		running := verify(v, t.Context(), numbered("192.0.2.%d", 1), "x")
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		waiting := verify(v, ctx, numbered("192.0.2.%d", 2), "x")
		synctest.Wait()
		cancel()
		if got := <-waiting; !errors.Is(got.err, context.Canceled) {
			t.Errorf("a waiting login got %v, want context.Canceled", got.err)
		}
		if _, err := v.Verify(ctx, numbered("192.0.2.%d", 3), "hash", "x"); !errors.Is(err, context.Canceled) {
			t.Errorf("an ended context got %v, want context.Canceled", err)
		}
		close(g.open)
		<-running
		// Its place went to nobody: the next one runs at once.
		if _, err := v.Verify(t.Context(), numbered("192.0.2.%d", 4), "hash", "x"); err != nil {
			t.Errorf("the next login got %v", err)
		}
	})
}

// lateContext has ended by its Err but wakes nobody: as a context looks to a waiter
// whose turn and end come at once.
type lateContext struct {
	context.Context
	ended atomic.Bool
}

func (c *lateContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

func TestTurnOfOneThatHasGoneIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 1, Check: g.check}))(t)
		ctx := &lateContext{Context: t.Context()}
		first := verify(v, t.Context(), numbered("192.0.2.%d", 1), "first")
		synctest.Wait()
		gone := verify(v, ctx, numbered("192.0.2.%d", 2), "gone")
		synctest.Wait()
		next := verify(v, t.Context(), numbered("192.0.2.%d", 3), "next")
		synctest.Wait()
		ctx.ended.Store(true)
		begin := time.Now()
		close(g.open)
		<-first
		if got := <-gone; !errors.Is(got.err, context.Canceled) {
			t.Errorf("the one that has gone got %v, want context.Canceled", got.err)
		}
		if got := <-next; got.err != nil {
			t.Errorf("the next one got %v", got.err)
		}
		if n := len(g.entered); n != 2 {
			t.Errorf("%d checks were made, want 2", n)
		}
		if time.Since(begin) != 0 {
			t.Error("the next one was not told of its turn")
		}
	})
}

func TestTriesAreForgottenAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 1, Queue: 1, Check: g.check}))(t)
		often, twice := numbered("192.0.2.%d", 1), numbered("192.0.2.%d", 2)
		running := verify(v, t.Context(), numbered("192.0.2.%d", 9), "x")
		synctest.Wait()
		try := func(addr netip.Addr, times int) {
			for range times { // the first waits in vain, the others are refused
				_ = verify(v, t.Context(), addr, "x")
				synctest.Wait()
			}
			time.Sleep(auth.DefaultVerifyWait)
			synctest.Wait()
		}
		try(often, 50)
		time.Sleep(time.Minute)
		try(twice, 1)
		waiting := verify(v, t.Context(), twice, "x")
		synctest.Wait()
		// With one try that counts, it comes before one with two.
		newcomer := verify(v, t.Context(), often, "x")
		synctest.Wait()
		wantLimited(t, (<-waiting).err)
		close(g.open)
		for _, r := range []<-chan verdict{running, newcomer} {
			if got := <-r; got.err != nil {
				t.Error(got.err)
			}
		}
	})
}

func TestVerifierLosesNoPlaceWhenTurnsAndCancellationsRace(t *testing.T) {
	v := must(auth.NewVerifier(auth.VerifierConfig{Parallel: 2, Check: func(_, pw string) (bool, error) {
		if pw == "boom" {
			panic("the check failed")
		}
		return true, nil
	}}))(t)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for n := range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				var canceller sync.WaitGroup
				canceller.Go(cancel)
				func() {
					defer func() { _ = recover() }()
					pw := "x"
					if n%50 == 0 {
						pw = "boom"
					}
					_, _ = v.Verify(ctx, numbered("192.0.2.%d", i), "hash", pw)
				}()
				canceller.Wait()
			}
		})
	}
	all.Wait()
	// Both places are free again: two checks that wait for each other can meet.
	var meet sync.WaitGroup
	meet.Add(2)
	v2 := auth.Recheck(v, func(string, string) (bool, error) {
		meet.Done()
		meet.Wait()
		return true, nil
	})
	for i := range 2 {
		all.Go(func() {
			if _, err := v2.Verify(t.Context(), numbered("203.0.113.%d", i), "hash", "x"); err != nil {
				t.Error(err)
				meet.Done()
			}
		})
	}
	all.Wait()
}

func TestVerifierRemembersABoundedNumberOfAddresses(t *testing.T) {
	v := must(auth.NewVerifier(auth.VerifierConfig{Check: func(string, string) (bool, error) { return false, nil }}))(t)
	for i := range 100_000 {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if _, err := v.Verify(t.Context(), addr, "hash", "x"); err != nil {
			t.Fatal(err)
		}
	}
	if n := v.Remembered(); n > auth.MaxTable {
		t.Errorf("%d addresses are remembered, want at most %d", n, auth.MaxTable)
	}
}

func TestVerifierRefusesNegativeLimits(t *testing.T) {
	for _, cfg := range []auth.VerifierConfig{{Parallel: -1}, {Queue: -1}, {Wait: -1}} {
		if _, err := auth.NewVerifier(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	v := must(auth.NewVerifier(auth.VerifierConfig{}))(b)
	hash := must(auth.HashPassword("correct horse battery staple"))(b)
	addr := netip.MustParseAddr("192.0.2.1")
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := v.Verify(b.Context(), addr, hash, "wrong"); ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// BenchmarkVerifyGate is what the gate adds to a check.
func BenchmarkVerifyGate(b *testing.B) {
	v := must(auth.NewVerifier(auth.VerifierConfig{Check: func(string, string) (bool, error) { return false, nil }}))(b)
	addr := netip.MustParseAddr("192.0.2.1")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(b.Context(), addr, "hash", "wrong"); err != nil {
			b.Fatal(err)
		}
	}
}
