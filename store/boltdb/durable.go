package boltdb

import (
	"sync"
	"sync/atomic"
)

// durable knows the newest transaction that is on disk. bbolt shows a transaction
// to readers as soon as its meta page is written, a sync too early: a reader could
// vouch for something that a power cut takes back. So readers wait here until what
// they see is durable, which costs one sync at most.
type durable struct {
	txid atomic.Int64

	mu    sync.Mutex    // guards the following field
	moved chan struct{} // closed when txid moves; nil if nobody waits
}

// publish records that everything up to txid is on disk.
func (d *durable) publish(txid int64) {
	d.mu.Lock()
	d.txid.Store(txid)
	moved := d.moved
	d.moved = nil
	d.mu.Unlock()
	if moved != nil {
		close(moved)
	}
}

// wait returns once txid is on disk, or ErrFailed when failed closes before.
func (d *durable) wait(txid int64, failed <-chan struct{}) error {
	for d.txid.Load() < txid {
		d.mu.Lock()
		if d.txid.Load() >= txid {
			d.mu.Unlock()
			break
		}
		if d.moved == nil {
			d.moved = make(chan struct{})
		}
		moved := d.moved
		d.mu.Unlock()
		select {
		case <-moved:
		case <-failed:
			return ErrFailed
		}
	}
	return nil
}
