package tasks

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

// Defaults and limits.
const (
	// DefaultMaxParallel is how many turns run at once.
	DefaultMaxParallel = 4
	// DefaultProgressDelay is how long a turn runs before the hub is told that it
	// does: what ends sooner costs no request beside its result.
	DefaultProgressDelay = 100 * time.Millisecond
	// DefaultProgressInterval is the least time between two notes of one turn.
	DefaultProgressInterval = time.Second
	// DefaultRetryMin and DefaultRetryMax bound the back-off between two attempts to
	// deliver a result over a link that is up.
	DefaultRetryMin = 250 * time.Millisecond
	DefaultRetryMax = 30 * time.Second
	// DefaultDeliveries is how many results travel at once. The hub takes 64 streams
	// per tunnel.
	DefaultDeliveries = 16
	// DefaultMaintenance is the interval of upkeep: pruning, the limit of held tasks,
	// results that could not be journaled.
	DefaultMaintenance = time.Minute
	// DefaultMaxOpen is how many triples may be open (not settled, or settled and not
	// acknowledged) before offers are refused with CodeNodeFull. The hub keeps at most
	// api.MaxOpenPerTarget tasks open per node.
	DefaultMaxOpen = 2 * api.MaxOpenPerTarget
	// DefaultAbortLimit is how long an agent may take to end a turn whose context
	// ended, before the turn is settled without it.
	DefaultAbortLimit = time.Minute

	// DefaultMarkDelay is how long a change that nobody waits for may wait for a commit
	// that is waited for.
	DefaultMarkDelay = 100 * time.Millisecond
	// DefaultStartDelay is how long what an earlier process left waits for the hub's
	// first word after the hello.
	DefaultStartDelay = 2 * time.Second

	// maxTextMemory bounds the texts of waiting tasks that are kept in memory, in
	// bytes; those beyond are read from the journal when their turn starts.
	maxTextMemory = 32 << 20
	// flushLimit bounds the wait for the hub to take the last results when the runner
	// stops; the journal keeps them for the next start.
	flushLimit = 2 * time.Second
	// deliveryTimeout bounds one attempt to deliver a result.
	deliveryTimeout = 30 * time.Second
	// progressTimeout bounds one progress request.
	progressTimeout = 5 * time.Second
	// maxNote is the longest note, tool call or line sent with a progress, in bytes.
	maxNote = 300
)

// Config says what to run and how. Path, HubID and Agent are required.
type Config struct {
	// Path is the journal's file, <data>/journal-<hub id>.db.
	Path string
	// HubID is the hub that the journal belongs to.
	HubID string
	// Agent executes the turns. Its owner starts and stops it.
	Agent agent.Agent
	// Workspaces are the directories offered for work; the first is the default.
	// None: turns run without a directory, and an offer that names one fails with
	// bad_workspace.
	Workspaces []agent.Workspace
	// Policy is api.PolicyAccept, PolicyHold or PolicyRefuse; "": accept.
	Policy string
	// AcceptFrom lists the controllers that may dispatch here, by name or identity
	// id; empty: all.
	AcceptFrom []string
	// MaxParallel is how many turns run at once; 0: DefaultMaxParallel.
	MaxParallel int
	// DefaultDeadline is how long an attempt may run whose dispatch named no
	// deadline; 0: api.DefaultDeadline.
	DefaultDeadline time.Duration

	// HeldLimit is how long a held task waits; 0: api.HeldLimit.
	HeldLimit time.Duration
	// Window and WindowCount say how long settled ids are remembered: what is older
	// than Window and not among the newest WindowCount may be forgotten. 0:
	// api.JournalWindow and api.JournalWindowCount.
	Window      time.Duration
	WindowCount int
	// MaxOpen bounds the open triples; 0: DefaultMaxOpen.
	MaxOpen int
	// ProgressDelay and ProgressInterval pace what the hub is told about running
	// turns; 0: the defaults.
	ProgressDelay, ProgressInterval time.Duration
	// RetryMin and RetryMax bound the back-off of deliveries; 0: the defaults.
	RetryMin, RetryMax time.Duration
	// Deliveries is how many results travel at once; 0: DefaultDeliveries.
	Deliveries int
	// Maintenance is the interval of upkeep; 0: DefaultMaintenance.
	Maintenance time.Duration
	// AbortLimit is how long an agent may take to end a turn whose context ended; 0:
	// DefaultAbortLimit.
	AbortLimit time.Duration

	// StartDelay is how long what an earlier process left waits, after Start, for the
	// hub to withdraw what must not start any more; 0: DefaultStartDelay.
	StartDelay time.Duration

	// MarkDelay is how long the mark that a turn runs, or that a result was
	// acknowledged, waits for another commit to share; 0: DefaultMarkDelay.
	MarkDelay time.Duration
	// BallastBytes is the size of the file beside the journal that is given up when
	// the disk is full; 0: boltdb.DefaultBallastBytes, -1: none.
	BallastBytes int64

	// Now is the clock for stamps and ages; nil: time.Now.
	Now func() time.Time
	// Delivered is called, without locks, after each result that the hub acknowledged. It
	// must not block; several calls come at once. nil: not called.
	Delivered func()
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger
	// Faults makes commits fail in tests; nil: none.
	Faults boltdb.FaultInjector
}

