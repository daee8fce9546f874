package adopt

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/spool"
	proto "opencode-mesh/protocol/peers"
)

// Service is what is needed of peers.Service.
type Service interface {
	Publish(ctx context.Context, e peers.Endpoint) error
	Withdraw(ctx context.Context, id string) error
	Abandon(ctx context.Context, id string) error
	Settle(ctx context.Context, id string, k spool.Key, status string) error
	Own(id string) (peers.Endpoint, bool)
	Records(id string, states ...spool.State) ([]spool.Record, error)
}

var _ Service = (*peers.Service)(nil)

// Config says whose sessions are adopted, and how. Service and Box are required.
type Config struct {
	// Agent is the node's; nothing is adopted unless it is an agent.Watcher.
	Agent   agent.Agent
	Service Service
	// Box keeps which sessions were adopted.
	Box *mail.Box
	// Permissions and PermissionsRemote are those of peers.Config, "" as there.
	Permissions, PermissionsRemote string
	// Retry is the time from a failure to the next attempt; 0: RetryAfter.
	Retry time.Duration
	// AskLimit is how long a person has to answer; 0: AskLimit.
	AskLimit time.Duration
	// Log gets what an operator should see; nil: discarded.
	Log *slog.Logger
}

// Adopter adopts the sessions of a node's agent.
type Adopter struct {
	cfg   Config
	agent agent.Watcher // nil: none
	rows  rows
	signs *signs

	// The following fields belong to Run.
	ctx     context.Context // of deliveries
	adopted map[string]*session
	wanted  map[string]bool   // sessions that peers wrote to before this start
	plugins map[string]string // by directory; told anew after each gap

	mu   sync.Mutex // guards the following field
	dirs map[string]int
}

// New makes an Adopter. It starts nothing.
func New(cfg Config) *Adopter {
	if cfg.Permissions == "" {
		cfg.Permissions = peers.PermissionsAllow
	}
	if cfg.PermissionsRemote == "" {
		cfg.PermissionsRemote = peers.PermissionsAsk
	}
	if cfg.Retry == 0 {
		cfg.Retry = RetryAfter
	}
	if cfg.AskLimit == 0 {
		cfg.AskLimit = AskLimit
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	a := &Adopter{cfg: cfg, rows: rows{cfg.Box}, signs: newSigns(), adopted: map[string]*session{}, wanted: map[string]bool{},
		plugins: map[string]string{}, dirs: map[string]int{}}
	a.agent, _ = cfg.Agent.(agent.Watcher)
	return a
}

// Run adopts and delivers until ctx ends, and returns when nothing of it runs any more.
// It is called once. The endpoints stay with the service, which stops after it.
func (a *Adopter) Run(ctx context.Context) {
	if a.agent == nil {
		return
	}
	a.ctx = ctx
	a.recall(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		a.agent.Watch(ctx, a.signs.add, func() []string {
			a.signs.gap()
			return a.directories()
		})
	})
	defer work.Wait()
	defer func() {
		for _, s := range a.adopted {
			s.stop()
		}
	}()
	for {
		again := false
		for _, id := range a.signs.take(a.known) {
			if err := a.look(ctx, id); err != nil && ctx.Err() == nil {
				a.cfg.Log.Debug("peers: a session could not be looked at and is later", "session", id, "err", err)
				a.signs.add(id)
				again = true
			}
		}
		wait := time.Hour // nothing waits: a sign hastens it
		if again {
			wait = a.cfg.Retry
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-a.signs.wake:
			timer.Stop()
			if again { // what failed does not come at once with the next sign
				select {
				case <-ctx.Done():
					return
				case <-time.After(min(a.cfg.Retry, time.Second)):
				}
			}
		}
	}
}

// recall has the sessions looked at that peers had written to.
func (a *Adopter) recall(ctx context.Context) {
	all, err := a.rows.all()
	if err != nil {
		a.cfg.Log.Error("peers: which sessions were adopted cannot be read", "err", err)
		return
	}
	for _, id := range all {
		records, err := a.cfg.Service.Records(proto.EndpointID(id))
		switch {
		case err != nil:
			a.cfg.Log.Error("peers: the messages of a session cannot be read", "session", id, "err", err)
		case len(records) > 0:
			a.wanted[id] = true
			a.signs.add(id)
		default:
			a.drop(ctx, id)
		}
	}
}

// known are the sessions that have to be looked at after a gap.
func (a *Adopter) known() []string {
	clear(a.plugins)
	var ids []string
	for id := range a.adopted {
		ids = append(ids, id)
	}
	for id := range a.wanted {
		ids = append(ids, id)
	}
	return ids
}

// directories are those in which sessions are adopted.
func (a *Adopter) directories() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var dirs []string
	for dir := range a.dirs {
		dirs = append(dirs, dir)
	}
	return dirs
}

// look sees how a session is and does what follows from that. An error says that it has
// to be looked at again.
func (a *Adopter) look(ctx context.Context, id string) error { return a.lookAt(ctx, id, false) }

// lookAt is look; active is a session that counts as active however long it is idle.
func (a *Adopter) lookAt(ctx context.Context, id string, active bool) error {
	h, err := a.agent.Hosted(ctx, id)
	if errors.Is(err, agent.ErrNoSession) {
		return a.ended(ctx, id)
	}
	if err != nil {
		return err
	}
	s := a.adopted[id]
	if s == nil && !active && !a.wanted[id] && h.Status == agent.StatusIdle && time.Since(h.Updated) > Recent {
		return nil
	}
	plugin, err := a.plugin(ctx, h.Dir)
	if err != nil {
		return err
	}
	if plugin != "" {
		delete(a.wanted, id)
		if s == nil {
			return nil
		}
		return a.release(ctx, s)
	}
	if s == nil {
		return a.adopt(ctx, h)
	}
	if s.shown == shownOf(h) {
		s.updated = h.Updated
		return nil
	}
	return a.publish(ctx, s, h)
}

