package api

import (
	"context"
	"sync"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/federation"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

const (
	// maxTunnels is how many tunnels one node may have open: the one with its name,
	// those of superseded processes that still deliver, and dead ones that were not
	// noticed yet.
	maxTunnels = 16
	// maxStreams is how many event streams and long polls one identity may have open.
	maxStreams = 512
	// maxCalls is how many requests to services one identity may have under way, at
	// all nodes together.
	maxCalls = 8192
	// maxAsking is how many requests about context one identity may have under way: a
	// quarter of what the federation takes from everybody, since each calls many nodes.
	maxAsking = federation.MaxQueries / 4
)

// kind is a kind of opening.
type kind int

const (
	tunnels kind = iota
	streams
	calls
	asking
	kinds
)

var (
	maxOpenings  = [kinds]int{tunnels: maxTunnels, streams: maxStreams, calls: maxCalls, asking: maxAsking}
	openingNames = [kinds]string{tunnels: "tunnels", streams: "event streams and waits", calls: "requests to services", asking: "requests about context"}
)

// opening is a tunnel or a stream.
type opening struct {
	kind kind
	by   access.Principal
	end  func() // ends it because its principal was revoked; may block
}

// openings are the tunnels and streams that each identity has open: bounded, and
// ended at once when it is revoked.
type openings struct {
	live func(context.Context, access.Principal) error // access.Access.Live
	all  sync.WaitGroup

	// mu guards the following fields.
	mu     sync.Mutex
	closed bool
	of     map[string]*opened
}

// opened is what one identity has open.
type opened struct {
	count [kinds]int
	set   map[*opening]struct{}
}

func newOpenings(live func(context.Context, access.Principal) error) *openings {
	return &openings{live: live, of: map[string]*opened{}}
}

// add enters an opening. A revocation that comes later ends it; one that came
// before, after the request was let in, refuses it.
func (o *openings) add(ctx context.Context, op *opening) error {
	if err := o.enter(op); err != nil {
		return err
	}
	err := o.live(ctx, op.by)
	if err != nil {
		o.remove(op)
	}
	return err
}

func (o *openings) enter(op *opening) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	mine := o.of[op.by.Identity.ID]
	if mine == nil {
		mine = &opened{set: map[*opening]struct{}{}}
	}
	switch {
	case o.closed:
		return store.ErrClosed
	case mine.count[op.kind] >= maxOpenings[op.kind]:
		e := api.Errorf(api.CodeRateLimited, "%d %s of yours are open; end some of them", mine.count[op.kind], openingNames[op.kind])
		e.RetryAfter = retryBusy
		return e
	}
	o.of[op.by.Identity.ID] = mine
	mine.count[op.kind]++
	mine.set[op] = struct{}{}
	o.all.Add(1)
	return nil
}

// remove takes an opening out that is over; once only.
func (o *openings) remove(op *opening) {
	o.mu.Lock()
	defer o.mu.Unlock()
	mine := o.of[op.by.Identity.ID]
	mine.count[op.kind]--
	delete(mine.set, op)
	if len(mine.set) == 0 {
		delete(o.of, op.by.Identity.ID)
	}
	o.all.Done()
}

// end ends what an identity has open and returns when it was told to end.
func (o *openings) end(identity string) {
	var ends sync.WaitGroup
	defer ends.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if mine := o.of[identity]; mine != nil {
		for op := range mine.set {
			ends.Go(op.end)
		}
	}
}

// logout ends what one browser has open, and returns as end does.
func (o *openings) logout(credential string) {
	var ends sync.WaitGroup
	defer ends.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range o.of { // logging out is rare
		for op := range of.set {
			if op.by.Credential == credential {
				ends.Go(op.end)
			}
		}
	}
}

// close refuses further openings.
func (o *openings) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// wait returns when all of them are over. After close.
func (o *openings) wait() { o.all.Wait() }
