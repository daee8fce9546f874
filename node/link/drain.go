package link

import (
	"context"
	"net/http"

	"opencode-mesh/tunnel"
)

// drain delivers, over tunnels that do not take the name, what a superseded node
// still has, and then waits for ctx to end. It never registers, so that two
// processes of one node cannot push each other out in turns.
func (l *Link) drain(ctx context.Context) error {
	delivering, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-l.cfg.Host.Drained():
			cancel()
		case <-delivering.Done():
		}
	}()
	err := tunnel.Keep(delivering, tunnel.KeepConfig{
		Dial: func(ctx context.Context) (*tunnel.Session, error) {
			return l.dial(ctx, http.Header{drainHeader: {drainValue}})
		},
		Serve:     l.deliver,
		Permanent: l.permanent,
		Backoff:   l.cfg.Backoff,
	})
	done := delivering.Err() != nil
	cancel()
	<-ended
	if !done {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// deliver lends a drain tunnel to the host until ctx ends.
func (l *Link) deliver(ctx context.Context, s *tunnel.Session) error {
	client := newClient(s)
	defer client.close()
	s.MarkUseful()
	l.cfg.Host.Attach(client)
	<-ctx.Done()
	l.cfg.Host.Detach()
	return ctx.Err()
}
