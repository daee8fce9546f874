package store

import (
	"time"

	"opencode-mesh/protocol/api"
)

// Identity is who a name stands for (semantics 9): credentials, queues, bindings,
// tasks and allow lists key on its random ID, never on the name.
type Identity struct {
	Rev  Rev      `json:"-"`
	ID   string   `json:"id"`
	Name string   `json:"name"`
	Role api.Role `json:"role"`
	// Platform is the GOOS/GOARCH that it joined or logged in from last, for the
	// env line of envelopes; "" when unknown.
	Platform  string    `json:"platform,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// RetiredAt is set when the identity was revoked or replaced.
	RetiredAt time.Time `json:"retired_at,omitzero"`
	// ReplacedBy is the identity that took the name over; "" when revoked.
	ReplacedBy string `json:"replaced_by,omitempty"`
}

// Live reports whether the identity may still act.
func (i Identity) Live() bool { return i.RetiredAt.IsZero() }

// Credential is an issued secret; only the hash of it is stored.
type Credential struct {
	Rev        Rev       `json:"-"`
	ID         string    `json:"id"`
	IdentityID string    `json:"identity_id"`
	Name       string    `json:"name"` // of the identity, for listings
	Role       api.Role  `json:"role"`
	Hash       [32]byte  `json:"hash"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsed   time.Time `json:"last_used,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	// Browser says that a browser keeps it as a cookie: it is good there only, until
	// ExpiresAt.
	Browser   bool      `json:"browser,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// NodeRecord is what the hub keeps about a node between its connections.
type NodeRecord struct {
	Rev        Rev    `json:"-"`
	IdentityID string `json:"identity_id"`
	// JournalID and Epoch are the journal that the node has now and the highest
	// epoch that it proposed (semantics 5).
	JournalID string `json:"journal_id,omitempty"`
	Epoch     uint64 `json:"epoch,omitempty"`
	// Epochs are the highest epochs of former journals, so that a copied directory
	// is told from a new one. Bounded by MaxFormerJournals, oldest dropped.
	Epochs []JournalEpoch `json:"epochs,omitempty"`
	// Hello is the last hello, for listings while the node is away.
	Hello api.Hello `json:"hello"`
	// Agent is the last report of the agent's health.
	Agent     api.AgentStatus `json:"agent"`
	OnlineAt  time.Time       `json:"online_at,omitzero"`
	OfflineAt time.Time       `json:"offline_at,omitzero"`
	LastError string          `json:"last_error,omitempty"`
	// Superseded counts connections that took the name over.
	Superseded int      `json:"superseded,omitempty"`
	Alarms     []string `json:"alarms,omitempty"`
}

// JournalEpoch is the highest epoch seen of a journal.
type JournalEpoch struct {
	JournalID string `json:"journal_id"`
	Epoch     uint64 `json:"epoch"`
}

// MaxFormerJournals bounds NodeRecord.Epochs.
const MaxFormerJournals = 32
