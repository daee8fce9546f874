package peers

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The original's defaults of what its options set.
const (
	// DefaultHeartbeat is the time between two rewritings of an entry.
	DefaultHeartbeat = 10 * time.Second
	// DefaultStale is the age of a heartbeat up to which an entry counts as alive.
	DefaultStale = 30 * time.Second
	// DefaultMaxQueue is how many messages may be queued or in flight for an endpoint.
	DefaultMaxQueue = 50
	// DefaultMaxHeld is how many may be held.
	DefaultMaxHeld = 100
	// DefaultMaxMessageBytes bounds the text of a message, in bytes.
	DefaultMaxMessageBytes = 8192
	// DefaultHeldExpiry is how long a message is held.
	DefaultHeldExpiry = 5 * time.Minute
	// DefaultMaxMessageAge is how far the time of a message may be off when it comes.
	DefaultMaxMessageAge = 5 * time.Minute
	// DefaultSendRate is how many messages a minute a session sends to one target.
	DefaultSendRate = 10
	// DefaultReceiveRate is how many requests a minute are taken from one sender.
	DefaultReceiveRate = 20
	// DefaultSweep is the time between two looks at what is left to deliver, to expire
	// and to acknowledge.
	DefaultSweep = 15 * time.Second
)

// What the original has fixed.
const (
	// DuplicateWindow is how long after a message another one of the same sender with
	// the same text is a duplicate.
	DuplicateWindow = time.Second
	// DoneRetention is how long the record of a message that is done is kept.
	DoneRetention = 24 * time.Hour
	// DeliverTimeout bounds handing one message to its session.
	DeliverTimeout = 30 * time.Second
	// SendTimeout is after which silence the original gives a message up that it sent.
	SendTimeout = 3 * time.Second
	// JanitorAge is for how long a file of the registry must not have been written
	// before others may remove it.
	JanitorAge = 5 * time.Minute
)

// Options are the original's options that are numbers.
type Options struct {
	Heartbeat       time.Duration // heartbeatMs
	Stale           time.Duration // staleMs
	MaxQueue        int           // maxQueue
	MaxHeld         int           // maxHeld
	MaxMessageBytes int           // maxMessageBytes
	HeldExpiry      time.Duration // heldExpiryMs
	MaxMessageAge   time.Duration // maxMessageAgeMs
	SendRate        int           // sendRatePerMin
	ReceiveRate     int           // recvRatePerMin
	Sweep           time.Duration // sweepMs
}

// DefaultOptions are those of the original.
func DefaultOptions() Options {
	return Options{
		Heartbeat: DefaultHeartbeat, Stale: DefaultStale,
		MaxQueue: DefaultMaxQueue, MaxHeld: DefaultMaxHeld, MaxMessageBytes: DefaultMaxMessageBytes,
		HeldExpiry: DefaultHeldExpiry, MaxMessageAge: DefaultMaxMessageAge,
		SendRate: DefaultSendRate, ReceiveRate: DefaultReceiveRate, Sweep: DefaultSweep,
	}
}

// MaxBody is the size of a request's body, in bytes, above which a listener does not take
// it.
func (o Options) MaxBody() int { return 2*o.MaxMessageBytes + 4096 }

// option is one of Options under the original's name. Its values go from low to high, in
// milliseconds for times.
type option struct {
	name      string
	low, high int
	set       func(o *Options, n int)
}

func millis(field func(*Options) *time.Duration) func(*Options, int) {
	return func(o *Options, n int) { *field(o) = time.Duration(n) * time.Millisecond }
}

func count(field func(*Options) *int) func(*Options, int) {
	return func(o *Options, n int) { *field(o) = n }
}

// The bounds keep a heartbeat from being a busy loop, and times from being longer than
// what any of this is kept.
var options = []option{
	{"heartbeatMs", 100, 3_600_000, millis(func(o *Options) *time.Duration { return &o.Heartbeat })},
	{"staleMs", 100, 86_400_000, millis(func(o *Options) *time.Duration { return &o.Stale })},
	{"maxQueue", 1, 10_000, count(func(o *Options) *int { return &o.MaxQueue })},
	{"maxHeld", 0, 10_000, count(func(o *Options) *int { return &o.MaxHeld })},
	{"maxMessageBytes", 1, 1 << 20, count(func(o *Options) *int { return &o.MaxMessageBytes })},
	{"heldExpiryMs", 1000, math.MaxInt32, millis(func(o *Options) *time.Duration { return &o.HeldExpiry })},
	{"maxMessageAgeMs", 1000, math.MaxInt32, millis(func(o *Options) *time.Duration { return &o.MaxMessageAge })},
	{"sendRatePerMin", 1, 100_000, count(func(o *Options) *int { return &o.SendRate })},
	{"recvRatePerMin", 1, 100_000, count(func(o *Options) *int { return &o.ReceiveRate })},
	{"sweepMs", 100, 3_600_000, millis(func(o *Options) *time.Duration { return &o.Sweep })},
}

// OptionNames are the names that Set knows.
func OptionNames() []string {
	var names []string
	for _, opt := range options {
		names = append(names, opt.name)
	}
	return names
}

// Set takes the value of an option, under the original's name and in its unit, and says
// what would be right if it is not.
func (o *Options) Set(name, value string) error {
	at := slices.IndexFunc(options, func(opt option) bool { return opt.name == name })
	if at < 0 {
		return fmt.Errorf("there is no option %q: give one of %s", name, strings.Join(OptionNames(), ", "))
	}
	opt := options[at]
	n, err := strconv.Atoi(value)
	if err != nil || n < opt.low || n > opt.high {
		return fmt.Errorf("option %s is a whole number from %d to %d, not %q", name, opt.low, opt.high, value)
	}
	opt.set(o, n)
	return nil
}
