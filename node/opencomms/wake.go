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
// A command that ends after a send cannot do this; a node does it for its projects,
// and so does every MCP server. Nothing is due before WakeAfter has passed, so a
// file that many programs write without a pause is read once in that time by each
// of them, and not at every change.
func (p *Project) WakeOwners(ctx context.Context) error {
	wakeOwners(ctx, p.Watch(ctx), p.Read, p.Touch)
	return nil
}

// wakeOwners is WakeOwners for whatever tells of changes until ctx ends and then
// closes changed.
func wakeOwners(ctx context.Context, changed <-chan struct{}, read func(context.Context) (*opencomms.State, error), touch func(context.Context) error) {
	woken := map[string]int64{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now() // when the timer fires
	for {
		select {
		case _, ok := <-changed:
			if !ok {
				return
			}
			if soon := time.Now().Add(WakeAfter); soon.Before(next) {
				next = soon
				timer.Reset(WakeAfter)
			}
			continue
		case <-timer.C:
		case <-ctx.Done():
			// The watch ends by itself; nothing of it is left once the channel is closed.
			for range changed {
			}
			return
		}
		wait := idleWait // the next change is another chance for who cannot read
		if s, err := read(ctx); err == nil {
			var due bool
			if wait, due = sleepers(s, time.Now().UnixMilli(), woken); due && touch(ctx) != nil {
				clear(woken)
				wait = wakeAgain
			}
		}
		next = time.Now().Add(wait)
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
