// Package mail carries mails from node to node. It keeps what it took until the
// sender has the receipt, delivers in the order of the lanes, and gives back what
// cannot be delivered. It knows nothing of HTTP, and nothing of what is in a mail.
//
// A mail is addressed to a name and comes from a name: who has the name when it is
// delivered gets it, after a `join --replace` too, unless the sender said which identity
// it means: then it is returned. A name that nobody has any more
// takes nothing with it: what waits for it is returned, what it sent is dropped.
//
// A mail costs one commit that is waited for, when it is taken. That it was delivered,
// and that its sender knows, is written later with others and waited for by nobody: a
// crash that forgets it makes the hub deliver again, which the receiver passes over, or
// tell the receipt again, which the sender passes over. Only that a mail was returned
// is on disk before its sender hears it: it must not be delivered after that.
package mail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

const (
	// CallTimeout bounds one delivery, or the telling of receipts, to a node.
	CallTimeout = 30 * time.Second
	// MaxInFlight is how many mails may be under way to one node at once, each of
	// another lane.
	MaxInFlight = 8
	// SweepEvery is how often ages are looked at.
	SweepEvery = 30 * time.Second
	// WriteDelay is how long what nobody waits for is collected before it is written.
	WriteDelay = 100 * time.Millisecond

	// writeBatch is how many changes one commit takes.
	writeBatch = 256
	// retryMin and retryMax bound the pauses after a call to a node that failed for a
	// passing reason.
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second
	// maxMessage is what is kept of a node's words, in bytes.
	maxMessage = 300
)

// Node is a connected node as the office calls it.
type Node interface {
	// Mail delivers a mail; nil means that it is on the node's disk.
	Mail(ctx context.Context, m api.Mail) error
	// MailReceipts tells a node what became of its mails.
	MailReceipts(ctx context.Context, rs api.MailReceipts) (api.MailSettled, error)
}

// Clock is the hub's clock.
type Clock interface {
	Now() time.Time
	MayExpire() bool
}

// Observer is told what happens, for metrics. Calls must not block; several come at
// once.
type Observer interface {
	// MailTaken counts a mail that is on disk, MailEnded one that was delivered or
	// returned.
	MailTaken()
	MailEnded(state string)
}

// Config is what an office needs.
type Config struct {
	Store    store.Store
	Clock    Clock
	Observer Observer
	Log      *slog.Logger
	// RetryMin is the first pause after a call to a node that failed; 0: retryMin.
	RetryMin time.Duration
	// MaxPerTarget, MaxBytesPerTarget, MaxPerPair, MaxBytesPerPair, MaxPerSender and
	// MaxBytes bound what waits; 0: the limits of package api.
	MaxPerTarget, MaxPerPair, MaxPerSender       int
	MaxBytesPerTarget, MaxBytesPerPair, MaxBytes int64
}

func (c *Config) complete() error {
	switch {
	case c.Store == nil || c.Clock == nil || c.Observer == nil || c.Log == nil:
		return errors.New("mail: store, clock, observer and log are needed")
	case c.RetryMin < 0 || c.MaxPerTarget < 0 || c.MaxPerSender < 0 || c.MaxBytesPerTarget < 0 || c.MaxBytes < 0 || c.MaxPerPair < 0 || c.MaxBytesPerPair < 0:
		return errors.New("mail: a limit is negative")
	}
	setDefault(&c.RetryMin, retryMin)
	setDefault(&c.MaxPerTarget, api.MaxMailPerTarget)
	setDefault(&c.MaxPerPair, api.MaxMailPerPair)
	setDefault(&c.MaxBytesPerPair, api.MaxMailBytesPerPair)
	setDefault(&c.MaxPerSender, api.MaxMailPerSender)
	setDefault(&c.MaxBytesPerTarget, api.MaxMailBytesPerTarget)
	setDefault(&c.MaxBytes, api.MaxMailBytes)
	return nil
}

// setDefault replaces a zero value.
func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// key names a mail: ids are those of a sender's name.
type key struct{ from, id string }

// phase is how far a mail is. It only grows.
type phase int

const (
	queued phase = iota
	ended        // the sender is to be told
	gone         // nobody needs it; it leaves memory when that is on disk
)

// entry is a mail in memory, without its body.
type entry struct {
	key
	m     store.Mail
	phase phase
	// dirty is set while the entry waits to be written, saved once its end is on disk.
	dirty, saved bool
	flight       bool // a delivery is under way
	// tried is set once it may have arrived without that being known: an answer was
	// lost, or an earlier process of the hub had it.
	tried bool
}

