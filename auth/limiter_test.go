package auth_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"opencode-mesh/auth"
)

// limits is a Limiter with a clock that only the test moves.
type limits struct {
	*auth.Limiter
	now time.Time
}

func newLimits(tb testing.TB, cfg auth.LimiterConfig) *limits {
	tb.Helper()
	l := &limits{now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	cfg.Now = func() time.Time { return l.now }
	l.Limiter = must(auth.NewLimiter(cfg))(tb)
	return l
}

func (l *limits) pass(d time.Duration) { l.now = l.now.Add(d) }

// passed counts how many of n tries are let through.
func (l *limits) passed(n int, addr, name string) (allowed int) {
	for range n {
		if l.Allow(netip.MustParseAddr(addr), name) == 0 {
			allowed++
		}
	}
	return allowed
}

func (l *limits) wants(t *testing.T, addr, name string, want time.Duration) {
	t.Helper()
	if got := l.Allow(netip.MustParseAddr(addr), name); got != want {
		t.Fatalf("%s as %q has to wait for %v, want %v", addr, name, got, want)
	}
}

func TestAddressHasTenTriesAMinute(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	for i := range 10 {
		l.wants(t, "192.0.2.1", fmt.Sprintf("name-%d", i), 0)
	}
	l.wants(t, "192.0.2.1", "another", 6*time.Second)
	t.Run("which another address does not feel", func(t *testing.T) {
		l.wants(t, "192.0.2.2", "another", 0)
	})
	t.Run("and gets them back by resting", func(t *testing.T) {
		l.pass(2 * time.Minute)
		if n := l.passed(20, "192.0.2.1", "x"); n != 5 { // the name's burst
			t.Errorf("%d tries passed as one name, want 5", n)
		}
		l.pass(2 * time.Minute)
		for i := range 10 {
			l.wants(t, "192.0.2.1", fmt.Sprintf("other-%d", i), 0)
		}
	})
}

func TestNameHasFiveTriesAMinuteFromAllAddresses(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	for i := range 5 {
		l.wants(t, fmt.Sprintf("192.0.2.%d", i), "laptop", 0)
	}
	l.wants(t, "192.0.2.9", "laptop", 12*time.Second)
	l.wants(t, "192.0.2.9", "desktop", 0)
}

func TestWaitGrowsToAMinuteAndNoFurther(t *testing.T) {
	for _, c := range []struct {
		name  string
		burst int
		try   func(l *limits, i int) time.Duration
		want  []time.Duration
	}{
		{"of an address", 10, func(l *limits, i int) time.Duration {
			return l.Allow(netip.MustParseAddr("192.0.2.1"), fmt.Sprintf("n%d", i))
		}, []time.Duration{6 * time.Second, 12 * time.Second, 24 * time.Second, 48 * time.Second, time.Minute, time.Minute}},
		{"of a name", 5, func(l *limits, i int) time.Duration {
			return l.Allow(numbered("192.0.2.%d", i%250), "laptop")
		}, []time.Duration{12 * time.Second, 24 * time.Second, 48 * time.Second, time.Minute, time.Minute}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLimits(t, auth.LimiterConfig{})
			i := 0
			for ; i < c.burst; i++ {
				if wait := c.try(l, i); wait != 0 {
					t.Fatalf("try %d of the burst has to wait for %v", i, wait)
				}
			}
			for n, want := range c.want {
				if got := c.try(l, i); got != want {
					t.Fatalf("wait %d is %v, want %v", n, got, want)
				}
				l.pass(want)
				if got := c.try(l, i); got != 0 {
					t.Fatalf("after wait %d it has to wait again: %v", n, got)
				}
				i++
			}
			l.pass(3 * time.Minute) // rest
			for range c.burst {
				if wait := c.try(l, i); wait != 0 {
					t.Fatalf("after a rest it has to wait for %v", wait)
				}
				i++
			}
			if got := c.try(l, i); got != c.want[0] {
				t.Errorf("after a rest the first wait is %v, want %v", got, c.want[0])
			}
		})
	}
}

func TestHammeringDoesNotMakeTheWaitLonger(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	l.passed(10, "192.0.2.1", "")
	for i := range 10 {
		l.passed(10, "192.0.2.1", fmt.Sprintf("n%d", i))
	}
	for range 1000 {
		l.passed(1, "192.0.2.1", "x")
		l.pass(time.Millisecond)
	}
	l.wants(t, "192.0.2.1", "x", 5*time.Second)
	l.pass(5 * time.Second)
	l.wants(t, "192.0.2.1", "x", 0)
}

