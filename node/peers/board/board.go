// Package board shows a node's part in opencode-plugin-peers to the operators of its hub:
// the agents that those of its machine can write to, and what became of messages that the
// node sent or carried. It only reads, and every answer is bounded.
//
// What agents of other programs on the machine write to each other is not on it: only what
// endpoints of the node itself sent, and what passed between machines. Texts go out as they
// are, as far as they are UTF-8: the hub cleans what it shows.
package board

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	words "opencode-mesh/protocol/peers"
)

// Service is the node's part in the registry of its machine, a peers.Service.
type Service interface {
	Agents(ctx context.Context) ([]registry.Peer, error)
	Endpoints() []string
	DeskIdentity() (id, name string, err error)
	Outbox() *outbox.Outbox
}

// Relay carries messages between machines, a relay.Relay.
type Relay interface {
	Exports(p registry.Peer) bool
	NodeOf(endpoint string) string
	Messages(limit int) (list []api.PeerMessage, more bool, err error)
}

// Config of a Board. Service is nil for a node that takes no part in peers: who asks is
// told so. Otherwise Relay is needed, too.
type Config struct {
	Service Service
	Relay   Relay
	Log     *slog.Logger // nil: discarded
}

// Board answers the hub. It is safe for concurrent use.
type Board struct {
	cfg Config
	// turn has one token: there may be many files, so that they are read once at a time.
	turn chan struct{}
}

// New makes a Board.
func New(cfg Config) *Board {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Board{cfg: cfg, turn: make(chan struct{}, 1)}
}

// Routes adds what the hub may ask.
func (b *Board) Routes(mux chi.Router) {
	mux.Get("/v1/peers/board", func(w http.ResponseWriter, r *http.Request) {
		v, err := b.Look(r.Context())
		var e *api.Error
		switch {
		case err == nil:
			tasks.WriteJSON(w, http.StatusOK, v)
		case errors.As(err, &e):
			tasks.WriteError(w, e)
		case r.Context().Err() != nil:
			tasks.WriteError(w, api.Errorf(api.CodeUnavailable, "the request ended before it was done"))
		default:
			b.cfg.Log.Warn("peers: the board cannot be shown", "err", err)
			tasks.WriteError(w, api.Errorf(api.CodeInternal, "something went wrong in the node; its log says what"))
		}
	})
}

// Look is the board as it is now.
func (b *Board) Look(ctx context.Context) (out api.PeerBoard, err error) {
	if b.cfg.Service == nil {
		return out, api.Errorf(api.CodeRefused, "this node takes no part in peers (--no-peers)")
	}
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return out, ctx.Err()
	}
	defer func() { <-b.turn }()
	all, err := b.cfg.Service.Agents(ctx)
	if err != nil {
		return out, err
	}
	agents, moreAgents := b.agents(all)
	messages, moreMessages, err := b.messages(all)
	return api.PeerBoard{Agents: agents, Messages: messages, More: moreAgents || moreMessages}, err
}

// agents are those of the registry, as its readers are shown them.
func (b *Board) agents(all []registry.Peer) (list []api.PeerSeen, more bool) {
	list = []api.PeerSeen{}
	for _, p := range registry.Collapse(all) {
		list = append(list, api.PeerSeen{
			PeerAgent: api.PeerAgent{
				ID: word(p.EndpointID), Name: word(p.Name), Title: word(p.Title), Directory: words.Cut(p.Directory, 4*api.MaxPeerText),
				Status: word(p.Status), Policy: word(p.InboundPolicy), StartedAt: millis(p.StartedAt),
			},
			Node: b.nodeOf(p), Visible: b.cfg.Relay.Exports(p), Offline: p.Reason,
		})
	}
	slices.SortStableFunc(list, func(x, y api.PeerSeen) int { return cmp.Compare(min(len(x.Node), 1), min(len(y.Node), 1)) })
	if len(list) > api.MaxPeerSeen {
		return list[:api.MaxPeerSeen], true
	}
	return list, false
}

