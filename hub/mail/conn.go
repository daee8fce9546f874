package mail

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// conn is a connected node. It has no goroutine of its own while there is nothing to
// do.
type conn struct {
	office *Office
	party  *party
	id     string // identity
	node   Node
	ctx    context.Context
	end    context.CancelFunc
	slots  chan struct{} // holds a token per delivery under way
	work   sync.WaitGroup

	// The following are guarded by Office.mu.
	closed  bool // nothing is started any more
	telling bool // a worker tells receipts
}

// Attach takes up a connected node: it gets what waits for its name and the receipts
// of what it sent, until ctx ends. A newer Attach of the same name takes over at once.
// The returned detach ends it and returns when all that it started has ended.
func (o *Office) Attach(ctx context.Context, id store.Identity, node Node) (detach func()) {
	ctx, cancel := context.WithCancel(ctx)
	c := &conn{office: o, id: id.ID, node: node, ctx: ctx, end: cancel, slots: make(chan struct{}, MaxInFlight)}
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.party(id.Name)
	if old := p.conn; old != nil {
		old.closed = true
		old.end() // what it has under way is done again by this one
	}
	c.party, p.conn = p, c
	for _, ln := range p.lanes {
		o.wake(p, ln)
	}
	c.tell()
	return func() {
		cancel()
		o.mu.Lock()
		c.closed = true
		if p.conn == c {
			p.conn = nil
			o.forget(p)
		}
		o.mu.Unlock()
		c.work.Wait()
	}
}

// wake starts a worker for a lane if there is one to start. Called with mu held.
func (o *Office) wake(p *party, ln *lane) {
	c := p.conn
	if c == nil || c.closed || ln.busy || len(ln.waiting) == 0 {
		return
	}
	ln.busy = true
	c.work.Go(func() { c.deliver(ln) })
}

// deliver is a lane's worker: one mail after the other, for as long as there is one and
// the connection lives. What is not taken for a passing reason holds up its lane and no
// other.
func (c *conn) deliver(ln *lane) {
	o := c.office
	for try := 0; ; {
		e := c.next(ln)
		if e == nil {
			return
		}
		err := c.deliverOnce(e)
		if err == nil {
			try = 0
			continue
		}
		if c.ctx.Err() == nil && try == 0 {
			o.log.Info("a mail could not be delivered, trying again", "mail", e.id, "from", e.from, "to", c.party.name, "err", err)
		}
		c.pause(try)
		try++
	}
}

// next is the first mail of a lane; nil ends the worker.
func (c *conn) next(ln *lane) *entry {
	o := c.office
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(ln.waiting) > 0 && !c.closed && c.ctx.Err() == nil && !o.old(ln.waiting[0]) {
		e := ln.waiting[0]
		e.flight = true
		return e
	}
	ln.busy = false
	if len(ln.waiting) == 0 {
		if c.party.lanes[ln.laneKey] == ln {
			delete(c.party.lanes, ln.laneKey)
			o.forget(c.party)
		}
	} else if c.party.conn != c {
		o.wake(c.party, ln) // a newer connection found it busy
	}
	return nil
}

// old reports whether a mail is too old to be delivered; it is returned once anything
// may expire. Called with mu held.
func (o *Office) old(e *entry) bool { return o.cfg.Clock.Now().Sub(e.m.SentAt) > api.MailAge }

// deliverOnce makes one attempt; nil means that the mail is out of its lane.
func (c *conn) deliverOnce(e *entry) error {
	o := c.office
	if other(&e.m, c.id) {
		o.landed(e, false)
		o.finish(e, replaced)
		return nil
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		o.landed(e, false)
		return c.ctx.Err()
	}
	err := c.send(e)
	<-c.slots
	var refusal *api.Error
	switch told := errors.As(err, &refusal); {
	case errors.Is(err, store.ErrNotFound):
		o.landed(e, false)
		// It was returned meanwhile, and this does nothing; else the store lost it.
		o.finish(e, api.MailReceipt{State: api.MailReturned, Code: string(api.CodeInternal), Message: "the hub has lost the body of the mail"})
		return nil
	case err == nil:
		o.landed(e, false)
		o.finish(e, api.MailReceipt{State: api.MailDelivered})
		return nil
	case told && final(refusal):
		o.landed(e, false)
		o.finish(e, refused(refusal))
		return nil
	default:
		o.landed(e, !told || uncertain(refusal))
		return err
	}
}

