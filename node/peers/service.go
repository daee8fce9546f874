package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"

	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// MaxEndpoints is how many endpoints a process publishes.
const MaxEndpoints = 1024

var (
	errStopping = errors.New("the node stops")
	// ErrNoEndpoint means that this process does not publish such an endpoint.
	ErrNoEndpoint = errors.New("this node publishes no such endpoint")
)

// Service publishes endpoints, takes messages for them, delivers, acknowledges and sends.
// All of its methods may be used by many at once, but nothing may wait for Withdraw of an
// endpoint inside its own Receiver.
type Service struct {
	cfg       Config
	host      string
	spool     *spool.Spool
	outbox    *outbox.Outbox
	publisher *registry.Publisher
	reader    *registry.Reader
	received  *rates // by us
	sent      *rates
	acks      *acks
	desk      *desk
	traces    *traces

	// base ends everything that runs here.
	base context.Context
	end  context.CancelFunc
	// files ends the publisher, which goes first.
	files    context.Context
	endFiles context.CancelFunc
	filesRun sync.WaitGroup
	// turn is held while endpoints come and go.
	turn chan struct{}
	work sync.WaitGroup // requests under way and all goroutines but the loops

	mu        sync.Mutex // guards the following fields
	stopping  bool
	listener  *listener // nil until the first Publish
	endpoints map[string]*endpoint
	changed   chan struct{}
}

// New makes a Service, which does nothing by itself. Once something was published, Run
// has to be called: it ends what that started.
func New(cfg Config) (*Service, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg:       cfg,
		outbox:    outbox.New(cfg.StorageDir, cfg.now),
		publisher: registry.NewPublisher(registry.PublisherConfig{StorageDir: cfg.StorageDir, Heartbeat: cfg.Options.Heartbeat, Now: cfg.now, Log: cfg.Log}),
		received:  newRates(cfg.Options.ReceiveRate, cfg.now),
		sent:      newRates(cfg.Options.SendRate, cfg.now),
		turn:      make(chan struct{}, 1),
		endpoints: map[string]*endpoint{},
		changed:   make(chan struct{}),
	}
	s.spool = spool.New(spool.Config{
		Dir: cfg.StorageDir, MaxQueue: cfg.Options.MaxQueue, MaxHeld: cfg.Options.MaxHeld, HeldExpiry: cfg.Options.HeldExpiry,
		Now: cfg.now, Log: cfg.Log,
	})
	s.reader = registry.NewReader(registry.ReaderConfig{StorageDir: cfg.StorageDir, Stale: cfg.Options.Stale, Now: cfg.now, Log: cfg.Log, Own: func(id string) bool {
		_, own := s.Own(id)
		return own
	}})
	s.host, _ = os.Hostname() // for people only
	s.acks = newAcks(s)
	s.desk = newDesk(s)
	s.traces = newTraces(s)
	s.base, s.end = context.WithCancel(context.Background())
	s.files, s.endFiles = context.WithCancel(context.Background())
	return s, nil
}

// Config is what the service was made with, defaults filled in.
func (s *Service) Config() Config { return s.cfg }

// Run watches the registry, delivers and acknowledges until ctx ends. Then it takes its
// endpoints out of the registry, answers what is under way, and returns once nothing
// runs any more. It is called once.
func (s *Service) Run(ctx context.Context) error {
	watch, endWatch := context.WithCancel(s.base)
	defer endWatch()
	changes := s.reader.Watch(watch)
	s.tellChanged() // whoever looked before the watch looks again
	s.work.Go(func() {
		for range changes {
			s.tellChanged()
		}
	})
	s.work.Go(func() { s.desk.run(s.base) })
	s.work.Go(func() { s.acks.run(s.base) })
	s.work.Go(func() { s.traces.run(s.base) })
	<-ctx.Done()
	s.stop()
	return nil
}

