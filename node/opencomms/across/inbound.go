package across

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

// Why messages wait here, beside the codes of the engine.
const (
	waitOutbox = "outbox_full" // the mail box takes no more
	waitRate   = "link_rate"   // the link put LinkRate messages into the channel in this minute
)

// passing are the refusals that end by themselves or by a person here; a budget that is
// spent stays so. They are the channel's, so that everything behind waits too.
var passing = map[engine.Code]bool{engine.Paused: true, engine.RateLimited: true}

// expired reports whether a message waited here for as long as mail may be on its way,
// by the clock of this node.
func (in *incoming) expired(nowMS int64) bool {
	return nowMS-cmp.Or(in.CameMS, in.SentMS) > api.MailAge.Milliseconds()
}

// rate counts what a link puts into a channel.
type rate struct {
	began time.Time
	n     int
}

// take counts one more, unless the minute is full; then it says how long it lasts.
func (r *rate) take(now time.Time) (wait time.Duration) {
	if age := now.Sub(r.began); age < 0 || age >= linkWindow {
		r.began, r.n = now, 0
	}
	if r.n >= LinkRate {
		return linkWindow - now.Sub(r.began)
	}
	r.n++
	return 0
}

// takeIn puts into the file what came, in order.
func (w *worker) takeIn(ctx context.Context, l *link, s *ocm.State) error {
	for ctx.Err() == nil {
		var k []byte
		in := new(incoming)
		var copies broadcast
		err := w.a.box.View(func(tx *bolt.Tx) error {
			err := walk(tx, bucketIn, key(l.ID, ""), func(at []byte, i *incoming) error {
				k, in = at, i
				return errStop
			})
			if err == nil && k != nil {
				_, err = get(tx, bucketCopies, in.broadcast(l), &copies)
			}
			return err
		})
		if err != nil || k == nil {
			return err
		}
		row, code, err := w.relay(ctx, l, s, in, &copies)
		var refusal *engine.Refusal
		switch {
		case errors.As(err, &refusal) && passing[refusal.Code] && in.expired(w.a.nowMS()):
			code = api.MailExpired
		case errors.As(err, &refusal) && passing[refusal.Code]:
			w.waiting(l, string(refusal.Code))
			w.later(w.a.retry)
			return nil
		case errors.As(err, &refusal):
			code = string(refusal.Code)
		case errors.Is(err, errLinkRate):
			w.waiting(l, waitRate)
			return nil
		case err != nil:
			return err
		}
		if err := w.settle(ctx, l, k, in, copies, row, code); errors.Is(err, mail.ErrFull) {
			w.waiting(l, waitOutbox)
			w.later(w.a.retry)
			return nil
		} else if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// broadcast is the key of the broadcast that a message may be a copy of.
func (in *incoming) broadcast(l *link) []byte {
	m := in.Message
	return key(l.ID, m.From, m.Correlation, strconv.FormatInt(m.SentAt, 10), ocm.ContentHash(m.Content))
}

var errLinkRate = errors.New("the link's minute is full")

// relay puts one message into the file, if it is not there. It returns the row, or why
// it will never be one.
func (w *worker) relay(ctx context.Context, l *link, s *ocm.State, in *incoming, copies *broadcast) (*ocm.Envelope, string, error) {
	m := in.Message
	if l.Closed {
		return nil, codeUnlinked, nil
	}
	p, to := l.proxyOf(m.From), l.exported(m.To)
	switch {
	case l.channel(s) == nil:
		return nil, string(engine.ChannelMissing), nil
	case p == nil:
		return nil, string(engine.NotMember), nil
	case to == nil:
		return nil, string(engine.RecipientUnknown), nil
	}
	if err := w.a.box.View(func(tx *bolt.Tx) error { return continued(tx, &m) }); err != nil {
		return nil, "", err
	}
	var row *ocm.Envelope
	counted := false
	err := w.update(ctx, l, func(s *ocm.State) error {
		ch := l.channel(s)
		if ch == nil {
			return &engine.Refusal{Code: engine.ChannelMissing, Message: "the channel is gone"}
		}
		if there, ok := s.Messages.Get(m.ID); ok {
			if there.Sender != p.Session || there.ChannelID != ch.ID {
				return &engine.Refusal{Code: engine.MessageExists, Message: "there is another message of that id"}
			}
			row = there
			return nil
		}
		if copies.closed(to.Session) {
			return &engine.Refusal{Code: engine.Duplicate, Message: "the recipient has a copy of this broadcast"}
		}
		if engine.Member(ch, p.Session) == nil {
			switch p.Code {
			case string(engine.ChannelFull), codeLinkFull, codeReserved:
				return &engine.Refusal{Code: engine.Code(p.Code), Message: "the sender has no place in the channel"}
			}
		}
		relayed, err := w.project.Engine().Relay(s, engine.RelayRequest{
			Channel: ch.Name, From: p.Session, To: to.Session, ID: m.ID, Correlation: m.Correlation, ReplyTo: m.ReplyTo,
			Root: m.Root, Hops: m.Hops, Type: m.Type, Content: m.Content, CopyOf: copies.First,
		})
		if err != nil {
			return err
		}
		if copies.First == "" && !counted {
			r := w.rates[l.ID]
			if r == nil {
				r = &rate{}
				w.rates[l.ID] = r
			}
			if wait := r.take(w.a.now()); wait > 0 {
				w.later(wait)
				return errLinkRate
			}
			counted = true
		}
		row = relayed
		return nil
	})
	return row, "", err
}

// settle notes what became of a message, and tells its sender.
func (w *worker) settle(ctx context.Context, l *link, k []byte, in *incoming, copies broadcast, row *ocm.Envelope, code string) error {
	m := in.Message
	rc := receipt{Link: m.Link, ID: m.ID, State: stateQueued}
	if row == nil {
		rc.State, rc.Code = stateRefused, code
	}
	return w.a.box.Update(ctx, func(tx *bolt.Tx) error {
		errs := []error{remove(tx, bucketIn, k), w.receipt(tx, l, rc)}
		if row != nil {
			copies = broadcast{First: cmp.Or(copies.First, m.ID), To: append(slices.Clone(copies.To), row.Recipient)}
			errs = append(errs,
				put(tx, bucketOpen, key(l.ID, m.Link, m.ID), arrival{Link: m.Link, ID: m.ID}),
				remember(tx, clockHub, in.SentMS, bucketCopies, in.broadcast(l), copies),
				remember(tx, clockLocal, w.a.nowMS(), bucketChains, key(m.ID), chain{Hops: row.Hops, Root: row.Root, Correlation: row.Correlation}),
			)
		}
		return errors.Join(errs...)
	})
}

// receipt sends a receipt.
func (w *worker) receipt(tx *bolt.Tx, l *link, rc receipt) error {
	return w.a.box.Send(tx, l.mail(kindReceipt, rc))
}

// followUp tells the senders how what is in the file ended.
func (w *worker) followUp(ctx context.Context, l *link, s *ocm.State) error {
	type end struct {
		key []byte
		receipt
	}
	var ends []end
	err := w.a.box.View(func(tx *bolt.Tx) error {
		return walk(tx, bucketOpen, key(l.ID, ""), func(k []byte, a *arrival) error {
			rc := receipt{Link: a.Link, ID: a.ID, State: stateUnknown}
			if row, ok := s.Messages.Get(a.ID); ok {
				rc.State = row.Status
			} else if s.OfFile() && l.channel(s) == nil {
				rc.State, rc.Code = ocm.StatusRejected, codeEnded // saved or deleted with its messages
			}
			if rc.State != ocm.StatusPending && rc.State != ocm.StatusInFlight {
				ends = append(ends, end{k, rc})
			}
			return nil
		})
	})
	if err != nil || len(ends) == 0 {
		return err
	}
	err = w.a.box.Update(ctx, func(tx *bolt.Tx) error {
		for _, e := range ends {
			if err := errors.Join(remove(tx, bucketOpen, e.key), w.receipt(tx, l, e.receipt)); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, mail.ErrFull) {
		w.later(w.a.retry)
		return nil
	}
	return err
}
