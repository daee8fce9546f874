package relay

import (
	"time"

	"opencode-mesh/protocol/api"
)

const (
	// MaxDispatchRate is how many tasks a second one controller may create over
	// time: with the hop limit, the backstop against agents that dispatch in a loop
	// (semantics 20).
	MaxDispatchRate = 2000
	// dispatchBurst is how many it may create at once: one dispatch to all, and then
	// some.
	dispatchBurst = 2 * api.MaxTargets
	// maxRates bounds the table; controllers beyond it are those that rested
	// longest.
	maxRates = 10000
)

// rate is a token bucket.
type rate struct {
	tokens float64
	at     time.Time
}

// pace takes n tasks from a controller's bucket, or says how long to wait. Called
// with mu held.
func (r *Relay) pace(controller string, n int) time.Duration {
	now := r.clock.Now()
	b := r.rates[controller]
	if b == nil {
		if len(r.rates) >= maxRates {
			r.forgetRates(now)
		}
		b = &rate{tokens: dispatchBurst, at: now}
		r.rates[controller] = b
	}
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*MaxDispatchRate, dispatchBurst)
	b.at = now
	if missing := float64(n) - b.tokens; missing > 0 {
		return time.Duration(missing / MaxDispatchRate * float64(time.Second))
	}
	b.tokens -= float64(n)
	return 0
}

// tooFast refuses what comes faster than that.
func tooFast(name string, wait time.Duration) error {
	e := api.Errorf(api.CodeRateLimited, "%s dispatches more than %d tasks a second; try again in %s", name, MaxDispatchRate, wait.Round(time.Millisecond))
	e.RetryAfter = wait
	return e
}

// forgetRates drops buckets that are full again by now: they say nothing.
func (r *Relay) forgetRates(now time.Time) {
	for id, b := range r.rates {
		if b.tokens+now.Sub(b.at).Seconds()*MaxDispatchRate >= dispatchBurst {
			delete(r.rates, id)
		}
	}
}
