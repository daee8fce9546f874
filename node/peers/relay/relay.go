package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/api"
	words "opencode-mesh/protocol/peers"
)

// Service is the node's part in the registry of this machine, a peers.Service.
type Service interface {
	Publish(ctx context.Context, e peers.Endpoint) error
	Withdraw(ctx context.Context, id string) error
	Settle(ctx context.Context, id string, k spool.Key, status string) error
	Agents(ctx context.Context) ([]registry.Peer, error)
	Changes() <-chan struct{}
	Records(id string, states ...spool.State) ([]spool.Record, error)
	DeskID() string
	DeskNamed() (bool, error)
	Post(ctx context.Context, to registry.Peer, m words.Message) (receipt string, err error)
}

// Hub is the way to the hub while a tunnel is open; a refusal is an *api.Error.
type Hub interface {
	Call(ctx context.Context, method, path string, in, out any) error
}

// Config of a Relay. Box, Service, Node and Shows are required.
type Config struct {
	// Box is the node's mail box, where the journals are too.
	Box     *mail.Box
	Service Service
	// Node is the name of this node.
	Node string
	// Shows says whether agents of this machine with a name are shown to other nodes.
	Shows func(name string) bool
	// Sole is the file that says which node carries for this registry and hub, see Sole;
	// "": this one.
	Sole string
	// Options are the original's, for what receivers take; the zero value: its defaults.
	Options words.Options
	// MaxOutstanding, PostRate, Patience, AckGrace, RetryMin and RetryMax are those of
	// limits.go; 0: as they are there.
	MaxOutstanding, PostRate               int
	Patience, AckGrace, RetryMin, RetryMax time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger
}

// Relay carries messages between machines. Its methods are safe for concurrent use.
type Relay struct {
	cfg   Config
	log   *slog.Logger
	woken chan struct{} // holds a token while there is something to look at
	work  sync.WaitGroup

	publishing chan struct{} // holds a token while publish runs
	// The following fields are of the goroutine of Run.
	forgot   time.Time
	recalled bool

	mu      sync.Mutex // guards the following fields
	talk    *talk      // nil: no hub is attached
	parked  bool
	park    context.CancelFunc
	rows    map[string]row  // as they are published
	there   map[string]bool // the nodes that the hub had last; nil: not heard yet
	said    map[string]bool
	dues    map[string]due // by key of a brought message
	posting map[string]bool
	paced   map[string][]time.Time // by sender and receiver, of the last minute
}

// New makes the relay of a box and registers it there as what knows the mail of peers.
// Call it before the box is attached to a hub, and then Run.
func New(cfg Config) *Relay {
	for v, value := range map[*time.Duration]time.Duration{
		&cfg.Patience: Patience, &cfg.AckGrace: AckGrace, &cfg.RetryMin: DefaultRetryMin, &cfg.RetryMax: DefaultRetryMax,
	} {
		if *v == 0 {
			*v = value
		}
	}
	for v, value := range map[*int]int{&cfg.MaxOutstanding: MaxOutstanding, &cfg.PostRate: PostRate} {
		if *v == 0 {
			*v = value
		}
	}
	if cfg.Options == (words.Options{}) {
		cfg.Options = words.DefaultOptions()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Relay{
		cfg: cfg, log: cfg.Log, woken: make(chan struct{}, 1), publishing: make(chan struct{}, 1), rows: map[string]row{},
		said: map[string]bool{}, dues: map[string]due{}, posting: map[string]bool{}, paced: map[string][]time.Time{},
	}
	cfg.Box.Handle(kindPrefix, r)
	return r
}

// Run carries messages until ctx ends; then it returns when nothing of it runs any more.
// What it published stays until the service ends. It is called once, while the service
// runs.
func (r *Relay) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	if r.parked {
		cancel()
	}
	r.park = cancel
	r.mu.Unlock()
	for ctx.Err() == nil {
		changed := r.cfg.Service.Changes()
		next, err := r.pass(ctx)
		if err != nil && ctx.Err() == nil {
			r.log.Error("peers: something between nodes waits for the next attempt", "err", err)
			next = min(next, r.cfg.RetryMin)
		}
		t := time.NewTimer(next)
		select {
		case <-r.woken:
		case <-changed:
			r.returned()
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	r.mu.Lock()
	r.parked = true // no hub is attached any more
	r.mu.Unlock()
	r.Detach()
	r.work.Wait()
}

// Park ends the work for good: another process has the name of this node. It does not
// wait.
func (r *Relay) Park() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parked = true
	if r.park != nil {
		r.park()
	}
}

// wake has everything looked at.
func (r *Relay) wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// returned has messages tried soon whose receiver may be back: the registry has changed.
func (r *Relay) returned() {
	soon := r.cfg.Now().Add(r.cfg.RetryMin)
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, d := range r.dues {
		if d.at.After(soon) && d.attempt > 1 {
			r.dues[k] = due{at: soon, attempt: 1}
		}
	}
}

// pass looks at everything once. Rows come before anything is posted.
func (r *Relay) pass(ctx context.Context) (time.Duration, error) {
	out, in, err := r.open()
	if err != nil {
		return look, err
	}
	err = errors.Join(r.show(ctx, out, in), r.giveUp(ctx, out), r.settle(ctx), r.forget(ctx))
	return r.post(ctx, in), err
}

func (r *Relay) nowMS() int64 { return r.cfg.Now().UnixMilli() }

// forget drops what ended long ago, once an hour.
func (r *Relay) forget(ctx context.Context) error {
	now := r.cfg.Now()
	if now.Sub(r.forgot) < time.Hour {
		return nil
	}
	before := r.nowMS() - keepDone.Milliseconds()
	for more := true; more; {
		err := r.cfg.Box.Update(ctx, func(tx *mail.Tx) (err error) {
			more, err = prune(tx, before)
			return err
		})
		if err != nil {
			return err
		}
	}
	r.forgot = now
	return nil
}

// Messages are those that were carried and brought, the newest first, at most limit.
func (r *Relay) Messages(limit int) (list []api.PeerMessage, more bool, err error) {
	err = r.view(func(tx *mail.Tx) error {
		out, a := all(tx, bucketCarried, func(*carried) bool { return true })
		in, b := all(tx, bucketBrought, func(*brought) bool { return true })
		list = make([]api.PeerMessage, 0, len(out)+len(in))
		for _, c := range out {
			list = append(list, c.view())
		}
		for _, b := range in {
			list = append(list, b.view())
		}
		return errors.Join(a, b)
	})
	newestFirst(list)
	if len(list) > limit {
		return list[:limit], true, err
	}
	return list, false, err
}

// NodeOf is the node of an agent that is published here for it, "" for any other.
func (r *Relay) NodeOf(endpoint string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.rows[endpoint]; ok {
		return w.p.node
	}
	return ""
}
