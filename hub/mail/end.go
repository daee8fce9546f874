package mail

import (
	"context"
	"slices"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// finish ends a mail that is queued: delivered or returned. Its sender is told of a
// delivery at once, of a return when that is on disk.
func (o *Office) finish(e *entry, r api.MailReceipt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conclude(e, r)
}

// conclude is finish with mu held.
func (o *Office) conclude(e *entry, r api.MailReceipt) {
	if e.phase != queued {
		return
	}
	if r.State == api.MailReturned {
		r.MayHaveArrived = e.tried || e.flight
	}
	e.phase = ended
	e.m.State, e.m.Code, e.m.Message, e.m.MayHaveArrived = r.State, r.Code, r.Message, r.MayHaveArrived
	o.displace(e)
	o.mark(e)
	if r.State == api.MailDelivered {
		o.announce(e)
	}
	o.cfg.Observer.MailEnded(r.State)
}

// discard drops a mail: its sender knows, or there is none. Called with mu held.
func (o *Office) discard(e *entry) {
	switch e.phase {
	case gone:
		return
	case queued:
		o.displace(e)
	}
	e.phase = gone
	o.mark(e)
}

// displace takes a mail out of its lane. Called with mu held.
func (o *Office) displace(e *entry) {
	o.waiting--
	p, k := o.party(e.m.To), laneKey{e.from, e.m.Lane}
	if ln := p.lanes[k]; ln != nil {
		ln.waiting = slices.DeleteFunc(ln.waiting, func(x *entry) bool { return x == e })
		if len(ln.waiting) == 0 && !ln.busy {
			delete(p.lanes, k)
		}
		o.wake(p, ln)
	}
	o.unreserveBody(&e.m)
}

// announce puts a receipt where its sender is told. Called with mu held.
func (o *Office) announce(e *entry) {
	p := o.party(e.from)
	p.receipts = append(p.receipts, e)
	if p.conn != nil {
		p.conn.tell()
	}
}

// mark has a mail written when there is occasion. Called with mu held.
func (o *Office) mark(e *entry) {
	if e.dirty {
		return
	}
	e.dirty = true
	o.dirty = append(o.dirty, e)
	select {
	case o.due <- struct{}{}:
	default:
	}
}

// Run writes what changed and looks at ages until ctx ends; then it writes what is
// left.
func (o *Office) Run(ctx context.Context) {
	sweep := time.NewTicker(SweepEvery)
	defer sweep.Stop()
	write := time.NewTimer(0)
	defer write.Stop()
	o.Sweep(ctx)
	for try := 0; ; {
		select {
		case <-ctx.Done():
			_ = o.Write(context.WithoutCancel(ctx)) // what is not written is done again
			return
		case <-o.due:
			if try == 0 {
				write.Reset(WriteDelay)
			}
		case <-sweep.C:
			o.Sweep(ctx)
		case <-write.C:
			if err := o.Write(ctx); err != nil {
				if try == 0 && ctx.Err() == nil {
					o.log.Warn("what became of mails is not written, trying again", "err", err)
				}
				write.Reset(min(retryMin<<min(try, 20), retryMax))
				try++
				continue
			}
			try = 0
		}
	}
}

// Write writes what changed, now.
func (o *Office) Write(ctx context.Context) error {
	for {
		o.mu.Lock()
		n := min(len(o.dirty), writeBatch)
		batch := slices.Clone(o.dirty[:n])
		o.dirty = slices.Delete(o.dirty, 0, n)
		changes := make([]store.MailChange, n)
		for i, e := range batch {
			e.dirty = false
			changes[i] = store.MailChange{Seq: e.m.Seq, Gone: e.phase == gone, Receipt: e.receipt()}
		}
		o.mu.Unlock()
		if n == 0 {
			return nil
		}
		err := o.st.ChangeMails(ctx, changes)
		o.mu.Lock()
		for i, e := range batch {
			switch {
			case err != nil:
				o.mark(e)
			case changes[i].Gone:
				o.leave(e)
			default:
				first := !e.saved
				e.saved = true
				if first && e.phase == ended && e.m.State == api.MailReturned {
					o.announce(e)
				}
			}
		}
		o.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// leave forgets a mail that is not on disk any more. Called with mu held.
func (o *Office) leave(e *entry) {
	delete(o.mails, e.key)
	o.bytes -= api.MailOverhead
	p := o.party(e.from)
	p.sent--
	p.receipts = slices.DeleteFunc(p.receipts, func(x *entry) bool { return x == e })
	o.forget(p)
}

// Sweep returns what is too old, forgets receipts that nobody came for, and settles
// what belongs to names that no node has.
func (o *Office) Sweep(ctx context.Context) {
	now, may := o.cfg.Clock.Now(), o.cfg.Clock.MayExpire()
	var expired []*entry
	var away []string
	o.mu.Lock()
	if may {
		for _, e := range o.mails {
			switch age := now.Sub(e.m.SentAt); {
			case e.phase == queued && age > api.MailAge && !e.flight:
				expired = append(expired, e)
			case e.phase == ended && age > api.MailReceiptAge:
				o.discard(e)
			}
		}
	}
	for name, p := range o.parties {
		if p.conn == nil {
			away = append(away, name)
		}
	}
	o.mu.Unlock()
	for _, e := range expired {
		o.finish(e, api.MailReceipt{State: api.MailReturned, Code: api.MailExpired, Message: "the target did not take it in time"})
	}
	for _, name := range away {
		holder, err := o.holder(ctx, name)
		if err != nil {
			if ctx.Err() == nil {
				o.log.Warn("names of mails could not be looked up, trying again later", "err", err)
			}
			return
		}
		if holder == "" {
			o.Retire(name)
		} else {
			o.replace(name, holder)
		}
	}
}

// replace returns what waits for a name and is not for the identity that has it now.
func (o *Office) replace(name, holder string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.mails {
		if e.m.To == name && e.phase == queued && other(&e.m, holder) {
			o.conclude(e, replaced)
		}
	}
}

// Retire settles what belongs to a name that no node has any more: what waits for it is
// returned, what it sent is dropped (semantics 15).
func (o *Office) Retire(name string) {
	var orphans []*entry
	o.mu.Lock()
	for _, e := range o.mails {
		switch {
		case e.from == name:
			o.discard(e)
		case e.m.To == name && e.phase == queued:
			orphans = append(orphans, e)
		}
	}
	o.mu.Unlock()
	for _, e := range orphans {
		o.finish(e, api.MailReceipt{State: api.MailReturned, Code: api.MailTargetRevoked, Message: "the target has left the mesh"})
	}
}
