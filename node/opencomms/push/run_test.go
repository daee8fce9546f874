package push_test

import (
	"context"
	"sync"
	"testing"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/push"
)

var engineAll = engine.DrainOptions{}

// runs runs a Pusher until stop is called, or the end of the test.
func runs(t *testing.T, p *push.Pusher, box *mail.Box) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			<-ended
			if err := box.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}
