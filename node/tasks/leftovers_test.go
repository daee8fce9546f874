package tasks_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// keeper is an agent that keeps something on disk for each turn.
type keeper struct {
	*fakeAgent
	forgot chan api.Triple
	busy   atomic.Bool
}

func (k *keeper) Forget(t api.Triple) error {
	if k.busy.Load() {
		return errors.New("somebody looks after it")
	}
	k.forgot <- t
	return nil
}

func TestAnAgentForgetsATurnOnceItsAcknowledgementIsOnDisk(t *testing.T) {
	k := &keeper{fakeAgent: newAgent(false, done), forgot: make(chan api.Triple, 10)}
	var release atomic.Bool
	g := newRig(t, k.fakeAgent, func(c *tasks.Config) { c.Agent, c.MarkDelay = k, time.Millisecond })
	g.hub.setAnswer(func(api.Result) error {
		if !release.Load() {
			return errors.New("not now")
		}
		return nil
	})
	g.take("t1")
	g.result()
	none(t, k.forgot, "forgetting before the acknowledgement")
	release.Store(true)
	select {
	case tr := <-k.forgot:
		if tr.Task != "t1" || tr.Attempt != 1 || tr.Turn != 1 {
			t.Errorf("forgot %+v", tr)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing was forgotten")
	}
}

func TestAnAgentThatCannotForgetYetIsAskedAgainWhenTheJournalDropsTheTurn(t *testing.T) {
	k := &keeper{fakeAgent: newAgent(false, done), forgot: make(chan api.Triple, 10)}
	k.busy.Store(true)
	g := newRig(t, k.fakeAgent, func(c *tasks.Config) {
		c.Agent, c.MarkDelay = k, time.Millisecond
		c.Window, c.WindowCount, c.Maintenance = time.Millisecond, 1, 5*time.Millisecond
	})
	g.take("t1")
	g.result()
	g.delivered()
	none(t, k.forgot, "forgetting what is busy")
	k.busy.Store(false)
	g.take("t2")
	g.result()
	g.take("t3")
	g.result()
	for seen := map[string]bool{}; !seen["t1"]; {
		select {
		case tr := <-k.forgot:
			seen[tr.Task] = true
		case <-time.After(2 * time.Minute):
			t.Fatalf("forgotten: %v", seen)
		}
	}
}
