package store

import "opencode-mesh/protocol/api"

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
	Limit  int // 1 … api.MaxPage
}

// AuditPage is one page; Next is the Before or After of the next one, 0 at the end. A
// page may have fewer entries than there is room for, even none, and be followed by
// another.
type AuditPage struct {
	Entries []api.AuditEntry
	Next    uint64
}
