package relay

import (
	"time"

	"opencode-mesh/protocol/api"
)

// Limits and defaults.
const (
	// MaxOutstanding is how many messages may be on their way to one node, or from one
	// node, without a final acknowledgement.
	MaxOutstanding = 500
	// MaxProxies is how many agents of other nodes are published.
	MaxProxies = 512
	// RosterAge is how long the agents of another node stay published while the hub
	// cannot be reached.
	RosterAge = 24 * time.Hour
	// AbsentAge is how long they stay when the hub does not have that node.
	AbsentAge = 2 * time.Minute
	// Patience is how long a message is tried, and its acknowledgement awaited.
	Patience = 24 * time.Hour
	// GiveUp is how long the other node may take to say what became of a message: as long
	// as its mail may be on its way, its receiver may be tried, and the answer be on its
	// way.
	GiveUp = 2*api.MailAge + Patience
	// AckGrace is how long the acknowledgement is awaited that belongs to a final receipt,
	// before the receipt counts itself.
	AckGrace = 45 * time.Second
	// PostRate is how many requests a minute a receiver gets from one sender, below the 20
	// that it takes.
	PostRate = 15
	// DefaultRetryMin and DefaultRetryMax bound the wait before a message is posted again.
	DefaultRetryMin = 2 * time.Second
	DefaultRetryMax = 2 * time.Minute
	// maxPosting is how many receivers are posted to at once.
	maxPosting = 16
	// lingering is how long a proxy stays addressable for what has ended, so that its
	// acknowledgements are told after a restart, too.
	lingering = time.Hour
	// pollPause is the least time between two questions for the lists of others, and
	// between two of ours.
	pollPause = 500 * time.Millisecond
	// sayTimeout bounds one telling of the own list.
	sayTimeout = 30 * time.Second
	// maxText is the largest text that is read out of a mail, in bytes; receivers have
	// bounds of their own below.
	maxText = 1 << 19
	// maxWord is the longest name, directory or id of a sender, in bytes.
	maxWord = 1 << 10
	// keepDone is how long an ended message is remembered for people.
	keepDone = 24 * time.Hour
	// pruneStep is how many of them are forgotten in one commit.
	pruneStep = 200
	// preview is how much of a text is kept for people, in bytes.
	preview = 1 << 10
	// look is the longest time between two looks at everything.
	look = 15 * time.Second
)
