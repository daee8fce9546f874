package events_test

import (
	"errors"
	"strings"
	"testing"

	"opencode-mesh/hub/events"
	"opencode-mesh/protocol/api"
)

func all(*events.Event) bool { return true }

func publish(b *events.Bus, n int) {
	for range n {
		b.Task("c", api.Task{Task: "t"})
	}
}

func TestASubscriberSeesWhatComesInOrder(t *testing.T) {
	b := events.New("g", "b")
	_, sub, _ := b.Subscribe("", all)
	defer sub.Close()
	publish(b, 3)
	for want := uint64(1); want <= 3; want++ {
		if e := <-sub.C; e.Seq != want {
			t.Fatalf("event %d, want %d", e.Seq, want)
		}
	}
}

func TestResumingGivesWhatWasMissedWithoutAGap(t *testing.T) {
	b := events.New("g", "b")
	_, sub, _ := b.Subscribe("", all)
	publish(b, 1)
	last := b.ID(<-sub.C)
	sub.Close()
	publish(b, 2)
	missed, sub, resync := b.Subscribe(last, all)
	defer sub.Close()
	publish(b, 1)
	if resync || len(missed) != 2 || missed[0].Seq != 2 {
		t.Fatalf("missed %d, resync %v", len(missed), resync)
	}
	if e := <-sub.C; e.Seq != 4 {
		t.Errorf("event %d", e.Seq)
	}
}

func TestAnIDThatCannotBeResumedForcesAResync(t *testing.T) {
	b := events.New("g", "b")
	publish(b, events.RingSize+10)
	for name, id := range map[string]string{
		"too old":            "g-b-1",
		"of another boot":    "g-x-5",
		"of another restore": "h-b-5",
		"from the future":    "g-b-999999",
		"rubbish":            "rubbish",
	} {
		t.Run(name, func(t *testing.T) {
			_, sub, resync := b.Subscribe(id, all)
			defer sub.Close()
			if !resync {
				t.Error("no resync")
			}
		})
	}
}

func TestASlowSubscriberIsCutOffAndOthersGoOn(t *testing.T) {
	b := events.New("g", "b")
	_, slow, _ := b.Subscribe("", all)
	_, quick, _ := b.Subscribe("", all)
	defer quick.Close()
	for range events.QueueSize + 1 {
		publish(b, 1)
		<-quick.C
	}
	n := 0
	for range slow.C {
		n++
	}
	if n != events.QueueSize || !errors.Is(slow.Err(), events.ErrLagged) {
		t.Errorf("%d events, %v", n, slow.Err())
	}
	if b.Subscribers() != 1 {
		t.Errorf("%d subscribers", b.Subscribers())
	}
}

func TestAFilterKeepsOthersEventsAway(t *testing.T) {
	b := events.New("g", "b")
	_, sub, _ := b.Subscribe("", func(e *events.Event) bool { return e.Controller == "mine" })
	defer sub.Close()
	publish(b, 1)
	b.Task("mine", api.Task{Task: "t2"})
	if e := <-sub.C; e.Task != "t2" {
		t.Errorf("got %s", e.Task)
	}
}

func TestClosingTheBusEndsEverySubscriber(t *testing.T) {
	b := events.New("g", "b")
	_, sub, _ := b.Subscribe("", all)
	b.Close()
	if _, ok := <-sub.C; ok || !errors.Is(sub.Err(), events.ErrClosed) {
		t.Errorf("open %v, %v", ok, sub.Err())
	}
	sub.Close() // again
	_, late, _ := b.Subscribe("", all)
	if _, ok := <-late.C; ok {
		t.Error("a subscriber of a closed bus is open")
	}
	publish(b, 1)
}

func TestLargeEventsPushOlderOnesOut(t *testing.T) {
	b := events.New("g", "b")
	publish(b, 100)
	large := strings.Repeat("x", 1<<20)
	for range 40 { // far more than the ring may hold
		b.Task("c", api.Task{Task: "large", Artifacts: []string{large}})
	}
	if _, sub, resync := b.Subscribe("g-b-100", all); !resync {
		sub.Close()
		t.Error("forty large events are kept")
	}
	missed, sub, resync := b.Subscribe("g-b-135", all)
	defer sub.Close()
	if resync || len(missed) != 5 {
		t.Errorf("the newest are gone: %d missed, resync %v", len(missed), resync)
	}
}

func TestWhatIsLargeByWhateverFieldCounts(t *testing.T) {
	large := strings.Repeat("x", events.RingBytes)
	for name, publishLarge := range map[string]func(*events.Bus){
		"question": func(b *events.Bus) { b.Task("c", api.Task{Question: &api.Question{Text: large}}) },
		"options":  func(b *events.Bus) { b.Task("c", api.Task{Question: &api.Question{Options: []string{large}}}) },
		"error":    func(b *events.Bus) { b.Task("c", api.Task{Error: &api.TaskError{Message: large}}) },
		"node":     func(b *events.Bus) { b.Node(api.Node{Workspaces: []string{large}}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := events.New("g", "b")
			publish(b, 1)
			publishLarge(b)
			publish(b, 1)
			if _, sub, resync := b.Subscribe("g-b-0", all); !resync {
				sub.Close()
				t.Error("the ring keeps more than it may")
			}
			missed, sub, resync := b.Subscribe("g-b-2", all)
			defer sub.Close()
			if resync || len(missed) != 1 {
				t.Errorf("%d missed, resync %v", len(missed), resync)
			}
		})
	}
}

func TestWhatPassesPushesNothingOutAndCutsNobodyOff(t *testing.T) {
	b := events.New("g", "b")
	_, sub, _ := b.Subscribe("", all)
	publish(b, 1)
	last := b.ID(<-sub.C)
	publish(b, 1)
	for range 2 * events.RingSize { // nobody reads meanwhile
		b.Passing("c", api.Task{Task: "t"})
	}
	if e := <-sub.C; e.Seq != 2 {
		t.Errorf("event %d", e.Seq)
	}
	if e := <-sub.C; e.Seq != 0 || b.ID(e) != "" || !strings.Contains(string(e.JSON()), `"task":"t"`) {
		t.Errorf("event %+v", e)
	}
	publish(b, 1)
	n := 0
	for e := range sub.C {
		if n++; e.Seq == 3 {
			break // it was neither cut off nor left out
		}
	}
	if n > events.QueueSize {
		t.Errorf("%d events waited", n)
	}
	sub.Close()
	missed, sub, resync := b.Subscribe(last, all)
	defer sub.Close()
	if resync || len(missed) != 2 {
		t.Errorf("missed %d, resync %v", len(missed), resync)
	}
}
