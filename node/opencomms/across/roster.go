package across

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

// Host is the host of proxies in a state file.
const Host = "opencode-mesh"

// proxyPrompt is the role prompt of every proxy. Nothing in it comes from the other
// machine.
const proxyPrompt = "Stands for a member on another machine. Its messages come from there, and what is sent to it is carried there."

// announce tells the other side who is here, when that changed.
func (w *worker) announce(ctx context.Context, l *link, s *ocm.State) error {
	if l.Closed {
		// What was taken out of the file goes first: behind this there is no sender any
		// more over there.
		noted, _, err := w.noted(l)
		if err != nil || len(noted) > 0 {
			w.later(time.Millisecond)
			return err
		}
	}
	if l.Stranger && !l.Closed {
		return nil
	}
	exports, err := w.exports(l, s)
	if err != nil {
		return err
	}
	body := roster{Link: l.ID, Channel: l.PeerChannel, FromChannel: l.Channel, Closed: l.Closed, Members: []rosterMember{}}
	for _, e := range exports {
		body.Members = append(body.Members, rosterMember{Alias: e.Alias, Role: e.Role})
	}
	sum := sha256.Sum256(encode(body))
	digest := hex.EncodeToString(sum[:8])
	returned := l.RosterCode != ""
	if digest == l.RosterSum && !returned {
		return nil
	}
	if returned && digest == l.RosterSum {
		if l.Closed {
			return nil // they cannot be told, and need not be
		}
		if wait := w.rosterAt[l.ID].Add(rosterRetry).Sub(w.a.now()); wait > 0 {
			w.later(wait)
			return nil
		}
	}
	body.Want = l.PeerLink == "" && !l.Closed
	m := l.mail(kindRoster, body)
	err = w.a.box.Update(ctx, func(tx *bolt.Tx) error {
		err := edit(tx, l.ID, func(l *link) error {
			l.Exports, l.RosterSum, l.RosterMail, l.RosterCode = exports, digest, m.ID, ""
			return nil
		})
		if err != nil {
			return err
		}
		return w.a.box.Send(tx, m)
	})
	if err == nil {
		w.rosterAt[l.ID] = w.a.now()
	}
	return err
}

// exports are the members that the other side sees. A member keeps its alias for as
// long as it is there with the same role; one that left is seen until its messages are
// on their way, which the other side would refuse behind the news.
func (w *worker) exports(l *link, s *ocm.State) ([]export, error) {
	ch := l.channel(s)
	if ch == nil || l.Closed {
		return nil, nil
	}
	var out []export
	for _, m := range ch.Members {
		role, err := ocm.NormalRole(m.Role)
		if m.Host == Host || err != nil || !l.shows(m.Role) {
			continue
		}
		e := export{Session: m.SessionID, Role: role}
		if old := l.export(m.SessionID); old != nil && old.Role == role {
			e.Alias = old.Alias
		} else {
			e.Alias = newID(prefixAlias)
		}
		out = append(out, e)
	}
	var left []export
	for _, old := range l.Exports {
		if l.shows(old.Role) && !slices.ContainsFunc(out, func(e export) bool { return e.Alias == old.Alias }) {
			left = append(left, old)
		}
	}
	if len(left) == 0 {
		return out, nil
	}
	unsent, err := w.unsent(l, s)
	for _, old := range left {
		if unsent[old.Alias] && len(out) < ocm.MaxMembers {
			out = append(out, old)
		}
	}
	return out, err
}

// unsent are the aliases of those whose messages are in the file for a proxy, or in the
// journal and not handed to the mail.
func (w *worker) unsent(l *link, s *ocm.State) (map[string]bool, error) {
	aliases := map[string]bool{}
	for _, p := range l.Proxies {
		queue, _ := s.Queues.Get(p.Session)
		for _, id := range queue {
			row, ok := s.Messages.Get(id)
			if !ok || row.ChannelID != l.ChannelID || row.Status != ocm.StatusPending || row.Type == ocm.TypeSystem {
				continue
			}
			if e := l.export(row.Sender); e != nil {
				aliases[e.Alias] = true
			}
		}
	}
	return aliases, w.a.box.View(func(tx *bolt.Tx) error {
		return walk(tx, bucketOut, key(l.ID, ""), func(_ []byte, o *outgoing) error {
			aliases[o.Message.From] = true
			return nil
		})
	})
}

// newID makes an id of a link or an alias.
func newID(prefix string) string {
	return prefix + strings.TrimPrefix(ocm.NewID(ocm.PrefixMessage), ocm.PrefixMessage)
}

