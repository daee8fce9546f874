package relay

// MaxTextMemory is the bound of what TextMemory returns.
const MaxTextMemory = maxTextMemory

// TextMemory is how many bytes of texts wait in memory.
func (r *Relay) TextMemory() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.textBytes
}

// Spend takes n tasks from a controller's rate without creating them.
func (r *Relay) Spend(controller string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pace(controller, n)
}
