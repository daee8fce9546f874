//go:build faults

package faults

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// TestSigtermWithOpenTunnelsAndStreamsEndsWithCodeZero is the stop that hangs in
// so many servers.
func TestSigtermWithOpenTunnelsAndStreamsEndsWithCodeZero(t *testing.T) {
	f := fleet.New(t, quick...)
	f.Node("alpha", f.Demo())
	f.Ctl("desk").Online("alpha")
	ctl := connect(t, f, "watcher")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	open := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		first := true
		_ = ctl.Events(ctx, func(api.Event) error {
			if first {
				first = false
				close(open)
			}
			return nil
		}, func(error) { cancel() })
	}()
	<-open
	if code := f.Hub.Stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	select {
	case <-ended:
	case <-time.After(4 * time.Minute):
		t.Error("the event stream outlived the hub")
	}
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	f := fleet.New(t, quick...)
	node := f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	proc, err := os.FindProcess(f.Hub.Pid())
	if err != nil {
		t.Fatal(err)
	}
	_ = proc.Signal(syscall.SIGTERM)
	_ = proc.Signal(syscall.SIGINT)
	f.Hub.Wait() // either way it is gone
	if code := node.Stop(); code != 0 {
		t.Errorf("the node ended with %d", code)
	}
}
