package registry

import "context"

// Beat is one heartbeat, without the wait before it.
func (p *Publisher) Beat(ctx context.Context) { p.beat(ctx) }
