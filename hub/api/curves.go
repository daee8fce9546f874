package api

import (
	"context"
	"sync"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// maxCurves is how many curves are kept in memory; beyond it all are read anew.
const maxCurves = 20000

// curves remembers how sessions filled up. A page about a fleet asks for thousands of
// them every second, and few have changed since.
type curves struct {
	mu sync.Mutex // guards the following field
	by map[store.BindingKey]curve
}

// curve is the newest fills of a session, in per cent, oldest first.
type curve struct {
	count    uint64 // of the fills that there ever were; the curve is as old as that
	percents []int8
}

// of returns the newest n fills of each of these sessions.
func (c *curves) of(ctx context.Context, st store.Store, bindings []store.Binding, n int) (map[store.BindingKey][]int, error) {
	out := make(map[store.BindingKey][]int, len(bindings))
	var missing []store.Binding
	c.mu.Lock()
	for _, b := range bindings {
		if known, ok := c.by[b.BindingKey]; ok && known.count == b.Fills {
			out[b.BindingKey] = known.newest(n)
		} else {
			missing = append(missing, b)
		}
	}
	c.mu.Unlock()
	if len(missing) == 0 {
		return out, nil
	}
	series, err := st.NewestFills(ctx, missing, api.MaxListedFills)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.by)+len(missing) > maxCurves {
		clear(c.by)
	}
	for i, b := range missing {
		read := curve{count: b.Fills}
		for _, f := range series[i] {
			if p := f.Percent(); p != nil {
				read.percents = append(read.percents, int8(min(max(*p, 0), 127))) // over 100 is full, how far does not show
			}
		}
		if len(c.by) < maxCurves {
			c.by[b.BindingKey] = read
		}
		out[b.BindingKey] = read.newest(n)
	}
	return out, nil
}

// newest are the last n points.
func (c curve) newest(n int) []int {
	var out []int
	for _, p := range c.percents[max(0, len(c.percents)-n):] {
		out = append(out, int(p))
	}
	return out
}
