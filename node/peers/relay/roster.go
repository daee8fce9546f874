package relay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/api"
	words "opencode-mesh/protocol/peers"
)

// Exports reports whether other nodes are shown an agent of the registry: an agent of
// this machine that its owner shows. Proxies never are, and neither is what another node
// of this machine publishes, which shows that itself. Nor is the desk of this node before
// somebody gave it a name.
func (r *Relay) Exports(p registry.Peer) bool {
	switch {
	case !p.Alive, p.ParentSessionID != "", len(p.EndpointID) > api.MaxPeerID, !validID(p.EndpointID), !r.cfg.Shows(p.Name):
		return false
	case p.SessionID == p.EndpointID, r.isProxy(p.EndpointID):
		return false
	case words.OfMesh(p.PluginVersion) && !p.Own:
		return false
	case r.isDesk(p.EndpointID):
		named, err := r.cfg.Service.DeskNamed()
		return named && err == nil
	}
	return filepath.IsAbs(p.Directory)
}

// isDesk reports whether an endpoint is where people at this node are written to.
func (r *Relay) isDesk(id string) bool { return id == r.cfg.Service.DeskID() }

// tell makes names differ that would not, so that each means one agent: whoever has the
// name of another has the end of its id behind it. The name of a session does not change
// because the people at this node have the same.
func (r *Relay) tell(list []api.PeerAgent) {
	count := map[string]int{}
	for _, a := range list {
		if !r.isDesk(a.ID) {
			count[a.Name]++
		}
	}
	for i, a := range list {
		if n := count[a.Name]; n > 1 || n > 0 && r.isDesk(a.ID) {
			list[i].Name = words.Cut(a.Name, api.MaxPeerText-nameEnd-1) + "-" + a.ID[max(0, len(a.ID)-nameEnd):]
		}
	}
}

// isProxy reports whether an endpoint is one that this relay publishes.
func (r *Relay) isProxy(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.rows[id]
	return ok
}

// ours is what this node shows.
func (r *Relay) ours(ctx context.Context) (list []api.PeerAgent, err error) {
	list = []api.PeerAgent{}
	defer func() { r.tell(list) }()
	agents, err := r.cfg.Service.Agents(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(agents, func(a, b registry.Peer) int {
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), strings.Compare(a.EndpointID, b.EndpointID))
	})
	size := 0
	for _, p := range agents {
		if !r.Exports(p) {
			continue
		}
		a := api.PeerAgent{
			ID: p.EndpointID, Name: words.Cut(p.Name, api.MaxPeerText), Title: words.Cut(p.Title, api.MaxPeerText), Directory: words.Cut(p.Directory, 4*api.MaxPeerText),
			Status: words.Cut(p.Status, api.MaxPeerText), Policy: words.Cut(p.InboundPolicy, api.MaxPeerText), StartedAt: int64(max(0, min(p.StartedAt, 1<<52))),
		}
		size += len(encode(a)) + 1 + nameEnd + 1
		if len(list) == api.MaxPeerAgents || size > api.MaxPeerRoster-1<<10 {
			r.once("more", "peers: this node has more agents than can be shown to others; those that started last are left out", "shown", len(list))
			return list, nil
		}
		list = append(list, a)
	}
	if len(list) > 0 {
		if ok, err := r.sole(); err != nil || !ok {
			return []api.PeerAgent{}, err
		}
	}
	return list, nil
}

// once logs something that would otherwise be said again and again.
func (r *Relay) once(what, msg string, args ...any) {
	r.mu.Lock()
	said := r.said[what]
	r.said[what] = true
	r.mu.Unlock()
	if !said {
		r.log.Warn(msg, args...)
	}
}

// learn notes what the other nodes show.
func (r *Relay) learn(ctx context.Context, f api.PeerFleet) error {
	now := r.nowMS()
	err := r.cfg.Box.Update(ctx, func(tx *mail.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucketNodes))
		if err != nil {
			return err
		}
		if err := forgetNodes(tx, now-RosterAge.Milliseconds()); err != nil {
			return err
		}
		for _, n := range f.Nodes {
			if !api.ValidName(n.Node) || n.Node == r.cfg.Node {
				continue
			}
			if err := b.Put([]byte(n.Node), encode(shown{NodeID: n.NodeID, Agents: n.Agents, AtMS: now})); err != nil {
				return err
			}
		}
		return nil
	})
	r.mu.Lock()
	r.there = map[string]bool{}
	for _, n := range f.Nodes {
		r.there[n.Node] = true
	}
	r.mu.Unlock()
	if err == nil {
		r.wake()
	}
	return err
}

// forgetNodes takes out what nobody has said for long.
func forgetNodes(tx *mail.Tx, before int64) error {
	b := tx.Bucket([]byte(bucketNodes))
	var old [][]byte
	err := b.ForEach(func(k, data []byte) error {
		var s shown
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		if s.AtMS < before {
			old = append(old, bytes.Clone(k))
		}
		return nil
	})
	for _, k := range old {
		err = errors.Join(err, b.Delete(k))
	}
	return err
}

// row is a proxy as it is to be published.
type row struct {
	e peers.Endpoint
	p *proxy
}

