package tasks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

// admission is what the node's policy says to a task that it has not seen.
type admission struct {
	state  api.State // accepted or held
	refuse *api.Error
}

// accept takes an offer. taken is the new record once it is on disk, nil when the
// triple was known already; the receipt tells its state either way.
func (j *journal) accept(o *api.Offer, adm admission) (taken *record, rc api.Receipt, err error) {
	kn := j.findIdle(o.Triple)
	if kn != nil {
		rec, snap := kn.rec, *kn
		j.mu.Unlock()
		rc, hash, err := j.receipt(o.Triple, rec, snap)
		if err == nil && hash != "" && hash != o.Hash {
			err = api.Errorf(api.CodeTaskConflict, "task %s attempt %d turn %d is known here with another body", o.Task, o.Attempt, o.Turn)
		}
		return nil, rc, err
	}
	if err := j.admitNew(o, adm); err != nil {
		j.mu.Unlock()
		return nil, rc, err
	}
	rec := j.insert(spec{
		Triple: o.Triple, Hash: o.Hash, Seq: o.Seq, Kind: o.Kind, Controller: o.Controller,
		CreatedMS: o.CreatedMS, DeadlineMS: o.DeadlineMS, QuestionMS: o.QuestionMS, Mode: o.Mode, Workspace: o.Workspace,
		Binding: o.Binding, Token: o.Token, TakenMS: j.nowMS(),
	}, fate{State: adm.state})
	if j.textBytes+len(o.Text) <= maxTextMemory {
		rec.text = o.Text
		j.textBytes += len(o.Text)
	}
	j.mu.Unlock()

	err = j.update(func(tx *bolt.Tx) error {
		if err := tx.Bucket([]byte(bucketTexts)).Put(arrivalKey(rec.arrival), []byte(o.Text)); err != nil {
			return err
		}
		_, err := j.put(tx, rec)
		return err
	})
	j.mu.Lock()
	j.ready(rec)
	if err != nil {
		j.dropText(rec)
		j.remove(rec)
	}
	j.mu.Unlock()
	if err != nil {
		return nil, rc, refusal(err)
	}
	return rec, api.Receipt{Triple: o.Triple, State: adm.state}, nil
}

// admitNew decides on a triple that was never seen. Callers hold mu.
func (j *journal) admitNew(o *api.Offer, adm admission) error {
	hist := j.index[o.Task]
	switch {
	case len(hist) == 0:
		if o.CreatedMS < j.lowWater {
			return api.Errorf(api.CodeTooOld, "task %s is older than what this node remembers", o.Task)
		}
	default:
		last := hist[len(hist)-1]
		// The next turn of a task answers a question; that of an operation is its next
		// step, or takes back what the last one did.
		next := last.state == api.StateQuestion || operation(o.Kind) && ended(last.state)
		grown := last.attempt < o.Attempt && ended(last.state) ||
			last.attempt == o.Attempt && last.turn < o.Turn && next
		if !grown {
			return api.Errorf(api.CodeConflict, "task %s is at attempt %d turn %d (%s) here", o.Task, last.attempt, last.turn, last.state)
		}
	}
	if adm.refuse != nil {
		return adm.refuse
	}
	if len(j.open) >= j.cfg.MaxOpen {
		return api.Errorf(api.CodeNodeFull, "this node has %d open tasks and takes no more", len(j.open))
	}
	return nil
}

// insert adds a record that the caller is about to write: it is busy until ready.
// Callers hold mu.
func (j *journal) insert(s spec, f fate) *record {
	rec := &record{spec: s, fate: f, shown: f.State, arrival: j.next, busy: make(chan struct{})}
	j.next++
	j.open[rec.arrival] = rec
	j.addKnown(s.Task, known{attempt: s.Attempt, turn: s.Turn, arrival: rec.arrival, state: f.State, rec: rec})
	return rec
}

// ready ends a record's transition. Callers hold mu.
func (j *journal) ready(rec *record) {
	close(rec.busy)
	rec.busy = nil
}

// remove forgets a record that never reached the disk. Callers hold mu.
func (j *journal) remove(rec *record) {
	delete(j.open, rec.arrival)
	j.unindex(rec.Triple)
}

// unindex takes a triple out of the index. Callers hold mu.
func (j *journal) unindex(t api.Triple) {
	hist := j.index[t.Task]
	for i := range hist {
		if hist[i].attempt == t.Attempt && hist[i].turn == t.Turn {
			hist = append(hist[:i], hist[i+1:]...)
			break
		}
	}
	if len(hist) == 0 {
		delete(j.index, t.Task)
		return
	}
	j.index[t.Task] = hist
}

// show makes a record's state known to others. Callers hold mu.
func (j *journal) show(rec *record) {
	rec.shown = rec.State
	if kn := j.find(rec.Triple); kn != nil {
		kn.state = rec.State
	}
}

// dropText frees the memory of a record's text. Callers hold mu.
func (j *journal) dropText(rec *record) {
	j.textBytes -= len(rec.text)
	rec.text = ""
}

// receipt says what is recorded of a triple, with the hash of its body ("" in a
// tombstone). rec and kn are its index entry, read while mu was held.
func (j *journal) receipt(t api.Triple, rec *record, kn known) (api.Receipt, string, error) {
	rc := api.Receipt{Triple: t}
	var hash string
	var blob []byte
	if rec != nil {
		j.mu.Lock()
		rc.State, hash, blob = rec.shown, rec.Hash, rec.outcome
		j.mu.Unlock()
	} else {
		err := j.view(func(tx *bolt.Tx) error {
			data := tx.Bucket([]byte(bucketTasks)).Get(arrivalKey(kn.arrival))
			if data == nil {
				return api.Errorf(api.CodeTooOld, "task %s was just forgotten here", t.Task)
			}
			r, err := decodeRow(data)
			if err != nil {
				return err
			}
			rc.State, hash = r.State, r.Hash
			blob = bytes.Clone(tx.Bucket([]byte(bucketOutcomes)).Get(arrivalKey(kn.arrival)))
			return nil
		})
		if err != nil {
			return rc, "", refusal(err)
		}
	}
	if !ended(rc.State) {
		return rc, hash, nil
	}
	if blob == nil && rec != nil {
		var err error
		if blob, err = j.outcomeOf(rec.arrival); err != nil {
			return rc, "", refusal(err)
		}
	}
	out := api.Outcome{State: rc.State}
	if blob != nil {
		if err := json.Unmarshal(blob, &out); err != nil {
			return rc, "", fmt.Errorf("read outcome of task %s: %w", t.Task, err)
		}
	}
	rc.Outcome = &out
	return rc, hash, nil
}

// refusal is what the hub gets to hear when the journal did not take something.
func refusal(err error) error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, boltdb.ErrFull):
		return api.Errorf(api.CodeNodeFull, "the node's disk is full")
	case errors.Is(err, boltdb.ErrReadOnly):
		return api.Errorf(api.CodeReadOnly, "the node's journal cannot be written")
	case errors.Is(err, boltdb.ErrClosed):
		return api.Errorf(api.CodeShuttingDown, "the node is stopping")
	case errors.Is(err, boltdb.ErrFailed):
		return api.Errorf(api.CodeUnavailable, "the node's journal failed")
	}
	return err
}
