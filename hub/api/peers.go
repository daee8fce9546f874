package api

import (
	"context"
	"net/http"

	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/roster"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
)

// maxRosterRequest is the largest request of a node that says its list, in bytes.
const maxRosterRequest = api.MaxPeerRoster

// sayPeers takes the list of the agents that a node shows to the others.
func (s *Server) sayPeers(w http.ResponseWriter, r *http.Request) {
	var in api.PeerRoster
	err := decode(w, r, maxRosterRequest, &in)
	if err == nil {
		err = s.greeted(r)
	}
	if err == nil && len(in.Agents) > api.MaxPeerAgents {
		err = api.Errorf(api.CodeTooLarge, "a node shows at most %d agents", api.MaxPeerAgents)
	}
	if err == nil {
		err = s.putRoster(linkOf(r), tidyPeers(in.Agents))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// putRoster enters a list for as long as the link is there.
func (s *Server) putRoster(l *link, agents []api.PeerAgent) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over { // its end takes out what came before
		return errTunnelOver
	}
	return s.roster.Put(l.owner(), agents)
}

// owner is how the roster knows a link that has said hello.
func (l *link) owner() roster.Owner {
	return roster.Owner{NodeID: l.conn.Identity.ID, Node: l.conn.Identity.Name, Since: l.conn.Since}
}

// otherPeers tells a node what the others show, once there is news.
func (s *Server) otherPeers(w http.ResponseWriter, r *http.Request) {
	err := s.greeted(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, done, err := s.hold(r, who(r), streams)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, api.MaxPeerWait)
	defer cancel()
	replyFleet(w, s.roster.Others(ctx, who(r).Identity.ID, r.URL.Query().Get("after")))
}

// peers tells an operator what all nodes show.
func (s *Server) peers(w http.ResponseWriter, _ *http.Request) { replyFleet(w, s.roster.All()) }

func replyFleet(w http.ResponseWriter, f roster.Fleet) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = f.WriteTo(w) // a client that has gone asks again
}

// nodePeers shows an operator the board of a node. It is its owner's and no controller's,
// as its channels are.
func (s *Server) nodePeers(w http.ResponseWriter, r *http.Request) {
	var out api.PeerBoard
	older := api.Errorf(api.CodeNotSupported, "the version of the node does not show its peers")
	err := s.ask(r, older, func(ctx context.Context, c *registry.Conn) (err error) {
		out, err = c.Client.Peers(ctx)
		return err
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, tidyBoard(out))
}

// tidyBoard keeps a node's board within its bounds, fit to be shown.
func tidyBoard(b api.PeerBoard) api.PeerBoard {
	b.More = b.More || len(b.Agents) > api.MaxPeerSeen || len(b.Messages) > api.MaxPeerMessages
	b.Agents = append([]api.PeerSeen{}, b.Agents[:min(len(b.Agents), api.MaxPeerSeen)]...)
	for i := range b.Agents {
		a := &b.Agents[i]
		a.PeerAgent = tidyPeer(a.PeerAgent)
		a.ID = shown.Line(a.ID, api.MaxPeerText)
		a.Node, a.Offline = shown.Line(a.Node, api.MaxName), shown.Line(a.Offline, api.MaxPeerText)
	}
	b.Messages = append([]api.PeerMessage{}, b.Messages[:min(len(b.Messages), api.MaxPeerMessages)]...)
	for i := range b.Messages {
		m := &b.Messages[i]
		m.ID, m.Way, m.Node = shown.Line(m.ID, api.MaxPeerText), shown.Line(m.Way, maxLabel), shown.Line(m.Node, api.MaxName)
		m.From, m.FromName = shown.Line(m.From, api.MaxPeerText), shown.Line(m.FromName, api.MaxPeerText)
		m.To, m.ToName = shown.Line(m.To, api.MaxPeerText), shown.Line(m.ToName, api.MaxPeerText)
		m.Truncated = m.Truncated || len(m.Text) > api.MaxPeerPreview
		m.Text = shown.Text(m.Text, api.MaxPeerPreview)
		m.Receipt, m.Final = shown.Line(m.Receipt, maxLabel), shown.Line(m.Final, maxLabel)
		m.Error = shown.Line(m.Error, maxDetail)
	}
	return b
}

// tidyPeers keeps a node's list fit to be shown and used. An id that was changed would
// be another's: what does not fit is left out, and so is a second agent of an id.
func tidyPeers(list []api.PeerAgent) []api.PeerAgent {
	out, seen := []api.PeerAgent{}, map[string]bool{}
	for _, a := range list {
		if !shown.IsLine(a.ID, api.MaxPeerID) || seen[a.ID] {
			continue
		}
		seen[a.ID] = true
		out = append(out, tidyPeer(a))
	}
	return out
}

// tidyPeer cleans and bounds what a node says of an agent, but for its id.
func tidyPeer(a api.PeerAgent) api.PeerAgent {
	a.Name, a.Title = shown.Line(a.Name, api.MaxPeerText), shown.Line(a.Title, api.MaxPeerText)
	a.Directory = shown.Line(a.Directory, 4*api.MaxPeerText)
	a.Status, a.Policy = shown.Line(a.Status, maxLabel), shown.Line(a.Policy, maxLabel)
	a.StartedAt = max(a.StartedAt, 0)
	return a
}
