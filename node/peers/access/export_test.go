package access

import "context"

// Sweep looks for agents that went, as Run does.
func (a *Access) Sweep(ctx context.Context) error { return a.sweep(ctx) }
