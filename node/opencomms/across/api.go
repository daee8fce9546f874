package across

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

// LinkRequest asks for a link.
type LinkRequest struct {
	Project string `json:"project"` // directory, absolute
	Channel string `json:"channel"`
	Node    string `json:"node"`
	As      string `json:"as,omitempty"` // the channel's name over there; "": the same
	// Members are the roles that the other side may see; none: all.
	Members []string `json:"members,omitempty"`
}

// UnlinkRequest names a link to end.
type UnlinkRequest struct {
	Project string `json:"project"`
	Channel string `json:"channel"`
	Node    string `json:"node"`
}

// Link makes a link, or changes the members that the other side may see if it is
// there. The channel must be there; refusals are *api.Error.
func (a *Across) Link(ctx context.Context, r LinkRequest) (Link, error) {
	a.linking.Lock()
	defer a.linking.Unlock()
	dir, err := projectPath(r.Project)
	if err != nil {
		return Link{}, err
	}
	as := r.As
	if strings.TrimSpace(as) == "" {
		as = r.Channel
	}
	peerChannel, err := ocm.NormalName(as)
	if err != nil {
		return Link{}, api.Errorf(api.CodeBadRequest, "%v", err)
	}
	switch {
	case !api.ValidName(r.Node):
		return Link{}, api.Errorf(api.CodeBadRequest, "the other node: %s", api.NameRule)
	case r.Node == a.node:
		return Link{}, api.Errorf(api.CodeBadRequest, "%s is this node: a channel is linked with one of another", r.Node)
	case len(r.Members) > ocm.MaxMembers:
		return Link{}, api.Errorf(api.CodeBadRequest, "a channel has at most %d members", ocm.MaxMembers)
	}
	for _, role := range r.Members {
		if _, err := ocm.NormalRole(role); err != nil {
			return Link{}, api.Errorf(api.CodeBadRequest, "%v", err)
		}
	}
	ch, err := a.channel(ctx, dir, r.Channel)
	if err != nil {
		return Link{}, err
	}
	var made *link
	err = a.box.Update(ctx, func(tx *bolt.Tx) error {
		all, err := links(tx, func(l *link) bool { return !l.Closed })
		if err != nil {
			return err
		}
		for _, l := range all {
			same := l.Project == dir && l.Channel == ch.Name && l.Peer == r.Node
			if same && l.ChannelID == ch.ID && l.PeerChannel == peerChannel {
				made = l
				l.Members = r.Members
				// Whoever was removed here may come in again.
				l.Proxies = slices.DeleteFunc(l.Proxies, func(p proxy) bool { return p.Code == codeRemoved })
				l.Removed = nil
				return put(tx, bucketLinks, []byte(l.ID), l)
			}
			if l.Peer == r.Node && (l.Channel == ch.Name || l.PeerChannel == peerChannel) {
				return api.Errorf(api.CodeConflict, "channel %s of %s is linked with %s of %s; unlink that first", l.Channel, l.Project, l.PeerChannel, l.Peer)
			}
		}
		if len(all) >= MaxLinks {
			return api.Errorf(api.CodeQueueFull, "a node has at most %d links", MaxLinks)
		}
		made = &link{
			ID: newID(prefixLink), Project: dir, Channel: ch.Name, ChannelID: ch.ID, Peer: r.Node, PeerChannel: peerChannel,
			Members: r.Members, CreatedMS: a.nowMS(),
		}
		var o offer
		offered := key(r.Node, peerChannel, ch.Name)
		if ok, err := get(tx, bucketOffers, offered, &o); err != nil {
			return err
		} else if ok {
			o.Roster.Want = true
			if err := errors.Join(a.take(tx, made, o.Roster, o.PeerID), remove(tx, bucketOffers, offered)); err != nil {
				return err
			}
		}
		return put(tx, bucketLinks, []byte(made.ID), made)
	})
	if err != nil {
		return Link{}, err
	}
	a.serve(dir)
	return a.view(made)
}

