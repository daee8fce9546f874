package relay

import (
	"crypto/rand"
	"slices"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// maxOvertaken is how many tasks that changed behind a feed are known.
const maxOvertaken = 4096

// overtaken knows which settled tasks changed in this life of the hub where feeds may have
// been already: results that came after the end, or long after it. It is in memory only;
// what it forgets comes with the next feed that is read from its beginning.
type overtaken struct {
	run   string // of this life: places of another mean nothing
	first uint64 // the number of the first in list
	list  []overtakenTask
}

type overtakenTask struct{ id, controller, target string }

func newOvertaken() overtaken { return overtaken{run: rand.Text()[:8]} }

// noteOvertaken takes down a task that was stored, if feeds may have passed it. Called with mu held.
func (r *Relay) noteOvertaken(t store.Task) {
	ended := t.Mark().Ended
	if !t.State.Settled() || ended > r.clock.Now().Add(-api.MemoryOverlap/2).UnixNano() {
		return // within what every feed goes back
	}
	b := &r.overtaken
	if len(b.list) == maxOvertaken {
		n := maxOvertaken / 4
		b.list = slices.Delete(b.list, 0, n)
		b.first += uint64(n)
	}
	b.list = append(b.list, overtakenTask{t.ID, t.Controller.ID, t.Target.ID})
}

// overtakenPlace is how far a feed told what changed behind it.
type overtakenPlace struct {
	run string
	n   uint64
}

// passed returns up to n tasks of a party that changed behind a feed since a place, and
// the place that follows.
func (r *Relay) passed(party string, from overtakenPlace, n int) (ids []string, next overtakenPlace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := &r.overtaken
	at := uint64(0)
	if from.run == b.run && from.n > b.first {
		at = min(from.n-b.first, uint64(len(b.list)))
	}
	for ; at < uint64(len(b.list)) && len(ids) < n; at++ {
		if t := b.list[at]; t.controller == party || t.target == party {
			ids = append(ids, t.id)
		}
	}
	return ids, overtakenPlace{b.run, b.first + at}
}
