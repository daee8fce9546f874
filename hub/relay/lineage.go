package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// token is the lineage token of a task: its id under a key that only hubs have, so
// nothing needs to be stored to check it (semantics 20).
func (r *Relay) token(id string) string {
	m := hmac.New(sha256.New, r.cfg.Secret)
	m.Write([]byte("lineage\x00" + id))
	return id + ":" + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// lineage derives the hops above a new task: from the token of the task that it
// is dispatched from or, for a node without one, from what the node runs now, or
// may run for all that is known.
func (r *Relay) lineage(by Author) (via []string, parent string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[by.Identity.ID]
	switch {
	case r.gone[by.Identity.ID] != "":
		return nil, "", api.Errorf(api.CodeRevoked, "the credential of %s was revoked", by.Identity.Name)
	case by.Token != "":
		id, _, _ := strings.Cut(by.Token, ":")
		if !hmac.Equal([]byte(r.token(id)), []byte(by.Token)) {
			return nil, "", api.Errorf(api.CodeForbidden, "the task token is not one of this hub's")
		}
		e := r.tasks[id]
		switch {
		case e == nil:
			return nil, "", api.Errorf(api.CodeForbidden, "the task that this is dispatched from is over")
		case e.doomed || !e.task.CancelAt.IsZero() || r.gone[e.task.Controller.ID] != "":
			return nil, "", api.Errorf(api.CodeForbidden, "the task that this is dispatched from is being ended")
		}
		via, parent = below(e.task), id
	case by.Identity.Role == api.RoleNode && q != nil:
		for _, e := range q.tasks {
			state := e.task.State
			if state == api.StateQuestion && e.task.Asking != "" {
				state = api.StateRunning // what it does beside its question
			}
			switch state {
			case api.StateRunning, api.StateAccepted, api.StateOffered, api.StateUnknown:
				if v := below(e.task); len(v) > len(via) || parent == "" {
					via, parent = v, e.task.ID
				}
			}
		}
	}
	if len(via) > api.MaxHops {
		return nil, "", api.Errorf(api.CodeHopLimit, "the task came through %d hops already (%s); dispatch it from where it began", len(via), strings.Join(via, ", "))
	}
	return via, parent, nil
}

// below is the lineage of what is dispatched from inside t.
func below(t store.Task) []string {
	return append(append([]string(nil), t.Via...), t.Controller.Name)
}
