package mail

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store/boltdb"
)

// Defaults and limits.
const (
	// DefaultMaxPerTarget is how many mails may wait in a box for one node; Send
	// refuses the next with ErrFull.
	DefaultMaxPerTarget = 5000
	// DefaultMaxBytes is how many bytes of mail a box keeps in all.
	DefaultMaxBytes = 1 << 30
	// DefaultRetryMin and DefaultRetryMax bound the back-off between two attempts to
	// send a mail over a link that is up.
	DefaultRetryMin = 250 * time.Millisecond
	DefaultRetryMax = 30 * time.Second

	// maxTargets is how many mails to different targets travel at once.
	maxTargets = 8
	// callTimeout bounds one request to the hub.
	callTimeout = 30 * time.Second
	// ballastBytes is what is given up on a full disk, so that receipts can still take
	// mails out.
	ballastBytes = 1 << 20
)

// Config says where a box is. Path and HubID are required.
type Config struct {
	// Path is the box's file, <data>/mail-<hub id>.db; see Path.
	Path string
	// HubID is the hub that the box belongs to; nothing crosses to another.
	HubID string
	// MaxPerTarget and MaxBytes bound what waits; 0: the defaults.
	MaxPerTarget int
	MaxBytes     int64
	// RetryMin and RetryMax bound the back-off; 0: the defaults.
	RetryMin, RetryMax time.Duration
	// BallastBytes is as in boltdb.Config; 0: 1 MiB.
	BallastBytes int64
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger
	// Faults makes commits fail in tests; nil: none.
	Faults boltdb.FaultInjector
}

// Path is where the box for a hub lives in a data directory.
func Path(dataDir, hubID string) string {
	return filepath.Join(dataDir, "mail-"+hubID+".db")
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Path == "" || c.HubID == "":
		return c, errors.New("mail config: path or hub id is empty")
	case c.MaxPerTarget < 0 || c.MaxBytes < 0 || c.RetryMin < 0 || c.RetryMax < 0:
		return c, errors.New("mail config: a limit is negative")
	}
	setDefault(&c.MaxPerTarget, DefaultMaxPerTarget)
	setDefault(&c.MaxBytes, DefaultMaxBytes)
	setDefault(&c.RetryMin, DefaultRetryMin)
	setDefault(&c.RetryMax, max(DefaultRetryMax, c.RetryMin))
	setDefault(&c.BallastBytes, ballastBytes)
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

// Tx is a transaction of the box's file, as bbolt has it: applications need no import
// of their own.
type Tx = bolt.Tx

// Handler is an application that sends and receives mail of some kinds. Its methods
// with a transaction run inside a commit of the box: they may run more than once, must
// have no other effect than what they write, and must not call the Box but for Send.
type Handler interface {
	// Receive takes a mail in: what it writes is committed together with the memory
	// that this mail is here. It is committed once per mail. An error rolls back, and
	// then *Unsupported returns the mail to its sender, and so does an *api.Error that
	// no repeat would change, such as api.CodeRefused; after any other error the hub
	// tries again later, and what follows in the lane waits.
	Receive(tx *Tx, m api.Mail) error
	// Received is called once after that commit, on a goroutine of the request: a good
	// moment to wake up. After a crash in between nobody calls it: an application looks
	// at what it has when it starts.
	Received(m api.Mail)
	// Settled takes the receipt of a mail that was sent here; r.State is
	// api.MailDelivered or api.MailReturned. It is committed once per mail, together with
	// the end of the box's own record. After an error it is tried again later.
	Settled(tx *Tx, r api.MailReceipt, m api.Mail) error
}

// Unsupported is the error of a Handler that does not know what a mail is.
type Unsupported struct{ Reason string }

func (e *Unsupported) Error() string { return "not supported: " + e.Reason }

// ErrFull means that as many mails wait for a target, or in all, as may. The sender
// has to wait.
var ErrFull = errors.New("mail: the outbox is full")

// Hub is the way to the hub while a tunnel is open; a refusal is an *api.Error.
type Hub interface {
	Call(ctx context.Context, method, path string, in, out any) error
}

