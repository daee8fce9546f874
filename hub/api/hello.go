package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"opencode-mesh/hub/proxy"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/relay"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/tunnel"
)

// Bounds of what a node says of itself, in bytes unless it says otherwise. Ids that
// are longer are refused, descriptions are cut, further entries are left out.
const (
	maxLabel      = 64
	maxWorkspaces = 256 // entries
	maxServices   = 256 // entries
	maxAcceptFrom = 256 // entries
	maxPassword   = 1 << 10
	maxWarnings   = 16 // entries
	maxDetail     = 500
	// copyProbe is how long the process that has the name may take to show that it
	// lives, when another one comes with the same journal.
	copyProbe = 2 * time.Second
	// maxEpoch leaves a node room to count on.
	maxEpoch = 1 << 53
	// maxAlarms is how many alarms of a node are kept, newest.
	maxAlarms = 8
)

// hello makes a tunnel the node's connection.
func (s *Server) hello(w http.ResponseWriter, r *http.Request) {
	l := linkOf(r)
	var h api.Hello
	if err := decode(w, r, api.MaxTunnelBody, &h); err != nil {
		s.fail(w, r, err)
		return
	}
	err := tidyHello(&h)
	if err == nil {
		err = s.welcome(r.Context(), l, h)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	info := s.cfg.Store.Info()
	reply(w, http.StatusOK, api.Welcome{
		HubID: info.HubID, Generation: info.Generation, Name: l.who.Identity.Name, IdentityID: l.who.Identity.ID,
		Version: s.cfg.Version, HeartbeatMS: api.Millis(s.cfg.Tunnel.Heartbeat),
	})
}

// tidyHello refuses a hello that lacks what it needs, and bounds and cleans what is
// kept of it and shown.
func tidyHello(h *api.Hello) error {
	switch {
	case h.Protocol != api.ProtocolVersion:
		return api.Errorf(api.CodeUnsupportedVersion, "this hub speaks version %d between hub and node, the node %d; update the older one", api.ProtocolVersion, h.Protocol)
	case !shown.IsLine(h.JournalID, maxLabel) || !shown.IsLine(h.Instance, maxLabel):
		return api.Errorf(api.CodeBadRequest, "a hello needs the ids of a journal and of a process, at most %d bytes each", maxLabel)
	case h.Epoch == 0 || h.Epoch > maxEpoch:
		return api.Errorf(api.CodeBadRequest, "a hello needs an epoch from 1 to %d", uint64(maxEpoch))
	}
	for _, label := range []*string{&h.Version, &h.OS, &h.Arch, &h.Policy} {
		*label = shown.Line(*label, maxLabel)
	}
	h.MaxParallel = max(h.MaxParallel, 0)
	// A name that was changed would name nothing: what does not fit is left out.
	h.Workspaces = slices.DeleteFunc(h.Workspaces, func(w string) bool { return !shown.IsLine(w, api.MaxName) })
	h.Workspaces = h.Workspaces[:min(len(h.Workspaces), maxWorkspaces)]
	h.Services = tidyServices(h.Services)
	// Of a list of those who may come in, nothing is left out: it could become empty,
	// which lets everybody in.
	if len(h.AcceptFrom) > maxAcceptFrom || slices.ContainsFunc(h.AcceptFrom, func(a string) bool { return !shown.IsLine(a, maxLabel) }) {
		return api.Errorf(api.CodeBadRequest, "a node takes tasks from at most %d controllers, named in at most %d bytes each", maxAcceptFrom, maxLabel)
	}
	h.Agent = tidyAgent(h.Agent)
	return nil
}

// tidyServices leaves out what cannot be used as it is.
func tidyServices(list []api.Service) []api.Service {
	list = slices.DeleteFunc(list, func(s api.Service) bool {
		_, ok := tunnel.Service(s.Name).Service()
		return !ok || s.Kind != api.ServiceHTTP && s.Kind != api.ServiceTCP || len(s.Username) > maxLabel || len(s.Password) > maxPassword
	})
	return list[:min(len(list), maxServices)]
}

// withoutPasswords is what may be stored of services.
func withoutPasswords(list []api.Service) []api.Service {
	list = slices.Clone(list)
	for i := range list {
		list[i].Username, list[i].Password = "", ""
	}
	return list
}

// tidyAgent does the same with what a node says of its agent.
func tidyAgent(a api.AgentStatus) api.AgentStatus {
	switch a.Health {
	case "", api.HealthHealthy, api.HealthUnreachable, api.HealthStarting, api.HealthAuthFailed, api.HealthUnhealthy:
	default:
		a.Health = api.HealthUnknown
	}
	a.Kind, a.Version = shown.Line(a.Kind, maxLabel), shown.Line(a.Version, maxLabel)
	a.Detail = shown.Line(a.Detail, maxDetail)
	a.Memory = max(a.Memory, 0)
	a.Warnings = shown.Lines(a.Warnings, maxWarnings, maxDetail)
	return a
}

// welcome takes a hello: the journal's epoch first, then the name.
func (s *Server) welcome(ctx context.Context, l *link, h api.Hello) (err error) {
	l.mu.Lock()
	said := l.greeting
	l.greeting = true
	l.mu.Unlock()
	if said {
		return api.Errorf(api.CodeConflict, "this tunnel has said hello already")
	}
	defer func() {
		if err != nil { // it may try again
			l.mu.Lock()
			l.greeting = l.conn != nil
			l.mu.Unlock()
		}
	}()
	now, id := s.cfg.Now(), l.who.Identity
	if s.copied(ctx, id, h) {
		err := api.Errorf(api.CodeJournalForked, "another process works with this journal: the node's directory is a copy")
		return errors.Join(err, s.forked(ctx, id, h, now))
	}
	rec, err := s.changeNode(ctx, id.ID, func(rec *store.NodeRecord) error { return greet(rec, h, now) })
	if api.ErrorCode(err) == api.CodeJournalForked {
		return errors.Join(err, s.forked(ctx, id, h, now))
	}
	if err != nil {
		return err
	}
	superseded, err := s.register(l, h, now)
	if err != nil {
		return err
	}
	if superseded {
		rec = s.tookOver(ctx, id, rec)
	}
	s.cfg.Log.Info("node online", "node", id.Name, "version", h.Version, "platform", h.OS+"/"+h.Arch)
	l.hello.Stop()
	s.cfg.Bus.Node(s.nodeView(id, rec))
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		rl := relay.Link{Identity: id, Node: l.conn.Client, Hello: h}
		l.work.Go(func() { s.attach(l, rl) })
	}
	return nil
}

