package tasks

import (
	"context"

	bolt "go.etcd.io/bbolt"
)

// maxMarks is how many marks one commit takes along.
const maxMarks = 512

// Marks are changes of records that nobody waits for: that a turn runs, that a
// result was acknowledged, an outcome that the disk did not take. A commit of their
// own would cost as many syncs as one that is waited for, so they ride along with
// the next of those, or with one that Runner.upkeep makes after Config.MarkDelay.
// What is lost of them by a crash is harmless; see the package comment.

// mark notes that a record has something to be written when there is occasion.
func (j *journal) mark(rec *record) {
	j.mu.Lock()
	j.dirty[rec.arrival] = rec
	j.mu.Unlock()
	signal(j.marked)
}

// commit runs fn in a transaction, takes waiting marks along, and returns once
// everything is on disk. Marks stay waiting when it fails.
func (j *journal) commit(ctx context.Context, fn func(tx *bolt.Tx) error) error {
	batch := j.takeMarks()
	wrote := make([]bool, len(batch)) // whether the outcome went along
	j.engine.RLock()
	err := j.db.Update(ctx, func(tx *bolt.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		for i, rec := range batch {
			var err error
			if wrote[i], err = j.putMark(tx, rec); err != nil {
				return err
			}
		}
		return nil
	})
	j.engine.RUnlock()
	j.marksDone(batch, wrote, err)
	return err
}

// update is commit without a context.
func (j *journal) update(fn func(tx *bolt.Tx) error) error {
	return j.commit(context.Background(), fn)
}

// flush writes the marks that wait.
func (j *journal) flush() {
	for j.marks() > 0 {
		if err := j.update(func(*bolt.Tx) error { return nil }); err != nil {
			j.log.Debug("journal marks not written", "err", err)
			return
		}
	}
}

// marks is how many marks wait.
func (j *journal) marks() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.dirty)
}

// takeMarks moves waiting marks to those under way, where reload finds them.
func (j *journal) takeMarks() []*record {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.dirty) == 0 {
		return nil
	}
	batch := make([]*record, 0, min(len(j.dirty), maxMarks))
	for arrival, rec := range j.dirty {
		if len(batch) == maxMarks {
			break
		}
		delete(j.dirty, arrival)
		j.flying[arrival] = rec
		batch = append(batch, rec)
	}
	return batch
}

// putMark writes a record as it is now, and removes what it does not need any
// more. It reports whether an outcome went along that was not on disk.
func (j *journal) putMark(tx *bolt.Tx, rec *record) (outcome bool, err error) {
	key := arrivalKey(rec.arrival)
	j.mu.Lock()
	over, acked := ended(rec.State), rec.Acked
	j.mu.Unlock()
	if acked {
		if err := tx.Bucket([]byte(bucketTexts)).Delete(key); err != nil {
			return false, err
		}
	}
	if over {
		if err := tx.Bucket([]byte(bucketCheckpoints)).Delete(key); err != nil {
			return false, err
		}
	}
	return j.put(tx, rec)
}

// marksDone ends the way of a batch.
func (j *journal) marksDone(batch []*record, wrote []bool, err error) {
	if len(batch) == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, rec := range batch {
		delete(j.flying, rec.arrival)
		switch {
		case err != nil:
			j.dirty[rec.arrival] = rec
			continue
		case rec.unsaved && wrote[i]:
			rec.unsaved = false
			if rec.Acked {
				j.retire(rec)
			}
		}
		if rec.Acked && !rec.unsaved {
			j.leave(rec.Triple)
		}
	}
}