func TestSuccessCostsNothing(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	addr := netip.MustParseAddr("192.0.2.1")
	for i := range 1000 {
		if wait := l.Allow(addr, "laptop"); wait != 0 {
			t.Fatalf("good login %d has to wait for %v", i, wait)
		}
		l.Succeeded(addr, "laptop")
	}
	t.Run("and opens the pause that it began itself", func(t *testing.T) {
		l := newLimits(t, auth.LimiterConfig{})
		l.passed(5, "192.0.2.1", "laptop") // the name is empty
		l.wants(t, "192.0.2.1", "laptop", 12*time.Second)
		l.pass(12 * time.Second)
		l.wants(t, "192.0.2.1", "laptop", 0)
		l.Succeeded(addr, "laptop")
		l.wants(t, "192.0.2.1", "laptop", 0)
	})
	t.Run("but gives guesses no fresh burst", func(t *testing.T) {
		l := newLimits(t, auth.LimiterConfig{})
		l.passed(4, "192.0.2.1", "laptop")
		l.Allow(addr, "laptop")
		l.Succeeded(addr, "laptop")
		if n := l.passed(10, "192.0.2.1", "laptop"); n > 1 {
			t.Errorf("%d guesses after one good login, want 1", n)
		}
	})
	t.Run("of one that is not remembered", func(*testing.T) { l.Succeeded(netip.MustParseAddr("192.0.2.77"), "nobody") })
}

func TestOneLoopbackAddressDoesNotLimitAnother(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	for i := range 100 {
		l.Allow(netip.MustParseAddr("127.0.0.1"), fmt.Sprintf("n%d", i))
	}
	if l.Allow(netip.MustParseAddr("127.0.0.1"), "x") == 0 {
		t.Error("127.0.0.1 is not limited")
	}
	l.wants(t, "127.0.0.2", "x", 0)
	l.wants(t, "::1", "x", 0)
}

func TestAddressesOfOneHostShareABucket(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b string
		same bool
	}{
		{"one IPv6 /64", "2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true},
		{"two IPv6 /64", "2001:db8:0:1::1", "2001:db8:0:2::1", false},
		{"IPv4 and its mapped form", "192.0.2.1", "::ffff:192.0.2.1", true},
		{"two mapped IPv4", "::ffff:192.0.2.1", "::ffff:192.0.2.2", false},
		{"one with and without a zone", "fe80::1%eth0", "fe80::1", true},
		{"the IPv6 loopback and its /64", "::1", "::2", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLimits(t, auth.LimiterConfig{PerName: 1000})
			l.passed(100, c.a, "x")
			if same := l.Allow(netip.MustParseAddr(c.b), "x") != 0; same != c.same {
				t.Errorf("they share a bucket: %v, want %v", same, c.same)
			}
		})
	}
}

func TestFloodLocksNobodyOut(t *testing.T) {
	// 1,000 addresses try for 20 minutes, each as soon as it may, half of them under
	// the name of the honest one.
	l := newLimits(t, auth.LimiterConfig{})
	owner := netip.MustParseAddr("203.0.113.7")
	next := make([]time.Duration, 1000)
	begin, guesses := l.now, 0
	var ownerNext, longest, waited time.Duration
	logins := 0
	for elapsed := time.Duration(0); elapsed < 20*time.Minute; elapsed += time.Second {
		l.now = begin.Add(elapsed)
		for i := range next {
			if elapsed < next[i] {
				continue
			}
			name := "laptop"
			if i%2 == 0 {
				name = fmt.Sprintf("n%d", i)
			}
			if wait := l.Allow(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), name); wait > 0 {
				next[i] = elapsed + wait
			} else if name == "laptop" {
				guesses++
			}
		}
		if elapsed < ownerNext || elapsed < time.Minute {
			continue
		}
		wait := l.Allow(owner, "laptop")
		if wait == 0 {
			l.Succeeded(owner, "laptop")
			logins++
			longest, waited = max(longest, waited), 0
			ownerNext = elapsed + 30*time.Second
		} else {
			waited += wait
			ownerNext = elapsed + wait
		}
	}
	if logins < 10 {
		t.Errorf("the owner of the name logged in %d times, want 10 or more", logins)
	}
	if longest > auth.MaxLoginWait+time.Second {
		t.Errorf("the owner waited for %v, longer than %v", longest, auth.MaxLoginWait)
	}
	if most := 500 * 21; guesses > most {
		t.Errorf("%d guesses under one name, more than one per minute and address (%d)", guesses, most)
	}
}