// Unlink ends a link. What is under way still arrives or comes back.
func (a *Across) Unlink(ctx context.Context, r UnlinkRequest) (Link, error) {
	a.linking.Lock()
	defer a.linking.Unlock()
	dir, err := projectPath(r.Project)
	if err != nil {
		return Link{}, err
	}
	name, err := ocm.NormalName(r.Channel)
	if err != nil {
		return Link{}, api.Errorf(api.CodeBadRequest, "%v", err)
	}
	var made *link
	err = a.box.Update(ctx, func(tx *bolt.Tx) error {
		all, err := links(tx, func(l *link) bool {
			return !l.Closed && l.Project == dir && l.Channel == name && l.Peer == r.Node
		})
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return api.Errorf(api.CodeNotFound, "channel %s of %s is not linked with %s; meshnode opencomms links lists what there is", name, dir, r.Node)
		}
		made = all[0]
		made.Closed, made.RosterSum = true, ""
		if made.PeerLink != "" && !made.Stranger {
			// It may be linked again without the other side doing anything.
			o := offer{Peer: made.Peer, PeerID: made.PeerID, AtMS: a.nowMS(), Roster: roster{
				Link: made.PeerLink, Channel: made.Channel, FromChannel: made.PeerChannel, Members: made.Remote,
			}}
			if err := put(tx, bucketOffers, key(made.Peer, made.PeerChannel, made.Channel), o); err != nil {
				return err
			}
		}
		return put(tx, bucketLinks, []byte(made.ID), made)
	})
	if err != nil {
		return Link{}, err
	}
	a.serve(dir)
	return a.view(made)
}

// projectPath is one way to write a project's directory.
func projectPath(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", api.Errorf(api.CodeBadRequest, "the project is named by an absolute path")
	}
	if at, err := filepath.EvalSymlinks(dir); err == nil {
		dir = at
	}
	return filepath.Clean(dir), nil
}

// channel finds the channel that is to be linked.
func (a *Across) channel(ctx context.Context, dir, name string) (*ocm.Channel, error) {
	p, err := a.open(dir)
	if err != nil {
		return nil, api.Errorf(api.CodeNotFound, "%v", err)
	}
	s, err := p.Read(ctx)
	if err != nil {
		return nil, err
	}
	ch := engine.Find(s, name)
	if ch == nil {
		return nil, api.Errorf(api.CodeNotFound, "there is no channel %q in %s; make it with meshnode opencomms create", ocm.Cut(name, ocm.MaxChannelName), dir)
	}
	return ch, nil
}

// Link is a link as people see it.
type Link struct {
	ID          string `json:"id"`
	Here        string `json:"here"` // name of this node
	Project     string `json:"project"`
	Channel     string `json:"channel"`
	ChannelID   string `json:"channel_id"`
	Node        string `json:"node"`
	PeerChannel string `json:"peer_channel"`
	// State is LinkOpen, LinkWaiting or LinkClosing.
	State string `json:"state"`
	// Trouble is what keeps it from working, in words; "": nothing.
	Trouble string   `json:"trouble,omitempty"`
	Members []string `json:"members,omitempty"` // roles that the other side may see; none: all
	Shown   []string `json:"shown"`             // roles that it sees
	Proxies []Proxy  `json:"proxies"`
	// Outgoing counts what has not been handed to the mail, Under what has not ended,
	// Incoming what came and is not in the file yet; WaitsFor is the code why.
	Outgoing int    `json:"outgoing"`
	Under    int    `json:"under_way"`
	Incoming int    `json:"incoming"`
	WaitsFor string `json:"waits_for,omitempty"`
}

// States of a link.
const (
	LinkOpen    = "open"    // both sides made it
	LinkWaiting = "waiting" // the other side has not
	LinkClosing = "closing" // unlinked here; something is under way
)

// Proxy stands for a member of another machine.
type Proxy struct {
	SessionID string `json:"session_id"`
	Role      string `json:"role"`       // here; "" if it never was in the channel
	PeerRole  string `json:"peer_role"`  // over there
	InChannel bool   `json:"in_channel"` // as far as was seen last
	Code      string `json:"code,omitempty"`
}

// Offer is a channel that another node linked with one of this node, which has no link.
type Offer struct {
	Node        string   `json:"node"`
	Channel     string   `json:"channel"`      // here
	PeerChannel string   `json:"peer_channel"` // over there
	Roles       []string `json:"roles"`
}

// Message is one that was sent to another machine.
type Message struct {
	Channel string `json:"channel"`
	Node    string `json:"node"`
	ID      string `json:"message_id"`
	To      string `json:"to"` // role of the proxy
	State   string `json:"state"`
	Code    string `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"` // of Code, in words
	AtMS    int64  `json:"at_ms"`            // of the state
}

