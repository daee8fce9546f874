package opencode

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"opencode-mesh/node/agent"
)

var _ agent.Watcher = (*Agent)(nil)

// Watch implements agent.Watcher.
func (a *Agent) Watch(ctx context.Context, sign func(session string), missed func() []string) {
	told := time.Now() // what changed before is no news
	for ctx.Err() == nil {
		s, err := a.health.ready(ctx, 0)
		if err != nil {
			return
		}
		if err := a.watchOn(ctx, s.client, &told, sign, missed); ctx.Err() == nil {
			a.cfg.Log.Debug("the stream of all events ended", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(a.cfg.PollInterval):
		}
	}
}

// watchOn watches one server until its stream ends, or the state of its sessions cannot
// be read: then all begins anew. told is until when all changes were told.
func (a *Agent) watchOn(ctx context.Context, c client, told *time.Time, sign func(session string), missed func() []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	again := make(chan struct{}, 1) // cap 1: a look is due
	work.Go(func() {
		for {
			select {
			case <-again:
			case <-ctx.Done():
				return
			}
			now := time.Now()
			if err := a.signMissed(ctx, c, told.Add(-clockGrain), sign, missed()); err != nil {
				cancel(err)
				return
			}
			*told = now
		}
	})
	return c.watchAll(ctx, func(e event) {
		if e.kind == eventLife {
			sign(e.session)
			return
		}
		select { // connected or disposed: what was heard before says no more how it is
		case again <- struct{}{}:
		default:
		}
	})
}

// clockGrain is how much earlier than now the time of a change may be that is made now.
const clockGrain = time.Second

// signMissed signs the sessions that work in the workspaces and in some more directories,
// and those of there that changed since the last time.
func (a *Agent) signMissed(ctx context.Context, c client, since time.Time, sign func(session string), dirs []string) error {
	for _, w := range a.cfg.Workspaces {
		dirs = append(dirs, w.Dir)
	}
	seen := make(map[string]bool)
	for _, dir := range dirs {
		if seen[dir] {
			continue
		}
		seen[dir] = true
		all, err := c.statuses(ctx, dir)
		if err != nil {
			return err
		}
		for id := range all {
			sign(id)
		}
		list, err := c.sessions(ctx, dir, "")
		if err != nil {
			return err
		}
		for _, s := range list {
			if !s.updated.Before(since) {
				sign(s.id)
			}
		}
	}
	return nil
}

// readLife reads an event of the stream of all directories.
func readLife(data []byte) (event, bool) {
	// Most of the stream is pieces of messages, each of which is told twice.
	if head := data[:min(len(data), eventHead)]; bytes.Contains(head, []byte(`"type":"message.`)) {
		return event{}, false
	}
	var e struct {
		Payload struct {
			Type       string `json:"type"`
			Properties struct {
				SessionID string `json:"sessionID"`
				Info      struct {
					ID string `json:"id"`
				} `json:"info"`
			} `json:"properties"`
		} `json:"payload"`
	}
	if json.Unmarshal(data, &e) != nil {
		return event{}, false
	}
	switch kind := e.Payload.Type; {
	case kind == "server.connected":
		return event{kind: eventConnected}, true
	case kind == "server.instance.disposed", kind == "global.disposed":
		return event{kind: eventDisposed}, true
	case strings.HasPrefix(kind, "session.") && kind != "session.diff" && !strings.HasPrefix(kind, "session.next."):
		id := e.Payload.Properties.SessionID
		if id == "" {
			id = e.Payload.Properties.Info.ID // releases before 1.18
		}
		return event{kind: eventLife, session: id}, id != ""
	}
	return event{}, false
}
