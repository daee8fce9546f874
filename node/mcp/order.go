package mcp

import (
	"context"
	"slices"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// order makes the calls of tools one after another, as the client sent them: an
// agent that sends two messages at once means them in that order. The SDK starts
// what it reads in any order.
type order struct {
	mu      sync.Mutex          // guards the following fields
	open    []*sdk.RequestExtra // what the SDK hands to a call's handler, oldest first
	changed chan struct{}       // closed and replaced when one ends
	taken   map[*sdk.RequestExtra]func()
}

func newOrder() *order {
	return &order{changed: make(chan struct{}), taken: map[*sdk.RequestExtra]func(){}}
}

// onTaken notes what is to be done once the answer of a call was written.
func (o *order) onTaken(e *sdk.RequestExtra, do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if do != nil && slices.Contains(o.open, e) {
		o.taken[e] = do
	}
}

// whenTaken is what onTaken noted, nil if nothing was.
func (o *order) whenTaken(e *sdk.RequestExtra) func() {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.taken[e]
}

// enter notes a call when it is read.
func (o *order) enter() *sdk.RequestExtra {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := &sdk.RequestExtra{}
	o.open = append(o.open, e)
	return e
}

// leave ends a call, however it went.
func (o *order) leave(e *sdk.RequestExtra) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.open, e); i >= 0 {
		o.open = slices.Delete(o.open, i, i+1)
		delete(o.taken, e)
		close(o.changed)
		o.changed = make(chan struct{})
	}
}

// wait returns when all calls before e have ended.
func (o *order) wait(ctx context.Context, e *sdk.RequestExtra) error {
	for {
		o.mu.Lock()
		first, changed := slices.Index(o.open, e) <= 0, o.changed
		o.mu.Unlock()
		if first {
			return ctx.Err()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
