package opencomms

import "encoding/json"

// Lifecycles of a channel. Any other in a file is read as active.
const (
	LifecycleActive  = "active"
	LifecycleSaved   = "saved"
	LifecycleDeleted = "deleted"
)

// Channel is where members talk.
type Channel struct {
	ID        string // chn_ and 32 hex digits
	Name      string // its key in the file
	ProjectID string
	Worktree  string // compared as it is written
	CreatedAt int64
	Paused    bool
	PausedAt  int64
	// Members in the order in which they came: the first may remove others.
	Members     []*Member
	MaxMembers  int
	Rate        Rate
	Cooldowns   Ordered[int64] // cooldown_until, by recipient
	SeenContent Ordered[int64] // when a sender sent a content last, by SeenKey
	// ProcessedCorrelations are the newest MaxCorrelations that began here.
	ProcessedCorrelations []string
	MaxHops               int
	RateLimit             int   // sends a minute
	DeliveryCooldown      int64 // milliseconds
	StaleAfter            int64 // stale_event_ms: the window of duplicates, and of members without a policy
	Timer                 Timer
	Budgets               Budgets
	DeliveredTotal        int
	Lifecycle             string
	Description           string
	ParentID              string // parent_channel_id

	kept kept
	// timerRole is whose clock ran in a timer that knows roles only.
	timerRole string
}

// Rate counts the sends of a window of one minute.
type Rate struct {
	WindowStart int64
	Count       int
}

// Timer is the chess clock of a channel.
type Timer struct {
	Active       string // session id
	SegmentStart int64
	Elapsed      Ordered[int64] // milliseconds by session id
	Limit        int64
	LimitMember  string
}

// Budgets end a channel; zero is no bound.
type Budgets struct {
	MaxRuntime   int64 // milliseconds since the channel's creation
	MaxDelivered int   // messages
}

// Modes of delivery. One that is not listed behaves as unsupported.
const (
	ModePush          = "push"
	ModeSpawnPush     = "spawn_push"
	ModePull          = "pull"
	ModePoll          = "poll"
	ModeManagedThread = "managed_thread"
	ModeUnsupported   = "unsupported"
)

// Surfaces through which a member is reached.
const (
	SurfaceCLI       = "cli"
	SurfaceDesktop   = "desktop"
	SurfaceWeb       = "web"
	SurfaceAPI       = "api"
	SurfaceAppServer = "app-server"
	SurfaceMCP       = "mcp"
)

// Member is one agent in a channel.
type Member struct {
	SessionID string // the only key by which anything is routed
	Role      string
	// RolePrompt goes into the system prompt of the member's model: only a local
	// operator or the member itself may write it.
	RolePrompt    string
	JoinedAt      int64
	Stale         bool
	StaleAt       int64
	Host          string
	Surface       string
	Mode          string // delivery_mode
	HostSessionID string // for correlation, never for routing
	Policy        *StalePolicy
	Endpoint      *EndpointCapabilities
	Capabilities  json.RawMessage // of the host; passed on as they are

	kept kept
}

// Modes of a stale policy.
const (
	StaleWindow = "window"
	StaleNone   = "none"
)

// StalePolicy says when mail that waits for a member is too old. A member
// without one has the channel's window.
type StalePolicy struct {
	Mode   string
	Window int64 // milliseconds
}

// EndpointCapabilities say what a member's endpoint can do.
type EndpointCapabilities struct {
	Push, Pull, Resume, QueueWhileBusy, Interrupt bool
}