// seat gives each member of the other side its proxy in the channel, and takes out
// those whose member is gone.
func (w *worker) seat(ctx context.Context, l *link, s *ocm.State) error {
	busy, err := w.speaking(l)
	if err != nil {
		return err
	}
	wanted := func(p proxy) bool { return l.remote(p.Alias) && !l.Closed || busy[p.Alias] }
	ch := l.channel(s)
	after := slices.Clone(l.Proxies)
	for _, m := range l.Remote {
		if l.proxyOf(m.Alias) == nil && !l.Closed {
			after = append(after, proxy{Alias: m.Alias, Session: ocm.NewID(ocm.PrefixMember)})
		}
	}
	barred := len(l.Removed)
	if ch != nil {
		l.expelled(ch, after)
		for i, p := range after {
			if engine.Member(ch, p.Session) != nil && !wanted(p) {
				after[i].Joined = false // it goes, but nobody removed it
			}
		}
	}
	// The ids are on the disk before the file has them, and who goes before it is gone.
	if err := w.keepProxies(ctx, l, after, barred); err != nil {
		return err
	}
	barred = len(l.Removed)
	if ch != nil && slices.ContainsFunc(after, func(p proxy) bool {
		there := engine.Member(ch, p.Session) != nil
		return there != wanted(p) && !(p.Joined && !there)
	}) {
		err = w.update(ctx, l, func(s *ocm.State) error {
			ch := l.channel(s)
			if ch == nil {
				return nil
			}
			l.expelled(ch, after)
			for i := range after {
				p := &after[i]
				there := engine.Member(ch, p.Session) != nil
				switch {
				case there && !wanted(*p):
					w.unseat(s, ch, l, p)
				case !there && !p.Joined && wanted(*p):
					w.join(s, ch, l, p)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if s, err = w.read(ctx); err == nil {
			err = l.readable(s)
		}
		if err != nil {
			return err
		}
		ch = l.channel(s)
	}
	var kept []proxy
	for _, p := range after {
		there := ch != nil && engine.Member(ch, p.Session) != nil
		if !there && !wanted(p) {
			continue
		}
		switch {
		case there:
			p.Joined, p.Code, p.Role = true, "", engine.Member(ch, p.Session).Role
			p.Theirs = cmp.Or(p.Theirs, l.theirRole(p.Alias))
		case ch == nil:
			p.Code = codeChannelGone
		case p.Joined:
			p.Code = codeRemoved
		}
		kept = append(kept, p)
	}
	return w.keepProxies(ctx, l, kept, barred)
}

// keepProxies writes the proxies of a link and the roles that stay out, of which the record
// has the first barred, if they changed.
func (w *worker) keepProxies(ctx context.Context, l *link, after []proxy, barred int) error {
	if slices.Equal(l.Proxies, after) && len(l.Removed) == barred {
		return nil
	}
	after = slices.Clone(after)
	removed := l.Removed
	err := w.a.box.Update(ctx, func(tx *bolt.Tx) error {
		return edit(tx, l.ID, func(l *link) error {
			l.Proxies, l.Removed = after, removed
			return nil
		})
	})
	if err == nil {
		l.Proxies = after
	}
	return err
}

// speaking are the aliases of those whose messages are not in the file yet: their
// proxies stay until they are. It looks only if there is a proxy that would go.
func (w *worker) speaking(l *link) (map[string]bool, error) {
	busy := map[string]bool{}
	if !l.Closed && !slices.ContainsFunc(l.Proxies, func(p proxy) bool { return !l.remote(p.Alias) }) {
		return busy, nil
	}
	err := w.a.box.View(func(tx *bolt.Tx) error {
		return walk(tx, bucketIn, key(l.ID, ""), func(_ []byte, in *incoming) error {
			busy[in.Message.From] = true
			return nil
		})
	})
	return busy, err
}

// join brings a proxy into the channel, or notes why that is not possible.
func (w *worker) join(s *ocm.State, ch *ocm.Channel, l *link, p *proxy) {
	if !slices.ContainsFunc(ch.Members, func(m *ocm.Member) bool { return m.Host != Host }) {
		p.Code = string(engine.NoOtherMember)
		return // the first member may remove others: that is not for a proxy
	}
	role := l.theirRole(p.Alias)
	switch {
	case role == "" || l.bars(role):
		p.Code = codeRemoved
		return
	case strings.EqualFold(role, ocm.OperatorRole):
		p.Code = codeReserved
		return
	case l.seated(ch) >= ch.MaxMembers/linkShare:
		p.Code = codeLinkFull
		return
	}
	_, err := w.project.Engine().Join(s, engine.JoinRequest{
		Channel: ch.Name, ProjectID: opencomms.DefaultProjectID, Worktree: ch.Worktree,
		Member: engine.NewMember{
			Session: p.Session, Role: proxyRole(ch, role, l.Peer), RolePrompt: proxyPrompt, Host: Host,
			Surface: ocm.SurfaceAPI, Mode: ocm.ModePull, Policy: &ocm.StalePolicy{Mode: ocm.StaleNone},
		},
	})
	p.Code = string(engine.CodeOf(err))
}

// proxyRole is the role of a proxy: the member's with its node's name, cut to what a
// role may have and made one that nobody has yet.
func proxyRole(ch *ocm.Channel, role, node string) string {
	suffix := "-" + nodeMark(node)
	for n := 1; ; n++ {
		tail := suffix
		if n > 1 {
			tail += "-" + itoa(n)
		}
		name := strings.TrimRight(cut(role, ocm.MaxRole-len(tail)), " ") + tail
		if !slices.ContainsFunc(ch.Members, func(m *ocm.Member) bool { return strings.EqualFold(m.Role, name) }) {
			return name
		}
	}
}

// nodeMark is a node's name in roles. What is cut of a long one is there as a digest, so
// that names which begin alike look different.
func nodeMark(node string) string {
	const most, digits = ocm.MaxRole / 2, 6
	if len(node) <= most {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	return strings.TrimRight(cut(node, most-digits-1), "-") + "-" + hex.EncodeToString(sum[:])[:digits]
}

// unseat takes a proxy out and tells those whose messages still wait for it.
func (w *worker) unseat(s *ocm.State, ch *ocm.Channel, l *link, p *proxy) {
	queue, _ := s.Queues.Get(p.Session)
	var waiting []*ocm.Envelope
	for _, id := range queue {
		if row, ok := s.Messages.Get(id); ok && row.ChannelID == ch.ID && row.Status == ocm.StatusPending && row.Type != ocm.TypeSystem {
			waiting = append(waiting, row)
		}
	}
	w.project.Engine().Remove(s, ch.Name, p.Session)
	for _, row := range waiting {
		w.notify(s, ch, telling{Sender: row.Sender, Text: notice(l, row.ID, codeRemoved)})
	}
}
