package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// offer makes one attempt to bring the head of a lane to its node, and pauses
// before the next if it failed for a passing reason. The journal that it goes to is
// committed before the offer is sent (semantics 5); the receipt says that the
// node's own journal has it.
func (r *Relay) offer(c *conn, e *entry, l *lane) {
	defer r.done(l)
	again, err := r.offerOnce(c, e)
	r.offered(c) // a pause takes no other lane's place
	if !again || c.ctx.Err() != nil {
		l.tries = 0
		return
	}
	r.mu.Lock()
	id := e.task.ID
	r.mu.Unlock()
	r.log.Info("an offer failed, trying again", "task", id, "node", c.Identity.Name, "try", l.tries+1, "err", err)
	r.pause(c.ctx, l.tries)
	l.tries++
}

// offerOnce makes one attempt. again says whether the same connection should try
// once more.
func (r *Relay) offerOnce(c *conn, e *entry) (again bool, err error) {
	r.mu.Lock()
	t, text := e.task, e.text
	r.mu.Unlock()
	if !needsOffer(t) {
		return false, nil
	}
	if t.Journal != "" && t.Journal != c.Hello.JournalID {
		// Created for a journal that the node lost in that very moment.
		err := r.orphanOne(c.ctx, t.ID, c.Hello.JournalID)
		return err != nil, err
	}
	var b store.Binding
	if c.Hello.Sessions {
		if b, err = r.binding(c.ctx, bindingKey(t)); err != nil {
			return true, err
		}
	}
	if t.Journal == "" {
		if t.Op != "" {
			t, err = r.takeUp(c, t, b)
		} else {
			t, err = r.claim(c, t, b)
		}
		if err != nil {
			return true, err
		}
		if !needsOffer(t) || t.Journal != c.Hello.JournalID {
			return false, nil
		}
	}
	o, err := r.offerOf(c, t, b, text)
	if errors.Is(err, errNoEnvelope) {
		// Trying again would not mend it, and the lane would wait behind it.
		o := failed(api.TaskNotStarted, err.Error())
		err := r.settleByReceipt(c, api.Receipt{Triple: t.Triple(), Outcome: &o})
		return err != nil, err
	}
	if err != nil {
		return true, err
	}
	r.mu.Lock()
	e.tried = true
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, OfferTimeout)
	rc, err := c.Node.Offer(ctx, o)
	cancel()
	if err != nil {
		return r.offerFailed(c, t, err)
	}
	rc.Triple = t.Triple()
	r.cfg.Observer.Offered("taken")
	if rc.Outcome != nil {
		err := r.settleByReceipt(c, rc)
		return err != nil, err
	}
	r.note(c.ctx, t.ID, func(t store.Task) (store.Task, error) {
		if t.State.Settled() || t.Received || t.Triple() != rc.Triple {
			return t, errNoChange
		}
		return received(t, rc.State, r.clock.Now()), nil
	})
	return r.stillWaits(t), errNotNoted
}

// claim commits that a task is offered to the connection's journal, and in which
// session: the one that its lane is at.
func (r *Relay) claim(c *conn, t store.Task, b store.Binding) (store.Task, error) {
	return r.change(c.ctx, t.ID, func(t store.Task) (store.Task, []store.Part, error) {
		if !needsOffer(t) || t.Journal != "" {
			return t, nil, errNoChange
		}
		t.Journal = c.Hello.JournalID
		if c.Hello.Sessions {
			t.Lane = cmp.Or(taskLane(t), laneOf(b))
			t.Generation = generationIn(b, t.Lane)
		}
		return become(t, api.StateOffered, r.clock.Now()), nil, nil
	})
}

// errNotNoted is why an offer that was taken is made again.
var errNotNoted = errors.New("the receipt could not be noted")

// stillWaits guards against a receipt that could not be noted: the entry must not
// be taken again at once.
func (r *Relay) stillWaits(t store.Task) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tasks[t.ID]
	return e != nil && needsOffer(e.task) && e.task.Triple() == t.Triple()
}

// offerFailed sorts refusals: what settles the task, and what passes.
func (r *Relay) offerFailed(c *conn, t store.Task, err error) (again bool, _ error) {
	var refusal *api.Error
	if !errors.As(err, &refusal) {
		r.cfg.Observer.Offered("lost")
		return true, err // the tunnel: if it is gone, ctx ends
	}
	r.cfg.Observer.Offered(string(refusal.Code))
	var o api.Outcome
	switch code := refusal.Code; {
	case outdated(err):
		r.giveUp(c, err)
		return false, err
	case passing(refusal):
		return true, err
	case code == api.CodeRefused:
		o = api.Outcome{State: api.StateRefused, Error: &api.TaskError{Code: api.TaskRefused, Message: refusal.Message}}
	case code == api.CodeTooOld:
		o = failed(api.TaskTooOld, refusal.Message, api.FlagMayHaveRun)
	case code == api.CodeTaskConflict:
		o = failed(api.TaskConflict, refusal.Message, api.FlagMayHaveRun)
	default:
		o = failed(string(code), refusal.Message)
	}
	err = r.settleByReceipt(c, api.Receipt{Triple: t.Triple(), Outcome: &o})
	return err != nil, err
}

