package registry

import (
	"context"
	"time"
)

// Beat is one heartbeat, without the wait before it.
func (p *Publisher) Beat(ctx context.Context) { p.beat(ctx) }

// PollEvery lets Watch look for what the system does not tell in this interval.
func (r *Reader) PollEvery(d time.Duration) { r.poll = d }