// errTunnelOver is told to nobody: the tunnel that would carry it is gone.
var errTunnelOver = api.Errorf(api.CodeUnavailable, "the tunnel has ended")

// register gives the link its name among the connected nodes; superseded says that
// another process had it.
func (s *Server) register(l *link, h api.Hello, now time.Time) (superseded bool, err error) {
	c := &registry.Conn{
		Identity: l.who.Identity, Session: l.session, Client: registry.NewClient(l.session), Services: proxy.NewNode(l.who.Identity.Name, l.session, h),
		Instance: h.Instance, Journal: h.JournalID, Since: now,
	}
	l.mu.Lock()
	over := l.over
	if !over {
		l.conn = c
	}
	l.mu.Unlock()
	if over {
		return false, errTunnelOver
	}
	superseded, ok := s.cfg.Registry.Register(c)
	l.mu.Lock()
	over = l.over
	l.mu.Unlock()
	if !ok || over {
		s.depart(l, c) // its end came before it was entered, and found nothing
		return false, errTunnelOver
	}
	return superseded, nil
}

// tookOver notes that a second process has a node's name. The name is its own by
// now, whether or not that can be written down.
func (s *Server) tookOver(ctx context.Context, id store.Identity, rec store.NodeRecord) store.NodeRecord {
	s.cfg.Metrics.Superseded()
	s.cfg.Log.Warn("a second process took a node's name over", "node", id.Name)
	noted, err := s.changeNode(ctx, id.ID, func(rec *store.NodeRecord) error {
		rec.Superseded++
		return nil
	})
	if err != nil {
		s.cfg.Log.Warn("that was not noted", "node", id.Name, "err", err)
		return rec
	}
	return noted
}

