package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	node "opencode-mesh/node/peers"
	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/api"
)

const (
	// MaxSent is how many messages an outbox shows.
	MaxSent = 200
	// MaxUnread is how many messages an agent reads at once.
	MaxUnread = 50
	// MaxUnreadBytes is how much text they may have together, in bytes, but for the first.
	MaxUnreadBytes = 256 << 10
)

// Desk is who acts when no agent is named: the people at this node.
const Desk = ""

// Config is what an Access needs.
type Config struct {
	Service *node.Service
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Log gets what an operator should see; nil: nowhere.
	Log *slog.Logger
}

// Access serves people and MCP agents. Its methods may be used by many at once; a lease
// that they take is one of Register, or Desk. What they refuse is an *api.Error.
type Access struct {
	svc *node.Service
	now func() time.Time
	log *slog.Logger

	// turn is held while agents come and go.
	turn chan struct{}

	mu     sync.Mutex        // guards the following fields
	agents map[string]*guest // by endpoint
	leases map[string]lease
}

// New makes an Access. Run has to be called for agents to go.
func New(cfg Config) *Access {
	a := &Access{
		svc: cfg.Service, now: cfg.Now, log: cfg.Log, turn: make(chan struct{}, 1),
		agents: map[string]*guest{}, leases: map[string]lease{},
	}
	if a.now == nil {
		a.now = time.Now
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	return a
}

// who is the endpoint that acts.
func (a *Access) who(as string) (Identity, error) {
	if as != Desk {
		return a.holder(as)
	}
	id, name, err := a.svc.DeskIdentity()
	return Identity{ID: id, Name: name}, err
}

// List is who there is, one line for each process as the original lists them, without the
// one who asks. offline adds those that are not there any more.
func (a *Access) List(ctx context.Context, as string, offline bool) (Listing, error) {
	you, err := a.who(as)
	if err != nil {
		return Listing{}, err
	}
	all, err := a.others(ctx, you.ID)
	if err != nil {
		return Listing{}, err
	}
	out := Listing{Agents: []Agent{}, You: you}
	for _, p := range registry.Collapse(all) {
		if p.Alive || offline {
			out.Agents = append(out.Agents, agent(p))
		}
	}
	return out, nil
}

// others are all agents but one.
func (a *Access) others(ctx context.Context, id string) ([]registry.Peer, error) {
	all, err := a.svc.Agents(ctx)
	return slices.DeleteFunc(all, func(p registry.Peer) bool { return p.EndpointID == id }), err
}

// Send sends a text to the agent with an id, or else to the only one with a name that is
// there. The message that is returned was put into the outbox; it has a receipt, or its
// Error says why there is none: it is Unsent then, or it may have arrived all the same.
func (a *Access) Send(ctx context.Context, as, to, text string) (Message, error) {
	you, err := a.who(as)
	if err != nil {
		return Message{}, err
	}
	if to == you.ID {
		return Message{}, refused(node.ErrSelf)
	}
	all, err := a.others(ctx, you.ID)
	if err != nil {
		return Message{}, err
	}
	target, err := registry.Resolve(all, to)
	switch {
	case err != nil && to == you.Name && !errors.Is(err, registry.ErrAmbiguous):
		return Message{}, refused(node.ErrSelf)
	case err != nil:
		return Message{}, refused(err)
	}
	if as == Desk {
		if _, err := a.svc.Desk(ctx); err != nil {
			return Message{}, err
		}
	}
	r, err := a.svc.Send(ctx, you.ID, target, text)
	if r.MessageID == "" {
		return Message{}, refused(err)
	}
	m := message(r)
	if err != nil {
		m.Error = cmp.Or(m.Error, err.Error())
		m.Unsent = m.Unsent || !node.MayHaveArrived(err) && m.Receipt == "" && m.Final == ""
	}
	return m, nil
}

// Sent are the messages that somebody sent; all: everybody on this machine.
func (a *Access) Sent(as string, all bool) (Sent, error) {
	var from []string
	if !all {
		you, err := a.who(as)
		if err != nil {
			return Sent{}, err
		}
		from = []string{you.ID}
	}
	list, err := a.svc.Outbox().List(from...)
	if err != nil {
		return Sent{}, err
	}
	out := Sent{Messages: []Message{}}
	for i, r := range list {
		if i == MaxSent {
			out.More = len(list) - i
			break
		}
		out.Messages = append(out.Messages, message(r))
	}
	return out, nil
}

// Status is what became of a message. An agent sees its own, people all of this machine.
func (a *Access) Status(as, id string) (Message, error) {
	you, err := a.who(as)
	if err != nil {
		return Message{}, err
	}
	r, err := a.svc.Outbox().Get(you.ID, id)
	if as == Desk && errors.Is(err, outbox.ErrNone) {
		r, err = a.anybodys(id)
	}
	if errors.Is(err, outbox.ErrNone) {
		return Message{}, api.Errorf(api.CodeNotFound, "no message with the id %q was sent from here", Clean(id))
	}
	return message(r), err
}

// anybodys is the message with an id of any sender.
func (a *Access) anybodys(id string) (outbox.Record, error) {
	list, err := a.svc.Outbox().List()
	if err != nil {
		return outbox.Record{}, err
	}
	at := slices.IndexFunc(list, func(r outbox.Record) bool { return r.MessageID == id })
	if at < 0 {
		return outbox.Record{}, outbox.ErrNone
	}
	return list[at], nil
}

// Inbox is what waits for people to decide, at all endpoints of this node.
func (a *Access) Inbox(ctx context.Context) ([]Held, error) {
	list, err := a.svc.Inbox(ctx)
	out := []Held{}
	for _, h := range list {
		out = append(out, Held{
			Received: received(h.Record), For: Identity{ID: h.Endpoint, Name: h.Name}, ExpiresAt: at(h.Record.ExpiresAt),
		})
	}
	return out, err
}

// Ref names a message of an Inbox.
type Ref struct {
	Key
	For string `json:"for"` // the endpoint
}

// Decide lets messages of the Inbox be delivered, or drops them. At the desk, to be
// accepted is to be delivered. It ends at the first that it cannot do.
func (a *Access) Decide(ctx context.Context, accept bool, refs []Ref) error {
	do := a.svc.Drop
	if accept {
		do = a.svc.Accept
	}
	for _, r := range refs {
		if err := do(ctx, node.Ref{Endpoint: r.For, Key: spool.Key{From: r.From, ID: r.ID}}); err != nil {
			return refused(err)
		}
	}
	return nil
}

// Name is what the desk is called.
func (a *Access) Name() (Identity, error) { return a.who(Desk) }

// Rename gives the desk a name, under which it stays listed; "" takes it away.
func (a *Access) Rename(ctx context.Context, name string) (Identity, error) {
	if err := checkName(name); err != nil {
		return Identity{}, err
	}
	if err := a.svc.Name(ctx, name); err != nil {
		return Identity{}, err
	}
	return a.Name()
}

// refused gives what the service does not do its code. Failures stay as they are.
func refused(err error) error {
	var long *node.TooLongError
	var rate *node.RateError
	var state *spool.StateError
	code := api.Code("")
	switch {
	case errors.Is(err, registry.ErrUnknown):
		code = api.CodeUnknownTarget
	case errors.Is(err, registry.ErrAmbiguous), errors.Is(err, node.ErrSelf), errors.Is(err, node.ErrBlank):
		code = api.CodeBadRequest
	case errors.Is(err, registry.ErrOffline), errors.Is(err, node.ErrOffline):
		code = api.CodeUnavailable
	case errors.As(err, &long):
		code = api.CodeTooLarge
	case errors.As(err, &rate):
		code = api.CodeRateLimited
	case errors.Is(err, spool.ErrFull):
		code = api.CodeQueueFull
	case errors.Is(err, spool.ErrUnknown), errors.As(err, &state):
		code = api.CodeConflict
	default:
		return err
	}
	return api.Errorf(code, "%s", err)
}

func badRequest(format string, args ...any) error {
	return api.Errorf(api.CodeBadRequest, "%s", fmt.Sprintf(format, args...))
}
