package relay_test

import (
	"fmt"
	"testing"
	"time"

	"opencode-mesh/protocol/peers"
	"opencode-mesh/test/peerstub"
)

// TestACrashBehindAnyWriteLosesNothingAndDoublesNothing ends one of the two nodes at each
// of its writes into the journal, from the first on until a message needs no more of them,
// and starts it again: the steps of the package's documentation, one by one.
func TestACrashBehindAnyWriteLosesNothingAndDoublesNothing(t *testing.T) {
	for _, dies := range []string{"alpha", "beta"} {
		commits := 0
		for crashed := true; crashed; commits++ {
			crashed = crashAfter(t, dies, commits)
			if commits > 30 {
				t.Fatalf("%s writes without end", dies)
			}
		}
		// Journal and mail; the mail is sent; final; settled. And: in; tried; receipt; final.
		if commits < 4 {
			t.Errorf("%s survived after %d writes: the crashes came too late to show anything", dies, commits)
		}
	}
}

// crashAfter reports whether the node died before the message was at its end.
func crashAfter(t *testing.T, dies string, commits int) bool {
	t.Helper()
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "off"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	to := a.Named("beta/bob")
	victim := w.nodes[dies]
	process := victim.running
	t.Logf("%s dies after %d", dies, commits)
	process.disk.set(commits)
	id, receipt := a.Send(to, fmt.Sprintf("%s after %d", dies, commits))
	if receipt != peers.Queued {
		t.Fatalf("the receipt is %s", receipt)
	}
	crashed := false
	ended := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(ended)
		for len(a.Acks(id)) == 0 {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	select {
	case <-process.disk.dead:
		crashed = true
	case <-ended:
		// The write behind the acknowledgement may come still.
		select {
		case <-process.disk.dead:
			crashed = true
		case <-time.After(300 * time.Millisecond):
		}
	}
	close(stop)
	<-ended
	victim.stop()
	victim.start(-1)
	if got := a.Acked(id).Status; got != peers.Delivered {
		t.Errorf("%s died after %d writes: the message ended as %s", dies, commits, got)
	}
	if got := b.Messages(); len(got) != 1 || got[0].ID != id {
		t.Errorf("%s died after %d writes: bob has %d messages", dies, commits, len(got))
	}
	a.Stop()
	b.Stop()
	alpha.stop()
	beta.stop()
	return crashed
}

func TestManyMessagesInBothDirectionsSurviveRestartsOfBothNodes(t *testing.T) {
	w := newWorld(t)
	alpha, beta := w.machine("alpha", "all"), w.machine("beta", "all")
	a, b := alpha.peer("ann"), beta.peer("bob")
	there, back := a.Named("beta/bob"), b.Named("alpha/ann")
	ids := map[string]*peerstub.Peer{}
	for i := range 12 {
		if i%4 == 2 {
			alpha.stop()
			alpha.start(-1)
			there = a.Named("beta/bob")
		}
		if i%4 == 3 {
			beta.stop()
			beta.start(-1)
			back = b.Named("alpha/ann")
		}
		id, _ := a.Send(there, fmt.Sprint("to bob ", i))
		ids[id] = a
		id, _ = b.Send(back, fmt.Sprint("to ann ", i))
		ids[id] = b
	}
	for id, sender := range ids {
		if got := sender.Acked(id).Status; got != peers.Delivered {
			t.Errorf("%s ended as %s", id, got)
		}
	}
	if len(a.Messages()) != 12 || len(b.Messages()) != 12 {
		t.Errorf("ann has %d, bob %d", len(a.Messages()), len(b.Messages()))
	}
	for i, got := range b.Messages() {
		if got.Text != fmt.Sprint("to bob ", i) {
			t.Errorf("message %d is %q", i, got.Text)
		}
	}
}
