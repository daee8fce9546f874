package node

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/peers/access"
	"opencode-mesh/protocol/api"
)

// maxAdminMessage is the largest request that has a peer's message in it, in bytes: with
// the largest that may be configured, and six bytes for each of its own.
const maxAdminMessage = 7 << 20

// Bodies of requests about peers. As is the lease of an agent, "" for people.
type (
	peerSend struct {
		As   string `json:"as"`
		To   string `json:"to"`
		Text string `json:"text"`
	}
	peerDecide struct {
		Accept bool         `json:"accept"`
		Refs   []access.Ref `json:"refs"`
	}
	peerName struct {
		Name string `json:"name"`
	}
	peerTaken struct {
		Keys []access.Key `json:"keys"`
	}
)

// peersRoutes are those for peers on the admin socket.
func peersRoutes(mux chi.Router, n *Node) {
	// with answers with what do returns.
	with := func(do func(a *access.Access, r *http.Request) (any, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			a, err := n.peersAccess()
			if err != nil {
				adminError(w, err)
				return
			}
			v, err := do(a, r)
			answerAdmin(w, v, err)
		}
	}
	as := func(r *http.Request) string { return r.URL.Query().Get("as") }
	flag := func(r *http.Request, name string) bool {
		on, _ := strconv.ParseBool(r.URL.Query().Get(name))
		return on
	}
	mux.Get("/peers/list", with(func(a *access.Access, r *http.Request) (any, error) {
		return a.List(r.Context(), as(r), flag(r, "offline"))
	}))
	mux.Post("/peers/send", withBody(with, maxAdminMessage, func(a *access.Access, r *http.Request, in peerSend) (any, error) {
		return a.Send(r.Context(), in.As, in.To, in.Text)
	}))
	mux.Get("/peers/sent", with(func(a *access.Access, r *http.Request) (any, error) { return a.Sent(as(r), flag(r, "all")) }))
	mux.Get("/peers/sent/{id}", with(func(a *access.Access, r *http.Request) (any, error) {
		return a.Status(as(r), pathParam(r, "id"))
	}))
	mux.Get("/peers/inbox", with(func(a *access.Access, r *http.Request) (any, error) { return a.Inbox(r.Context()) }))
	mux.Post("/peers/inbox", withBody(with, maxAdminMessage, func(a *access.Access, r *http.Request, in peerDecide) (any, error) {
		return struct{}{}, a.Decide(r.Context(), in.Accept, in.Refs)
	}))
	mux.Get("/peers/name", with(func(a *access.Access, _ *http.Request) (any, error) { return a.Name() }))
	mux.Put("/peers/name", withBody(with, maxAdminBody, func(a *access.Access, r *http.Request, in peerName) (any, error) {
		return a.Rename(r.Context(), in.Name)
	}))
	mux.Put("/peers/agents/{as}", withBody(with, maxAdminBody, func(a *access.Access, r *http.Request, in access.Registration) (any, error) {
		return a.Register(r.Context(), pathParam(r, "as"), in)
	}))
	mux.Delete("/peers/agents/{as}", with(func(a *access.Access, r *http.Request) (any, error) {
		return struct{}{}, a.Release(r.Context(), pathParam(r, "as"))
	}))
	mux.Get("/peers/agents/{as}/unread", with(func(a *access.Access, r *http.Request) (any, error) { return a.Unread(pathParam(r, "as")) }))
	mux.Post("/peers/agents/{as}/taken", withBody(with, maxAdminBody, func(a *access.Access, r *http.Request, in peerTaken) (any, error) {
		return struct{}{}, a.Taken(r.Context(), pathParam(r, "as"), in.Keys)
	}))
}

// withBody reads a request's body before do.
func withBody[T any](
	with func(func(*access.Access, *http.Request) (any, error)) http.HandlerFunc, most int64,
	do func(*access.Access, *http.Request, T) (any, error),
) http.HandlerFunc {
	return with(func(a *access.Access, r *http.Request) (any, error) {
		var in T
		if err := decodeBody(r, most, &in); err != nil {
			return nil, err
		}
		return do(a, r, in)
	})
}

