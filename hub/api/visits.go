package api

import (
	"context"
	"sync"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/access"
	"opencode-mesh/protocol/api"
)

const (
	// visitLimit is how long a browser may use a service's own origin after it was let
	// in.
	visitLimit = 12 * time.Hour
	// maxVisits is how many browsers may be let in, or be about to be, at once; the
	// oldest makes room.
	maxVisits = 4096
)

// visit is a browser at a service's own origin: first a URL that lets it in once,
// then a cookie. It is kept in memory only, so a restart of the hub ends it.
type visit struct {
	who           access.Principal
	node, service string
	entered       bool // by the cookie; before, by the URL
	ends          time.Time
	ctx           context.Context // of its requests
	cancel        context.CancelFunc
}

// visits are all of them, by the hash of their secret. Safe for concurrent use.
type visits struct {
	now func() time.Time

	mu  sync.Mutex // guards the following field
	all map[[32]byte]*visit
}

func newVisits(now func() time.Time) *visits { return &visits{now: now, all: map[[32]byte]*visit{}} }

// invite makes a secret that lets a browser in, once.
func (v *visits) invite(p access.Principal, node, service string) (secret string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.add(&visit{who: p, node: node, service: service}, api.HandoverLimit)
}

// enter exchanges such a secret for that of the cookie.
func (v *visits) enter(secret, node, service string) (cookie string, ok bool) {
	hash, ok := auth.HashSecret(secret)
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.all[hash]
	if !ok || old == nil || old.entered || old.node != node || old.service != service {
		return "", false
	}
	v.remove(hash) // whatever follows: it was good for one try
	if !v.now().Before(old.ends) {
		return "", false
	}
	return v.add(&visit{who: old.who, node: node, service: service, entered: true}, visitLimit), true
}

// find is the visit of a cookie, at the origin that it was made for.
func (v *visits) find(cookie, node, service string) (*visit, bool) {
	hash, ok := auth.HashSecret(cookie)
	v.mu.Lock()
	defer v.mu.Unlock()
	found := v.all[hash]
	if !ok || found == nil || !found.entered || found.node != node || found.service != service {
		return nil, false
	}
	if !v.now().Before(found.ends) {
		v.remove(hash)
		return nil, false
	}
	return found, true
}

// add keeps a visit. Callers hold mu.
func (v *visits) add(n *visit, lasts time.Duration) (secret string) {
	now := v.now()
	if len(v.all) >= maxVisits {
		var oldest [32]byte
		for hash, o := range v.all {
			if !now.Before(o.ends) {
				v.remove(hash)
			} else if first := v.all[oldest]; first == nil || o.ends.Before(first.ends) {
				oldest = hash
			}
		}
		if len(v.all) >= maxVisits {
			v.remove(oldest)
		}
	}
	secret, hash := auth.NewSecret()
	n.ends = now.Add(lasts)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	v.all[hash] = n
	return secret
}

// remove ends a visit with its requests. Callers hold mu.
func (v *visits) remove(hash [32]byte) {
	if o := v.all[hash]; o != nil {
		o.cancel()
		delete(v.all, hash)
	}
}

// end ends the visits of an identity, or all when it is "".
func (v *visits) end(identity string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for hash, o := range v.all {
		if identity == "" || o.who.Identity.ID == identity {
			v.remove(hash)
		}
	}
}