func TestAppointmentIsForOneNameAndOneTry(t *testing.T) {
	busy := func(t *testing.T) *limits {
		l := newLimits(t, auth.LimiterConfig{})
		for i := range 5 {
			l.wants(t, fmt.Sprintf("192.0.2.%d", i), "laptop", 0)
			l.wants(t, fmt.Sprintf("192.0.2.%d", i), "desktop", 0)
		}
		return l
	}
	t.Run("they come one after another", func(t *testing.T) {
		l := busy(t)
		l.wants(t, "203.0.113.1", "laptop", 12*time.Second)
		l.wants(t, "203.0.113.2", "laptop", (12+24)*time.Second)
		l.wants(t, "203.0.113.1", "laptop", 12*time.Second) // asking again changes nothing
		l.pass(12 * time.Second)
		l.wants(t, "203.0.113.3", "laptop", time.Minute) // 24 + 48 would be more
		l.wants(t, "203.0.113.1", "laptop", 0)
		if l.Allow(netip.MustParseAddr("203.0.113.1"), "laptop") == 0 {
			t.Error("one appointment let two tries in")
		}
	})
	t.Run("one for another name does not count", func(t *testing.T) {
		l := busy(t)
		l.wants(t, "203.0.113.1", "laptop", 12*time.Second)
		l.wants(t, "203.0.113.9", "desktop", 12*time.Second)
		l.pass(12 * time.Second)
		if l.Allow(netip.MustParseAddr("203.0.113.1"), "desktop") == 0 {
			t.Error("the appointment was for laptop")
		}
	})
}

func TestLimiterTablesAreBounded(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	for i := range 100_000 {
		l.Allow(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), fmt.Sprintf("n%d", i))
	}
	addresses, names := l.Sizes()
	if addresses > auth.MaxTable || names > auth.MaxTable {
		t.Errorf("%d addresses and %d names, want at most %d each", addresses, names, auth.MaxTable)
	}
	t.Run("and the newest entries are kept", func(t *testing.T) {
		l := newLimits(t, auth.LimiterConfig{Entries: 100})
		l.passed(10, "192.0.2.1", "")
		for i := range 10 {
			l.Allow(netip.MustParseAddr("192.0.2.1"), fmt.Sprintf("n%d", i))
		}
		for i := range 1000 { // others come, but it goes on as well
			l.Allow(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), "")
			if l.Allow(netip.MustParseAddr("192.0.2.1"), "x") == 0 {
				t.Fatal("a limited address was forgotten while it kept trying")
			}
		}
	})
	t.Run("and arbitrary text is no key", func(t *testing.T) {
		l := newLimits(t, auth.LimiterConfig{})
		for i := range 1000 {
			l.Allow(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), fmt.Sprintf("No such name %d", i))
		}
		if _, names := l.Sizes(); names != 1 {
			t.Errorf("%d names that nobody can have are kept, want 1", names)
		}
	})
}

func TestClockSetBackDoesNotLock(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	for i := range 11 {
		l.Allow(netip.MustParseAddr("192.0.2.1"), fmt.Sprintf("n%d", i))
	}
	l.pass(-24 * time.Hour)
	l.wants(t, "192.0.2.1", "x", auth.MaxLoginWait)
	l.pass(auth.MaxLoginWait)
	l.wants(t, "192.0.2.1", "x", 0)
}

func TestLimiterRefusesNegativeLimits(t *testing.T) {
	for _, cfg := range []auth.LimiterConfig{{PerAddress: -1}, {PerName: -1}, {Entries: -1}} {
		if _, err := auth.NewLimiter(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestAppointmentOfAClockSetBackDoesNotLock(t *testing.T) {
	l := newLimits(t, auth.LimiterConfig{})
	for i := range 5 {
		l.wants(t, fmt.Sprintf("192.0.2.%d", i), "laptop", 0)
	}
	l.wants(t, "203.0.113.1", "laptop", 12*time.Second)
	l.pass(-24 * time.Hour)
	for range 2 {
		if wait := l.Allow(netip.MustParseAddr("203.0.113.1"), "laptop"); wait > auth.MaxLoginWait {
			t.Fatalf("has to wait for %v", wait)
		}
		l.pass(auth.MaxLoginWait)
	}
	l.wants(t, "203.0.113.1", "laptop", 0)
}

func BenchmarkLimiterAllowWithFullTables(b *testing.B) {
	l := must(auth.NewLimiter(auth.LimiterConfig{}))(b)
	names := make([]string, 1<<15)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l.Allow(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), names[i%len(names)])
		i++
	}
}
