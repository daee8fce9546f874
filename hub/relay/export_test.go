package relay

// Spend takes n tasks from a controller's rate without creating them.
func (r *Relay) Spend(controller string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pace(controller, n)
}
