package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	words "opencode-mesh/protocol/peers"
)

func decode(data json.RawMessage, v any) error { return json.Unmarshal(data, v) }

// Receive implements mail.Handler.
func (r *Relay) Receive(tx *mail.Tx, m api.Mail) error {
	malformed := api.Errorf(api.CodeRefused, "mail of kind %s is not as it should be", m.Kind)
	switch m.Kind {
	case kindMessage:
		var body message
		if decode(m.Body, &body) != nil || !body.valid() {
			return malformed
		}
		return r.receiveMessage(tx, m, body)
	case kindFinal:
		var body final
		if decode(m.Body, &body) != nil || !body.valid() {
			return malformed
		}
		return r.receiveFinal(tx, m, body)
	}
	return &mail.Unsupported{Reason: "this node knows no mail of kind " + m.Kind}
}

// Received implements mail.Handler.
func (r *Relay) Received(api.Mail) { r.wake() }

// receiveMessage takes a message into the journal.
func (r *Relay) receiveMessage(tx *mail.Tx, m api.Mail, body message) error {
	b := brought{Node: m.From, NodeID: m.FromID, Proxy: words.ProxyID(m.From, body.From), Text: body, CameMS: r.nowMS()}
	if ok, err := get(tx, bucketBrought, b.key(), new(brought)); ok || err != nil {
		return err
	}
	waiting, err := all(tx, bucketBrought, func(o *brought) bool { return o.NodeID == m.FromID && o.Status == "" })
	if err != nil {
		return err
	}
	if len(waiting) >= r.cfg.MaxOutstanding {
		return api.Errorf(api.CodeQueueFull, "%d messages of that node wait for their end here", len(waiting))
	}
	if b.Seq, err = nextSeq(tx); err != nil {
		return err
	}
	return put(tx, bucketBrought, b.key(), b)
}

// finish ends a message that was brought here and tells its origin, in one commit. It
// reports false for one that is not outstanding; acked asks for one that was posted.
func (r *Relay) finish(ctx context.Context, k []byte, status, why string, acked bool) (bool, error) {
	done := false
	err := r.cfg.Box.Update(ctx, func(tx *mail.Tx) error {
		done = false
		b := new(brought)
		if ok, err := get(tx, bucketBrought, k, b); err != nil || !ok || b.Status != "" || acked && !b.Tried {
			return err
		}
		f := final{ID: b.Text.ID, From: b.Text.From, To: b.Text.To, Status: status, Why: why}
		err := r.cfg.Box.Send(tx, api.Mail{ID: mail.NewID(), Kind: kindFinal, To: b.Node, ToID: b.NodeID, Lane: "peers.final", Body: encode(f)})
		if err != nil {
			return err
		}
		b.Status, b.Why, b.EndMS = status, why, r.nowMS()
		b.Cut, b.Text.Text = len(b.Text.Text) > preview, words.Cut(b.Text.Text, preview)
		done = true
		return put(tx, bucketBrought, k, b)
	})
	if done && err == nil {
		r.wake()
	}
	return done && err == nil, err
}

// change edits a message that was brought here. It reports false for one that has ended,
// and leaves that as it is.
func (r *Relay) change(ctx context.Context, b *brought, fn func(*brought)) (open bool, err error) {
	err = r.cfg.Box.Update(ctx, func(tx *mail.Tx) error {
		now := new(brought)
		if open, err = isOpen(tx, b, now); err != nil || !open {
			return err
		}
		fn(now)
		*b = *now
		return put(tx, bucketBrought, b.key(), now)
	})
	return open && err == nil, err
}

// isOpen reads a message that was brought here, and reports whether it has not ended.
func isOpen(tx *mail.Tx, b, now *brought) (bool, error) {
	ok, err := get(tx, bucketBrought, b.key(), now)
	return ok && err == nil && now.Status == "", err
}

// begin notes that a message is about to be posted. It reports false for one that has ended
// since it was looked at.
func (r *Relay) begin(ctx context.Context, b *brought) (open bool, err error) {
	if !b.Tried {
		return r.change(ctx, b, func(b *brought) { b.Tried = true })
	}
	err = r.view(func(tx *mail.Tx) error {
		open, err = isOpen(tx, b, new(brought))
		return err
	})
	return open, err
}

// due says when a message is to be looked at again.
type due struct {
	at      time.Time
	attempt int
}

