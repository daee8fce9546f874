package auth

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
)

// Defaults of a Limiter (performance.md §3).
const (
	// DefaultPerAddress is how many logins one address may try per minute.
	DefaultPerAddress = 10
	// DefaultPerName is how many logins may claim one name per minute.
	DefaultPerName = 5
	// MaxLoginWait is the longest wait that Allow asks for.
	MaxLoginWait = time.Minute
)

// LimiterConfig says how often logins may be tried.
type LimiterConfig struct {
	// PerAddress is the burst and the tries per minute of one address; 0 means
	// DefaultPerAddress.
	PerAddress int
	// PerName is the same for one claimed name; 0 means DefaultPerName.
	PerName int
	// Entries bounds each of the two tables; 0 means 10,000. When a table is full,
	// the entry touched longest ago goes, which is as a rule one that is full again.
	Entries int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Limiter slows the guessing of passwords down: a token bucket per address (per
// /64 of IPv6) and one per claimed name. An emptied bucket pauses, longer each
// time until it has rested, but never beyond MaxLoginWait: there is no lock that
// only an operator could open. A successful login costs nothing.
//
// A name that others keep busy cannot be denied to its owner: an address that was
// refused for the sake of a name gets an appointment, and who comes back after the
// wait is let in whatever others did meanwhile.
//
// It is meant for logins only: a request that carries a credential never passes
// here. It is safe for concurrent use.
type Limiter struct {
	perAddress, perName int
	now                 func() time.Time

	mu        sync.Mutex // guards the following
	addresses *table[netip.Addr, addressLimit]
	names     *table[string, bucket]
}

// addressLimit is what is known of one address.
type addressLimit struct {
	bucket
	// due is when the address may try name although the bucket of that name is
	// empty; zero when it has no appointment.
	due  time.Time
	name string
}

// NewLimiter checks cfg and returns a Limiter.
func NewLimiter(cfg LimiterConfig) (*Limiter, error) {
	if cfg.PerAddress < 0 || cfg.PerName < 0 || cfg.Entries < 0 {
		return nil, errors.New("login limiter: a limit is negative")
	}
	if cfg.PerAddress == 0 {
		cfg.PerAddress = DefaultPerAddress
	}
	if cfg.PerName == 0 {
		cfg.PerName = DefaultPerName
	}
	if cfg.Entries == 0 {
		cfg.Entries = maxTable
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Limiter{
		perAddress: cfg.PerAddress, perName: cfg.PerName, now: cfg.Now,
		addresses: newTable[netip.Addr, addressLimit](cfg.Entries),
		names:     newTable[string, bucket](cfg.Entries),
	}, nil
}

// Allow takes one try for addr under name and returns 0, or takes nothing and
// returns how long to wait (above 0, at most MaxLoginWait). Names that no identity
// can have share one bucket.
func (l *Limiter) Allow(addr netip.Addr, name string) (wait time.Duration) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.addresses.touch(limitKey(addr), func() addressLimit { return addressLimit{bucket: newBucket(l.perAddress, now)} })
	if wait = a.wait(now, l.perAddress); wait > 0 {
		return min(wait, MaxLoginWait)
	}
	name = limitName(name)
	n := l.names.touch(name, func() bucket { return newBucket(l.perName, now) })
	if wait = n.wait(now, l.perName); wait > 0 {
		if a.due.IsZero() || a.name != name {
			a.due, a.name = n.reserve(now, l.perName), name
		}
		if wait = min(a.due.Sub(now), MaxLoginWait); wait > 0 {
			return wait
		}
	} else {
		n.take(now, l.perName)
	}
	a.due, a.name = time.Time{}, ""
	a.take(now, l.perAddress)
	return 0
}

// Succeeded gives back what Allow took: a login with the right password does not
// count.
func (l *Limiter) Succeeded(addr netip.Addr, name string) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.addresses.peek(limitKey(addr)); a != nil {
		a.refund(now, l.perAddress)
	}
	if n := l.names.peek(limitName(name)); n != nil {
		n.refund(now, l.perName)
	}
}

// limitName keeps arbitrary text of strangers out of the table.
func limitName(name string) string {
	if !api.ValidName(name) {
		return ""
	}
	return name
}

// bucket is a token bucket that refills per minute what it holds. It is never
// seen empty: when the last token goes, the bucket pauses until at, with one token
// ready for that moment.
type bucket struct {
	tokens float64
	at     time.Time // when tokens was right; in the future during a pause
	pauses int       // since the bucket was last full
}

func newBucket(size int, now time.Time) bucket { return bucket{tokens: float64(size), at: now} }

// wait refills the bucket and returns how long its pause still lasts, which is more
// than MaxLoginWait only when reserve made it so.
func (b *bucket) wait(now time.Time, size int) time.Duration {
	if pause := b.at.Sub(now); pause > 0 {
		if pause > 2*MaxLoginWait { // the clock was set back
			pause, b.at = MaxLoginWait, now.Add(MaxLoginWait)
		}
		return pause
	}
	b.tokens += now.Sub(b.at).Minutes() * float64(size)
	b.at = now
	if b.tokens >= float64(size) {
		b.tokens, b.pauses = float64(size), 0
	}
	return 0
}

// take removes a token from a bucket that does not pause.
func (b *bucket) take(now time.Time, size int) {
	if b.tokens--; b.tokens < 1 {
		b.tokens, b.at = 1, now.Add(b.nextPause(size))
	}
}

// reserve gives away the moment at which the pause ends, or the latest that anyone
// has to wait for, and adds another pause. So appointments come one after another
// as long as they fit in MaxLoginWait.
func (b *bucket) reserve(now time.Time, size int) (due time.Time) {
	due = earlier(b.at, now.Add(MaxLoginWait))
	b.at = earlier(b.at.Add(b.nextPause(size)), due.Add(MaxLoginWait))
	return due
}

// nextPause is the time of one refill, doubled with each pause since the bucket
// was last full, up to MaxLoginWait.
func (b *bucket) nextPause(size int) time.Duration {
	pause := time.Minute / time.Duration(size)
	for i := 0; i < b.pauses && pause < MaxLoginWait; i++ {
		pause *= 2
	}
	b.pauses++
	return min(pause, MaxLoginWait)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// refund undoes a take, and a pause that it may have begun.
func (b *bucket) refund(now time.Time, size int) {
	if b.at.After(now) {
		b.at, b.tokens, b.pauses = now, 1, max(0, b.pauses-1)
		return
	}
	b.tokens = min(float64(size), b.tokens+1)
}