// JournalPath is where the journal for a hub lives in a data directory.
func JournalPath(dataDir, hubID string) string {
	return filepath.Join(dataDir, "journal-"+hubID+".db")
}

// withDefaults returns a checked copy with all zero values filled in.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Path == "":
		return c, errors.New("tasks config: path is empty")
	case c.HubID == "":
		return c, errors.New("tasks config: hub id is empty")
	case c.Agent == nil:
		return c, errors.New("tasks config: no agent")
	case c.MaxParallel < 0, c.WindowCount < 0, c.MaxOpen < 0, c.Deliveries < 0:
		return c, errors.New("tasks config: a count is negative")
	}
	for _, d := range []time.Duration{
		c.DefaultDeadline, c.HeldLimit, c.Window, c.ProgressDelay, c.ProgressInterval,
		c.RetryMin, c.RetryMax, c.Maintenance, c.AbortLimit, c.StartDelay, c.MarkDelay,
	} {
		if d < 0 {
			return c, errors.New("tasks config: a duration is negative")
		}
	}
	names := make(map[string]bool, len(c.Workspaces))
	for _, w := range c.Workspaces {
		switch {
		case w.Name == "" || names[w.Name]:
			return c, fmt.Errorf("tasks config: workspace name %q is empty or used twice", w.Name)
		case !filepath.IsAbs(w.Dir):
			return c, fmt.Errorf("tasks config: workspace %s: %q is not an absolute path", w.Name, w.Dir)
		}
		names[w.Name] = true
	}
	setDefault(&c.Policy, api.PolicyAccept)
	if c.Policy != api.PolicyAccept && c.Policy != api.PolicyHold && c.Policy != api.PolicyRefuse {
		return c, fmt.Errorf("tasks config: policy %q is not accept, hold or refuse", c.Policy)
	}
	setDefault(&c.MaxParallel, DefaultMaxParallel)
	setDefault(&c.DefaultDeadline, api.DefaultDeadline)
	setDefault(&c.HeldLimit, api.HeldLimit)
	setDefault(&c.Window, api.JournalWindow)
	setDefault(&c.WindowCount, api.JournalWindowCount)
	setDefault(&c.MaxOpen, DefaultMaxOpen)
	setDefault(&c.ProgressDelay, DefaultProgressDelay)
	setDefault(&c.ProgressInterval, DefaultProgressInterval)
	setDefault(&c.RetryMin, DefaultRetryMin)
	setDefault(&c.RetryMax, max(DefaultRetryMax, c.RetryMin))
	setDefault(&c.Deliveries, DefaultDeliveries)
	setDefault(&c.Maintenance, DefaultMaintenance)
	setDefault(&c.AbortLimit, DefaultAbortLimit)
	setDefault(&c.StartDelay, DefaultStartDelay)
	setDefault(&c.MarkDelay, DefaultMarkDelay)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// setDefault replaces a zero value.
func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
