package across

import (
	"encoding/json"
	"errors"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/opencomms"
)

// Receive implements mail.Handler.
func (a *Across) Receive(tx *bolt.Tx, m api.Mail) error {
	switch m.Kind {
	case kindMessage:
		var body message
		if json.Unmarshal(m.Body, &body) != nil || !body.valid() {
			return malformed(m)
		}
		return a.receiveMessage(tx, m, body)
	case kindReceipt:
		var body receipt
		if json.Unmarshal(m.Body, &body) != nil || !body.valid() {
			return malformed(m)
		}
		return a.receiveReceipt(tx, m, body)
	case kindRoster:
		var body roster
		if json.Unmarshal(m.Body, &body) != nil || !body.valid() {
			return malformed(m)
		}
		return a.receiveRoster(tx, m, body)
	}
	return &mail.Unsupported{Reason: "this node knows no mail of kind " + m.Kind}
}

func malformed(m api.Mail) error {
	return api.Errorf(api.CodeRefused, "mail of kind %s is not as it should be", m.Kind)
}

// Received implements mail.Handler.
func (a *Across) Received(api.Mail) { a.wake() }

// Settled implements mail.Handler.
func (a *Across) Settled(tx *bolt.Tx, r api.MailReceipt, m api.Mail) error {
	tx.OnCommit(a.wake)
	if r.Code == api.MailTargetReplaced {
		if err := estrange(tx, m.To, m.ToID); err != nil {
			return err
		}
	}
	switch m.Kind {
	case kindMessage:
		var body message
		if err := json.Unmarshal(m.Body, &body); err != nil {
			return err
		}
		return a.settledMessage(tx, r, body)
	case kindRoster:
		var body roster
		if err := json.Unmarshal(m.Body, &body); err != nil {
			return err
		}
		return ended(edit(tx, body.Link, func(l *link) error {
			if l.RosterMail == r.ID {
				l.RosterMail, l.RosterCode = "", r.Code
			}
			return nil
		}))
	}
	return nil // receipts are for a sender that may be gone
}

// ended takes away that a link has ended meanwhile.
func ended(err error) error {
	if errors.Is(err, errNoLink) {
		return nil
	}
	return err
}

// theirs finds the link that a body of a node is about, nil if there is none.
func theirs(tx *bolt.Tx, m api.Mail, channel, theirChannel string) (*link, error) {
	all, err := links(tx, func(l *link) bool {
		return !l.Closed && l.Peer == m.From && l.Channel == channel && l.PeerChannel == theirChannel
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// same reports whether a mail comes from the node that a link was made with.
func (l *link) same(m api.Mail) bool { return l.PeerID == "" || l.PeerID == m.FromID }

// estrange notes that the name of a node is another's than that which links were made
// with.
func estrange(tx *bolt.Tx, name, id string) error {
	all, err := links(tx, func(l *link) bool { return l.Peer == name && l.PeerID == id && !l.Stranger })
	for _, l := range all {
		l.Stranger = true
		err = errors.Join(err, put(tx, bucketLinks, []byte(l.ID), l))
	}
	return err
}

// receiveMessage takes a message into the journal.
func (a *Across) receiveMessage(tx *bolt.Tx, m api.Mail, body message) error {
	l, err := theirs(tx, m, body.Channel, body.FromChannel)
	switch {
	case err != nil:
		return err
	case l != nil && !l.same(m):
		// The refusal takes back what is written here: the worker notes who that was.
		a.meet(l)
		fallthrough
	case l == nil:
		return api.Errorf(api.CodeRefused, "this node has no link for that channel")
	}
	known := key(origin(m.From, body.Link, body.ID))
	if ok, err := get(tx, bucketKnown, known, new(json.RawMessage)); err != nil || ok {
		return err
	}
	if count(tx, bucketIn, l.ID, MaxLinkDepth) >= MaxLinkDepth {
		return api.Errorf(api.CodeQueueFull, "%d messages wait for that channel", MaxLinkDepth)
	}
	return errors.Join(
		remember(tx, clockHub, m.SentMS, bucketKnown, known, struct{}{}),
		add(tx, bucketIn, l.ID, incoming{SentMS: m.SentMS, CameMS: a.nowMS(), Message: body}),
	)
}

// receiveReceipt notes what became of a message over there.
func (a *Across) receiveReceipt(tx *bolt.Tx, m api.Mail, body receipt) error {
	l, err := getLink(tx, body.Link)
	if errors.Is(err, errNoLink) {
		return nil
	}
	if err != nil {
		return err
	}
	if l.Peer != m.From {
		return nil
	}
	if !l.same(m) {
		return estrange(tx, l.Peer, l.PeerID)
	}
	t := new(trace)
	if ok, err := get(tx, bucketTraces, key(l.ID, body.ID), t); err != nil || !ok {
		return err
	}
	switch body.State {
	case stateQueued:
		return a.mark(tx, l, t, stateQueued)
	case stateRefused:
		return a.end(tx, l, t, stateRefused, known(body.Code))
	case opencomms.StatusRejected:
		code := ""
		if body.Code == codeEnded {
			code = mayHave(codeEnded) // it may have been read just before
		}
		return a.end(tx, l, t, body.State, code)
	case opencomms.StatusDelivered, opencomms.StatusFailed, opencomms.StatusStale, stateUnknown:
		return a.end(tx, l, t, body.State, "")
	}
	return nil
}

// receiveRoster notes who is there. Without a link it is kept as an offer.
func (a *Across) receiveRoster(tx *bolt.Tx, m api.Mail, body roster) error {
	offered := key(m.From, body.FromChannel, body.Channel)
	l, err := theirs(tx, m, body.Channel, body.FromChannel)
	if err != nil {
		return err
	}
	if l != nil && !l.same(m) {
		if body.Closed {
			return nil
		}
		return errors.Join(
			put(tx, bucketOffers, offered, offer{Peer: m.From, PeerID: m.FromID, Roster: body, AtMS: m.SentMS}),
			estrange(tx, l.Peer, l.PeerID),
		)
	}
	if l == nil {
		if body.Closed {
			return remove(tx, bucketOffers, offered)
		}
		if b := tx.Bucket([]byte(bucketOffers)); b != nil && b.Get(offered) == nil &&
			(countAt(tx, bucketOffers, nil, MaxOffers) >= MaxOffers || countAt(tx, bucketOffers, key(m.From, ""), MaxNodeOffers) >= MaxNodeOffers) {
			return nil // told again when it is asked for
		}
		return put(tx, bucketOffers, offered, offer{Peer: m.From, PeerID: m.FromID, Roster: body, AtMS: m.SentMS})
	}
	return edit(tx, l.ID, func(l *link) error {
		l.Stranger = false
		return a.take(tx, l, body, m.FromID)
	})
}

// take puts what a roster says into a link.
func (a *Across) take(tx *bolt.Tx, l *link, body roster, peerID string) error {
	if body.Want {
		l.RosterSum = ""
	}
	if !body.Closed {
		l.PeerLink, l.PeerID, l.Remote = body.Link, peerID, body.Members
		return nil
	}
	l.PeerLink, l.Remote = "", nil
	// Nobody tells any more how what is in their file ends.
	var open []*trace
	err := walk(tx, bucketTraces, key(l.ID, ""), func(_ []byte, t *trace) error {
		if t.State == stateQueued {
			open = append(open, t)
		}
		return nil
	})
	for _, t := range open {
		err = errors.Join(err, a.end(tx, l, t, stateUnknown, ""))
	}
	return err
}
