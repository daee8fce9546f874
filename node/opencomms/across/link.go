package across

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/opencomms"
)

// link is the record of a link.
type link struct {
	ID      string `json:"id"`
	Project string `json:"project"` // directory
	Channel string `json:"channel"`
	// ChannelID is that of the channel when the link was made: another of the same
	// name is not linked.
	ChannelID   string `json:"channel_id"`
	Peer        string `json:"peer"` // node
	PeerChannel string `json:"peer_channel"`
	// Members are the roles that the other side may see; none: all.
	Members   []string `json:"members,omitempty"`
	CreatedMS int64    `json:"created_ms"`
	// Closed: it was unlinked here, and ends when nothing is under way.
	Closed bool `json:"closed,omitempty"`

	Exports []export `json:"exports,omitempty"`
	// RosterSum is of the roster that was sent last, "" to send it again; RosterMail
	// its mail while there is no receipt, RosterCode why it came back.
	RosterSum  string `json:"roster_sum,omitempty"`
	RosterMail string `json:"roster_mail,omitempty"`
	RosterCode string `json:"roster_code,omitempty"`

	// PeerLink is the other side's id of the link, "" as long as it has none. PeerID
	// is the identity of the node that first showed its roster: a node that takes the
	// name later is another.
	PeerLink string `json:"peer_link,omitempty"`
	PeerID   string `json:"peer_id,omitempty"`
	// Stranger: another node has the name now. Nothing is sent to it.
	Stranger bool           `json:"stranger,omitempty"`
	Remote   []rosterMember `json:"remote,omitempty"`
	Proxies  []proxy        `json:"proxies,omitempty"`
	// Removed are the roles of the other side whose proxies somebody removed: under
	// another alias they stay out too. When it is full, nobody new comes in.
	Removed []string `json:"removed,omitempty"`
}

// export is a member of ours that the other side sees.
type export struct {
	Session string `json:"session"`
	Role    string `json:"role"`
	Alias   string `json:"alias"`
}

// proxy stands for a member of the other side.
type proxy struct {
	Alias   string `json:"alias"`
	Session string `json:"session"`
	Role    string `json:"role"`                // here
	Theirs  string `json:"peer_role,omitempty"` // over there, when it came in
	// Joined: it is or was in the channel, and is not about to be taken out. One that is
	// not there any more was removed by somebody, and stays out.
	Joined bool `json:"joined,omitempty"`
	// Code is why it is not in the channel.
	Code string `json:"code,omitempty"`
}

func (l *link) export(session string) *export {
	for i := range l.Exports {
		if l.Exports[i].Session == session {
			return &l.Exports[i]
		}
	}
	return nil
}

func (l *link) exported(alias string) *export {
	for i := range l.Exports {
		if l.Exports[i].Alias == alias {
			return &l.Exports[i]
		}
	}
	return nil
}

func (l *link) proxyOf(alias string) *proxy {
	for i := range l.Proxies {
		if l.Proxies[i].Alias == alias {
			return &l.Proxies[i]
		}
	}
	return nil
}

func (l *link) proxy(session string) *proxy {
	for i := range l.Proxies {
		if l.Proxies[i].Session == session {
			return &l.Proxies[i]
		}
	}
	return nil
}

// bars reports whether a role of the other side stays out, as somebody removed it.
func (l *link) bars(role string) bool {
	return len(l.Removed) >= maxRemoved || slices.ContainsFunc(l.Removed, func(r string) bool { return strings.EqualFold(r, role) })
}

// expelled notes which proxies somebody removed from the channel.
func (l *link) expelled(ch *opencomms.Channel, all []proxy) {
	for _, p := range all {
		role := cmp.Or(p.Theirs, l.theirRole(p.Alias))
		if p.Joined && engine.Member(ch, p.Session) == nil && role != "" && !l.bars(role) {
			l.Removed = append(l.Removed, role)
		}
	}
}

// seated counts the proxies that are in the channel.
func (l *link) seated(ch *opencomms.Channel) (n int) {
	for _, m := range ch.Members {
		if l.proxy(m.SessionID) != nil {
			n++
		}
	}
	return n
}

// theirRole is the role over there of a member, "" if it is not shown any more.
func (l *link) theirRole(alias string) string {
	for _, m := range l.Remote {
		if m.Alias == alias {
			return m.Role
		}
	}
	return ""
}

func (l *link) remote(alias string) bool {
	return l.theirRole(alias) != ""
}

// shows reports whether the other side may see a role.
func (l *link) shows(role string) bool {
	if len(l.Members) == 0 {
		return true
	}
	for _, m := range l.Members {
		if strings.EqualFold(m, role) {
			return true
		}
	}
	return false
}

// lane is the mail lane of everything that the link sends.
func (l *link) lane() string { return "opencomms/" + l.PeerChannel }

// mail is a mail to the other side: once that has shown who it is, for nobody else who
// may have its name.
func (l *link) mail(kind string, body any) api.Mail {
	return api.Mail{ID: mail.NewID(), Kind: kind, To: l.Peer, ToID: l.PeerID, Lane: l.lane(), Body: encode(body)}
}

// channel is the link's channel in a state; nil if it is gone or is another one.
func (l *link) channel(s *opencomms.State) *opencomms.Channel {
	if ch, ok := s.Channels.Get(l.Channel); ok && ch.ID == l.ChannelID {
		return ch
	}
	return nil
}

// errNoFile says that nothing is known of the link's channel.
var errNoFile = errors.New("the project's state file is not there; what is linked waits until it is, or is unlinked")

// readable fails if there is no file: that a channel has ended says a file without it.
// A link that was closed here does not wait for one.
func (l *link) readable(s *opencomms.State) error {
	if s.OfFile() || l.Closed {
		return nil
	}
	return errNoFile
}

// links are the links that pick chooses.
func links(tx *bolt.Tx, pick func(*link) bool) (out []*link, err error) {
	err = walk(tx, bucketLinks, nil, func(_ []byte, l *link) error {
		if pick(l) {
			out = append(out, l)
		}
		return nil
	})
	return out, err
}

// errNoLink says that a link ended meanwhile.
var errNoLink = errors.New("the link is gone")

func getLink(tx *bolt.Tx, id string) (*link, error) {
	l := new(link)
	if ok, err := get(tx, bucketLinks, []byte(id), l); err != nil {
		return nil, err
	} else if !ok {
		return nil, fmt.Errorf("%w: %s", errNoLink, id)
	}
	return l, nil
}

// edit changes a link's record.
func edit(tx *bolt.Tx, id string, fn func(*link) error) error {
	l, err := getLink(tx, id)
	if err != nil {
		return err
	}
	if err := fn(l); err != nil {
		return err
	}
	return put(tx, bucketLinks, []byte(id), l)
}

// drop forgets a link and what belongs to it.
func drop(tx *bolt.Tx, id string) error {
	errs := []error{remove(tx, bucketLinks, []byte(id))}
	for _, bucket := range []string{bucketOut, bucketTraces, bucketEnded, bucketTell, bucketIn, bucketOpen} {
		errs = append(errs, removeAll(tx, bucket, id))
	}
	return errors.Join(errs...)
}
