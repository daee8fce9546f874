package access

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"opencode-mesh/node/internal/proc"
	node "opencode-mesh/node/peers"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/peers"
)

const (
	// LeaseTime is how long an agent stays after its process last said that it is there.
	LeaseTime = 45 * time.Second
	// RenewEvery is how often a process says so.
	RenewEvery = 15 * time.Second
	// MaxLeases is how many processes of agents a node serves.
	MaxLeases = 256
	// maxMember bounds the id of a member, in bytes, and maxDirectory its directory.
	maxMember    = 256
	maxDirectory = 4096
)

// sweepEvery is how often Run looks for agents that went, by their process or lease.
const sweepEvery = 3 * time.Second

// Registration is what an MCP process says of its agent.
type Registration struct {
	// Member is what the address is made of: it is the session of the endpoint.
	Member    string `json:"member"`
	Directory string `json:"directory"` // absolute
	Name      string `json:"name"`      // "": made from the directory
	// Once says that nobody comes back under this member id: what was not read when the
	// process ended is dropped. Without it that waits for the next one.
	Once bool `json:"once"`
	// Process is who says so: its lease ends with it.
	Process proc.Mark `json:"process"`
}

// lease is what one process holds.
type lease struct {
	endpoint string
	until    time.Time
	what     Registration
}

// guest is an agent that is published. Its fields are guarded by Access.mu.
type guest struct {
	a    *Access
	id   string
	what Registration
	over bool // no process is behind it any more
	// taken are messages that were read, of which the spool could not be told yet. They are
	// not shown again.
	taken map[spool.Key]bool
}

var validLease = regexp.MustCompile(`^[0-9a-f]{32}$`)

func checkName(name string) error {
	if name != "" && !peers.ValidName(name) {
		return badRequest("%q is no name for a peer: 1 to 32 letters, digits, blanks, - and _", Clean(name))
	}
	return nil
}

// Register publishes an agent, or renews a lease: 32 hex digits that the process chose. The
// agent stays for LeaseTime.
func (a *Access) Register(ctx context.Context, as string, r Registration) (Identity, error) {
	switch {
	case !validLease.MatchString(as):
		return Identity{}, badRequest("a lease is 32 hex digits")
	case r.Member == "" || len(r.Member) > maxMember:
		return Identity{}, badRequest("a member id has 1 to %d bytes", maxMember)
	case !filepath.IsAbs(r.Directory) || len(r.Directory) > maxDirectory:
		return Identity{}, badRequest("the directory of an agent is absolute and has at most %d bytes", maxDirectory)
	}
	if err := checkName(r.Name); err != nil {
		return Identity{}, err
	}
	if err := a.take(ctx); err != nil {
		return Identity{}, err
	}
	defer a.give()
	id := peers.EndpointID(r.Member)
	a.mu.Lock()
	held, renewed := a.leases[as]
	known, free := a.agents[id], len(a.leases) < MaxLeases
	there := known != nil && !known.over
	a.mu.Unlock()
	e, own := a.svc.Own(id)
	told := r
	switch {
	case renewed && held.endpoint != id:
		return Identity{}, api.Errorf(api.CodeConflict, "the lease is that of another agent")
	case !renewed && !free:
		return Identity{}, api.Errorf(api.CodeQueueFull, "this node serves %d agents already, which is the most", MaxLeases)
	}
	if known == nil {
		if err := a.vacant(ctx, id); err != nil {
			return Identity{}, err
		}
	}
	if there && own && r.Name == "" {
		r.Name = e.Name // another process of the member gave it
	}
	// What several processes of a member say differs: the last that came counts.
	if !there || !own || !renewed || held.what != told {
		if err := a.publish(ctx, id, r); err != nil {
			return Identity{}, err
		}
	}
	a.mu.Lock()
	a.leases[as] = lease{id, a.now().Add(LeaseTime), told}
	a.mu.Unlock()
	return a.holder(as)
}