// stop ends in an order that loses nothing: nobody finds us, nobody reaches us, what is
// under way ends, and only then the loops.
func (s *Service) stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.turn <- struct{}{} // and nobody gets it any more
	s.endFiles()
	s.filesRun.Wait()
	s.mu.Lock()
	l := s.listener
	all := slices.Collect(maps.Values(s.endpoints))
	s.mu.Unlock()
	if l != nil {
		l.stop()
	}
	for _, e := range all {
		e.end()
	}
	for _, e := range all {
		<-e.ended
	}
	s.end()
	s.work.Wait()
}

// enter says that some work begins, which stop waits for; false: it must not begin.
// Whoever entered calls work.Done.
func (s *Service) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.work.Add(1)
	return true
}

// take waits for the turn to change endpoints.
func (s *Service) take(ctx context.Context) error {
	if !s.enter() {
		return errStopping
	}
	defer s.work.Done()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.base.Done():
		return errStopping
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		<-s.turn
		return errStopping
	}
	return nil
}

func (s *Service) give() { <-s.turn }

// Publish makes an endpoint known, or changes one. The first one opens socket and port
// and makes the directories. Once it returned, peers find the endpoint and what they send
// to it is kept. After an error a new endpoint is none, and one that was there is as it was.
func (s *Service) Publish(ctx context.Context, what Endpoint) error {
	if what.ID == "" || what.Session == "" || what.Directory == "" || what.Receiver == nil {
		return fmt.Errorf("publish the endpoint %q: id, session, directory and receiver are needed", what.ID)
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	l, err := s.listen(ctx)
	if err != nil {
		return err
	}
	e, old, err := s.put(what)
	if err != nil {
		return err
	}
	if what.Hidden {
		err = s.publisher.Withdraw(ctx, e.id)
	} else {
		err = s.publisher.Publish(ctx, s.entry(e, l))
	}
	switch {
	case err == nil:
	case old != nil:
		e.put(*old)
	default:
		s.remove(e)
	}
	return err
}

// listen opens socket and port, unless that was done. Its caller has the turn.
func (s *Service) listen(ctx context.Context) (*listener, error) {
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	if l != nil {
		return l, nil
	}
	l, err := listen(ctx, s.cfg.RuntimeDir, http.HandlerFunc(s.ServeHTTP), s.cfg.Log)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	s.filesRun.Go(func() {
		if err := s.publisher.Run(s.files); err != nil {
			s.cfg.Log.Error("peers: the registry is not kept up to date", "err", err)
		}
	})
	return l, nil
}

// put notes an endpoint and starts its loop if it is new; old is what it was if it is not.
// Its caller has the turn.
func (s *Service) put(what Endpoint) (e *endpoint, old *Endpoint, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.endpoints[what.ID]
	if e == nil {
		if len(s.endpoints) >= MaxEndpoints {
			return nil, nil, fmt.Errorf("publish the endpoint %s: this node publishes %d already, which is the most", what.ID, MaxEndpoints)
		}
		ctx, cancel := context.WithCancel(s.base)
		e = &endpoint{
			id: what.ID, process: peers.NewProcessID(), token: peers.NewToken(), queue: s.spool.Queue(what.ID),
			ready: make(chan struct{}), arrived: make(chan struct{}, 1), ended: make(chan struct{}), end: cancel,
			pending: map[spool.Key]bool{},
		}
		if what.StartedAt.IsZero() {
			what.StartedAt = s.cfg.now()
		}
		e.put(s.complete(what, e))
		s.endpoints[what.ID] = e
		go s.run(ctx, e) // ended by remove or stop, which wait
		return e, nil, nil
	}
	was := e.told()
	if what.StartedAt.IsZero() {
		what.StartedAt = was.StartedAt
	}
	e.put(s.complete(what, e))
	return e, &was, nil
}

// remove ends an endpoint and returns once nothing is taken for it and nothing delivered.
// Its caller has the turn.
func (s *Service) remove(e *endpoint) {
	s.mu.Lock()
	delete(s.endpoints, e.id)
	s.mu.Unlock()
	e.close()
	e.end()
	<-e.ended
}

// complete fills in what an Endpoint leaves open.
func (s *Service) complete(what Endpoint, e *endpoint) Endpoint {
	what.Name = cmp.Or(what.Name, peers.DefaultName(what.Directory, e.process))
	what.Status = cmp.Or(what.Status, peers.Idle)
	what.Policy = cmp.Or(what.Policy, s.cfg.Policy)
	what.Permissions = cmp.Or(what.Permissions, s.cfg.Permissions)
	return what
}

// entry is what the registry says of an endpoint.
func (s *Service) entry(e *endpoint, l *listener) peers.Entry {
	what := e.told()
	return peers.Entry{
		EndpointID: e.id, ProcessID: e.process, SessionID: what.Session, ParentSessionID: what.Parent, Title: what.Title,
		Name: what.Name, Hostname: s.host, Directory: what.Directory, Status: what.Status, Busy: what.Status != peers.Idle,
		Transport: l.transport(), InboxURL: l.url(), InboxToken: e.token,
		InboundPolicy: what.Policy, PeerPermissions: what.Permissions, PluginVersion: peers.MeshSoftware(s.cfg.Version),
		StartedAt: float64(what.StartedAt.UnixMilli()),
	}
}

// Withdraw takes an endpoint back and returns once nothing is taken for it and nothing
// delivered to it. What is in its spool stays there. One that is not published is none.
// After an error it is still there, to be withdrawn again.
func (s *Service) Withdraw(ctx context.Context, id string) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if err := s.publisher.Withdraw(ctx, id); err != nil {
		return err
	}
	if e := s.find(id); e != nil {
		s.remove(e)
		s.acks.note(id) // its senders still wait
	}
	return nil
}

