package tasks

import (
	"cmp"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// TaskInfo is an open task for people.
type TaskInfo struct {
	api.Triple
	State      api.State `json:"state"`
	Controller string    `json:"controller"`
	Workspace  string    `json:"workspace,omitempty"`
	Session    string    `json:"session,omitempty"`
	TakenAt    time.Time `json:"taken_at"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	// Text is the beginning of the envelope; held tasks only.
	Text string `json:"text,omitempty"`
}

// Snapshot is what a runner has in hand.
type Snapshot struct {
	JournalID string `json:"journal_id"`
	Path      string `json:"path"`
	Epoch     uint64 `json:"epoch"`
	// Remembered is how many triples the journal knows.
	Remembered int `json:"remembered"`
	// Undelivered is how many results the hub has not acknowledged.
	Undelivered int `json:"undelivered"`
	// Unsaved is how many of them the journal could not take.
	Unsaved int        `json:"unsaved,omitempty"`
	Waiting int        `json:"waiting"`
	Held    int        `json:"held"`
	Running []TaskInfo `json:"running"`
	// Parked says that this process takes and starts nothing more.
	Parked bool `json:"parked,omitempty"`
	// Disk says why the journal cannot be written, "" when it can.
	Disk string `json:"disk,omitempty"`
}

// Snapshot returns what the runner has in hand, running tasks in start order.
func (r *Runner) Snapshot() Snapshot {
	s := r.journal.snapshot()
	r.mu.Lock()
	s.Parked = r.parked
	r.mu.Unlock()
	return s
}

func (j *journal) snapshot() Snapshot {
	j.engine.RLock()
	s := Snapshot{Path: j.path, Running: []TaskInfo{}}
	if err := j.db.Err(); err != nil {
		s.Disk = err.Error()
	}
	j.engine.RUnlock()

	j.mu.Lock()
	s.JournalID, s.Epoch = j.id, j.epoch
	s.Remembered = len(j.closed) + len(j.open)
	for _, rec := range j.open {
		switch {
		case ended(rec.shown):
			s.Undelivered++
			if rec.unsaved {
				s.Unsaved++
			}
		case rec.shown == api.StateRunning:
			s.Running = append(s.Running, rec.info())
		case rec.shown == api.StateHeld:
			s.Held++
		default:
			s.Waiting++
		}
	}
	j.mu.Unlock()

	slices.SortFunc(s.Running, func(a, b TaskInfo) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.Task, b.Task))
	})
	return s
}

// info describes a record. Callers hold the journal's mu.
func (rec *record) info() TaskInfo {
	t := TaskInfo{
		Triple: rec.Triple, State: rec.shown, Workspace: rec.Workspace,
		Controller: cmp.Or(rec.Controller.Name, rec.Controller.ID), Session: rec.Binding.Session,
		TakenAt: time.UnixMilli(rec.TakenMS).UTC(),
	}
	if rec.StartedMS > 0 {
		t.StartedAt = time.UnixMilli(rec.StartedMS).UTC()
	}
	return t
}

// unfinished lists, in order of arrival, what has to be run: accepted or running.
func (j *journal) unfinished() []*record {
	return j.openIn(func(rec *record) bool {
		return rec.shown == api.StateAccepted || rec.shown == api.StateRunning
	})
}

// undelivered lists, in order of arrival, the results without acknowledgement.
func (j *journal) undelivered() []*record {
	return j.openIn(func(rec *record) bool { return ended(rec.shown) })
}

// openIn lists, in order of arrival, the open records that match.
func (j *journal) openIn(match func(*record) bool) []*record {
	j.mu.Lock()
	defer j.mu.Unlock()
	var recs []*record
	for _, rec := range j.open {
		if rec.busy == nil && match(rec) {
			recs = append(recs, rec)
		}
	}
	slices.SortFunc(recs, func(a, b *record) int { return cmp.Compare(a.arrival, b.arrival) })
	return recs
}

// progress returns how long a record ran in earlier processes, and whether the
// hub withdrew it while it did.
func (j *journal) progress(rec *record) (ranMS int64, canceled bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return rec.RanMS, rec.Cancel
}

// pause records how long a turn ran that goes on without this process.
func (j *journal) pause(rec *record, ranMS int64) {
	j.mu.Lock()
	running := rec.State == api.StateRunning
	if running {
		rec.RanMS = ranMS
	}
	j.mu.Unlock()
	if running {
		j.mark(rec)
	}
}

// ranBefore is how long the earlier turns of an attempt ran, in milliseconds.
func (j *journal) ranBefore(t api.Triple) int64 {
	var sum int64
	var onDisk []uint64
	j.mu.Lock()
	for _, kn := range j.index[t.Task] {
		switch {
		case kn.attempt != t.Attempt || kn.turn >= t.Turn:
		case kn.rec != nil:
			sum += kn.rec.RanMS
		default:
			onDisk = append(onDisk, kn.arrival)
		}
	}
	j.mu.Unlock()
	err := j.view(func(tx *bolt.Tx) error {
		for _, arrival := range onDisk {
			r, err := decodeRow(tx.Bucket([]byte(bucketTasks)).Get(arrivalKey(arrival)))
			if err != nil {
				return err
			}
			sum += r.RanMS
		}
		return nil
	})
	if err != nil {
		j.log.Warn("earlier turns of the attempt are not counted", "task", t.Task, "err", err)
	}
	return sum
}
