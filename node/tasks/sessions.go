package tasks

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// maxSessions bounds the sessions that are remembered; the longest unused one
// goes. An agent that is asked for a forgotten one searches for it before it makes
// another (semantics 13).
const maxSessions = 10000

// boundEntry is the session of a binding's generation.
type boundEntry struct {
	api.BoundSession
	// Compaction is the task that made it to hand over to; such a session is nobody's
	// until the hub names it for its generation.
	Compaction string `json:"compaction,omitempty"`
	// MadeMS is when it was recorded, Unix milliseconds of the node's clock.
	MadeMS int64 `json:"made_ms"`
}

// loadSessions reads the sessions; called before the journal is shared.
func (j *journal) loadSessions(tx *bolt.Tx) error {
	return tx.Bucket([]byte(bucketSessions)).ForEach(func(k, v []byte) error {
		var e boundEntry
		if err := json.Unmarshal(v, &e); err != nil {
			return fmt.Errorf("read session record: %w", err)
		}
		j.sessions[string(k)] = e
		return nil
	})
}

// sessionOf returns the session that a turn enters: what this node made for the
// generation, else what the hub named. What is to be deleted is what the hub named,
// if it did.
func (j *journal) sessionOf(s *spec) string {
	if s.Kind == api.TurnDelete && s.Binding.Session != "" {
		return s.Binding.Session
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.sessions[sessionKey(s)]; ok {
		return e.Session
	}
	return s.Binding.Session
}

// sessionMade records which session belongs to a turn's lane.
func (j *journal) sessionMade(s *spec, id string) error {
	if s.Kind == api.TurnDigest || s.Kind == api.TurnDelete {
		return fmt.Errorf("a %s turn makes no session", s.Kind)
	}
	key := sessionKey(s)
	return j.changeSessions(key, j.entry(s, id), j.oldestSession(key))
}

// entry is a session of a turn's lane.
func (j *journal) entry(s *spec, id string) *boundEntry {
	return &boundEntry{
		BoundSession: api.BoundSession{
			Controller: s.Controller.ID, Workspace: s.Workspace,
			Generation: s.Binding.Generation, Session: id,
		},
		Compaction: s.Binding.Compaction,
		MadeMS:     j.nowMS(),
	}
}

// sessionUsed records, once, that a turn used the session that the hub named for its
// generation, so that a hub that lost its bindings hears of it. The mark of a
// compaction that made it goes.
func (j *journal) sessionUsed(s *spec, id string) error {
	if id == "" || id != s.Binding.Session {
		return nil
	}
	key := sessionKey(s)
	j.mu.Lock()
	_, known := j.sessions[key]
	j.mu.Unlock()
	if known {
		return nil
	}
	gone := j.entriesOf(func(e *boundEntry) bool { return e.Session == id && e.Compaction != "" })
	return j.changeSessions(key, j.entry(s, id), append(gone, j.oldestSession(key)...))
}

// sessionDeleted forgets a session.
func (j *journal) sessionDeleted(id string) error {
	if id == "" {
		return nil
	}
	return j.changeSessions("", nil, j.entriesOf(func(e *boundEntry) bool { return e.Session == id }))
}

// entriesOf lists the keys of the sessions that match.
func (j *journal) entriesOf(match func(*boundEntry) bool) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var keys []string
	for k, e := range j.sessions {
		if match(&e) {
			keys = append(keys, k)
		}
	}
	return keys
}

// changeSessions sets the session of a key, unless e is nil, and forgets those of
// others. It returns when that is on disk.
func (j *journal) changeSessions(key string, e *boundEntry, gone []string) error {
	if e == nil && len(gone) == 0 {
		return nil
	}
	var data []byte
	if e != nil {
		var err error
		if data, err = json.Marshal(e); err != nil {
			return err
		}
	}
	err := j.update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucketSessions))
		for _, k := range gone {
			if err := b.Delete([]byte(k)); err != nil {
				return err
			}
		}
		if e == nil {
			return nil
		}
		return b.Put([]byte(key), data)
	})
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, k := range gone {
		delete(j.sessions, k)
	}
	if e != nil {
		j.sessions[key] = *e
	}
	return nil
}

// oldestSession names the session to forget for a new one of a key, none when there
// is room.
func (j *journal) oldestSession(key string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.sessions[key]; ok || len(j.sessions) < maxSessions {
		return nil
	}
	oldest := ""
	for k, e := range j.sessions {
		if oldest == "" || e.MadeMS < j.sessions[oldest].MadeMS {
			oldest = k
		}
	}
	return []string{oldest}
}

// bound lists the newest sessions for a hello, newest first. What a compaction made
// is none of them: only the hub knows whether it came to its end.
func (j *journal) bound(limit int) []api.BoundSession {
	j.mu.Lock()
	entries := make([]boundEntry, 0, len(j.sessions))
	for _, e := range j.sessions {
		if e.Compaction == "" {
			entries = append(entries, e)
		}
	}
	j.mu.Unlock()
	slices.SortFunc(entries, func(a, b boundEntry) int {
		return cmp.Or(cmp.Compare(b.MadeMS, a.MadeMS), cmp.Compare(a.Session, b.Session))
	})
	out := make([]api.BoundSession, 0, min(limit, len(entries)))
	for _, e := range entries[:min(limit, len(entries))] {
		out = append(out, e.BoundSession)
	}
	return out
}

// needed lists the sessions of tasks that are not over.
func (j *journal) needed() ([]string, error) {
	var specs []spec
	var onDisk []uint64
	asked := map[api.Triple]bool{}
	j.mu.Lock()
	for task, hist := range j.index {
		for i, kn := range hist {
			if kn.state == api.StateQuestion {
				asked[api.Triple{Task: task, Attempt: kn.attempt, Turn: kn.turn}] = true
			}
			switch last := i == len(hist)-1; {
			case ended(kn.state) && !(last && kn.state == api.StateQuestion):
			case kn.rec != nil:
				specs = append(specs, kn.rec.spec)
			default:
				onDisk = append(onDisk, kn.arrival)
			}
		}
	}
	j.mu.Unlock()
	err := j.view(func(tx *bolt.Tx) error {
		for _, arrival := range onDisk {
			r, err := decodeRow(tx.Bucket([]byte(bucketTasks)).Get(arrivalKey(arrival)))
			if err != nil {
				return err
			}
			specs = append(specs, r.spec)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read which sessions are needed: %w", err)
	}
	var sessions []string
	for i := range specs {
		if asked[specs[i].Triple] && operation(specs[i].Kind) {
			continue // the hub answers nothing that an operation asks: it is over
		}
		// The hub's may be one that was replaced here; it is kept then, too.
		for _, id := range []string{j.sessionOf(&specs[i]), specs[i].Binding.Session} {
			if id != "" {
				sessions = append(sessions, id)
			}
		}
	}
	return sessions, nil
}