// Abandon is Withdraw of an endpoint whose session is gone for ever: what was not
// delivered by then ends as dropped, which its senders are told. It may be called again
// after an error, and of an endpoint that is not published.
func (s *Service) Abandon(ctx context.Context, id string) error {
	if err := s.Withdraw(ctx, id); err != nil {
		return err
	}
	return s.DropAll(ctx, id)
}

// DropAll ends all that was not delivered to an endpoint as dropped.
func (s *Service) DropAll(ctx context.Context, id string) error {
	n, err := s.spool.Queue(id).DropAll(ctx)
	if err != nil {
		return fmt.Errorf("drop what waits for %s: %w", id, err)
	}
	if n > 0 {
		s.settled(id)
	}
	return nil
}

// Own is an endpoint that this process publishes, as it is published.
func (s *Service) Own(id string) (Endpoint, bool) {
	if e := s.find(id); e != nil {
		return e.told(), true
	}
	return Endpoint{}, false
}

func (s *Service) find(id string) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints[id]
}

// Endpoints are the ids of those that this process publishes, in order.
func (s *Service) Endpoints() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.endpoints))
}

// Agents reads the whole registry, own endpoints and dead peers included.
func (s *Service) Agents(ctx context.Context) ([]registry.Peer, error) { return s.reader.Read(ctx) }

// Changes is closed at the next change of what Agents returns, other than heartbeats. Call
// it before Agents.
func (s *Service) Changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Service) tellChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Settle says what became of a message that was delivered with ErrPending, with a final
// status. The endpoint need not be published any more; a message that is done stays as it
// is.
func (s *Service) Settle(ctx context.Context, id string, k spool.Key, status string) error {
	if !peers.Final(status) {
		return fmt.Errorf("settle the message %s: %q is no final status", k.ID, status)
	}
	if e := s.find(id); e != nil {
		return s.finish(ctx, e, k, status)
	}
	if err := s.spool.Queue(id).Finish(ctx, k, status); err != nil {
		return err
	}
	s.settled(id)
	return nil
}

// Records reads the messages of an endpoint that are in one of some states, or all.
func (s *Service) Records(id string, states ...spool.State) ([]spool.Record, error) {
	return s.spool.Queue(id).Records(states...)
}

// Outbox is what was sent from this machine; its records are good for reading.
func (s *Service) Outbox() *outbox.Outbox { return s.outbox }

// settled has the senders of an endpoint's finished messages told, and the desk look
// whether it is needed still.
func (s *Service) settled(id string) {
	s.acks.note(id)
	s.desk.look(id)
}