// post has every receiver posted to that is due, a few at a time and each in order. It
// returns the time until the next one is.
func (r *Relay) post(ctx context.Context, in []*brought) time.Duration {
	now := r.cfg.Now()
	targets := map[string][]*brought{}
	for _, b := range in {
		targets[b.Text.To] = append(targets[b.Text.To], b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := map[string]bool{}
	for _, b := range in {
		known[string(b.key())] = true
	}
	for k := range r.dues {
		if !known[k] {
			delete(r.dues, k)
		}
	}
	next := look
	for to, list := range targets {
		if r.posting[to] {
			continue // it wakes us when it is done
		}
		wait := look
		for _, b := range list {
			wait = min(wait, max(0, r.dues[string(b.key())].at.Sub(now)))
		}
		if wait > 0 || len(r.posting) >= maxPosting {
			next = min(next, max(wait, time.Millisecond))
			continue
		}
		r.posting[to] = true
		r.work.Go(func() {
			defer func() {
				r.mu.Lock()
				delete(r.posting, to)
				r.mu.Unlock()
				r.wake()
			}()
			r.postTo(ctx, to, list)
		})
	}
	if len(r.posting) >= maxPosting {
		next = min(next, time.Second)
	}
	return next
}

// postTo looks at the messages for one endpoint that are due, in order. The first one
// that cannot be posted keeps those of its sender behind it.
func (r *Relay) postTo(ctx context.Context, to string, list []*brought) {
	stuck := map[string]bool{}
	for _, b := range list {
		k := string(b.key())
		r.mu.Lock()
		d := r.dues[k]
		r.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		now := r.cfg.Now()
		switch {
		case d.at.After(now):
			stuck[b.Proxy] = stuck[b.Proxy] || b.Receipt == ""
			continue
		case stuck[b.Proxy] && b.Receipt == "":
			d.at = now.Add(r.cfg.RetryMin)
			r.mu.Lock()
			r.dues[k] = d
			r.mu.Unlock()
			continue
		}
		wait, err := r.tend(ctx, b)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("peers: a message from another node is tried again", "from", b.Proxy, "to", to, "err", err)
		}
		d.attempt++
		if wait == 0 {
			wait = backoff(r.cfg.RetryMin, r.cfg.RetryMax, d.attempt)
		}
		d.at = r.cfg.Now().Add(wait)
		r.mu.Lock()
		r.dues[k] = d
		r.mu.Unlock()
		stuck[b.Proxy] = stuck[b.Proxy] || b.Receipt == ""
	}
}

func backoff(least, most time.Duration, attempt int) time.Duration {
	d := least
	for range min(attempt-1, 16) {
		if d *= 2; d >= most {
			return most
		}
	}
	return d
}

// tend does what there is to do for one message and returns after how long to look
// again; 0: after the back-off.
func (r *Relay) tend(ctx context.Context, b *brought) (time.Duration, error) {
	now := r.nowMS()
	end := func(status, why string) (time.Duration, error) {
		_, err := r.finish(ctx, b.key(), status, why, false)
		b.Receipt = status // nothing waits for it
		return r.cfg.RetryMin, err
	}
	if old := now-b.CameMS >= r.cfg.Patience.Milliseconds(); old && b.Tried {
		return end(words.Expired, "it was posted and never acknowledged: it may have arrived all the same")
	}
	if b.Receipt != "" { // the acknowledgement comes by itself
		if grace := r.cfg.AckGrace.Milliseconds(); words.Final(b.Receipt) && now-b.ReceiptMS >= grace {
			return end(b.Receipt, "by its receipt")
		}
		return r.cfg.AckGrace, nil
	}
	to, status, why, err := r.receiver(ctx, b)
	switch {
	case err != nil:
		return 0, err
	case status != "" && !b.Tried:
		return end(status, why)
	case to.EndpointID == "":
		return 0, nil // it may come back
	}
	return r.postOne(ctx, b, to)
}

// receiver finds who a message is for. A status is its end, if it was never posted;
// without one, an empty peer is one that is not there now.
func (r *Relay) receiver(ctx context.Context, b *brought) (to registry.Peer, status, why string, err error) {
	agents, err := r.cfg.Service.Agents(ctx)
	if err != nil {
		return to, "", "", err
	}
	old := r.nowMS()-b.CameMS >= r.cfg.Patience.Milliseconds()
	found := false
	for _, p := range agents {
		if p.EndpointID == b.Text.To {
			to, found = p, true
		}
	}
	switch {
	case len(b.Text.Via) >= words.MaxVia:
		return registry.Peer{}, words.Refused, fmt.Sprintf("it went by more than %d endpoints", words.MaxVia), nil
	case found && to.Alive && !r.Exports(to):
		return registry.Peer{}, words.Refused, "that agent is not shown to other nodes", nil
	case found && to.Alive && old:
		return registry.Peer{}, words.Expired, "that agent did not take it in time", nil
	case old:
		return registry.Peer{}, words.Dropped, "there is no such agent any more", nil
	case !found || !to.Alive:
		return registry.Peer{}, "", "", nil
	}
	return to, "", "", nil
}

// letter is a message as it is posted here: whatever could be taken for a word of the
// mesh is harmless in it, and nothing steers a terminal.
func (r *Relay) letter(b *brought) words.Message {
	text, _ := mesh.Defuse(mesh.CleanText(b.Text.Text))
	return words.Message{
		ID: b.Text.ID, FromEndpoint: b.Proxy, ToEndpoint: b.Text.To, Text: text,
		From:   words.Sender{InstanceID: b.Proxy, Name: proxyName(b.Node, b.Text.FromName, b.Text.From), Directory: proxyDirectory(b.Node, b.Text.Directory)},
		Via:    append(append([]string{}, b.Text.Via...), b.Proxy),
		SentAt: float64(r.nowMS()),
	}
}

// postOne posts a message to its receiver.
func (r *Relay) postOne(ctx context.Context, b *brought, to registry.Peer) (time.Duration, error) {
	m := r.letter(b)
	if most := r.cfg.Options.MaxMessageBytes; !b.Tried && (len(m.Text) > most || len(m.Encode()) > r.cfg.Options.MaxBody()) {
		_, err := r.finish(ctx, b.key(), words.Refused, fmt.Sprintf("with markers of the mesh made harmless it has more than the %d bytes that are taken here", most), false)
		b.Receipt = words.Refused
		return 0, err
	}
	if wait := r.pace(b.Proxy+"\x00"+to.EndpointID, r.cfg.Now()); wait > 0 {
		return wait, nil
	}
	// Who acknowledges looks for the sender's row.
	if err := r.publish(ctx, r.senderOf(b)); err != nil {
		return 0, err
	}
	if open, err := r.begin(ctx, b); err != nil || !open {
		return r.cfg.RetryMin, err
	}
	receipt, err := r.cfg.Service.Post(ctx, to, m)
	var answer *peers.StatusError
	switch {
	case errors.As(err, &answer) && (answer.Code == http.StatusRequestEntityTooLarge || answer.Code == http.StatusBadRequest && !strings.Contains(answer.Says, "stale")):
		// It says that nothing was kept, and would again.
		_, err = r.finish(ctx, b.key(), words.Refused, "the agent does not take it: "+words.Cut(mesh.CleanLine(answer.Says), preview), false)
		b.Receipt = words.Refused
		return 0, err
	case err != nil:
		r.log.Debug("peers: a message from another node was not taken, it is tried again", "to", to.EndpointID, "err", err)
		return 0, nil
	case receipt == words.Full || receipt == words.Dropped && !to.V1:
		// Dropped by one that stops; from one that is there, it is an end that its
		// acknowledgement tells.
		return 0, nil
	case to.V1:
		if !words.Final(receipt) { // no more is ever heard of it
			receipt = words.Delivered
		}
		_, err = r.finish(ctx, b.key(), receipt, "by its receipt", false)
		b.Receipt = receipt
		return 0, err
	}
	_, err = r.change(ctx, b, func(b *brought) { b.Receipt, b.ReceiptMS = receipt, r.nowMS() })
	b.Receipt = receipt
	return r.cfg.AckGrace, err
}

// pace keeps a sender below the rate of a receiver: it notes a request, or returns how
// long to wait with it.
func (r *Relay) pace(pair string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, list := range r.paced { // those of the last minute are few
		for len(list) > 0 && now.Sub(list[0]) >= time.Minute {
			list = list[1:]
		}
		if r.paced[k] = list; len(list) == 0 {
			delete(r.paced, k)
		}
	}
	list := r.paced[pair]
	if len(list) >= r.cfg.PostRate {
		return time.Minute - now.Sub(list[0])
	}
	r.paced[pair] = append(list, now)
	return 0
}