// send reads a mail and calls the node.
func (c *conn) send(e *entry) error {
	body, err := c.office.st.MailBody(c.ctx, e.m.Seq)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, CallTimeout)
	defer cancel()
	return c.node.Mail(ctx, api.Mail{
		ID: e.id, Kind: e.m.Kind, From: e.m.From.Name, FromID: e.m.From.ID, To: e.m.To, ToID: e.m.ToID, Lane: e.m.Lane,
		Body: body, SentMS: e.m.SentAt.UnixMilli(),
	})
}

// landed notes that a delivery is over.
func (o *Office) landed(e *entry, tried bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e.flight = false
	e.tried = e.tried || tried
}

// final reports whether a refusal of a node would be the same if the mail came again.
// A node without a box answers that there is nothing at the path.
func final(e *api.Error) bool {
	switch e.Code {
	case api.CodeNotSupported:
		return true
	case api.CodeRateLimited, api.CodeQueueFull:
		return false
	}
	return e.Code.Status() < 500
}

// uncertain reports whether a node that refused may have taken the mail all the same.
func uncertain(e *api.Error) bool {
	return e.Code == api.CodeInternal || e.Code == api.CodeUnavailable || e.Code == api.CodeTimeout
}

// refused is the receipt of a mail that its target does not take.
func refused(e *api.Error) api.MailReceipt {
	r := api.MailReceipt{State: api.MailReturned, Code: string(e.Code), Message: shown.Line(e.Message, maxMessage)}
	if _, ours := api.Codes()[e.Code]; !ours {
		r.Code = string(api.CodeRefused)
	}
	if e.Code == api.CodeNotFound || e.Code == api.CodeMethodNotAllowed {
		r.Code, r.Message = string(api.CodeNotSupported), "the target's meshnode knows no mail; update it"
	}
	return r
}

// tell starts a worker for the receipts of this node if there is something to tell.
// Called with mu held.
func (c *conn) tell() {
	if c.closed || c.telling || len(c.party.receipts) == 0 {
		return
	}
	c.telling = true
	c.work.Go(c.tellAll)
}

// tellAll tells receipts until there is none or the connection ends.
func (c *conn) tellAll() {
	for try := 0; ; {
		batch := c.batch()
		if len(batch) == 0 {
			return
		}
		told, err := c.tellOnce(batch)
		if told > 0 {
			try = 0
		}
		if err != nil {
			if c.ctx.Err() == nil && try == 0 {
				c.office.log.Info("receipts of mails could not be told, trying again", "node", c.party.name, "err", err)
			}
			c.pause(try)
			try++
		}
	}
}

// batch takes the next receipts; none ends the worker.
func (c *conn) batch() []*entry {
	o, p := c.office, c.party
	o.mu.Lock()
	defer o.mu.Unlock()
	p.receipts = slices.DeleteFunc(p.receipts, func(e *entry) bool { return e.phase != ended })
	n := min(len(p.receipts), api.MaxMailReceipts)
	if n == 0 || c.closed || c.ctx.Err() != nil {
		c.telling = false
		if p.conn != nil {
			p.conn.tell()
		}
		return nil
	}
	return slices.Clone(p.receipts[:n])
}

// errUntold is why receipts are told again.
var errUntold = errors.New("the node did not take all of them")

// tellOnce tells some receipts and returns how many were taken. The others go to the
// end.
func (c *conn) tellOnce(batch []*entry) (told int, err error) {
	o, p := c.office, c.party
	rs := api.MailReceipts{Receipts: make([]api.MailReceipt, len(batch))}
	o.mu.Lock()
	for i, e := range batch {
		rs.Receipts[i] = e.receipt()
	}
	o.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, CallTimeout)
	defer cancel()
	settled, err := c.node.MailReceipts(ctx, rs)
	if err != nil {
		return 0, err
	}
	done := make(map[string]bool, len(settled.IDs))
	for _, id := range settled.IDs {
		done[id] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range batch {
		if done[e.id] {
			o.discard(e)
			told++
		} else {
			err = errUntold
			p.receipts = append(slices.DeleteFunc(p.receipts, func(x *entry) bool { return x == e }), e)
		}
	}
	return told, err
}

// pause waits before the next try, counted from 0, as long as the connection lives.
func (c *conn) pause(try int) {
	d := min(c.office.cfg.RetryMin<<min(try, 20), retryMax)
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}
