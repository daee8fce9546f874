package registry_test

import (
	"context"
	"os"
	"testing"
	"time"

	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/peers"
)

// watched is a world with a watch and what it said last.
type watched struct {
	*world
	changed <-chan struct{}
}

func watchWorld(t *testing.T, w *world) *watched {
	ctx, cancel := context.WithCancel(context.Background())
	r := w.reader()
	r.PollEvery(50 * time.Millisecond)
	changed := r.Watch(ctx)
	t.Cleanup(func() {
		cancel()
		for range changed {
		}
	})
	return &watched{w, changed}
}

// until waits for words of the watch until the registry is as it should be.
func (w *watched) until(what string, ok func([]registry.Peer) bool) {
	w.t.Helper()
	for range w.changed {
		if ok(w.read()) {
			return
		}
	}
	w.t.Fatalf("the watch ended before %s", what)
}

func has(id string) func([]registry.Peer) bool {
	return func(list []registry.Peer) bool {
		for _, p := range list {
			if p.EndpointID == id {
				return true
			}
		}
		return false
	}
}

func TestAWatchTellsOfEveryChange(t *testing.T) {
	w := watchWorld(t, newWorld(t))
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	w.until("the first agent is there", has("session-a"))
	w.foreign(w.alive("session-b", "00000002"))
	w.until("a foreign one is there", has("session-b"))
	e := agent("session-a", "00000001")
	e.Title = "new"
	w.publish(p, e)
	w.until("the title is new", func(list []registry.Peer) bool { return find(t, list, "session-a").Title == "new" })
	if err := p.Withdraw(t.Context(), "session-a"); err != nil {
		t.Fatal(err)
	}
	w.until("it is withdrawn", func(list []registry.Peer) bool { return !has("session-a")(list) })
	// Nobody writes anything when an agent falls silent.
	w.forward(31 * time.Second)
	w.until("the other is stale", func(list []registry.Peer) bool { return !find(t, list, "session-b").Alive })
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	w.until("all is gone", func(list []registry.Peer) bool { return len(list) == 0 })
	w.publish(p, agent("session-c", "00000003"))
	w.until("there is a new directory", has("session-c"))
}

func TestAWatchDoesNotTellOfHeartbeats(t *testing.T) {
	w := newWorld(t)
	p := w.publisher()
	w.publish(p, agent("session-a", "00000001"))
	ww := watchWorld(t, w)
	for range 50 {
		w.forward(time.Second)
		p.Beat(t.Context())
	}
	// Word of this one comes, and was the first.
	w.foreign(w.alive("session-b", "00000002"))
	<-ww.changed
	if !has("session-b")(w.read()) {
		t.Error("it told of a heartbeat")
	}
	w.put("torn.json", "{")
	e := w.alive("session-c", "00000003")
	w.foreign(e)
	<-ww.changed
	if !has("session-c")(w.read()) {
		t.Error("it told of a file that is no entry")
	}
}

func TestTheSlowestReaderLosesNoWord(t *testing.T) {
	w := watchWorld(t, newWorld(t))
	p := w.publisher()
	for i := range 20 {
		e := agent("session-a", "00000001")
		e.QueuedCount = i
		e.InboundPolicy = peers.PolicyHold
		w.publish(p, e)
	}
	w.until("the last state is there", func(list []registry.Peer) bool { return has("session-a")(list) && list[0].QueuedCount == 19 })
}
