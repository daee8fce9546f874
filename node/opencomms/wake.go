package opencomms

import (
	"context"
	"time"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/opencomms"
)

// WakeAfter is how long a message for a push member may stay pending, after it was
// sent and after the pause between two deliveries, before WakeOwners rewrites the
// file.
const WakeAfter = 1200 * time.Millisecond

// WakeOwners wakes the programs that deliver to push members, until ctx ends; it
// returns nil then. They look at a queue when the file changes, and not again when
// the pause between two deliveries is over: what came within it would lie there
// until something else happens. So the file is rewritten as it is, once for each
// such message and pause.
//
// A command that ends after a send cannot do this; a node does it for its projects.
func (p *Project) WakeOwners(ctx context.Context) error {
	changed := p.Watch(ctx)
	woken := map[string]int64{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case _, ok := <-changed:
			if !ok {
				return nil
			}
		case <-timer.C:
		case <-ctx.Done():
			// The watch ends by itself; nothing of it is left once the channel is closed.
			for range changed {
			}
			return nil
		}
		s, err := p.Read(ctx)
		if err != nil {
			continue // said by whoever uses the file; the next change is another chance
		}
		wait, due := sleepers(s, time.Now().UnixMilli(), woken)
		if due && p.Touch(ctx) != nil {
			clear(woken)
			wait = wakeAgain
		}
		timer.Reset(wait)
	}
}

const (
	// idleWait is how long WakeOwners waits when nothing is to be woken.
	idleWait = time.Hour
	// wakeAgain is how long it waits after a write that failed.
	wakeAgain = 10 * time.Second
)

// sleepers says whether an owner has to be woken now, and after how long to look
// again. woken remembers for which message and pause that was done.
func sleepers(s *opencomms.State, now int64, woken map[string]int64) (wait time.Duration, due bool) {
	wait = idleWait
	seen := map[string]bool{}
	channels := map[string]*opencomms.Channel{}
	for _, ch := range s.Channels.All() {
		channels[ch.ID] = ch
	}
	for recipient, queue := range s.Queues.All() {
		for _, id := range queue {
			row, ok := s.Messages.Get(id)
			if !ok || row.Status != opencomms.StatusPending {
				continue
			}
			ch := channels[row.ChannelID]
			if ch == nil || ch.Paused {
				continue
			}
			if m := engine.Member(ch, recipient); m == nil || m.Mode != opencomms.ModePush {
				continue
			}
			seen[id] = true
			until, _ := ch.Cooldowns.Get(recipient)
			at := max(row.Timestamp, until) + WakeAfter.Milliseconds()
			if done, ok := woken[id]; ok && done == until {
				continue
			}
			if at <= now {
				woken[id], due = until, true
				continue
			}
			wait = min(wait, time.Duration(at-now)*time.Millisecond)
		}
	}
	for id := range woken {
		if !seen[id] {
			delete(woken, id)
		}
	}
	return wait, due
}
