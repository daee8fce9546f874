package relay

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// ask is a withdrawal as it was sent: the same is not sent again on the same
// connection, another one is.
type ask struct {
	conn   *conn
	triple api.Triple
	reason string
}

// withdrawal says why a task's node is to be asked to end it, if it is.
func withdrawal(t store.Task) (reason string, wanted bool) {
	switch {
	case t.State.Settled() || t.Journal == "":
		return "", false
	case !t.CancelAt.IsZero():
		return t.CancelReason, true
	}
	return api.WithdrawExpire, !t.ExpireAt.IsZero()
}

// owes reports whether the connection has to send the task's withdrawal. Called
// with mu held.
func (c *conn) owes(e *entry) bool {
	reason, wanted := withdrawal(e.task)
	return wanted && e.task.Journal == c.Hello.JournalID && e.asked != ask{c, e.task.Triple(), reason}
}

// urge lists an entry whose withdrawal or answer is to be sent, or whose next
// question is to be asked. Called with mu held.
func (r *Relay) urge(e *entry) {
	q := e.queue
	if q.conn == nil || e.urged || !q.conn.owes(e) && !q.conn.owesAnswer(e) && q.conn.next(e) == nil {
		return
	}
	e.urged = true
	q.urgent = append(q.urgent, e)
	q.conn.wake()
}

// owed lists what a connection that is being greeted has to withdraw.
func (r *Relay) owed(c *conn) []*entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*entry
	for _, e := range c.queue.tasks {
		if c.owes(e) {
			list = append(list, e)
		}
	}
	return list
}

// urgent does what is listed so, before any new offer (semantics 7). What fails is
// listed again after a pause, in which offers go on.
func (r *Relay) urgent(c *conn) {
	for {
		r.mu.Lock()
		var list []*entry
		if c.queue.conn == c {
			list, c.queue.urgent = c.queue.urgent, nil
		}
		r.mu.Unlock()
		if len(list) == 0 {
			return
		}
		_, _ = each(list, func(e *entry) error {
			err := r.withdraw(c, e)
			if err == nil {
				err = r.deliver(c, e)
			}
			if err == nil {
				err = r.askNext(c, e)
			}
			if err == nil {
				r.sent(c, e)
				return nil
			}
			if outdated(err) {
				r.giveUp(c, err)
				return nil
			}
			r.mu.Lock()
			id := e.task.ID
			r.mu.Unlock()
			r.log.Info("what is urgent about a task failed, trying again", "task", id, "node", c.Identity.Name, "err", err)
			c.work.Go(func() {
				r.pause(c.ctx, urgentTry)
				r.sent(c, e)
			})
			return nil
		})
	}
}

// urgentTry is the length of the pause after one that failed, as of a try: it is
// somebody's wish, so it does not wait ever longer.
const urgentTry = 2

// sent takes an entry off the list; if there is something to be sent by now, it is
// listed anew.
func (r *Relay) sent(c *conn, e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.queue.conn != c || c.closed {
		return // a newer connection keeps the list
	}
	e.urged = false
	if r.tasks[e.task.ID] == e {
		r.urge(e)
	}
}

// withdraw asks the node to end one task and takes its answer.
func (r *Relay) withdraw(c *conn, e *entry) error {
	r.mu.Lock()
	t, owes := e.task, c.owes(e)
	r.mu.Unlock()
	if !owes {
		return nil
	}
	reason, _ := withdrawal(t)
	ctx, cancel := context.WithTimeout(c.ctx, OfferTimeout)
	rc, err := c.Node.Withdraw(ctx, api.Withdraw{
		Triple: t.Triple(), JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch,
		Reason: reason, CreatedMS: begun(t).UnixMilli(),
	})
	cancel()
	var refusal *api.Error
	switch {
	case errors.As(err, &refusal) && !passing(refusal) && !outdated(err):
		// Nothing is known but that asking again would not help.
		r.log.Warn("the node refused a withdrawal", "task", t.ID, "node", c.Identity.Name, "err", err)
	case err != nil:
		return err
	default:
		rc.Triple = t.Triple()
		if err := r.withdrawn(c, rc); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.asked = ask{c, t.Triple(), reason}
	return nil
}

// withdrawn takes the node's answer.
func (r *Relay) withdrawn(c *conn, rc api.Receipt) error {
	if rc.Outcome == nil && (rc.State == api.StateCanceled || rc.State == api.StateExpired) {
		rc.Outcome = &api.Outcome{State: rc.State}
	}
	if rc.Outcome != nil {
		return r.settleByReceipt(c, rc)
	}
	// It runs: a cancel's result comes by itself, an expiry came too late.
	_, err := r.change(c.ctx, rc.Task, func(t store.Task) (store.Task, []store.Part, error) {
		if t.State.Settled() || t.Triple() != rc.Triple || t.State == api.StateQuestion || due(t) {
			return t, nil, errNoChange
		}
		t.ExpireAt = time.Time{}
		return received(t, rc.State, r.clock.Now()), nil, nil
	})
	return err
}
