package tasks

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// heldExcerpt is how much of a held task's text its listing shows, in bytes.
const heldExcerpt = 2000

// ErrNotHeld says that no task of that id waits for an operator.
var ErrNotHeld = errors.New("no task of that id is held")

// Held lists the tasks that policy hold parked, oldest first.
func (r *Runner) Held() ([]TaskInfo, error) {
	recs := r.journal.held()
	out := make([]TaskInfo, 0, len(recs))
	for _, rec := range recs {
		text, err := r.journal.textOf(rec)
		if err != nil {
			return nil, fmt.Errorf("read text of task %s: %w", rec.Task, err)
		}
		r.journal.mu.Lock()
		info := rec.info()
		r.journal.mu.Unlock()
		info.Text = cutString(text, heldExcerpt)
		out = append(out, info)
	}
	return out, nil
}

// Release lets a held task start. ErrNotHeld when there is none of that id.
func (r *Runner) Release(task string) error {
	rec, err := r.journal.heldTask(task)
	if err != nil {
		return err
	}
	if err := r.journal.release(rec); err != nil {
		return fmt.Errorf("release task %s: %w", task, err)
	}
	r.enqueue(rec)
	return nil
}

// Refuse ends a held task as refused. ErrNotHeld when there is none of that id.
func (r *Runner) Refuse(task string) error {
	rec, err := r.journal.heldTask(task)
	if err != nil {
		return err
	}
	return r.refuseHeld(rec, api.TaskRefused, "an operator of the node refused it")
}

// refuseOverdue ends the held tasks whose operator did not come (semantics 8).
func (r *Runner) refuseOverdue() {
	for _, rec := range r.journal.held() {
		if r.journal.since(rec.TakenMS) < r.cfg.HeldLimit {
			continue
		}
		message := fmt.Sprintf("nobody released it within %s", r.cfg.HeldLimit)
		if err := r.refuseHeld(rec, api.TaskHeldTooLong, message); err != nil && !errors.Is(err, ErrNotHeld) {
			r.log.Warn("overdue held task not refused", "task", rec.Task, "err", err)
		}
	}
}

func (r *Runner) refuseHeld(rec *record, code, message string) error {
	out := api.Outcome{State: api.StateRefused, Error: &api.TaskError{Code: code, Message: message}}
	err := r.journal.conclude(rec, out, false, api.StateHeld)
	if errors.Is(err, errMoved) {
		return ErrNotHeld
	}
	if err != nil {
		return fmt.Errorf("refuse task %s: %w", rec.Task, err)
	}
	r.outbox.add(rec)
	return nil
}

// held lists the held records in order of arrival.
func (j *journal) held() []*record {
	return j.openIn(func(rec *record) bool { return rec.shown == api.StateHeld })
}

// heldTask finds the held record of a task.
func (j *journal) heldTask(task string) (*record, error) {
	for _, rec := range j.held() {
		if rec.Task == task {
			return rec, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrNotHeld, task)
}

// release moves a held record to accepted.
func (j *journal) release(rec *record) error {
	j.mu.Lock()
	if rec.busy != nil || rec.shown != api.StateHeld {
		j.mu.Unlock()
		return ErrNotHeld
	}
	rec.State = api.StateAccepted
	rec.busy = make(chan struct{})
	j.mu.Unlock()
	err := j.update(func(tx *bolt.Tx) error {
		_, err := j.put(tx, rec)
		return err
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ready(rec)
	if err != nil {
		rec.State = api.StateHeld
		return err
	}
	j.show(rec)
	return nil
}
