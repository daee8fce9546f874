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
// generation, else what the hub named.
func (j *journal) sessionOf(s *spec) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.sessions[sessionKey(s.Controller.ID, s.Workspace, s.Binding.Generation)]; ok {
		return e.Session
	}
	return s.Binding.Session
}

// sessionMade records which session belongs to a turn's lane.
func (j *journal) sessionMade(s *spec, id string) error {
	key := sessionKey(s.Controller.ID, s.Workspace, s.Binding.Generation)
	e := boundEntry{
		BoundSession: api.BoundSession{
			Controller: s.Controller.ID, Workspace: s.Workspace,
			Generation: s.Binding.Generation, Session: id,
		},
		MadeMS: j.nowMS(),
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	oldest := j.oldestSession(key)
	err = j.update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucketSessions))
		if oldest != "" {
			if err := b.Delete([]byte(oldest)); err != nil {
				return err
			}
		}
		return b.Put([]byte(key), data)
	})
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if oldest != "" {
		delete(j.sessions, oldest)
	}
	j.sessions[key] = e
	return nil
}

// oldestSession names the session to forget for a new one, "" when there is room.
func (j *journal) oldestSession(key string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.sessions[key]; ok || len(j.sessions) < maxSessions {
		return ""
	}
	oldest := ""
	for k, e := range j.sessions {
		if oldest == "" || e.MadeMS < j.sessions[oldest].MadeMS {
			oldest = k
		}
	}
	return oldest
}

// bound lists the newest sessions for a hello, newest first.
func (j *journal) bound(limit int) []api.BoundSession {
	j.mu.Lock()
	entries := make([]boundEntry, 0, len(j.sessions))
	for _, e := range j.sessions {
		entries = append(entries, e)
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
