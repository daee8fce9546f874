package tasks

import (
	"context"
	"encoding/binary"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// pruneBatch is how many triples one commit forgets at most: deleting copies
// pages, and on a full disk only the ballast's room is there for them.
const pruneBatch = 500

// prune forgets triples beyond the window and raises the low-water mark over
// them (semantics 6). An id of which anything is open, unacknowledged or waits
// for an answer is kept. It returns how many went.
func (j *journal) prune() (int, error) {
	total := 0
	for {
		batch := j.prunable()
		if len(batch) == 0 {
			return total, nil
		}
		low := int64(0)
		for _, c := range batch {
			j.forget(c.Triple)
			low = max(low, c.createdMS+1)
		}
		err := j.updateRetention(func(tx *bolt.Tx) error {
			for _, c := range batch {
				for _, b := range []string{bucketTasks, bucketTexts, bucketOutcomes, bucketCheckpoints} {
					if err := tx.Bucket([]byte(b)).Delete(arrivalKey(c.arrival)); err != nil {
						return err
					}
				}
			}
			meta := tx.Bucket([]byte(bucketMeta))
			if old, err := number(meta, keyLowWater); err != nil || int64(old) >= low {
				return err
			}
			return meta.Put(keyLowWater, binary.BigEndian.AppendUint64(nil, uint64(low)))
		})
		if err != nil {
			j.mu.Lock()
			j.closed = append(batch, j.closed...)
			j.mu.Unlock()
			return total, err
		}
		j.mu.Lock()
		j.lowWater = max(j.lowWater, low)
		for _, c := range batch {
			// One that was taken up again meanwhile is written anew.
			if kn := j.find(c.Triple); kn != nil && kn.rec == nil {
				j.unindex(c.Triple)
			}
		}
		j.mu.Unlock()
		total += len(batch)
	}
}

// prunable takes the next triples to forget off the list.
func (j *journal) prunable() []closedTriple {
	j.mu.Lock()
	defer j.mu.Unlock()
	limit := j.nowMS() - j.cfg.Window.Milliseconds()
	asked := j.nowMS() - api.MaxTTL.Milliseconds()
	var batch, kept []closedTriple
	n := 0
	for ; n < len(j.closed)-j.cfg.WindowCount && len(batch) < pruneBatch; n++ {
		c := j.closed[n]
		if c.endedMS > limit {
			break
		}
		if j.pinned(c, asked) {
			kept = append(kept, c)
		} else {
			batch = append(batch, c)
		}
	}
	j.closed = append(j.closed[n:], kept...)
	return batch
}

// pinned reports whether an id must not be forgotten yet: a part of it is open, or
// it waits for an answer that may still come. Callers hold mu.
func (j *journal) pinned(c closedTriple, asked int64) bool {
	hist := j.index[c.Task]
	for i := range hist {
		if hist[i].rec != nil {
			return true
		}
	}
	last := hist[len(hist)-1]
	return last.state == api.StateQuestion && c.endedMS > asked
}

// updateRetention is update for work that frees room on a full disk.
func (j *journal) updateRetention(fn func(tx *bolt.Tx) error) error {
	j.engine.RLock()
	defer j.engine.RUnlock()
	return j.db.UpdateRetention(context.Background(), fn)
}
