package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// nodes lists every node that joined, or those that are named.
func (s *Server) nodes(w http.ResponseWriter, r *http.Request) {
	names := r.URL.Query()["name"]
	fills, err := numbered(r.URL.Query(), "fills", 0, 0, api.MaxListedFills)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ids, err := s.cfg.Store.Identities(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	recs, err := s.cfg.Store.NodeRecords(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	byID := make(map[string]store.NodeRecord, len(recs))
	for _, rec := range recs {
		byID[rec.IdentityID] = rec
	}
	used, err := s.used(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ids = slices.DeleteFunc(ids, func(id store.Identity) bool {
		return !id.Live() || id.Role != api.RoleNode || len(names) > 0 && !slices.Contains(names, id.Name)
	})
	series, err := s.series(r.Context(), ids, used, fills)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := api.NodeList{Nodes: make([]api.Node, len(ids))}
	for i, id := range ids {
		n := s.nodeView(id, byID[id.ID])
		if b, ok := used[id.ID]; ok {
			n.CtxPercent, n.CtxFills = b.Tokens.Percent(), series[b.BindingKey]
		}
		out.Nodes[i] = n
	}
	slices.SortFunc(out.Nodes, func(a, b api.Node) int { return strings.Compare(a.Name, b.Name) })
	reply(w, http.StatusOK, out)
}

// used finds for each node the session that the caller used last on it, if its fill is
// known; an operator without one sees that of whoever used the node last.
func (s *Server) used(r *http.Request) (map[string]store.Binding, error) {
	p := who(r)
	used := map[string]store.Binding{}
	if p.Operator() {
		all, err := s.cfg.Store.Bindings(r.Context(), "", "")
		if err != nil {
			return nil, err
		}
		lastUsed(used, all)
	}
	if p.Identity.ID == "" { // the local operator has no sessions
		return used, nil
	}
	own, err := s.cfg.Store.Bindings(r.Context(), p.Identity.ID, "")
	lastUsed(used, own)
	return used, err
}

// lastUsed takes each node's binding that was used last, if its fill is known.
func lastUsed(used map[string]store.Binding, list []store.Binding) {
	last := map[string]store.Binding{}
	for _, b := range list {
		if b.LastUsed.After(last[b.Target].LastUsed) {
			last[b.Target] = b
		}
	}
	for target, b := range last {
		if b.Tokens.Percent() != nil {
			used[target] = b
		}
	}
}

// series is how the used sessions of these nodes filled up, in per cent: the newest n
// fills of each, oldest first.
func (s *Server) series(ctx context.Context, nodes []store.Identity, used map[string]store.Binding, n int) (map[store.BindingKey][]int, error) {
	if n < 1 {
		return nil, nil
	}
	var of []store.Binding
	for _, id := range nodes {
		if b, ok := used[id.ID]; ok {
			of = append(of, b)
		}
	}
	return s.curves.of(ctx, s.cfg.Store, of, n)
}

// nodeView is a node as controllers see it.
func (s *Server) nodeView(id store.Identity, rec store.NodeRecord) api.Node {
	n := api.Node{
		Name: id.Name, State: api.NodeOffline, Since: rec.OfflineAt, Agent: rec.Agent,
		Version: rec.Hello.Version, Policy: rec.Hello.Policy,
		Workspaces: rec.Hello.Workspaces, Services: serviceNames(rec.Hello.Services), LastError: rec.LastError,
		Superseded: rec.Superseded, Alarms: rec.Alarms, Sessions: rec.Hello.Sessions,
	}
	if rec.LastError != "" {
		n.LastErrorAt = &rec.OfflineAt
	}
	if rec.Hello.OS != "" {
		n.Platform = rec.Hello.OS + "/" + rec.Hello.Arch
	}
	if rec.OnlineAt.After(n.Since) {
		n.Since = rec.OnlineAt // the hub died before it saw it leave
	}
	if n.Since.IsZero() {
		n.Since = id.CreatedAt // joined, never seen
	}
	if c, ok := s.cfg.Registry.Locate(id.ID); ok {
		n.State, n.Since = api.NodeOnline, c.Since
	} else if n.Agent.Health != "" {
		n.Agent.Health = api.HealthUnknown // what it was is not what it is
	}
	n.Running, n.Queued = s.cfg.Relay.Counts(id.ID)
	return n
}

// errUnchanged ends a change without writing.
var errUnchanged = errors.New("unchanged")

// changeNode is a compare-and-set on what is kept of a node; errUnchanged of fn
// leaves it alone.
func (s *Server) changeNode(ctx context.Context, identity string, fn func(*store.NodeRecord) error) (store.NodeRecord, error) {
	for {
		rec, err := s.cfg.Store.NodeRecord(ctx, identity)
		if errors.Is(err, store.ErrNotFound) {
			rec = store.NodeRecord{IdentityID: identity}
		} else if err != nil {
			return rec, err
		}
		if err := fn(&rec); errors.Is(err, errUnchanged) {
			return rec, nil
		} else if err != nil {
			return rec, err
		}
		got, err := s.cfg.Store.PutNodeRecord(ctx, rec)
		if !errors.Is(err, store.ErrConflict) {
			return got, err
		}
	}
}
