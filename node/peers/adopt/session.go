package adopt

import (
	"context"
	"errors"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/spool"
	proto "opencode-mesh/protocol/peers"
)

// shown is what others see of a session.
type shown struct{ dir, parent, title, status string }

func shownOf(h agent.Hosted) shown { return shown{h.Dir, h.Parent, h.Title, h.Status} }

// session is an adopted one. It takes the messages of its endpoint.
type session struct {
	a        *Adopter
	id       string
	endpoint string

	// The following fields belong to the adopter's Run.
	shown   shown
	updated time.Time

	end  context.CancelFunc
	ctx  context.Context
	work sync.WaitGroup // the delivery that is under way

	mu      sync.Mutex // guards the following fields
	dir     string
	queue   []delivery // bounded by the spool, of which all of it is
	running bool
	stopped bool
}

// delivery is a message on its way.
type delivery struct {
	spool.Record
	// settled says that the message is known to be delivered: what is left is its turn.
	settled bool
}

func newSession(a *Adopter, id string) *session {
	s := &session{a: a, id: id, endpoint: proto.EndpointID(id)}
	s.ctx, s.end = context.WithCancel(a.ctx)
	return s
}

// stop ends what is under way and takes nothing more.
func (s *session) stop() {
	s.mu.Lock()
	s.stopped, s.queue = true, nil
	s.mu.Unlock()
	s.end()
	s.work.Wait()
}

func (s *session) setDir(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir = dir
}

func (s *session) delivering() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Deliver implements peers.Receiver. It never waits for the session: who knows how long
// that works.
func (s *session) Deliver(_ context.Context, r spool.Record) error {
	if !s.enqueue(delivery{Record: r}) {
		return peers.ErrLater
	}
	return peers.ErrPending
}

// Acked implements peers.Receiver. What a session sends is in the outbox.
func (s *session) Acked(context.Context, proto.Ack) (bool, error) { return false, nil }

// attend takes up the turn of a message that was delivered before this start. Only a
// server that the node did not start can still be at it.
func (s *session) attend(h agent.Hosted) {
	if h.Status == agent.StatusIdle {
		return
	}
	done, err := s.a.cfg.Service.Records(s.endpoint, spool.StateDone)
	if err != nil {
		return // the turn is the session's own then
	}
	for i := len(done) - 1; i >= 0; i-- {
		if ack, ok := done[i].FinalAck(); ok && ack.Status == proto.Delivered {
			s.enqueue(delivery{Record: done[i], settled: true})
			return
		}
	}
}

func (s *session) enqueue(d delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.queue = append(s.queue, d)
	if !s.running {
		s.running = true
		s.work.Go(s.deliverAll)
	}
	return true
}

// deliverAll delivers in order until nothing waits.
func (s *session) deliverAll() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 || s.stopped {
			s.running = false
			s.mu.Unlock()
			return
		}
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		s.deliver(next)
	}
}

// deliver brings one message into the session and sees its turn through, over as many
// attempts as it takes.
func (s *session) deliver(d delivery) {
	log := s.a.cfg.Log.With("session", s.id, "message", d.Message.ID)
	for attempt := 0; ; attempt++ {
		err := s.attempt(&d)
		switch {
		case s.ctx.Err() != nil:
			return // it is inflight still, or done
		case errors.Is(err, agent.ErrNoSession):
			s.a.signs.add(s.id) // what waits for it is settled then
			return
		case errors.Is(err, agent.ErrNotRun) && d.settled:
			log.Warn("peers: a message was delivered, but the session does not work on it", "err", err)
			return
		case err == nil:
			return
		case attempt == 0:
			log.Warn("peers: a message is not delivered yet, it is tried again", "err", err)
		}
		timer := time.NewTimer(s.a.cfg.Retry)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// attempt delivers a message unless the session has it already. nil says that it has, that
// its sender will be told, and that its turn is over.
func (s *session) attempt(d *delivery) error {
	v, err := s.a.agent.Visit(s.ctx, s.id)
	if err != nil {
		return err
	}
	defer v.Leave()
	p := s.prompt(d.Record)
	stored, err := v.Stored(s.ctx, p)
	if err != nil {
		return err
	}
	if !stored && d.settled {
		return nil // the session was turned back: that is its own matter
	}
	resumed := stored
	if !stored {
		if err := v.Idle(s.ctx); err != nil {
			return err
		}
		if err := v.Prompt(s.ctx, p); err != nil {
			if stored, failed := v.Stored(s.ctx, p); failed != nil || !stored {
				return err
			}
		}
	}
	if !d.settled {
		if err := s.a.cfg.Service.Settle(s.ctx, s.endpoint, d.Key(), proto.Delivered); err != nil {
			return err
		}
		d.settled = true
		s.a.cfg.Log.Info("peers: delivered", "session", s.id, "message", d.Message.ID, "from", d.Message.From.InstanceID)
	}
	return v.Finish(s.ctx, p, resumed)
}

// prompt is a message as the session gets it.
func (s *session) prompt(r spool.Record) agent.Prompt {
	from := r.Message.From
	text, metadata := proto.Prompt(proto.Message{
		ID: r.Message.ID, FromEndpoint: from.InstanceID, ToEndpoint: s.endpoint, From: from, Text: r.Message.Text, Via: r.Message.Via,
	}, s.id)
	s.mu.Lock()
	dir := s.dir
	s.mu.Unlock()
	return agent.Prompt{
		Message: proto.PromptID(s.id, from.InstanceID, r.Message.ID), Text: text, Synthetic: true,
		Metadata: map[string]any{"peerMessage": metadata.PeerMessage},
		Decide:   s.a.decider(s.a.isRemote(r), dir),
	}
}

// isRemote says whether a message comes from another machine: a relay passed it on, or its
// sender is an agent that this node publishes for another one.
func (a *Adopter) isRemote(r spool.Record) bool {
	if len(r.Message.Via) > 1 {
		return true
	}
	e, own := a.cfg.Service.Own(r.Message.From.InstanceID)
	return own && e.ID != proto.EndpointID(e.Session)
}
