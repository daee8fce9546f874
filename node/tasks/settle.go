package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// errEnded is what a turn gets that goes on after it was settled.
var errEnded = errors.New("the turn is settled")

// errMoved says that a record was not in the state that a change needs.
var errMoved = errors.New("the task is in another state")

// claim marks a waiting record as running, unless something else happened to it
// meanwhile.
func (j *journal) claim(rec *record) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if rec.busy != nil || rec.shown != api.StateAccepted {
		return false
	}
	rec.State = api.StateRunning
	rec.StartedMS = j.nowMS()
	j.show(rec)
	return true
}

// textOf returns the text of an open record.
func (j *journal) textOf(rec *record) (string, error) {
	j.mu.Lock()
	text := rec.text
	j.mu.Unlock()
	if text != "" {
		return text, nil
	}
	err := j.view(func(tx *bolt.Tx) error {
		text = string(tx.Bucket([]byte(bucketTexts)).Get(arrivalKey(rec.arrival)))
		return nil
	})
	return text, err
}

// checkpoint replaces the turn's checkpoint; it carries the running mark along, so
// that a turn with a checkpoint is never taken for one that had not started.
func (j *journal) checkpoint(ctx context.Context, rec *record, data []byte, ranMS int64) error {
	return j.commit(ctx, func(tx *bolt.Tx) error {
		j.mu.Lock()
		over := rec.State != api.StateRunning
		if !over {
			rec.RanMS = max(rec.RanMS, ranMS)
		}
		j.mu.Unlock()
		if over {
			return errEnded
		}
		if err := tx.Bucket([]byte(bucketCheckpoints)).Put(arrivalKey(rec.arrival), data); err != nil {
			return err
		}
		_, err := j.put(tx, rec)
		return err
	})
}

// checkpointOf returns the turn's last checkpoint, nil when there is none.
func (j *journal) checkpointOf(rec *record) ([]byte, error) {
	var data []byte
	err := j.view(func(tx *bolt.Tx) error {
		if v := tx.Bucket([]byte(bucketCheckpoints)).Get(arrivalKey(rec.arrival)); v != nil {
			data = append([]byte{}, v...)
		}
		return nil
	})
	return data, err
}

// settle records how a running turn ended. It reports whether it did: a turn is
// settled once. When the journal cannot be written the outcome is kept in memory
// and stored as soon as it can be; until then the hub's commit is what counts
// (semantics 14).
func (j *journal) settle(rec *record, out api.Outcome, ranMS int64) bool {
	blob := encodeOutcome(&out)
	j.mu.Lock()
	if ended(rec.State) {
		j.mu.Unlock()
		return false
	}
	rec.State, rec.EndedMS, rec.RanMS = out.State, j.nowMS(), ranMS
	j.decide(rec, blob)
	delete(j.dirty, rec.arrival) // this write says more than the mark
	j.mu.Unlock()

	err := j.update(func(tx *bolt.Tx) error { return j.writeOutcome(tx, rec) })

	j.mu.Lock()
	rec.unsaved = err != nil
	j.show(rec)
	j.dropText(rec)
	j.ready(rec)
	j.mu.Unlock()
	if err != nil {
		j.mark(rec)
		j.log.Error("result not journaled, it is delivered from memory", "task", rec.Task, "err", err)
	}
	return true
}

// conclude ends a record that has not started, from one of the given states. A
// record that the hub need not be told about again is acknowledged with it. An
// error leaves everything as it was.
func (j *journal) conclude(rec *record, out api.Outcome, acked bool, from ...api.State) error {
	blob := encodeOutcome(&out)
	j.mu.Lock()
	if rec.busy != nil || !oneOf(rec.shown, from) {
		j.mu.Unlock()
		return errMoved
	}
	old := rec.fate
	rec.State, rec.EndedMS, rec.Acked = out.State, j.nowMS(), acked
	j.decide(rec, blob)
	j.mu.Unlock()

	err := j.update(func(tx *bolt.Tx) error {
		if acked {
			if err := tx.Bucket([]byte(bucketTexts)).Delete(arrivalKey(rec.arrival)); err != nil {
				return err
			}
		}
		return j.writeOutcome(tx, rec)
	})

	j.mu.Lock()
	defer j.mu.Unlock()
	j.ready(rec)
	rec.unsaved = false
	if err != nil {
		rec.fate, rec.outcome = old, nil
		return err
	}
	j.show(rec)
	j.dropText(rec)
	if acked {
		j.retire(rec)
	}
	return nil
}

// decide makes a record busy with an outcome that is not on disk yet. From here on
// every write of the record carries the outcome: a mark that is on its way must not
// store an end without it. Callers hold mu.
func (j *journal) decide(rec *record, outcome []byte) {
	rec.busy = make(chan struct{})
	rec.outcome, rec.unsaved = outcome, true
}

// writeOutcome stores a record with its outcome.
func (j *journal) writeOutcome(tx *bolt.Tx, rec *record) error {
	if err := tx.Bucket([]byte(bucketCheckpoints)).Delete(arrivalKey(rec.arrival)); err != nil {
		return err
	}
	_, err := j.put(tx, rec)
	return err
}

// ack records that the hub has the result.
func (j *journal) ack(rec *record) {
	j.mu.Lock()
	rec.Acked = true
	j.dirty[rec.arrival] = rec
	if !rec.unsaved {
		j.retire(rec)
	}
	j.mu.Unlock()
	signal(j.marked)
}

// retire moves an acknowledged record out of memory; the disk has it. Callers
// hold mu.
func (j *journal) retire(rec *record) {
	if _, ok := j.open[rec.arrival]; !ok {
		return
	}
	delete(j.open, rec.arrival)
	rec.outcome = nil
	if kn := j.find(rec.Triple); kn != nil {
		kn.rec = nil
	}
	j.closed = append(j.closed, closedTriple{Triple: rec.Triple, arrival: rec.arrival, createdMS: rec.CreatedMS, endedMS: rec.EndedMS})
}

// outcomeBlob returns the encoded outcome of a settled record.
func (j *journal) outcomeBlob(rec *record) ([]byte, error) {
	j.mu.Lock()
	blob := rec.outcome
	j.mu.Unlock()
	if blob != nil {
		return blob, nil
	}
	blob, err := j.outcomeOf(rec.arrival)
	if err == nil && blob == nil {
		err = fmt.Errorf("no outcome of task %s in the journal", rec.Task)
	}
	return blob, err
}

// unload gives up the memory of an outcome that waits longer for its delivery and
// that the disk has.
func (j *journal) unload(rec *record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !rec.unsaved {
		rec.outcome = nil
	}
}

// encodeOutcome encodes an outcome; its type has nothing that could fail.
func encodeOutcome(out *api.Outcome) []byte {
	blob, err := json.Marshal(out)
	if err != nil {
		panic("encode outcome: " + err.Error())
	}
	return blob
}

func oneOf(s api.State, states []api.State) bool {
	for _, t := range states {
		if s == t {
			return true
		}
	}
	return false
}

// endedMS is when a record ended, Unix milliseconds of the node's clock.
func (j *journal) endedMS(rec *record) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return rec.EndedMS
}