// copied reports whether a living process of the same identity works with the
// journal already. One directory has one process, so this one's is a copy, even if
// its epoch is newer. A process that died, or whose network did, does not answer.
func (s *Server) copied(ctx context.Context, id store.Identity, h api.Hello) bool {
	c, ok := s.cfg.Registry.Locate(id.ID)
	if !ok || c.Instance == h.Instance || c.Journal != h.JournalID {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, copyProbe)
	defer cancel()
	client := registry.NewClient(c.Session)
	defer client.Close()
	return client.Alive(ctx)
}

// forked notes that a node's directory was copied or restored.
func (s *Server) forked(ctx context.Context, id store.Identity, h api.Hello, now time.Time) error {
	s.cfg.Metrics.Forked()
	s.cfg.Log.Error("a copied or restored node directory said hello; it gets a journal of its own", "node", id.Name, "journal", h.JournalID)
	_, err := s.changeNode(ctx, id.ID, func(rec *store.NodeRecord) error {
		rec.Alarms = append(rec.Alarms, "journal_forked: the node's directory was copied or restored ("+now.Format(time.RFC3339)+")")
		rec.Alarms = rec.Alarms[max(0, len(rec.Alarms)-maxAlarms):]
		return nil
	})
	return err
}

// attach hands a greeted node to the relay, and then to the post. It runs beside the answer to the
// hello, because the relay calls the node back.
func (s *Server) attach(l *link, rl relay.Link) {
	fail := func(err error) {
		if l.session.Context().Err() == nil {
			s.cfg.Log.Warn("a node's tunnel is closed", "node", rl.Identity.Name, "err", err)
		}
		_ = l.session.Close()
	}
	detach, err := s.cfg.Relay.Attach(l.session.Context(), rl, fail)
	if err != nil {
		fail(err)
		return
	}
	detachMail := s.cfg.Mail.Attach(l.session.Context(), rl.Identity, l.registered().Client)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.detach = func() {
		detachMail()
		detach()
	}
}

// greet checks the fencing epoch and notes the hello (semantics 5).
func greet(rec *store.NodeRecord, h api.Hello, now time.Time) error {
	forked := api.Errorf(api.CodeJournalForked, "this hub has seen epoch %d of the journal already: the node's directory is a copy or was restored", h.Epoch)
	switch {
	case rec.JournalID == h.JournalID:
		if h.Epoch <= rec.Epoch {
			return forked
		}
	default:
		i := slices.IndexFunc(rec.Epochs, func(e store.JournalEpoch) bool { return e.JournalID == h.JournalID })
		if i >= 0 && h.Epoch <= rec.Epochs[i].Epoch {
			return forked
		}
		if i >= 0 {
			rec.Epochs = slices.Delete(rec.Epochs, i, i+1)
		}
		if rec.JournalID != "" {
			rec.Epochs = append(rec.Epochs, store.JournalEpoch{JournalID: rec.JournalID, Epoch: rec.Epoch})
			if n := len(rec.Epochs) - store.MaxFormerJournals; n > 0 {
				rec.Epochs = rec.Epochs[n:]
			}
		}
	}
	rec.JournalID, rec.Epoch = h.JournalID, h.Epoch
	rec.Agent, rec.OnlineAt = h.Agent, now
	h.Bound = nil // goes to the bindings, not here
	h.Services = withoutPasswords(h.Services)
	rec.Hello = h
	return nil
}
