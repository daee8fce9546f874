package across

import (
	"context"
	"errors"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

// takeOut notes what waits for proxies in the journal, and then takes it out of the
// file. Nothing leaves the file before it is in the journal.
func (w *worker) takeOut(ctx context.Context, l *link, s *ocm.State) error {
	noted, depth, err := w.noted(l)
	if err != nil {
		return err
	}
	if l.Stranger {
		return nil // nothing is sent to somebody else who has the name now
	}
	exports, err := w.exports(l, s)
	if err != nil {
		return err
	}
	var fresh []outgoing
	system, take := map[string]bool{}, false
	for _, p := range l.Proxies {
		queue, _ := s.Queues.Get(p.Session)
		for _, id := range queue {
			row, ok := s.Messages.Get(id)
			if !ok || row.ChannelID != l.ChannelID || row.Recipient != p.Session || row.Status != ocm.StatusPending {
				continue
			}
			if row.Type == ocm.TypeSystem {
				system[id], take = true, true // notices are for members here
				continue
			}
			if noted[id] {
				take = true
				continue
			}
			if depth+len(fresh) >= MaxLinkDepth {
				break // what follows must not overtake
			}
			if joined(l, exports, row.Sender) {
				w.later(time.Millisecond)
				break // the other side hears of its sender first
			}
			fresh = append(fresh, w.outgoing(l, p, row))
			take = true
		}
	}
	if len(fresh) > 0 {
		err := w.a.box.Update(ctx, func(tx *bolt.Tx) error {
			for i := range fresh {
				if err := w.note(tx, l, fresh[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, f := range fresh {
			noted[f.Message.ID] = true
		}
	}
	if !take {
		return nil
	}
	return w.update(ctx, l, func(s *ocm.State) error {
		eng := w.project.Engine()
		for _, p := range l.Proxies {
			only := func(row *ocm.Envelope) bool {
				return row.ChannelID == l.ChannelID && (noted[row.ID] || system[row.ID])
			}
			if ch := l.channel(s); ch != nil {
				// The pause after a delivery is for hosts: that of the other machine is kept
				// there.
				ch.Cooldowns.Delete(p.Session)
			}
			var ids []string
			for _, row := range eng.Drain(s, p.Session, engine.DrainOptions{Only: only}) {
				ids = append(ids, row.ID)
			}
			eng.Commit(s, p.Session, ids, ocm.ModePull)
		}
		return nil
	})
}

// joined reports whether a member that the other side may see was not told to it yet.
func joined(l *link, exports []export, session string) bool {
	for _, e := range exports {
		if e.Session == session {
			old := l.export(session)
			return old == nil || old.Role != e.Role
		}
	}
	return false
}

// noted are the messages of a link that are in the journal and were not sent, and how
// many have not ended.
func (w *worker) noted(l *link) (noted map[string]bool, depth int, err error) {
	noted = map[string]bool{}
	err = w.a.box.View(func(tx *bolt.Tx) error {
		depth = count(tx, bucketTraces, l.ID, MaxLinkDepth)
		return walk(tx, bucketOut, key(l.ID, ""), func(_ []byte, o *outgoing) error {
			noted[o.Message.ID] = true
			return nil
		})
	})
	return noted, depth, err
}

// outgoing is a row as it will travel.
func (w *worker) outgoing(l *link, p proxy, row *ocm.Envelope) outgoing {
	m := message{
		Link: l.ID, Channel: l.PeerChannel, FromChannel: l.Channel, ID: row.ID, Correlation: row.Correlation,
		ReplyTo: row.ReplyTo, Root: row.Root, Hops: max(0, row.Hops), Type: row.Type, Content: ocm.Valid(row.Content),
		SentAt: row.Timestamp, To: p.Alias,
	}
	if !isID(ocm.PrefixCorrelation, m.Correlation) {
		m.Correlation = ocm.NewID(ocm.PrefixCorrelation)
	}
	if !isID(ocm.PrefixMessage, m.ReplyTo) {
		m.ReplyTo = ""
	}
	if !isID(ocm.PrefixMessage, m.Root) {
		m.Root = ""
	}
	if e := l.export(row.Sender); e != nil {
		m.From = e.Alias
	}
	return outgoing{Proxy: p.Session, Sender: row.Sender, Message: m}
}

// note writes a message into the journal, with what the journal knows of its chain and
// the file may have forgotten.
func (w *worker) note(tx *bolt.Tx, l *link, o outgoing) error {
	m := o.Message
	if err := continued(tx, &m); err != nil {
		return err
	}
	t := trace{ID: m.ID, Sender: o.Sender, State: stateNoted, AtMS: w.a.nowMS()}
	if p := l.proxy(o.Proxy); p != nil {
		t.Role = p.Role
	}
	return errors.Join(
		add(tx, bucketOut, l.ID, outgoing{Proxy: o.Proxy, Sender: o.Sender, Message: m}),
		put(tx, bucketTraces, key(l.ID, m.ID), t),
		remember(tx, clockLocal, w.a.nowMS(), bucketChains, key(m.ID), chain{Hops: m.Hops, Root: m.Root, Correlation: m.Correlation}),
	)
}

// continued makes a reply go on with its chain: the larger hop count, and root and
// correlation where the file does not know the parent any more.
func continued(tx *bolt.Tx, m *message) error {
	if m.ReplyTo == "" {
		return nil
	}
	var c chain
	ok, err := get(tx, bucketChains, key(m.ReplyTo), &c)
	if err != nil || !ok {
		return err
	}
	m.Hops = max(m.Hops, c.Hops+1)
	if m.Root == "" {
		m.Root = c.Root
		if m.Root == "" {
			m.Root = m.ReplyTo
		}
		m.Correlation = c.Correlation
	}
	return nil
}

// sendStep is how many messages one commit hands to the mail.
const sendStep = 16

// verdict is what is to be done with a message of the journal.
type verdict struct {
	key []byte
	outgoing
	state, code string
}

// send hands to the mail what is out of the file, in order.
func (w *worker) send(ctx context.Context, l *link, s *ocm.State) error {
	var all []verdict
	err := w.a.box.View(func(tx *bolt.Tx) error {
		return walk(tx, bucketOut, key(l.ID, ""), func(k []byte, o *outgoing) error {
			if state, code := judge(l.channel(s), s, o.Message); state != stateNoted {
				all = append(all, verdict{k, *o, state, code})
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	for step := range slices.Chunk(all, sendStep) {
		err := w.a.box.Update(ctx, func(tx *bolt.Tx) error {
			for _, v := range step {
				if err := w.carryOut(tx, l, v); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, mail.ErrFull) {
			w.waiting(l, waitOutbox)
			w.later(w.a.retry)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// judge says what becomes of a message of the journal, as its row stands; stateNoted
// is that it has to wait.
func judge(ch *ocm.Channel, s *ocm.State, m message) (state, code string) {
	row, there := s.Messages.Get(m.ID)
	switch {
	case !there && ch == nil:
		return stateDropped, codeChannelGone
	case !there: // removed by the bound of the file; the journal has it
	case row.Status == ocm.StatusPending || row.Status == ocm.StatusInFlight:
		return stateNoted, ""
	case row.Status != ocm.StatusDelivered:
		return stateDropped, codeRemoved
	}
	switch {
	case !isID(ocm.PrefixMessage, m.ID):
		return stateRefused, string(engine.InvalidID)
	case m.From == "":
		return stateRefused, codeNotShown
	case ch != nil && m.Hops > hopsOf(ch):
		return stateRefused, string(engine.HopLimit)
	}
	return stateSent, ""
}

// carryOut does it.
func (w *worker) carryOut(tx *bolt.Tx, l *link, v verdict) error {
	if err := remove(tx, bucketOut, v.key); err != nil {
		return err
	}
	m, t := v.Message, new(trace)
	if ok, err := get(tx, bucketTraces, key(l.ID, m.ID), t); err != nil || !ok {
		return err
	}
	if v.state != stateSent {
		return w.a.end(tx, l, t, v.state, v.code)
	}
	return errors.Join(
		w.a.mark(tx, l, t, stateSent),
		w.a.box.Send(tx, l.mail(kindMessage, m)),
	)
}

// hopsOf is the hop limit of a channel.
func hopsOf(ch *ocm.Channel) int {
	if ch.MaxHops <= 0 {
		return ocm.DefaultHops
	}
	return ch.MaxHops
}
