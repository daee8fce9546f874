package opencode

import (
	"context"
	"sync"
)

// lanes lets one turn or visit at a time into each session: a prompt to a busy session
// would be taken into the running turn and never be answered. Between turns the runner
// keeps that order already.
type lanes struct {
	// mu guards the following fields.
	mu   sync.Mutex
	held map[string]*lane
}

// lane is one lock; it is kept while anybody has or wants it.
type lane struct {
	users int
	free  chan struct{} // cap 1; holds a token while nobody has it
}

func newLanes() *lanes { return &lanes{held: make(map[string]*lane)} }

// enter waits for the lane of that name and returns what leaves it again. The
// error is the cause of ctx's end.
func (l *lanes) enter(ctx context.Context, name string) (leave func(), err error) {
	l.mu.Lock()
	x, ok := l.held[name]
	if !ok {
		x = &lane{free: make(chan struct{}, 1)}
		x.free <- struct{}{}
		l.held[name] = x
	}
	x.users++
	l.mu.Unlock()

	select {
	case <-x.free:
		return func() {
			x.free <- struct{}{} // never blocks: this is the token taken above
			l.drop(name, x)
		}, nil
	case <-ctx.Done():
		l.drop(name, x)
		return nil, context.Cause(ctx)
	}
}

// taken says whether somebody has the lane of that name, or waits for it.
func (l *lanes) taken(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[name] != nil
}

func (l *lanes) drop(name string, x *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.users--; x.users == 0 {
		delete(l.held, name)
	}
}