// nodeOf is the node that an agent runs on; "": this machine. An agent that another node of
// this machine publishes for a third is known by the signs of a proxy.
func (b *Board) nodeOf(p registry.Peer) string {
	if node := b.cfg.Relay.NodeOf(p.EndpointID); node != "" {
		return node
	}
	node, _, ok := strings.Cut(p.Directory, ":")
	if ok && p.SessionID == p.EndpointID && !filepath.IsAbs(p.Directory) && api.ValidName(node) {
		return node
	}
	return ""
}

// messages are those that endpoints of this node sent, and those that passed between
// machines. One that is both is there once, as it was sent.
func (b *Board) messages(all []registry.Peer) (list []api.PeerMessage, more bool, err error) {
	relayed, more, err := b.cfg.Relay.Messages(api.MaxPeerMessages)
	if err != nil {
		return nil, false, err
	}
	desk, deskName, err := b.cfg.Service.DeskIdentity()
	if err != nil {
		return nil, false, err
	}
	names := map[string]string{desk: deskName}
	for _, p := range all {
		names[p.EndpointID] = p.Name
	}
	from := []string{desk}
	for _, id := range b.cfg.Service.Endpoints() {
		if b.cfg.Relay.NodeOf(id) == "" { // those of others send nothing of their own
			from = append(from, id)
		}
	}
	sent, err := b.cfg.Service.Outbox().List(from...)
	if err != nil {
		return nil, false, err
	}
	type key struct{ from, id string }
	carried := map[key]string{} // to which node
	for _, m := range relayed {
		if m.Way == api.PeerCarried {
			carried[key{m.From, m.ID}] = m.Node
		}
	}
	own := map[key]bool{}
	list = []api.PeerMessage{}
	for _, r := range sent {
		k := key{r.FromEndpoint, r.MessageID}
		own[k] = true
		if len(list) == api.MaxPeerMessages {
			more = true
			continue
		}
		list = append(list, api.PeerMessage{
			ID: word(r.MessageID), Way: api.PeerSent, From: word(r.FromEndpoint), FromName: word(names[r.FromEndpoint]),
			To: word(r.ToEndpoint), ToName: word(r.ToName), Node: cmp.Or(carried[k], b.cfg.Relay.NodeOf(r.ToEndpoint)),
			Text: words.Cut(r.Text, api.MaxPeerPreview), Truncated: len(r.Text) > api.MaxPeerPreview,
			Receipt: word(r.ReceiptStatus), Final: word(r.FinalStatus), Error: words.Cut(r.Error, 4*api.MaxPeerText),
			CreatedAt: time.UnixMilli(millis(r.CreatedAt)).UTC(), UpdatedAt: time.UnixMilli(millis(r.UpdatedAt)).UTC(),
		})
	}
	for _, m := range relayed {
		if m.Way == api.PeerCarried && own[key{m.From, m.ID}] {
			continue
		}
		if m.ToName == "" {
			m.ToName = names[m.To]
		}
		m.ID, m.From, m.FromName, m.To, m.ToName = word(m.ID), word(m.From), word(m.FromName), word(m.To), word(m.ToName)
		list = append(list, m)
	}
	slices.SortStableFunc(list, func(x, y api.PeerMessage) int { return y.CreatedAt.Compare(x.CreatedAt) })
	if len(list) > api.MaxPeerMessages {
		list, more = list[:api.MaxPeerMessages], true
	}
	return list, more, nil
}

// word is what somebody wrote, as much of it as a board has.
func word(s string) string { return words.Cut(s, api.MaxPeerText) }

// millis reads a time that somebody wrote, in Unix milliseconds; what is none is 0.
func millis(ms float64) int64 {
	const last = 253_402_300_799_000 // JSON knows no later year
	if !(ms > 0 && ms <= last) {
		return 0
	}
	return int64(ms)
}
