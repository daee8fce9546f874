package engine

import "opencode-mesh/protocol/opencomms"

// Caller is who asks for something.
type Caller struct {
	// Session is the session id of a member.
	Session string
	// Operator is the person at the machine, who is no member and may do
	// everything. Session is ignored.
	Operator bool
}

// NewMember is who comes into a channel.
type NewMember struct {
	Session     string
	Role        string
	RolePrompt  string
	Host        string                          // "" is generic
	Surface     string                          // "" is opencomms.SurfaceCLI
	Mode        string                          // delivery mode; "" is opencomms.ModePush
	HostSession string                          // for correlation only
	Policy      *opencomms.StalePolicy          // nil is a window of opencomms.DefaultStaleAfter
	Endpoint    *opencomms.EndpointCapabilities // nil is what the mode can do
}

// CreateRequest asks for a new channel.
type CreateRequest struct {
	Channel   string
	ProjectID string
	Worktree  string
	// Numbers: zero is the default of the rule, everything else is brought into
	// its range.
	MaxMembers int
	RateLimit  int // sends a minute
	MaxHops    int
	Budgets    opencomms.Budgets // zero is no bound
	// Member is the first one; nil, for an operator, is an empty channel.
	Member *NewMember
}

// JoinRequest asks to become a member.
type JoinRequest struct {
	Channel   string
	ProjectID string
	Worktree  string
	Member    NewMember
}

// SendRequest asks to send a message.
type SendRequest struct {
	Channel string
	Content string
	Type    string // "" is opencomms.TypeManual
	ReplyTo string // message id
	// To is a session id or a role. Without it and Broadcast, the single other
	// member is meant.
	To        string
	Broadcast bool
	// Description becomes the channel's, if it has none.
	Description string
}

// RelayRequest hands over a message from another machine. From is a member of
// the channel that stands for its sender here, To the session id or role of the
// recipient. The ids come from where it was sent and are kept.
type RelayRequest struct {
	Channel     string
	From        string // session id
	To          string
	ID          string // message id
	Correlation string // "" mints one
	ReplyTo     string
	Root        string
	// Hops is the hop count over there; the larger one of it and of what the
	// parent in the file says counts.
	Hops    int
	Type    string
	Content string
	// CopyOf is the message id of the copy of the same broadcast that was accepted
	// here first: rate and duplicates were asked for that one. A recipient gets one copy.
	CopyOf string
}

// KickRequest names the member to remove, by session id or role.
type KickRequest struct {
	Channel       string
	TargetSession string
	TargetRole    string
}

// UpdateRoleRequest replaces a role prompt.
type UpdateRoleRequest struct {
	Channel    string
	RolePrompt string
	// Member is a session id or role, for an operator. Everybody else changes
	// their own.
	Member string
}

// SaveRequest asks to move a channel out of the state into an archive.
type SaveRequest struct {
	Channel string
	Summary string // cut at opencomms.MaxSummary
}

// ResumeSessionRequest asks for a new channel that continues an archived one.
type ResumeSessionRequest struct {
	NewName   string // "" is the archived name, or the next free one of its ladder
	ProjectID string
	Worktree  string
}

// Actions of the timer.
const (
	TimerStart      = "start"
	TimerStop       = "stop"
	TimerSwitch     = "switch"
	TimerReset      = "reset"
	TimerStatus     = "status"
	TimerSetLimit   = "set_limit"
	TimerClearLimit = "clear_limit"
)

// TimerRequest asks for one action of the chess clock.
type TimerRequest struct {
	Channel string
	Action  string
	Limit   int64  // milliseconds, for TimerSetLimit
	To      string // session id or role, for TimerSwitch and TimerSetLimit
}

// DrainOptions narrow a drain.
type DrainOptions struct {
	// Only says which messages may be taken; nil is all. What it refuses stays
	// queued where it is.
	Only func(*opencomms.Envelope) bool
}