// errNoEnvelope means that no envelope can carry a task: the story of a command
// agent's question is too long, say.
var errNoEnvelope = errors.New("the task does not fit an envelope")

// offerOf writes the offer of a task's current turn; b is its binding.
func (r *Relay) offerOf(c *conn, t store.Task, b store.Binding, text []byte) (api.Offer, error) {
	if text == nil {
		var err error
		if text, err = r.text(c.ctx, t, textKey(t)); err != nil {
			return api.Offer{}, err
		}
	}
	body := string(text)
	if t.Kind != api.TurnTask && t.Op == "" && !c.Hello.Sessions {
		// An agent without a session remembers nothing: it gets the whole story.
		first, err := r.text(c.ctx, t, firstText)
		if err != nil {
			return api.Offer{}, err
		}
		body = string(first) + "\n\n" + body
	}
	mode, deadline := mesh.Mode(t.Mode), t.Deadline
	switch {
	case t.Kind == api.TurnResume:
		mode = mesh.ModeResume
	case t.Kind == api.TurnDelete:
		deadline = time.Duration(t.RanMS)*time.Millisecond + deleteLimit
	}
	env := envelopeOf(t, mode, mesh.Platform(c.Hello.OS+"/"+c.Hello.Arch), body)
	full, err := env.Format()
	if err != nil {
		return api.Offer{}, fmt.Errorf("%w: %w", errNoEnvelope, err)
	}
	now := r.clock.Now()
	o := api.Offer{
		Triple: t.Triple(), HubID: r.hubID, JournalID: c.Hello.JournalID, Epoch: c.Hello.Epoch,
		Hash: t.TurnHash, Seq: t.Seq, Kind: t.Kind, Controller: t.Controller,
		CreatedMS: begun(t).UnixMilli(), TTLMS: api.Millis(t.ExpiresAt.Sub(now)), DeadlineMS: api.Millis(deadline),
		QuestionMS: api.Millis(questionLimit(t)),
		Mode:       string(mode), Workspace: t.Workspace, Text: full, Token: r.token(t.ID),
	}
	if c.Hello.Sessions {
		o.Binding = entered(t, b)
		o.Binding.Title = sessionTitle(t.Controller.Name)
	}
	return o, nil
}

// envelopeOf is the envelope in which a text of a task goes to a machine.
func envelopeOf(t store.Task, mode mesh.Mode, receiver mesh.Platform, body string) mesh.Envelope {
	return mesh.Envelope{
		From: t.Controller.Name, Task: t.ID, Mode: mode, Reply: mesh.ReplyResultBlock,
		Env: mesh.EnvTag(mesh.Platform(t.Platform), receiver), Via: t.Via, Body: body,
	}
}

// deleteLimit is how long the deletion of a session may take, whatever the turns
// before it took.
const deleteLimit = 5 * time.Minute

// entered says which session the turn of a task enters: a bound one, or that of the
// generation in which the turn before it ran.
func entered(t store.Task, b store.Binding) api.Binding {
	h := t.Handover
	switch {
	case t.Op == "" || h == nil:
		return api.Binding{Generation: t.Generation, Session: sessionIn(b, t.Generation)}
	case t.Kind == api.TurnResume, h.Fresh != "":
		return api.Binding{Generation: h.Generation + 1, Session: h.Fresh, Compaction: t.ID}
	}
	return api.Binding{Generation: h.Generation, Session: h.Session}
}

// text reads a text of a task; without it there is nothing to offer.
func (r *Relay) text(ctx context.Context, t store.Task, key store.PartKey) ([]byte, error) {
	b, err := r.st.Part(ctx, t.ID, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: its text is gone", errNoEnvelope)
	}
	return b, err
}

// firstText is where the text of a dispatch is kept.
var firstText = store.PartKey{Kind: store.PartText, Attempt: 1, Turn: 1}

// textKey is where the text of a task's current turn is kept. Every attempt
// starts with the text of the first.
func textKey(t store.Task) store.PartKey {
	if t.Kind == api.TurnTask {
		return firstText
	}
	return store.PartKey{Kind: store.PartText, Attempt: t.Attempt, Turn: t.Turn}
}
