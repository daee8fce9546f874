package federation

import (
	"context"
	"sync"
)

// running are the queries that are under way, so that a consent that is revoked breaks off
// what uses it.
type running struct {
	mu   sync.Mutex // guards what is in the sets, too
	sets map[string]map[*legsOf]bool
}

// legsOf are the legs of one query.
type legsOf struct {
	all     *running
	revoked map[string]bool
	cancel  map[string]context.CancelFunc // by node
}

// begin notes a query of an asker until done is called.
func (r *running) begin(a Asker) (l *legsOf, done func()) {
	l = &legsOf{all: r, revoked: map[string]bool{}, cancel: map[string]context.CancelFunc{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sets == nil {
		r.sets = map[string]map[*legsOf]bool{}
	}
	if r.sets[a.ID] == nil {
		r.sets[a.ID] = map[*legsOf]bool{}
	}
	r.sets[a.ID][l] = true
	return l, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, cancel := range l.cancel {
			cancel()
		}
		delete(r.sets[a.ID], l)
		if len(r.sets[a.ID]) == 0 {
			delete(r.sets, a.ID)
		}
	}
}

// to is the context of the leg to a node, which ends when the consent to it is revoked;
// revoked tells whether that was so.
func (l *legsOf) to(ctx context.Context, node string) (leg context.Context, revoked func() bool) {
	leg, cancel := context.WithCancel(ctx)
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	l.cancel[node] = cancel
	if l.revoked[node] {
		cancel()
	}
	return leg, func() bool {
		l.all.mu.Lock()
		defer l.all.mu.Unlock()
		return l.revoked[node]
	}
}

// revoke ends the legs of an asker's queries to a node.
func (r *running) revoke(a Asker, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.sets[a.ID] {
		l.revoked[node] = true
		if cancel := l.cancel[node]; cancel != nil {
			cancel()
		}
	}
}
