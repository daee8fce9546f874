package auth

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
)

// Defaults of a Verifier (performance.md, decision 8).
const (
	// DefaultVerifyQueue is how many addresses may wait for a check.
	DefaultVerifyQueue = 16
	// DefaultVerifyWait is how long one of them waits at most.
	DefaultVerifyWait = 2 * time.Second
)

// verifyMemory is how long the tries of an address count against it.
const verifyMemory = time.Minute

// decoyHash is checked when there is no hash to check against, so that the time
// of an answer does not tell. No password matches: its key was not derived.
var decoyHash = passwordHash{time: hashTime, memory: hashMemory, threads: hashThreads,
	salt: make([]byte, hashSalt), key: make([]byte, hashKey)}.String()

// VerifierConfig says how much password checking may go on at once.
type VerifierConfig struct {
	// Parallel is how many checks run at once; 0 means half of the cores, at least
	// one, so that logins never take the processor away from the tunnels.
	Parallel int
	// Queue is how many addresses may wait; 0 means DefaultVerifyQueue.
	Queue int
	// Wait is how long one waits before it is told to come back; 0 means
	// DefaultVerifyWait.
	Wait time.Duration
	// Check compares a password with a stored hash; nil means CheckPassword.
	Check func(hash, pw string) (bool, error)
}

// Verifier bounds the cost of password checks and shares it fairly: each address
// (each /64 of IPv6) has one place in the queue, and of those that wait, the one
// that has tried least in the last minute comes next. When the queue is full, it
// also takes the place of the one that has tried most. So a flood, from one
// address or from many, delays itself and not the person who tries once.
//
// It is safe for concurrent use and has no goroutines of its own.
type Verifier struct {
	parallel, queue int
	wait            time.Duration
	check           func(hash, pw string) (bool, error)

	mu      sync.Mutex // guards the following
	running int
	waiting []*verifyWaiter // in order of arrival, at most queue
	tries   *table[netip.Addr, verifyTries]
}

// verifyTries counts an address's tries, refused ones included: who floods ranks
// behind who does not.
type verifyTries struct {
	since time.Time
	count int
}

type verifyWaiter struct {
	key     netip.Addr
	tries   *verifyTries
	decided chan struct{} // closed once granted or evicted is set
	granted bool
	evicted bool
}

// NewVerifier checks cfg and returns a Verifier.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	if cfg.Parallel < 0 || cfg.Queue < 0 || cfg.Wait < 0 {
		return nil, errors.New("verifier: a limit is negative")
	}
	v := &Verifier{
		parallel: cfg.Parallel, queue: cfg.Queue, wait: cfg.Wait, check: cfg.Check,
		tries: newTable[netip.Addr, verifyTries](maxTable),
	}
	if v.parallel == 0 {
		v.parallel = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if v.queue == 0 {
		v.queue = DefaultVerifyQueue
	}
	if v.wait == 0 {
		v.wait = DefaultVerifyWait
	}
	if v.check == nil {
		v.check = CheckPassword
	}
	return v, nil
}

// Verify reports whether pw matches hash, once it is addr's turn. An empty hash
// costs the same as a wrong password and never matches.
//
// It returns an *api.Error with CodeRateLimited and RetryAfter when addr waits
// already, the queue is full of others with as few tries, or the turn did not
// come in time; ctx.Err when ctx ended before the check began; and ErrBadHash for
// a hash that cannot be used.
func (v *Verifier) Verify(ctx context.Context, addr netip.Addr, hash, pw string) (bool, error) {
	if err := v.enter(ctx, limitKey(addr)); err != nil {
		return false, err
	}
	defer v.leave()
	if hash == "" {
		_, err := v.check(decoyHash, pw)
		return false, err
	}
	return v.check(hash, pw)
}

// enter returns nil when the caller holds one of the parallel places.
func (v *Verifier) enter(ctx context.Context, key netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w, err := v.line(key)
	if w == nil {
		return err
	}
	timer := time.NewTimer(v.wait)
	defer timer.Stop()
	select {
	case <-w.decided:
	case <-timer.C:
		err = errBusy(v.wait)
	case <-ctx.Done():
		err = ctx.Err()
	}

	v.mu.Lock()
	if w.granted && ctx.Err() != nil {
		// The turn came together with the end of ctx: hand it on.
		next := v.handOn()
		v.mu.Unlock()
		tell(next)
		return ctx.Err()
	}
	defer v.mu.Unlock()
	switch {
	case w.granted:
		return nil
	case w.evicted:
		return errBusy(v.wait)
	}
	v.waiting = slices.DeleteFunc(v.waiting, func(o *verifyWaiter) bool { return o == w })
	return err
}

// line takes a place to run (nil, nil), a place to wait, or is refused.
func (v *Verifier) line(key netip.Addr) (*verifyWaiter, error) {
	now := time.Now()
	v.mu.Lock()
	tries := v.tries.touch(key, func() verifyTries { return verifyTries{since: now} })
	if now.Sub(tries.since) > verifyMemory {
		*tries = verifyTries{since: now}
	}
	tries.count++
	if v.running < v.parallel {
		v.running++
		v.mu.Unlock()
		return nil, nil
	}
	var evicted *verifyWaiter
	if slices.ContainsFunc(v.waiting, func(o *verifyWaiter) bool { return o.key == key }) {
		v.mu.Unlock()
		return nil, errBusy(time.Second)
	}
	if len(v.waiting) >= v.queue {
		most := 0
		for i, o := range v.waiting {
			if o.tries.count > v.waiting[most].tries.count {
				most = i
			}
		}
		if v.waiting[most].tries.count <= tries.count {
			v.mu.Unlock()
			return nil, errBusy(v.wait)
		}
		evicted = v.waiting[most]
		evicted.evicted = true
		v.waiting = slices.Delete(v.waiting, most, most+1)
	}
	w := &verifyWaiter{key: key, tries: tries, decided: make(chan struct{})}
	v.waiting = append(v.waiting, w)
	v.mu.Unlock()
	tell(evicted)
	return w, nil
}

func (v *Verifier) leave() {
	v.mu.Lock()
	next := v.handOn()
	v.mu.Unlock()
	tell(next)
}

// handOn gives the caller's place to the waiter with the fewest tries, the first
// to come among equals. The caller holds mu and tells the waiter afterwards.
func (v *Verifier) handOn() *verifyWaiter {
	if len(v.waiting) == 0 {
		v.running--
		return nil
	}
	least := 0
	for i, o := range v.waiting {
		if o.tries.count < v.waiting[least].tries.count {
			least = i
		}
	}
	next := v.waiting[least]
	next.granted = true
	v.waiting = slices.Delete(v.waiting, least, least+1)
	return next
}

func tell(w *verifyWaiter) {
	if w != nil {
		close(w.decided)
	}
}

// errBusy asks the client to come back; it tells nothing about the password.
func errBusy(after time.Duration) *api.Error {
	err := api.Errorf(api.CodeRateLimited, "too many logins at once: try again in a moment")
	err.RetryAfter = max(after, time.Second)
	return err
}
