package peers

import (
	"context"

	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

// receive puts a message through the gate and into the spool, and says what to answer.
// Without an error, what it says is on disk. ErrNoEndpoint: it was withdrawn since it was
// looked up, and nothing was kept.
func (s *Service) receive(ctx context.Context, e *endpoint, m peers.Message) (string, error) {
	if !s.enter() {
		return peers.Dropped, nil // nothing was kept
	}
	defer s.work.Done()
	if !e.open() {
		return "", ErrNoEndpoint
	}
	defer e.taking.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTimeout)
	defer cancel()
	s.traces.note(ctx, e.id)
	got, fresh, err := e.queue.Accept(ctx, m, gate(e.told(), m))
	if err != nil {
		return "", err
	}
	if fresh {
		e.kick()
	}
	// Also when it was here before: the sender may be back to take its acknowledgement.
	s.acks.note(e.id)
	return got, nil
}

// gate decides by the endpoint's policy. One that is not known counts as accept, as the
// original has it.
func gate(e Endpoint, m peers.Message) spool.Decision {
	switch e.Policy {
	case peers.PolicyRefuse:
		return spool.Refuse
	case peers.PolicyHold:
		return spool.Hold
	case peers.PolicyAuto:
		if !peers.SameDirectory(m.From.Directory, e.Directory) {
			return spool.Hold
		}
	}
	return spool.Enqueue
}
