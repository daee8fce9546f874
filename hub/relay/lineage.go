package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// token is the lineage token of a task's attempt: the task's id under a key that
// only hubs have, so nothing needs to be stored to check it (semantics 20).
func (r *Relay) token(t store.Task) string {
	m := hmac.New(sha256.New, r.cfg.Secret)
	m.Write([]byte("lineage\x00" + t.ID))
	return t.ID + ":" + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// lineage derives the hops above a new task: from the token of the task that it
// is dispatched from or, for a node without one, from what the node runs now.
func (r *Relay) lineage(by Author) (via []string, parent string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case by.Token != "":
		id, _, _ := strings.Cut(by.Token, ":")
		if !hmac.Equal([]byte(r.token(store.Task{ID: id})), []byte(by.Token)) {
			return nil, "", api.Errorf(api.CodeForbidden, "the task token is not one of this hub's")
		}
		e := r.tasks[id]
		if e == nil {
			return nil, "", api.Errorf(api.CodeForbidden, "the task that this is dispatched from is over")
		}
		via, parent = below(e.task), id
	case by.Identity.Role == api.RoleNode:
		for _, e := range r.tasks {
			t := e.task
			if t.Target.ID != by.Identity.ID || t.State != api.StateRunning && t.State != api.StateAccepted && t.State != api.StateOffered {
				continue
			}
			if v := below(t); len(v) > len(via) || parent == "" {
				via, parent = v, t.ID
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
