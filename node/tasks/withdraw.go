package tasks

import (
	"errors"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// maxReconcileOutcomes bounds the outcomes in one answer to a reconcile, in bytes;
// the results beyond are delivered like any other.
const maxReconcileOutcomes = 4 << 20

// withdrawal is how the node decided on a Withdraw.
type withdrawal struct {
	receipt api.Receipt
	// abort is a running turn that has to be aborted first.
	abort *record
	// again is a waiting record that went back to its lane because the decision
	// could not be stored.
	again *record
}

// withdraw decides on a cancel, an expiry or a revocation (semantics 7).
func (j *journal) withdraw(w *api.Withdraw) (withdrawal, error) {
	for {
		d, err := j.withdrawOnce(w)
		if !errors.Is(err, errMoved) {
			return d, err
		}
	}
}

func (j *journal) withdrawOnce(w *api.Withdraw) (withdrawal, error) {
	out := withdrawOutcome(w.Reason)
	kn := j.findIdle(w.Triple)
	if kn == nil {
		return j.tombstone(w, out)
	}
	rec, snap := kn.rec, *kn
	state := kn.state
	if rec != nil && state == api.StateRunning && w.Reason != api.WithdrawExpire && !rec.Cancel {
		rec.Cancel = true
		j.mu.Unlock()
		j.mark(rec)
		return withdrawal{receipt: api.Receipt{Triple: w.Triple, State: api.StateRunning}, abort: rec}, nil
	}
	j.mu.Unlock()

	switch {
	case rec != nil && state == api.StateRunning:
		d := withdrawal{receipt: api.Receipt{Triple: w.Triple, State: api.StateRunning}}
		if w.Reason != api.WithdrawExpire {
			d.abort = rec
		}
		return d, nil
	case rec != nil && waiting(state):
		err := j.conclude(rec, out, true, state)
		if errors.Is(err, errMoved) {
			return withdrawal{}, err
		}
		if err != nil {
			return withdrawal{again: rec}, refusal(err)
		}
		return withdrawal{receipt: api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}}, nil
	case state == api.StateQuestion && w.Reason != api.WithdrawExpire:
		return j.withdrawQuestion(w, rec, snap, out)
	}
	rc, _, err := j.receipt(w.Triple, rec, snap)
	return withdrawal{receipt: rc}, err
}

// withdrawOutcome is what becomes of a task that never started.
func withdrawOutcome(reason string) api.Outcome {
	if reason == api.WithdrawExpire {
		return api.Outcome{State: api.StateExpired}
	}
	return api.Outcome{State: api.StateCanceled}
}

// tombstone records that a triple which was never seen must not run. Called with
// mu held, which it releases.
func (j *journal) tombstone(w *api.Withdraw, out api.Outcome) (withdrawal, error) {
	now := j.nowMS()
	rec := j.insert(
		spec{Triple: w.Triple, CreatedMS: w.CreatedMS, TakenMS: now},
		fate{State: out.State, EndedMS: now, Acked: true},
	)
	j.decide(rec, encodeOutcome(&out))
	j.mu.Unlock()
	err := j.update(func(tx *bolt.Tx) error { return j.writeOutcome(tx, rec) })
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ready(rec)
	rec.unsaved = false
	if err != nil {
		j.remove(rec)
		return withdrawal{}, refusal(err)
	}
	j.retire(rec)
	return withdrawal{receipt: api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}}, nil
}

// withdrawQuestion cancels a task whose turn ended in a question: nothing runs,
// and no answer may start a further turn.
func (j *journal) withdrawQuestion(w *api.Withdraw, rec *record, kn known, out api.Outcome) (withdrawal, error) {
	if rec == nil {
		var err error
		if rec, err = j.reload(w.Triple, kn); err != nil {
			return withdrawal{}, err
		}
	}
	if err := j.conclude(rec, out, true, api.StateQuestion); err != nil {
		return withdrawal{}, refusal(err)
	}
	return withdrawal{receipt: api.Receipt{Triple: w.Triple, State: out.State, Outcome: &out}}, nil
}

// reload brings an acknowledged record back into memory to change it again.
func (j *journal) reload(t api.Triple, kn known) (*record, error) {
	var r row
	err := j.view(func(tx *bolt.Tx) error {
		data := tx.Bucket([]byte(bucketTasks)).Get(arrivalKey(kn.arrival))
		if data == nil {
			return api.Errorf(api.CodeTooOld, "task %s was just forgotten here", t.Task)
		}
		var err error
		r, err = decodeRow(data)
		return err
	})
	if err != nil {
		return nil, refusal(err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	cur := j.find(t)
	if cur == nil {
		return nil, api.Errorf(api.CodeTooOld, "task %s was just forgotten here", t.Task)
	}
	if cur.rec == nil {
		// Its last mark may still be on the way: there must be one record only.
		rec := j.dirty[kn.arrival]
		if rec == nil {
			rec = j.flying[kn.arrival]
		}
		if rec == nil {
			rec = &record{spec: r.spec, fate: r.fate, shown: r.State, arrival: kn.arrival}
		}
		cur.rec = rec
		j.open[kn.arrival] = cur.rec
		j.unclose(kn.arrival)
	}
	return cur.rec, nil
}

// unclose takes a triple off the list of those that may be forgotten. Callers
// hold mu.
func (j *journal) unclose(arrival uint64) {
	for i := range j.closed {
		if j.closed[i].arrival == arrival {
			j.closed = append(j.closed[:i], j.closed[i+1:]...)
			return
		}
	}
}

// reconcile says what is recorded of the triples that the hub holds open. again
// are the settled ones whose result has to be delivered (again): the hub asks, so
// it does not have it, and the answer had no room for it.
func (j *journal) reconcile(asked []api.Triple) (answer []api.Receipt, again []*record, err error) {
	answer = make([]api.Receipt, 0, len(asked))
	room := maxReconcileOutcomes
	for _, t := range asked {
		kn := j.findIdle(t)
		if kn == nil {
			j.mu.Unlock()
			answer = append(answer, api.Receipt{Triple: t})
			continue
		}
		rec, snap := kn.rec, *kn
		j.mu.Unlock()
		rc, _, err := j.receipt(t, rec, snap)
		if err != nil {
			if api.ErrorCode(err) != api.CodeTooOld {
				return nil, nil, err
			}
			rc = api.Receipt{Triple: t}
		}
		if rc.Outcome != nil {
			size := len(rc.Outcome.Reply) + len(rc.Outcome.Summary)
			if size > room {
				if rec, err = j.reload(t, snap); err != nil {
					return nil, nil, err
				}
				again = append(again, rec)
				rc.State, rc.Outcome = api.StateRunning, nil
			} else {
				room -= size
			}
		}
		answer = append(answer, rc)
	}
	return answer, again, nil
}