// vacant refuses an id that somebody else has, who would lose its mail.
func (a *Access) vacant(ctx context.Context, id string) error {
	taken := api.Errorf(api.CodeConflict, "another agent of this machine has the identity %s already", id)
	if _, own := a.svc.Own(id); own {
		return taken
	}
	all, err := a.svc.Agents(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.EndpointID == id && p.Alive && !p.Own {
			return taken
		}
	}
	return nil
}

// publish makes an agent known, unless it is as it should be. The caller has the turn.
func (a *Access) publish(ctx context.Context, id string, r Registration) error {
	r.Process = proc.Mark{} // the agent may have several
	_, own := a.svc.Own(id)
	a.mu.Lock()
	g := a.agents[id]
	as := g != nil && !g.over && g.what == r
	a.mu.Unlock()
	if as && own {
		return nil
	}
	if g == nil {
		g = &guest{a: a, id: id, taken: map[spool.Key]bool{}}
	}
	a.mu.Lock()
	was, over := g.what, g.over
	g.what, g.over = r, false // at once: from now on messages may come
	a.mu.Unlock()
	err := a.svc.Publish(ctx, g.endpoint("MCP agent"))
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		g.what, g.over = was, over
		return err
	}
	a.agents[id] = g
	return nil
}

func (g *guest) endpoint(title string) node.Endpoint {
	return node.Endpoint{
		ID: g.id, Session: g.what.Member, Title: title, Name: g.what.Name, Directory: g.what.Directory,
		Permissions: node.PermissionsAsk, Receiver: g,
	}
}

// Deliver implements the service's Receiver: a message is delivered when it is read.
func (g *guest) Deliver(context.Context, spool.Record) error {
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	if g.over && g.what.Once {
		return &node.Final{Status: peers.Dropped}
	}
	return node.ErrPending
}

// Acked implements the service's Receiver.
func (g *guest) Acked(context.Context, peers.Ack) (bool, error) { return false, nil }

// holder is the endpoint of a lease.
func (a *Access) holder(as string) (Identity, error) {
	a.mu.Lock()
	held, ok := a.leases[as]
	a.mu.Unlock()
	e, own := a.svc.Own(held.endpoint)
	if !ok || !own {
		return Identity{}, api.Errorf(api.CodeNotFound, "the agent is not registered (any more)")
	}
	return Identity{ID: e.ID, Name: e.Name}, nil
}

// Unread is what waits for an agent to read it, without what was taken. It changes
// nothing: see Taken.
func (a *Access) Unread(as string) (Unread, error) {
	you, err := a.holder(as)
	if err != nil {
		return Unread{}, err
	}
	list, err := a.svc.Records(you.ID, spool.StateQueued, spool.StateInflight)
	if err != nil {
		return Unread{}, err
	}
	a.mu.Lock()
	if g := a.agents[you.ID]; g != nil {
		list = slices.DeleteFunc(list, func(r spool.Record) bool { return g.taken[r.Key()] })
	}
	a.mu.Unlock()
	out, room := Unread{Messages: []Received{}}, MaxUnreadBytes
	for i, r := range list {
		room -= len(r.Message.Text)
		if i == MaxUnread || i > 0 && room < 0 {
			out.More = len(list) - i
			break
		}
		out.Messages = append(out.Messages, received(r))
	}
	return out, nil
}

// Taken says that an agent has got messages, which are delivered with that. From then on
// they are not shown again, whatever becomes of the rest: after an error the node goes on
// telling the spool. It does not outlive the node, so who told tells again until there is
// no error.
func (a *Access) Taken(ctx context.Context, as string, keys []Key) error {
	you, err := a.holder(as)
	if err != nil {
		return err
	}
	waiting, err := a.svc.Records(you.ID, spool.StateQueued, spool.StateInflight)
	if err != nil {
		return err
	}
	a.mu.Lock()
	g := a.agents[you.ID]
	for _, r := range waiting { // no more than the spool has
		k := r.Key()
		if g != nil && slices.Contains(keys, Key{From: k.From, ID: k.ID}) {
			g.taken[k] = true
		}
	}
	a.mu.Unlock()
	if g == nil {
		return api.Errorf(api.CodeNotFound, "the agent is not registered (any more)")
	}
	return a.settle(ctx, g)
}

