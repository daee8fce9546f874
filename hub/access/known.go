package access

import "sync"

// maxKnown is how many credentials are remembered; beyond it all are forgotten and
// read again.
const maxKnown = 20000

// known remembers who credentials belong to, so that a request to a service costs no
// reading of the store. The end of any identity, or of a
// browser's session, forgets all of it. Safe for concurrent
// use.
type known struct {
	mu    sync.RWMutex // guards the following fields
	by    map[[32]byte]Principal
	epoch uint64
}

// now is the present epoch, from 1. Whoever was recognised in it has not been revoked
// since.
func (k *known) now() uint64 {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.epoch
}

func (k *known) find(hash [32]byte) (Principal, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	p, ok := k.by[hash]
	return p, ok
}

// remember keeps what was read from the store in p's epoch, if that is not over.
func (k *known) remember(hash [32]byte, p Principal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.Epoch != k.epoch {
		return
	}
	if len(k.by) >= maxKnown {
		clear(k.by)
	}
	k.by[hash] = p
}

// forget begins a new epoch: an identity or a session has ended.
func (k *known) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch++
	clear(k.by)
}
