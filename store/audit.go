package store

import (
	"slices"
	"strings"

	"opencode-mesh/protocol/api"
)

// MaxAuditLook is how many entries of the audit log one page looks at: few may be
// of the action that is asked for.
const MaxAuditLook = 10000

// AuditQuery selects entries of the audit log; zero fields do not restrict.
type AuditQuery struct {
	// Newest lists the newest entry first, from below Before on. Otherwise it is the
	// oldest, from above After on.
	Newest bool
	Before uint64
	After  uint64
	Action string
	// Name is who acted, or is named in what an entry is about.
	Name  string
	Limit int // 1 … api.MaxPage
}

// Matches reports whether a query asks for an entry, wherever that stands.
func (q *AuditQuery) Matches(e api.AuditEntry) bool {
	if q.Action != "" && q.Action != e.Action {
		return false
	}
	return q.Name == "" || q.Name == e.Actor || slices.Contains(strings.FieldsFunc(e.Object, between), q.Name)
}

// between reports whether r cannot be part of a name.
func between(r rune) bool {
	return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
}

// AuditPage is one page; Next is the Before or After of the next one, 0 at the end. A
// page may have fewer entries than there is room for, even none, and be followed by
// another.
type AuditPage struct {
	Entries []api.AuditEntry
	Next    uint64
}
