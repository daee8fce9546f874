package api

import "time"

// Limits shared by hub, node and controller. This is the one place that names
// them; docs/limits.md lists them for operators.
const (
	// MaxText is the largest task text, in bytes: with the header an envelope stays
	// within 1 MiB.
	MaxText = 1<<20 - 4<<10
	// MaxAnswer is the largest answer to a question, in bytes.
	MaxAnswer = 64 << 10
	// MaxDispatch is the largest product of text size and targets of one dispatch,
	// in bytes: every task keeps its own copy.
	MaxDispatch = 64 << 20
	// MaxReply is the largest reply kept with a result, in bytes; the rest of a
	// longer one becomes an artifact (semantics 14).
	MaxReply = 1 << 20
	// MaxBody is the largest request body of the public interface, in bytes.
	// JSON escaping may double a text, and a task has a few fields beside it.
	MaxBody = 1 << 20
	// MaxTunnelBody is the largest body inside the tunnel, in bytes: a reply of
	// MaxReply after JSON escaping, with its record.
	MaxTunnelBody = 8 << 20
	// MaxSummary is how many characters of a summary are displayed.
	MaxSummary = 300
	// MaxTargets is how many targets one dispatch may name.
	MaxTargets = 5000
	// MaxArtifacts is how many artifact paths a result may name.
	MaxArtifacts = 256
	// MaxFlags is how many flags a result may carry.
	MaxFlags = 32
	// MaxOpenPerTarget is how many unsettled tasks may wait for one target; the
	// next is refused with CodeQueueFull.
	MaxOpenPerTarget = 10000
	// MaxOpenPerController is how many unsettled tasks one controller may have;
	// the next is refused with CodeQueueFull.
	MaxOpenPerController = 20000
	// MaxDigest is the largest digest that is kept, in bytes; a larger one is
	// malformed.
	MaxDigest = 64 << 10
	// MaxResultsHandedOver is how many result blocks a new session gets beside the
	// digest (mesh-protocol.md §9).
	MaxResultsHandedOver = 2
	// MaxAutoAnswer is the longest Dispatch.AutoAnswer, in bytes.
	MaxAutoAnswer = 256
	// MaxHashed is how many bytes of a result's artifacts are hashed at the task's
	// end; files beyond have no hash.
	MaxHashed = 1 << 30
	// MaxHops is how many hops a dispatch from inside a task may take
	// (semantics 20).
	MaxHops = 4
	// MaxReconcile is how many task ids one reconcile request may name.
	MaxReconcile = 500
	// MaxSessionsInHello is how many bound sessions a node reports in its hello.
	MaxSessionsInHello = 2000
	// MaxResumes is how often a stored but unanswered message may be resumed per
	// attempt (semantics 3).
	MaxResumes = 2
	// MaxWait bounds one long poll; the client asks again.
	MaxWait = 60 * time.Second
	// MaxRequestsPerNode is how many requests to the services of one node may be
	// under way at once, open streams included; the next is refused with
	// CodeUnavailable.
	MaxRequestsPerNode = 1024
	// MaxRewritten is the largest answer of a service that the hub rewrites to keep
	// keys back, in bytes; a larger one is refused.
	MaxRewritten = 16 << 20
	// HandoverLimit is how long the URL of a Handover is good.
	HandoverLimit = time.Minute
	// MaxPage is the largest page of a listing.
	MaxPage = 1000
	// MaxListedFills is how many fills of each session a listing may have.
	MaxListedFills = 64
	// MaxQuery is the longest text that tasks are searched for, in bytes.
	MaxQuery = 256
	// DefaultPage is the page size when the request names none.
	DefaultPage = 100
)

// Defaults of the bounds that every state has (semantics 8).
const (
	// DefaultTTL is how long a task may wait for its first start.
	DefaultTTL = 24 * time.Hour
	// MaxTTL is the longest TTL that may be asked for.
	MaxTTL = 30 * 24 * time.Hour
	// DefaultDeadline is how long an agent may run one attempt.
	DefaultDeadline = 2 * time.Hour
	// MaxDeadline is the longest deadline that may be asked for.
	MaxDeadline = 7 * 24 * time.Hour
	// DefaultQuestionTimeout is how long a question waits for an answer.
	DefaultQuestionTimeout = 30 * time.Minute
	// HeldLimit is how long a held task waits for its operator.
	HeldLimit = 24 * time.Hour
	// UnknownLimit is how long an unknown task waits for its node's return.
	UnknownLimit = 7 * 24 * time.Hour
	// JournalWindow is how long a node remembers a settled id at least; see also
	// JournalWindowCount (design.md).
	JournalWindow = 24 * time.Hour
	// JournalWindowCount is how many settled ids a node remembers at least.
	JournalWindowCount = 10000
)

// Heartbeat defaults; the hub tells its nodes what to use.
const (
	// DefaultHeartbeat is the interval between pings on an idle tunnel.
	DefaultHeartbeat = 15 * time.Second
	// DefaultHeartbeatTimeout is how long a ping may stay unanswered.
	DefaultHeartbeatTimeout = 15 * time.Second
)
