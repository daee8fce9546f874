package relay

import (
	"context"
	"errors"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// The answer to a question in the middle of a turn is on record until the turn's
// node has taken it: each connection sends it, and so does a hub that was started
// anew. The node takes it once.

// told is an answer as it was sent: the same is not sent again on the same
// connection, unless its question comes again.
type told struct {
	conn   *conn
	answer *store.GivenAnswer
}

// owesAnswer reports whether the connection has to send an answer. Called with mu
// held.
func (c *conn) owesAnswer(e *entry) bool {
	t := e.task
	if t.Answer == nil || t.State.Settled() || t.Journal != c.Hello.JournalID || e.told == (told{c, t.Answer}) {
		return false
	}
	_, ends := withdrawal(t) // then nobody waits for it
	return !ends
}

// deliver tells the node the answer to what its agent asked.
func (r *Relay) deliver(c *conn, e *entry) error {
	r.mu.Lock()
	t, owes, asked := e.task, c.owesAnswer(e), e.again
	r.mu.Unlock()
	if !owes {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, OfferTimeout)
	rc, err := c.Node.Answer(ctx, api.Reply{
		Triple: t.Triple(), JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch,
		Question: t.Answer.Asking, Text: t.Answer.Text,
	})
	cancel()
	var refusal *api.Error
	switch {
	case errors.As(err, &refusal) && !passing(refusal) && !outdated(err):
		// Nothing asks that now. It stays on record for the turn: an agent that was
		// started anew may ask it again.
		r.log.Info("the node did not take an answer", "task", t.ID, "node", c.Identity.Name, "err", err)
	case err != nil:
		return err
	case rc.Outcome != nil:
		rc.Triple = t.Triple()
		if err := r.settleByReceipt(c, rc); err != nil {
			return err
		}
	default:
		r.note(c.ctx, t.ID, func(now store.Task) (store.Task, error) {
			if now.Answer != t.Answer {
				return now, errNoChange
			}
			now.Answer = nil
			return now, nil
		})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.again == asked { // else it was asked again meanwhile, and is told again
		e.told = told{c, t.Answer}
	}
	return nil
}
