package relay

import "opencode-mesh/protocol/api"

// MaxTextMemory is the bound of what TextMemory returns.
const MaxTextMemory = maxTextMemory

// TextMemory is how many bytes of texts wait in memory.
func (r *Relay) TextMemory() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.textBytes
}

// Behind is how many questions of a node's tasks wait behind others.
func (r *Relay) Behind(target string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queues[target].behind
}

// Spend takes n tasks from a controller's rate without creating them.
func (r *Relay) Spend(controller string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pace(controller, n)
}

// Reserve takes n places of a controller for one target, as of a dispatch under way
// to its commit.
func (r *Relay) Reserve(author string, n int, target string) (release func(), err error) {
	parties := make([]api.Party, n)
	for i := range parties {
		parties[i] = api.Party{ID: target}
	}
	return r.reserve(api.Party{ID: author}, parties...)
}
