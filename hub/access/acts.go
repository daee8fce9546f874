package access

import (
	"fmt"
	"net/netip"
	"sync"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
)

// maxActs is how many everyday acts of one identity (dispatches, answers and the
// like) enter the audit log one by one per TouchEvery; further ones are counted and
// enter it as one entry. A flood of one must not push out what others did.
const maxActs = 60

// acts counts the everyday acts since the last flush.
type acts struct {
	mu sync.Mutex         // guards the following field
	by map[string]*actsOf // by identity id
}

// actsOf are those of one identity.
type actsOf struct {
	name   string
	n      int
	beyond map[string]int // how many had no entry, by action
}

// Acting makes the audit entry of an everyday act, for who stores it together with
// what it is about; nil if its identity did so much lately that the act is to be
// counted only. Call Acted when it is done.
func (a *Access) Acting(by Principal, peer netip.Addr, action, object, detail string) *api.AuditEntry {
	a.acts.mu.Lock()
	full := a.acts.by[by.Identity.ID] != nil && a.acts.by[by.Identity.ID].n >= maxActs
	a.acts.mu.Unlock()
	if full {
		return nil
	}
	e := a.entry(entryOf(by, peer, action, object, detail))
	return &e
}

// Acted counts an everyday act; e is what Acting returned for it.
func (a *Access) Acted(by Principal, action string, e *api.AuditEntry) {
	a.acts.mu.Lock()
	defer a.acts.mu.Unlock()
	of := a.acts.by[by.Identity.ID]
	if of == nil {
		of = &actsOf{name: by.Identity.Name, beyond: map[string]int{}}
		a.acts.by[by.Identity.ID] = of
	}
	of.n++
	if e == nil {
		of.beyond[action]++
	}
}

// Act is an everyday act whose entry nobody waits for.
func (a *Access) Act(by Principal, peer netip.Addr, action, object, detail string) {
	e := a.Acting(by, peer, action, object, detail)
	a.Acted(by, action, e)
	if e != nil {
		a.later(*e)
	}
}

// flushActs writes what was only counted, and begins anew.
func (a *Access) flushActs() {
	a.acts.mu.Lock()
	all := a.acts.by
	a.acts.by = map[string]*actsOf{}
	a.acts.mu.Unlock()
	var sums []api.AuditEntry
	for _, of := range all {
		for action, n := range of.beyond {
			sums = append(sums, a.entry(api.AuditEntry{Action: action, Actor: of.name, Detail: fmt.Sprintf("%d more within a minute", n)}))
		}
	}
	if len(sums) > 0 {
		a.later(sums...)
	}
}

// later appends entries without waiting; that they could not be is logged, as in
// audit.
func (a *Access) later(list ...api.AuditEntry) {
	if err := a.st.AppendActsLater(list...); err != nil {
		a.cfg.Log.Error("audit entries were lost", "action", list[0].Action, "object", list[0].Object, "entries", len(list), "err", err)
	}
}

// entry stamps and cleans an entry.
func (a *Access) entry(e api.AuditEntry) api.AuditEntry {
	e.At = a.cfg.Now()
	for _, text := range []*string{&e.Actor, &e.Object, &e.Detail} {
		*text = shown.Line(*text, maxAuditText)
	}
	return e
}

func entryOf(by Principal, peer netip.Addr, action, object, detail string) api.AuditEntry {
	e := api.AuditEntry{Action: action, Actor: by.Identity.Name, Object: object, Detail: detail}
	if peer.IsValid() {
		e.Peer = peer.String()
	}
	return e
}