// Status is how the links of a project are.
type Status struct {
	Links  []Link  `json:"links"`
	Offers []Offer `json:"offers"`
	// Messages are those that have not ended, and the last ones that have, oldest
	// first.
	Messages []Message `json:"messages"`
}

// Links are all links of the node.
func (a *Across) Links() ([]Link, error) {
	all, err := a.links(func(*link) bool { return true })
	if err != nil {
		return nil, err
	}
	out := make([]Link, 0, len(all))
	for _, l := range all {
		v, err := a.view(l)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(x, y Link) int {
		return strings.Compare(x.Project+"\x00"+x.Channel+"\x00"+x.Node, y.Project+"\x00"+y.Channel+"\x00"+y.Node)
	})
	return out, nil
}

// view is a link for people.
func (a *Across) view(l *link) (Link, error) {
	v := Link{
		ID: l.ID, Here: a.node, Project: l.Project, Channel: l.Channel, ChannelID: l.ChannelID, Node: l.Peer, PeerChannel: l.PeerChannel, State: LinkWaiting,
		Members: l.Members, Shown: []string{}, Proxies: []Proxy{},
	}
	switch {
	case l.Closed:
		v.State = LinkClosing
	case l.PeerLink != "":
		v.State = LinkOpen
	}
	for _, e := range l.Exports {
		v.Shown = append(v.Shown, e.Role)
	}
	for _, p := range l.Proxies {
		v.Proxies = append(v.Proxies, Proxy{
			SessionID: p.Session, Role: p.Role, PeerRole: l.theirRole(p.Alias), InChannel: p.Joined && p.Code == "", Code: p.Code,
		})
	}
	err := a.box.View(func(tx *bolt.Tx) error {
		v.Outgoing = count(tx, bucketOut, l.ID, MaxLinkDepth)
		v.Under = count(tx, bucketTraces, l.ID, MaxLinkDepth)
		v.Incoming = count(tx, bucketIn, l.ID, MaxLinkDepth)
		return nil
	})
	switch {
	case l.Stranger:
		v.Trouble = fmt.Sprintf("the name %s belongs to another machine than when the channels were linked; unlink and link again if that is right", l.Peer)
	case l.RosterCode != "":
		v.Trouble = fmt.Sprintf("%s was not reached: %s", l.Peer, Reason(known(l.RosterCode)))
	}
	a.mu.Lock()
	w := a.workers[l.Project]
	a.mu.Unlock()
	if w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		v.WaitsFor = w.waits[l.ID]
		switch {
		case w.trouble != "":
			v.Trouble = w.trouble
		case v.WaitsFor == codeChannelGone:
			v.Trouble = "the channel is gone, or another one has its name; unlink it"
		}
	}
	return v, err
}

// Status looks at the links of a project.
func (a *Across) Status(project string) (Status, error) {
	dir, err := projectPath(project)
	if err != nil {
		return Status{}, err
	}
	out := Status{Links: []Link{}, Offers: []Offer{}, Messages: []Message{}}
	all, err := a.Links()
	if err != nil {
		return Status{}, err
	}
	err = a.box.View(func(tx *bolt.Tx) error {
		for _, l := range all {
			if l.Project != dir {
				continue
			}
			out.Links = append(out.Links, l)
			add := func(_ []byte, t *trace) error {
				m := Message{Channel: l.Channel, Node: l.Node, ID: t.ID, To: t.Role, State: t.State, Code: t.Code, AtMS: t.AtMS}
				if t.Code != "" {
					m.Reason = Reason(t.Code)
				}
				out.Messages = append(out.Messages, m)
				return nil
			}
			if err := errors.Join(walk(tx, bucketEnded, key(l.ID, ""), add), walk(tx, bucketTraces, key(l.ID, ""), add)); err != nil {
				return err
			}
		}
		return walk(tx, bucketOffers, nil, func(_ []byte, o *offer) error {
			shown := Offer{Node: o.Peer, Channel: o.Roster.Channel, PeerChannel: o.Roster.FromChannel, Roles: []string{}}
			for _, m := range o.Roster.Members {
				shown.Roles = append(shown.Roles, m.Role)
			}
			out.Offers = append(out.Offers, shown)
			return nil
		})
	})
	slices.SortStableFunc(out.Messages, func(x, y Message) int { return cmp.Compare(x.AtMS, y.AtMS) })
	return out, err
}