// peersAccess is what serves people and agents, once the node takes part.
func (n *Node) peersAccess() (*access.Access, error) {
	switch {
	case n.peers == nil:
		return nil, api.Errorf(api.CodeNotSupported, "this node takes no part in peers: start it without --no-peers")
	case !n.peersUp.Load():
		return nil, api.Errorf(api.CodeUnavailable, "the node is starting: try again in a moment")
	}
	return n.access, nil
}

// PeersOperator calls a node's part in opencode-plugin-peers as Operator does the rest. It
// acts as people do, or as the agent of a lease.
type PeersOperator struct {
	o  *Operator
	as string
}

// Peers acts as people do, for access.Desk, or as an agent that registers itself under
// this lease.
func (o *Operator) Peers(as string) *PeersOperator { return &PeersOperator{o, as} }

func (p *PeersOperator) query(also url.Values) string {
	if also == nil {
		also = url.Values{}
	}
	also.Set("as", p.as)
	return "?" + also.Encode()
}

// List is who there is.
func (p *PeersOperator) List(ctx context.Context, offline bool) (l access.Listing, err error) {
	err = p.o.call(ctx, http.MethodGet, "/peers/list"+p.query(url.Values{"offline": {strconv.FormatBool(offline)}}), nil, &l)
	return l, err
}

// Send sends a text to an agent with this id or name.
func (p *PeersOperator) Send(ctx context.Context, to, text string) (m access.Message, err error) {
	err = p.o.call(ctx, http.MethodPost, "/peers/send", peerSend{p.as, to, text}, &m)
	return m, err
}

// Sent is what was sent, by everybody on the machine if all is said.
func (p *PeersOperator) Sent(ctx context.Context, all bool) (s access.Sent, err error) {
	err = p.o.call(ctx, http.MethodGet, "/peers/sent"+p.query(url.Values{"all": {strconv.FormatBool(all)}}), nil, &s)
	return s, err
}

// Status is what became of a message.
func (p *PeersOperator) Status(ctx context.Context, id string) (m access.Message, err error) {
	err = p.o.call(ctx, http.MethodGet, "/peers/sent/"+url.PathEscape(id)+p.query(nil), nil, &m)
	return m, err
}

// Inbox is what waits for people to decide.
func (p *PeersOperator) Inbox(ctx context.Context) (list []access.Held, err error) {
	err = p.o.call(ctx, http.MethodGet, "/peers/inbox", nil, &list)
	return list, err
}

// Decide accepts or drops messages of the inbox, up to the first that it cannot.
func (p *PeersOperator) Decide(ctx context.Context, accept bool, refs []access.Ref) error {
	return p.o.call(ctx, http.MethodPost, "/peers/inbox", peerDecide{accept, refs}, nil)
}

// Name is what people of this node are called.
func (p *PeersOperator) Name(ctx context.Context) (i access.Identity, err error) {
	err = p.o.call(ctx, http.MethodGet, "/peers/name", nil, &i)
	return i, err
}

// Rename changes that; "" takes the name away.
func (p *PeersOperator) Rename(ctx context.Context, name string) (i access.Identity, err error) {
	err = p.o.call(ctx, http.MethodPut, "/peers/name", peerName{name}, &i)
	return i, err
}

// Register publishes the agent of the lease, or renews the lease.
func (p *PeersOperator) Register(ctx context.Context, r access.Registration) (i access.Identity, err error) {
	err = p.o.call(ctx, http.MethodPut, "/peers/agents/"+p.as, r, &i)
	return i, err
}

// Release ends the lease.
func (p *PeersOperator) Release(ctx context.Context) error {
	return p.o.call(ctx, http.MethodDelete, "/peers/agents/"+p.as, nil, nil)
}

// Unread is what the agent was sent and did not take yet.
func (p *PeersOperator) Unread(ctx context.Context) (u access.Unread, err error) {
	err = p.o.call(ctx, http.MethodGet, "/peers/agents/"+p.as+"/unread", nil, &u)
	return u, err
}

// Taken says that the agent has got messages.
func (p *PeersOperator) Taken(ctx context.Context, keys []access.Key) error {
	return p.o.call(ctx, http.MethodPost, "/peers/agents/"+p.as+"/taken", peerTaken{keys}, nil)
}
