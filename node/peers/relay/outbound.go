package relay

import (
	"context"
	"errors"
	"fmt"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/api"
	words "opencode-mesh/protocol/peers"
)

// proxy is the Receiver of an agent of another node.
type proxy struct {
	r            *Relay
	id           string
	node, nodeID string
	to           string // the endpoint on that node
	name         string
}

// Deliver implements peers.Receiver: the message goes into the journal and the mail.
func (p *proxy) Deliver(ctx context.Context, rec spool.Record) error {
	m := rec.Message
	c := carried{
		Proxy: p.id, From: m.From.InstanceID, ID: m.ID, FromName: m.From.Name, Node: p.node, NodeID: p.nodeID, To: p.to, ToName: p.name,
		Text: words.Cut(m.Text, preview), Cut: len(m.Text) > preview, AtMS: p.r.nowMS(),
	}
	body := message{
		ID: m.ID, From: m.From.InstanceID, FromName: words.Cut(m.From.Name, maxWord), Directory: words.Cut(m.From.Directory, maxWord),
		To: p.to, Text: m.Text, Via: m.Via,
	}
	if len(m.Via) >= words.MaxVia || !body.valid() || p.r.isProxy(body.From) {
		// One hop more is refused over there, and proxies do not write to each other.
		p.r.log.Info("peers: a message to another node is refused", "from", c.From, "to", p.id, "hops", len(m.Via))
		return &peers.Final{Status: words.Refused}
	}
	var known carried
	err := p.r.cfg.Box.Update(ctx, func(tx *mail.Tx) error {
		known = carried{}
		if ok, err := get(tx, bucketCarried, c.key(), &known); ok || err != nil {
			return err // an earlier process has come this far
		}
		known = carried{}
		waiting, err := all(tx, bucketCarried, func(o *carried) bool { return o.Node == p.node && o.Status == "" })
		if err != nil {
			return err
		}
		if len(waiting) >= p.r.cfg.MaxOutstanding {
			return fmt.Errorf("%w: %d messages are on their way to %s", peers.ErrLater, len(waiting), p.node)
		}
		c.Mail = mail.NewID()
		err = p.r.cfg.Box.Send(tx, api.Mail{ID: c.Mail, Kind: kindMessage, To: p.node, ToID: p.nodeID, Lane: lane(p.to), Body: encode(body)})
		if errors.Is(err, mail.ErrFull) {
			return fmt.Errorf("%w: %w", peers.ErrLater, err)
		}
		return errors.Join(err, put(tx, bucketCarried, c.key(), c))
	})
	if err != nil {
		return err
	}
	if known.Status != "" {
		return &peers.Final{Status: known.Status}
	}
	return peers.ErrPending
}

// Acked implements peers.Receiver: the receiver of a message that was brought here has
// said what became of it.
func (p *proxy) Acked(ctx context.Context, a words.Ack) (bool, error) {
	if a.FromEndpoint != p.id {
		return false, nil
	}
	return p.r.finish(ctx, key(a.ToEndpoint, p.id, a.MessageID), a.Status, "", true)
}

// lane keeps the messages for one endpoint in order, and apart from others.
func lane(endpoint string) string { return "peers." + string(key(endpoint)[:32]) }

// settle puts what has ended over there into the spool, and so has the sender told.
func (r *Relay) settle(ctx context.Context) error {
	var ended []*carried
	err := r.view(func(tx *mail.Tx) (err error) {
		ended, err = all(tx, bucketCarried, func(c *carried) bool { return c.Status != "" && !c.Settled })
		return err
	})
	for _, c := range ended {
		serr := r.cfg.Service.Settle(ctx, c.Proxy, spool.Key{From: c.From, ID: c.ID}, c.Status)
		if errors.Is(serr, spool.ErrUnknown) {
			serr = nil // somebody has cleared the spool
		}
		if serr == nil {
			serr = r.edit(ctx, c.key(), func(c *carried) { c.Settled = true })
		}
		err = errors.Join(err, serr)
	}
	return err
}

// giveUp ends messages of which nothing was heard for so long that nobody over there can
// remember them.
func (r *Relay) giveUp(ctx context.Context, out []*carried) error {
	var err error
	for _, c := range out {
		if c.Status == "" && r.nowMS()-c.AtMS > GiveUp.Milliseconds() {
			err = errors.Join(err, r.cfg.Box.Update(ctx, func(tx *mail.Tx) error {
				return r.endIn(tx, c.key(), words.Expired, "nothing was heard of it; it may have arrived all the same")
			}))
		}
	}
	return err
}

// edit changes a carried message that is there.
func (r *Relay) edit(ctx context.Context, k []byte, fn func(*carried)) error {
	return r.cfg.Box.Update(ctx, func(tx *mail.Tx) error { return r.editIn(tx, k, fn) })
}

func (r *Relay) editIn(tx *mail.Tx, k []byte, fn func(*carried)) error {
	c := new(carried)
	if ok, err := get(tx, bucketCarried, k, c); err != nil || !ok {
		return err
	}
	fn(c)
	return put(tx, bucketCarried, k, c)
}

// endIn notes what became of a carried message, unless that is known.
func (r *Relay) endIn(tx *mail.Tx, k []byte, status, why string) error {
	return r.editIn(tx, k, func(c *carried) {
		if c.Status == "" {
			c.Status, c.Why, c.EndMS = status, why, r.nowMS()
		}
	})
}

// receiveFinal takes what another node says of a message. It says it of its own only.
func (r *Relay) receiveFinal(tx *mail.Tx, m api.Mail, f final) error {
	k := key(words.ProxyID(m.From, f.To), f.From, f.ID)
	c := new(carried)
	ok, err := get(tx, bucketCarried, k, c)
	if err != nil || !ok || c.NodeID != "" && c.NodeID != m.FromID {
		return err
	}
	return r.endIn(tx, k, f.Status, f.Why)
}

// Settled implements mail.Handler: a message that does not arrive any more ends here.
func (r *Relay) Settled(tx *mail.Tx, rc api.MailReceipt, m api.Mail) error {
	if rc.State != api.MailReturned || m.Kind != kindMessage {
		return nil
	}
	tx.OnCommit(r.wake)
	var body message
	if err := decode(m.Body, &body); err != nil {
		return err
	}
	status, why := returned(rc)
	return r.endIn(tx, key(words.ProxyID(m.To, body.To), body.From, body.ID), status, why)
}

// returned is the end of a message whose mail came back. Of one that may have arrived
// nobody knows any more, which is told like a time that is over.
func returned(rc api.MailReceipt) (status, why string) {
	why = "it could not be delivered: " + rc.Code
	switch {
	case rc.MayHaveArrived:
		return words.Expired, why + "; it may have arrived all the same"
	case rc.Code == api.MailExpired || rc.Code == string(api.CodeTooOld):
		return words.Expired, why
	case rc.Code == api.MailTargetRevoked || rc.Code == api.MailTargetReplaced:
		return words.Dropped, why
	}
	return words.Refused, why
}