// receipt is what the sender is told.
func (e *entry) receipt() api.MailReceipt {
	return api.MailReceipt{ID: e.id, State: e.m.State, Code: e.m.Code, Message: e.m.Message, MayHaveArrived: e.m.MayHaveArrived}
}

// party is a node by its name, as sender and as target.
type party struct {
	name string
	conn *conn // nil while it is away
	// lanes hold what waits for it; share counts that, shares by sender.
	lanes map[laneKey]*lane
	share
	shares map[string]share
	// sent counts its own mails that the office knows.
	sent     int
	receipts []*entry // what it is to be told
}

// share is how much waits for a party.
type share struct {
	queued int
	bytes  int64
}

// add counts n mails that weigh w together. Called with mu held.
func (p *party) add(from string, n int, w int64) {
	s := p.shares[from]
	s.queued, s.bytes = s.queued+n, s.bytes+w
	if p.shares[from] = s; s.queued == 0 {
		delete(p.shares, from)
	}
	p.queued, p.bytes = p.queued+n, p.bytes+w
}

// laneKey is a lane to a party.
type laneKey struct{ from, lane string }

type lane struct {
	laneKey
	waiting []*entry // by Seq
	busy    bool     // a worker delivers from it
}

// Office is the running post. Safe for concurrent use.
type Office struct {
	cfg Config
	st  store.Store
	log *slog.Logger

	mu      sync.Mutex // guards the following fields, entries, parties, lanes and connections
	mails   map[key]*entry
	taking  map[key]chan struct{} // mails on their way to the disk; closed when over
	parties map[string]*party
	bytes   int64
	waiting int // queued mails
	dirty   []*entry

	due chan struct{} // room for one: there is something to write
}

// New loads the mails of the store.
func New(ctx context.Context, cfg Config) (*Office, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	o := &Office{
		cfg: cfg, st: cfg.Store, log: cfg.Log,
		mails: map[key]*entry{}, taking: map[key]chan struct{}{}, parties: map[string]*party{},
		due: make(chan struct{}, 1),
	}
	err := cfg.Store.Mails(ctx, func(m store.Mail) error {
		e := &entry{key: key{m.From.Name, m.ID}, m: m, tried: true}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.reserve(&e.m, 1)
		o.mails[e.key] = e
		if m.State == api.MailQueued {
			o.place(e)
		} else {
			e.phase, e.saved = ended, true
			o.unreserveBody(&e.m)
			p := o.party(m.From.Name)
			p.receipts = append(p.receipts, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load mail: %w", err)
	}
	return o, nil
}

// Counts are how many mails wait to be delivered, and how many receipts for their
// senders.
func (o *Office) Counts() (waiting, receipts int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waiting, len(o.mails) - o.waiting
}

// party finds or makes a party. Called with mu held.
func (o *Office) party(name string) *party {
	p := o.parties[name]
	if p == nil {
		p = &party{name: name, lanes: map[laneKey]*lane{}, shares: map[string]share{}}
		o.parties[name] = p
	}
	return p
}

// forget drops a party that has nothing. Called with mu held.
func (o *Office) forget(p *party) {
	if p.conn == nil && p.queued == 0 && p.sent == 0 && len(p.lanes) == 0 && o.parties[p.name] == p {
		delete(o.parties, p.name)
	}
}

// weight is what a mail counts.
func weight(m *store.Mail) int64 { return int64(m.Size) + api.MailOverhead }

// reserve counts a queued mail, or with -1 one that is not to be. Called with mu held.
func (o *Office) reserve(m *store.Mail, d int) {
	to, from := o.party(m.To), o.party(m.From.Name)
	to.add(m.From.Name, d, int64(d)*weight(m))
	from.sent += d
	o.bytes += int64(d) * weight(m)
	o.forget(to)
	o.forget(from)
}

// unreserveBody counts a mail that is not queued any more. Called with mu held.
func (o *Office) unreserveBody(m *store.Mail) {
	to := o.party(m.To)
	to.add(m.From.Name, -1, -weight(m))
	o.bytes -= int64(m.Size)
	o.forget(to)
}

// place puts a queued mail into its lane. Called with mu held.
func (o *Office) place(e *entry) {
	p, k := o.party(e.m.To), laneKey{e.from, e.m.Lane}
	ln := p.lanes[k]
	if ln == nil {
		ln = &lane{laneKey: k}
		p.lanes[k] = ln
	}
	ln.waiting = append(ln.waiting, e)
	o.waiting++
	o.wake(p, ln)
}
