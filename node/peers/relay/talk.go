package relay

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"sync"
	"time"

	"opencode-mesh/protocol/api"
)

// talk is what goes on with one hub.
type talk struct {
	end  context.CancelFunc
	work sync.WaitGroup
}

// Attach implements what a link does for a node: lists are told and asked for until
// Detach. A hub that was attached before is detached first.
func (r *Relay) Attach(hub Hub) {
	for {
		r.Detach()
		r.mu.Lock()
		if r.talk == nil {
			break
		}
		r.mu.Unlock() // another one was attached meanwhile
	}
	defer r.mu.Unlock()
	if r.parked {
		return
	}
	ctx, end := context.WithCancel(context.Background())
	t := &talk{end: end}
	t.work.Go(func() { r.say(ctx, hub) })
	t.work.Go(func() { r.hear(ctx, hub) })
	r.talk = t
}

// Detach takes the hub away and returns when no request is under way.
func (r *Relay) Detach() {
	r.mu.Lock()
	t := r.talk
	r.mu.Unlock()
	if t == nil {
		return
	}
	t.end()
	t.work.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.talk == t {
		r.talk = nil
	}
}

// older reports whether a refusal is that of a hub that does not know of lists.
func (r *Relay) older(err error) bool {
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeNotFound && e.Code != api.CodeMethodNotAllowed {
		return false
	}
	r.once("older", "peers: the version of the hub shows nodes no agents of each other")
	return true
}

// say tells the hub what this node shows, at first and when it changes.
func (r *Relay) say(ctx context.Context, hub Hub) {
	var told []api.PeerAgent
	for attempt := 0; ctx.Err() == nil; {
		changed := r.cfg.Service.Changes() // before the look, so that nothing is missed
		list, err := r.ours(ctx)
		if err == nil && (told == nil || !reflect.DeepEqual(told, list)) {
			talk, cancel := context.WithTimeout(ctx, sayTimeout)
			err = hub.Call(talk, http.MethodPut, "/v1/peers", api.PeerRoster{Agents: list}, nil)
			cancel()
			if err == nil {
				told = list
			}
		}
		if r.older(err) {
			return
		}
		pause := pollPause
		if err != nil {
			attempt++
			pause, changed = backoff(r.cfg.RetryMin, r.cfg.RetryMax, attempt), nil
			r.log.Debug("peers: the hub was not told of this node's agents", "err", err)
		} else {
			attempt = 0
		}
		sleep(ctx, pause)
		if err == nil {
			select {
			case <-changed:
			case <-time.After(look): // an agent that died quietly
			case <-ctx.Done():
			}
		}
	}
}

// hear asks the hub what the other nodes show.
func (r *Relay) hear(ctx context.Context, hub Hub) {
	after := ""
	for attempt := 0; ctx.Err() == nil; {
		var f api.PeerFleet
		talk, cancel := context.WithTimeout(ctx, api.MaxPeerWait+sayTimeout)
		err := hub.Call(talk, http.MethodGet, "/v1/peers?after="+url.QueryEscape(after), nil, &f)
		cancel()
		if err == nil {
			err = r.learn(ctx, f)
		}
		if r.older(err) {
			return
		}
		pause := pollPause
		if err != nil {
			attempt++
			pause = backoff(r.cfg.RetryMin, r.cfg.RetryMax, attempt)
			r.log.Debug("peers: the agents of other nodes are not known", "err", err)
		} else {
			attempt, after = 0, f.Revision
		}
		sleep(ctx, pause)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
