package api

import "time"

// Health of a node's agent, apart from the state of its link.
const (
	HealthUnknown     = "unknown"
	HealthHealthy     = "healthy"
	HealthUnreachable = "unreachable"
	HealthStarting    = "starting"
	HealthAuthFailed  = "auth_failed"
	HealthUnhealthy   = "unhealthy"
)

// The policies of a node (design.md).
const (
	PolicyAccept = "accept"
	PolicyHold   = "hold"
	PolicyRefuse = "refuse"
)

// AgentStatus is a node's agent as its node sees it.
type AgentStatus struct {
	Kind    string `json:"kind"` // "opencode", "command"
	Health  string `json:"health"`
	Version string `json:"version"`
	// Detail says why the agent is not healthy.
	Detail string `json:"detail,omitempty"`
	// Memory is the resident size of a supervised server, in bytes.
	Memory int64 `json:"memory_bytes,omitempty"`
	// Warnings are settings that the node could not enforce on a server that it
	// did not start (semantics 3).
	Warnings []string `json:"warnings,omitempty"`
}

// Node is a node as controllers see it; the fields up to Queued are the
// contract of cli.md.
type Node struct {
	Name       string      `json:"name"`
	State      string      `json:"state"` // "online" or "offline"
	Since      time.Time   `json:"since"`
	Platform   string      `json:"platform"`
	Agent      AgentStatus `json:"agent"`
	CtxPercent *int        `json:"ctx_percent"`
	Running    int         `json:"running"`
	Queued     int         `json:"queued"`

	// CtxFills is how the session of CtxPercent filled up, in per cent, oldest first;
	// only in a listing that was asked for it.
	CtxFills []int `json:"ctx_fills,omitempty"`

	Version    string   `json:"version,omitempty"`
	Policy     string   `json:"policy,omitempty"`
	Workspaces []string `json:"workspaces,omitempty"`
	Services   []string `json:"services,omitempty"`
	// Sessions says that the agent keeps sessions, so that a dispatch may ask for a new
	// one.
	Sessions bool `json:"sessions,omitempty"`
	// LastError is why the last connection ended, at LastErrorAt; "" when it was closed
	// on purpose.
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
	// Superseded counts connections that took this node's name over.
	Superseded int `json:"superseded,omitempty"`
	// Alarms are conditions that an operator should look at, such as a forked
	// journal.
	Alarms []string `json:"alarms,omitempty"`
}

// The link states of a Node.
const (
	NodeOnline  = "online"
	NodeOffline = "offline"
)

// NodeList is the answer to GET /v1/nodes.
type NodeList struct {
	Nodes []Node `json:"nodes"`
}

// Login is the body of POST /v1/login and POST /v1/join. It travels over TLS (or
// a loopback) only; the password is in no other place.
type Login struct {
	Name     string `json:"name"`
	Password string `json:"password"`
	// Operator asks for the role operator (login only).
	Operator bool `json:"operator,omitempty"`
	// Replace revokes the identity that holds the name now (join only).
	Replace bool `json:"replace,omitempty"`
	// Platform is GOOS/GOARCH of the caller.
	Platform string `json:"platform,omitempty"`
}

// Issued is the answer to a Login: a credential, shown this once.
type Issued struct {
	HubID      string `json:"hub_id"`
	IdentityID string `json:"identity_id"`
	Name       string `json:"name"`
	Role       Role   `json:"role"`
	Credential string `json:"credential"`
	// CredentialID names the credential in listings and revocations.
	CredentialID string `json:"credential_id"`
}

// Credential is an issued credential in listings; the secret is not part of it.
type Credential struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Role      Role       `json:"role"`
	CreatedAt time.Time  `json:"created_at"`
	LastUsed  *time.Time `json:"last_used_at"`
	RevokedAt *time.Time `json:"revoked_at"`
	// Browser says that it is a browser's session, which ends at ExpiresAt.
	Browser   bool       `json:"browser,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// CredentialList is the answer to GET /v1/credentials.
type CredentialList struct {
	Credentials []Credential `json:"credentials"`
}

// AuditEntry is one line of the audit log.
type AuditEntry struct {
	Seq    uint64    `json:"seq"`
	At     time.Time `json:"at"`
	Action string    `json:"action"`
	Actor  string    `json:"actor,omitempty"`
	Peer   string    `json:"peer,omitempty"` // address without port
	Object string    `json:"object,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// AuditPage is the answer to GET /v1/audit, oldest first, or newest first with before.
// Next is the cursor of the next page, 0 at the end; a page may be empty before that.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	Next    uint64       `json:"next,omitempty"`
}