// settle tells the spool what an agent has taken, up to the first that it cannot note.
func (a *Access) settle(ctx context.Context, g *guest) error {
	a.mu.Lock()
	keys := slices.Collect(maps.Keys(g.taken))
	a.mu.Unlock()
	for _, k := range keys {
		var state *spool.StateError
		err := a.svc.Settle(ctx, g.id, k, peers.Delivered)
		if err != nil && !errors.Is(err, spool.ErrUnknown) && !errors.As(err, &state) {
			return err
		}
		a.mu.Lock()
		delete(g.taken, k)
		a.mu.Unlock()
	}
	return nil
}

// settleAll does so for all agents.
func (a *Access) settleAll(ctx context.Context) error {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.agents))
	a.mu.Unlock()
	var errs []error
	for _, g := range all {
		errs = append(errs, a.settle(ctx, g))
	}
	return errors.Join(errs...)
}

// Release ends a lease at once. One that is not known is none.
func (a *Access) Release(ctx context.Context, as string) error {
	if err := a.take(ctx); err != nil {
		return err
	}
	defer a.give()
	a.mu.Lock()
	held, ok := a.leases[as]
	delete(a.leases, as)
	a.mu.Unlock()
	if !ok {
		return nil
	}
	return a.look(ctx, held.endpoint)
}

// Run ends the leases that were not renewed until ctx ends. What is published then is the
// service's to take back.
func (a *Access) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := a.sweep(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("peers: agents that went are looked at again", "err", err)
		}
		// Not in its turn: the spool may be locked for some seconds.
		if err := a.settleAll(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("peers: messages that were read are not noted as delivered yet", "err", err)
		}
	}
}

// sweep looks at all agents.
func (a *Access) sweep(ctx context.Context) error {
	if err := a.take(ctx); err != nil {
		return err
	}
	defer a.give()
	now := a.now()
	a.mu.Lock()
	leases := maps.Clone(a.leases)
	a.mu.Unlock()
	// The system is asked without mu, and only who has the turn changes leases.
	maps.DeleteFunc(leases, func(_ string, held lease) bool { return now.Before(held.until) && !held.what.Process.Gone() })
	a.mu.Lock()
	for as := range leases {
		delete(a.leases, as)
	}
	ids := make([]string, 0, len(a.agents))
	for id := range a.agents {
		ids = append(ids, id)
	}
	a.mu.Unlock()
	slices.Sort(ids)
	var errs []error
	for _, id := range ids {
		errs = append(errs, a.look(ctx, id))
	}
	return errors.Join(errs...)
}

// look takes an agent back that has no lease any more, once nothing that it sent needs its
// address. The caller has the turn.
func (a *Access) look(ctx context.Context, id string) error {
	a.mu.Lock()
	g := a.agents[id]
	for _, held := range a.leases {
		if held.endpoint == id {
			g = nil
		}
	}
	was := g != nil && g.over
	if g != nil {
		g.over = true
	}
	a.mu.Unlock()
	if g == nil {
		return nil
	}
	if err := a.settle(ctx, g); err != nil {
		return err
	}
	if g.what.Once {
		// At once, whoever waits for an acknowledgement yet.
		if err := a.svc.DropAll(ctx, id); err != nil {
			return err
		}
	}
	waits, err := a.svc.Awaiting(id)
	if err != nil {
		return err
	}
	if waits && was {
		return nil
	}
	if waits {
		return a.svc.Publish(ctx, g.endpoint("MCP agent (ended)"))
	}
	leave := a.svc.Withdraw
	if g.what.Once {
		leave = a.svc.Abandon // with what came since
	}
	if err := leave(ctx, id); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.agents, id)
	return nil
}

// take waits for the turn.
func (a *Access) take(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Access) give() { <-a.turn }
