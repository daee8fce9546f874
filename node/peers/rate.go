package peers

import (
	"sync"
	"time"
)

const (
	// RatePeriod is what the rates are counted over.
	RatePeriod = time.Minute
	// MaxRated is how many pairs of a sender and a target a table of rates knows; who was
	// not heard of for the longest is forgotten.
	MaxRated = 4096
)

// rated is a pair of whom the rate is kept.
type rated struct{ from, to string }

// rates lets so many through in any period. What it did not let through does not count.
// It may be used by many at once.
type rates struct {
	limit int
	now   func() time.Time

	mu   sync.Mutex // guards the following field
	seen map[rated][]time.Time
}

func newRates(limit int, now func() time.Time) *rates {
	return &rates{limit: limit, now: now, seen: map[rated][]time.Time{}}
}

func (r *rates) allow(who rated) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	list := r.seen[who]
	for len(list) > 0 && now.Sub(list[0]) >= RatePeriod {
		list = list[1:]
	}
	if len(list) >= r.limit {
		r.seen[who] = list
		return false
	}
	if _, known := r.seen[who]; !known && len(r.seen) >= MaxRated {
		r.forget(now)
	}
	r.seen[who] = append(list, now)
	return true
}

// forget makes room: all that are over, or else the one that was silent for the longest.
func (r *rates) forget(now time.Time) {
	var oldest rated
	var when time.Time
	for who, list := range r.seen {
		last := time.Time{}
		if len(list) > 0 {
			last = list[len(list)-1]
		}
		if now.Sub(last) >= RatePeriod {
			delete(r.seen, who)
		} else if when.IsZero() || last.Before(when) {
			oldest, when = who, last
		}
	}
	if len(r.seen) >= MaxRated {
		delete(r.seen, oldest)
	}
}