// plugin says which plugin for peers the server loads in a directory.
func (a *Adopter) plugin(ctx context.Context, dir string) (string, error) {
	name, known := a.plugins[dir]
	if known {
		return name, nil
	}
	name, err := a.agent.Plugin(ctx, dir, pluginNames)
	if err != nil {
		return "", err
	}
	if name != "" {
		a.cfg.Log.Info("peers: the sessions of a directory are left to the plugin that opencode loads there", "dir", dir, "plugin", name)
	}
	a.plugins[dir] = name
	return name, nil
}

// adopt makes a session an endpoint.
func (a *Adopter) adopt(ctx context.Context, h agent.Hosted) error {
	if len(a.adopted) >= MaxAdopted {
		made, err := a.makeRoom(ctx)
		if err != nil {
			return err
		}
		if !made {
			a.cfg.Log.Warn("peers: a session is not shown, too many others work or have messages", "session", h.Session, "most", MaxAdopted)
			return nil
		}
	}
	// What peers send is found again after a crash by this row.
	if err := a.rows.put(ctx, h.Session); err != nil {
		return err
	}
	s := newSession(a, h.Session)
	a.adopted[h.Session] = s
	if err := a.publish(ctx, s, h); err != nil {
		return errors.Join(err, a.release(ctx, s))
	}
	if a.wanted[h.Session] {
		delete(a.wanted, h.Session)
		s.attend(h)
	}
	a.cfg.Log.Info("peers: a session is shown", "session", h.Session, "endpoint", s.endpoint, "dir", h.Dir)
	if h.Parent != "" && a.adopted[h.Parent] == nil {
		return a.lookAt(ctx, h.Parent, true) // others look for it by what its child says
	}
	return nil
}

// publish tells what a session is like now.
func (a *Adopter) publish(ctx context.Context, s *session, h agent.Hosted) error {
	s.setDir(h.Dir) // before: what waits is delivered at once
	err := a.cfg.Service.Publish(ctx, peers.Endpoint{
		ID: s.endpoint, Session: s.id, Parent: h.Parent, Title: h.Title, Directory: h.Dir, Status: h.Status,
		StartedAt: h.Created, Receiver: s,
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.dirs[h.Dir]++
	if s.shown.dir != "" {
		a.leaveDir(s.shown.dir)
	}
	a.mu.Unlock()
	s.shown, s.updated = shownOf(h), h.Updated
	return nil
}

// leaveDir takes one session off a directory. The caller holds mu.
func (a *Adopter) leaveDir(dir string) {
	if a.dirs[dir]--; a.dirs[dir] <= 0 {
		delete(a.dirs, dir)
	}
}

// makeRoom releases the session that is idle for longest and that no peer waits for.
func (a *Adopter) makeRoom(ctx context.Context) (bool, error) {
	var idle []*session
	for _, s := range a.adopted {
		if s.shown.status == agent.StatusIdle && !s.delivering() {
			idle = append(idle, s)
		}
	}
	slices.SortFunc(idle, func(x, y *session) int { return x.updated.Compare(y.updated) })
	for _, s := range idle {
		waits, err := a.waits(s)
		if err != nil {
			return false, err
		}
		if waits {
			continue
		}
		if err := a.release(ctx, s); err != nil {
			return false, err
		}
		// Until then messages were taken.
		if waits, err = a.waits(s); waits {
			a.wanted[s.id] = true
			a.signs.add(s.id)
		}
		return true, err
	}
	return false, nil
}

// waits reports whether a session has messages that have not ended.
func (a *Adopter) waits(s *session) (bool, error) {
	open, err := a.cfg.Service.Records(s.endpoint, spool.StateHeld, spool.StateQueued, spool.StateInflight)
	return len(open) > 0, err
}

// release makes a session no endpoint any more. What it owes to peers stays.
func (a *Adopter) release(ctx context.Context, s *session) error {
	if err := a.cfg.Service.Withdraw(ctx, s.endpoint); err != nil {
		return err
	}
	a.leave(s)
	records, err := a.cfg.Service.Records(s.endpoint)
	if err == nil && len(records) == 0 {
		a.drop(ctx, s.id)
	}
	return nil
}

// leave ends what is done for a session that is no endpoint any more.
func (a *Adopter) leave(s *session) {
	s.stop()
	delete(a.adopted, s.id)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaveDir(s.shown.dir)
}

// ended follows a session that the server does not have any more, and those of its
// sub-agents. Nobody can have what waits for it.
func (a *Adopter) ended(ctx context.Context, id string) error {
	delete(a.wanted, id)
	gone := []string{id}
	for i := 0; i < len(gone); i++ {
		for child, s := range a.adopted {
			if s.shown.parent == gone[i] {
				gone = append(gone, child)
			}
		}
	}
	for _, id := range gone {
		if err := a.cfg.Service.Abandon(ctx, proto.EndpointID(id)); err != nil {
			return err
		}
		if s := a.adopted[id]; s != nil {
			a.leave(s)
			a.cfg.Log.Info("peers: a session has ended and is not shown any more", "session", id)
		}
		a.drop(ctx, id)
	}
	return nil
}

// drop forgets that a session was adopted.
func (a *Adopter) drop(ctx context.Context, id string) {
	if err := a.rows.drop(ctx, id); err != nil && ctx.Err() == nil {
		// It is tried again at the next start.
		a.cfg.Log.Warn("peers: that a session was adopted could not be forgotten", "session", id, "err", err)
	}
}
