package opencomms

import "time"

// Bounds of a state file, as the program that shares it has them.
const (
	// MaxContent is the length of a message in UTF-16 units.
	MaxContent = 100_000
	// MaxMessages is how many messages of all channels stay in the file: the newest
	// by timestamp, whatever their status.
	MaxMessages = 2_000
	// MaxErrors is the length of the file's list of errors.
	MaxErrors = 200
	// MaxCorrelations is how many correlations a channel lists as begun.
	MaxCorrelations = 500
	// MaxDepth is how deep objects and arrays of a file may be nested.
	MaxDepth = 200
)

// Bounds of a channel.
const (
	// MaxChannelName is the length of a channel's name in characters.
	MaxChannelName = 64
	// MaxDescription is the length of a channel's description in UTF-16 units.
	MaxDescription = 140
	// MaxRole is the length of a role in characters.
	MaxRole = 32
	// MaxMemberID is the length of a member id that an operator chooses.
	MaxMemberID = 64
	// DefaultMembers is the max_members of a channel that does not say.
	DefaultMembers = 8
	// MinMembers and MaxMembers bound it; a file with more members in one channel
	// than MaxMembers is invalid.
	MinMembers = 2
	// MaxMembers is the most members of one channel.
	MaxMembers = 32
	// DefaultHops is the max_hops of a channel that does not say: a message and four
	// replies, each to the one before.
	DefaultHops = 4
	// MinMaxHops and MaxMaxHops bound it.
	MinMaxHops = 1
	// MaxMaxHops is the longest chain of replies.
	MaxMaxHops = 50
	// DefaultRate is the rate_limit of a channel that does not say, in sends per
	// RateWindow by all members together.
	DefaultRate = 20
	// MinRate and MaxRate bound it.
	MinRate = 1
	// MaxRate is the most sends that a channel takes in one RateWindow.
	MaxRate = 1_000
	// MinBudgetMessages and MaxBudgetMessages bound max_delivered_messages.
	MinBudgetMessages = 1
	// MaxBudgetMessages is the largest budget of messages.
	MaxBudgetMessages = 1_000_000
	// MaxAttempts is how often a message is drained before it has failed.
	MaxAttempts = 5
	// MaxResumes is how many names a channel tries when it is resumed: its own, and
	// that with -r2 to -r9.
	MaxResumes = 9
)

// Times of a channel. The file has them in milliseconds.
const (
	// RateWindow is the fixed window in which sends are counted.
	RateWindow = time.Minute
	// DefaultCooldown is the pause between two deliveries to one recipient.
	DefaultCooldown = time.Second
	// DefaultStale is how long a content counts as sent already, and how long mail
	// for a member that is pushed stays fresh.
	DefaultStale = 5 * time.Minute
	// MinBudgetRuntime and MaxBudgetRuntime bound max_runtime_ms.
	MinBudgetRuntime = time.Minute
	// MaxBudgetRuntime is the longest life that a budget gives a channel.
	MaxBudgetRuntime = 30 * 24 * time.Hour
)

// Bounds of an archive.
const (
	// MaxSummary is the length of an archive's summary in UTF-16 units.
	MaxSummary = 2_000
	// MaxFinalNote is how much of the last message an archive repeats, in UTF-16
	// units.
	MaxFinalNote = 400
)
