package peers

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// MaxAckTargets is how many senders are told of final acknowledgements at once; the others
// have their turn at the next occasion.
const MaxAckTargets = 16

// acks tells senders what became of their messages: soon after it is known and at every
// sweep, until they answered. It holds up nothing else, and a sender that is slow holds up
// only what is for it.
type acks struct {
	s    *Service
	wake chan struct{}

	mu    sync.Mutex      // guards the following fields
	dirty map[string]bool // endpoints that may owe something
	busy  map[string]bool // senders that are being told
	// missed are endpoints that owe something to a sender that was busy.
	missed map[string]bool
}

func newAcks(s *Service) *acks {
	return &acks{
		s: s, wake: make(chan struct{}, 1),
		dirty: map[string]bool{}, busy: map[string]bool{}, missed: map[string]bool{},
	}
}

// note has an endpoint looked at soon.
func (a *acks) note(id string) {
	a.mu.Lock()
	a.dirty[id] = true
	a.mu.Unlock()
	a.nudge()
}

func (a *acks) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *acks) run(ctx context.Context) {
	tick := time.NewTicker(a.s.cfg.Options.Sweep)
	defer tick.Stop()
	for {
		var ids []string
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
			ids = a.takeDirty()
		case <-tick.C:
			// Those that are gone are noted by traces.
			ids = append(a.s.Endpoints(), a.takeDirty()...)
			slices.Sort(ids)
			ids = slices.Compact(ids)
		}
		if err := a.round(ctx, ids); err != nil && ctx.Err() == nil {
			a.s.cfg.Log.Error("peers: final acknowledgements wait for the next attempt", "err", err)
		}
	}
}

func (a *acks) takeDirty() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	ids := slices.Sorted(maps.Keys(a.dirty))
	clear(a.dirty)
	return ids
}

// owed is one final acknowledgement.
type owed struct {
	endpoint string
	key      spool.Key
	ack      peers.Ack
}

// round begins to tell every sender that is there what some endpoints owe it.
func (a *acks) round(ctx context.Context, ids []string) error {
	targets := map[string][]owed{}
	var unread []error // an endpoint whose spool is locked holds up no other
	for _, id := range ids {
		list, err := a.s.spool.Queue(id).Acks(ctx)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		for _, r := range list {
			if ack, ok := r.FinalAck(); ok {
				targets[ack.FromEndpoint] = append(targets[ack.FromEndpoint], owed{id, r.Key(), ack})
			}
		}
	}
	if len(targets) == 0 {
		return errors.Join(unread...)
	}
	agents, err := a.s.reader.Read(ctx)
	if err != nil {
		return errors.Join(append(unread, err)...)
	}
	for _, p := range agents {
		if list := targets[p.EndpointID]; len(list) > 0 && p.Alive && !p.V1 && a.begin(p.EndpointID, list) {
			a.s.work.Go(func() { a.tell(ctx, p, list) })
		}
	}
	return errors.Join(unread...)
}

// begin marks a sender as being told. If it cannot begin now, that is remembered.
func (a *acks) begin(target string, list []owed) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy[target] || len(a.busy) >= MaxAckTargets {
		for _, o := range list {
			a.missed[o.endpoint] = true
		}
		return false
	}
	a.busy[target] = true
	return true
}

// tell gives a sender what it is owed, in order, until it does not answer as it should.
func (a *acks) tell(ctx context.Context, to registry.Peer, list []owed) {
	took := map[string][]spool.Key{}
	at, err := placeOf(to.Entry)
	for _, o := range list {
		if err != nil {
			break
		}
		var code int
		code, _, err = call(ctx, at, http.MethodPost, "/ack", o.ack.Encode())
		if err == nil && code != http.StatusAccepted {
			err = &StatusError{Code: code}
		}
		if err == nil {
			took[o.endpoint] = append(took[o.endpoint], o.key)
		}
	}
	if err != nil {
		a.s.cfg.Log.Debug("peers: a sender did not take its final acknowledgement, it is tried again", "endpoint", to.EndpointID, "err", err)
	}
	for id, keys := range took {
		// Also when ctx ended: what was taken need not come again.
		noted, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTimeout)
		if err := a.s.spool.Queue(id).AckSent(noted, keys...); err != nil {
			a.s.cfg.Log.Error("peers: a final acknowledgement was taken and will come again", "endpoint", id, "err", err)
		}
		cancel()
	}
	a.mu.Lock()
	delete(a.busy, to.EndpointID)
	again := len(a.missed) > 0
	maps.Copy(a.dirty, a.missed)
	clear(a.missed)
	a.mu.Unlock()
	if again {
		a.nudge()
	}
}