func (r *Relay) rowOf(node, nodeID, id, name, title, dir, status string, started time.Time) row {
	p := &proxy{r: r, id: words.ProxyID(node, id), node: node, nodeID: nodeID, to: id, name: proxyName(node, name, id)}
	switch status {
	case words.Busy, words.Retry:
	default:
		status = words.Idle
	}
	return row{p: p, e: peers.Endpoint{
		ID: p.id, Session: p.id, Title: word(title), Name: p.name, Directory: proxyDirectory(node, dir),
		Status: status, Policy: words.PolicyAccept, StartedAt: started, Receiver: p,
	}}
}

// senderOf is the row of whoever sent a message to here.
func (r *Relay) senderOf(b *brought) row {
	r.mu.Lock()
	old, ok := r.rows[b.Proxy]
	r.mu.Unlock()
	if ok && !old.e.Hidden && old.p.nodeID == b.NodeID {
		return old // it is shown anyway, with more than the message says
	}
	return r.rowOf(b.Node, b.NodeID, b.Text.From, b.Text.FromName, "", b.Text.Directory, "", time.UnixMilli(b.CameMS))
}

// shownRows are the agents that other nodes show. One that several nodes show is one that
// all of them see on their machine: the first of them by name counts. One that is on this
// machine is there itself.
func (r *Relay) shownRows(ctx context.Context) (rows map[string]row, err error) {
	rows = map[string]row{}
	seen, err := r.here(ctx)
	if err != nil {
		return nil, err
	}
	now := r.nowMS()
	err = r.view(func(tx *mail.Tx) error {
		b := tx.Bucket([]byte(bucketNodes))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, data []byte) error {
			var s shown
			if err := json.Unmarshal(data, &s); err != nil {
				return err
			}
			age := time.Duration(now-s.AtMS) * time.Millisecond
			if age > RosterAge || r.isAbsent(string(k)) && age > AbsentAge {
				return nil
			}
			for _, a := range s.Agents {
				if !validID(a.ID) || seen[a.ID] {
					continue
				}
				seen[a.ID] = true
				if len(rows) >= MaxProxies {
					r.once("proxies", "peers: other nodes show more agents than are published here", "published", len(rows))
					return nil
				}
				w := r.rowOf(string(k), s.NodeID, a.ID, a.Name, a.Title, a.Directory, a.Status, time.UnixMilli(max(1, a.StartedAt)))
				rows[w.e.ID] = w
			}
			return nil
		})
	})
	return rows, err
}

// here are the endpoints that are on this machine.
func (r *Relay) here(ctx context.Context) (map[string]bool, error) {
	agents, err := r.cfg.Service.Agents(ctx)
	ids := map[string]bool{}
	for _, p := range agents {
		if p.Alive {
			ids[p.EndpointID] = true
		}
	}
	return ids, err
}

// isAbsent reports whether the hub was heard and does not have a node.
func (r *Relay) isAbsent(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.there != nil && !r.there[node]
}

// show publishes the rows that there are to be, and takes back the others: agents that
// other nodes show, senders whose messages have not ended here, and, out of sight, agents
// whose answers are awaited.
func (r *Relay) show(ctx context.Context, out []*carried, in []*brought) error {
	rows, err := r.shownRows(ctx)
	if err == nil && len(rows) > 0 {
		var ok bool
		if ok, err = r.sole(); !ok {
			rows = map[string]row{}
		}
	}
	if err != nil {
		return err
	}
	for _, b := range in {
		if _, ok := rows[b.Proxy]; !ok && b.Status == "" {
			rows[b.Proxy] = r.senderOf(b)
		}
	}
	for _, c := range out {
		if _, ok := rows[c.Proxy]; !ok {
			w := r.rowOf(c.Node, c.NodeID, c.To, strings.TrimPrefix(c.ToName, c.Node+"/"), "", "", "", time.UnixMilli(c.AtMS))
			w.e.Hidden = true
			rows[c.Proxy] = w
		}
	}
	errs := []error{r.recall(ctx, rows)}
	for _, w := range rows {
		errs = append(errs, r.publish(ctx, w))
	}
	r.mu.Lock()
	var gone []string
	for id := range r.rows {
		if _, ok := rows[id]; !ok {
			gone = append(gone, id)
		}
	}
	r.mu.Unlock()
	for _, id := range gone {
		errs = append(errs, r.takeBack(ctx, id))
	}
	return errors.Join(errs...)
}

// publish publishes a row unless it is as it is.
func (r *Relay) publish(ctx context.Context, w row) error {
	select {
	case r.publishing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.publishing }()
	r.mu.Lock()
	old, ok := r.rows[w.e.ID]
	r.mu.Unlock()
	if ok && same(old, w) {
		return nil
	}
	if err := r.cfg.Service.Publish(ctx, w.e); err != nil {
		return err
	}
	r.mu.Lock()
	r.rows[w.e.ID] = w
	r.mu.Unlock()
	return nil
}

func same(a, b row) bool {
	x, y := a.e, b.e
	x.Receiver, y.Receiver = nil, nil
	return x == y && a.p.nodeID == b.p.nodeID
}