// Box is an open post box. Its methods are safe for concurrent use unless they say
// otherwise.
type Box struct {
	cfg Config
	log *slog.Logger
	db  *boltdb.DB

	mu       sync.Mutex // guards the following fields
	handlers []registration
	out      map[string]*letter
	lines    map[string]*line
	lanes    map[laneKey]int // outstanding
	session  *session        // nil while there is no hub
	closed   bool
}

type registration struct {
	prefix string
	Handler
}

// laneKey names a lane of this node's.
type laneKey struct{ to, lane string }

const (
	boxKind   = "node mail"
	boxSchema = 1
)

// Open opens the box or makes a new one when no file is there. A file that cannot be
// read or belongs to another hub is an error: it is never made anew silently.
func Open(cfg Config) (*Box, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	db, err := boltdb.Open(boltdb.Config{
		Path: cfg.Path, Kind: boxKind, Schema: boxSchema, Buckets: buckets, LogBuckets: logBuckets,
		BallastBytes: cfg.BallastBytes, Log: cfg.Log, Faults: cfg.Faults,
	})
	if err != nil {
		return nil, fmt.Errorf("open the mail box: %w", err)
	}
	b := &Box{
		cfg: cfg, log: cfg.Log, db: db,
		out: make(map[string]*letter), lines: make(map[string]*line), lanes: make(map[laneKey]int),
	}
	if err := b.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("mail box %s: %w", cfg.Path, err), db.Close())
	}
	return b, nil
}

// Handle registers the application for all kinds that begin with prefix, such as
// "opencomms."; the longest prefix wins. Call it before the first Attach and before
// the Routes are served: what comes before is returned to its sender.
func (b *Box) Handle(prefix string, h Handler) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handlers = append(b.handlers, registration{prefix, h})
}

// handler finds who knows a kind; nil when nobody does.
func (b *Box) handler(kind string) Handler {
	b.mu.Lock()
	defer b.mu.Unlock()
	var best registration
	for _, r := range b.handlers {
		if strings.HasPrefix(kind, r.prefix) && (best.Handler == nil || len(r.prefix) > len(best.prefix)) {
			best = r
		}
	}
	return best.Handler
}

// Update runs fn in a commit and returns once it is on disk, under the rules of
// boltdb.DB.Update: fn may run more than once, must have no other effect, and must not
// call the Box but for Send. Applications keep their records in buckets of their own,
// "<application>.<name>", made with CreateBucketIfNotExists; the box's begin with
// "mail.".
func (b *Box) Update(ctx context.Context, fn func(tx *Tx) error) error {
	return b.db.Update(ctx, fn)
}

// View runs fn on what is on disk.
func (b *Box) View(fn func(tx *Tx) error) error { return b.db.View(fn) }

// Failed is closed when a sync failed: the process must end (semantics 21).
func (b *Box) Failed() <-chan struct{} { return b.db.Failed() }

// Outstanding is how many mails of a lane have no receipt yet.
func (b *Box) Outstanding(to, lane string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lanes[laneKey{to, lane}]
}

// Snapshot is how a box is, for people.
type Snapshot struct {
	// Waiting is how many mails have no receipt yet, Unsent how many of them the hub
	// has not taken, as far as is known.
	Waiting int `json:"waiting"`
	Unsent  int `json:"unsent"`
	// Disk is why the box's file cannot be written; "" when it can.
	Disk string `json:"disk,omitempty"`
}

// Snapshot looks at the box now.
func (b *Box) Snapshot() Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Snapshot{Waiting: len(b.out)}
	if err := b.db.Err(); err != nil {
		s.Disk = err.Error()
	}
	for _, l := range b.lines {
		s.Unsent += len(l.unsent)
	}
	return s
}

// Close detaches the box and closes its file. Idempotent.
func (b *Box) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.Detach()
	return b.db.Close()
}

// NewID makes the id of a new mail.
func NewID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return "mail_" + hex.EncodeToString(id[:])
}
