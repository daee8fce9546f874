package push

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/mesh"
	ocm "opencode-mesh/protocol/opencomms"
)

// point names a step of a delivery: what comes before it is on disk.
type point string

const (
	atNote     point = "note"     // nothing was done
	atDrain    point = "drain"    // the note is there
	atPrompt   point = "prompt"   // the messages are in flight
	atCommit   point = "commit"   // the session has them
	atAccepted point = "accepted" // the file says so
	atFinish   point = "finish"   // the note says so, too
	atDrop     point = "drop"     // the turn has ended
	atRequeue  point = "requeue"  // the session does not have them
	atRequeued point = "requeued" // they wait again
)

// deliver brings a recipient's delivery to its end, or makes one. It returns how long to
// wait until the recipient is looked at again.
func (w *watcher) deliver(ctx context.Context, recipient string) (wait time.Duration) {
	select {
	case w.p.slots <- struct{}{}:
		defer func() { <-w.p.slots }()
	case <-ctx.Done():
		return 0
	}
	notes, err := w.p.notes.all(w.project.Dir())
	if err != nil {
		w.trouble(err)
		return w.p.cfg.Retry
	}
	i := slices.IndexFunc(notes, func(n note) bool { return n.Recipient == recipient })
	if i < 0 {
		wait, err = w.send(ctx, recipient)
	} else {
		wait, err = w.settle(ctx, notes[i])
	}
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		w.trouble(err)
		return max(wait, w.p.cfg.Retry)
	}
	return wait
}

// settle brings what an earlier process, or a call without an answer, left to its end.
func (w *watcher) settle(ctx context.Context, n note) (time.Duration, error) {
	v, err := w.p.agent.Visit(ctx, n.Recipient)
	if errors.Is(err, agent.ErrNoSession) {
		return 0, w.putBack(ctx, n, errors.New("the session is gone"))
	}
	if err != nil {
		return 0, err
	}
	defer v.Leave()
	if n.Accepted {
		return 0, w.finish(ctx, v, n, true)
	}
	return w.resolve(ctx, v, n, true, errors.New("the node ended before the session had the message"))
}

// resolve asks the session whether it has what a note says.
func (w *watcher) resolve(ctx context.Context, v agent.Visit, n note, resumed bool, why error) (time.Duration, error) {
	stored, err := v.Stored(ctx, agent.Prompt{Key: n.Key})
	switch {
	case errors.Is(err, agent.ErrNoSession):
		return 0, w.putBack(ctx, n, errors.New("the session is gone"))
	case err != nil:
		return 0, err
	case !stored:
		return w.p.cfg.Retry, w.putBack(ctx, n, why)
	}
	return 0, w.accept(ctx, v, n, resumed)
}

// accept commits what the session has and sees its turn through.
func (w *watcher) accept(ctx context.Context, v agent.Visit, n note, resumed bool) error {
	w.p.at(atCommit)
	err := w.project.Update(ctx, func(s *ocm.State) error {
		ours := n.ours(s)
		for _, e := range ours {
			if e.Status == ocm.StatusPending {
				// Another program took it for left behind and put it back; but it was delivered.
				e.Status = ocm.StatusInFlight
				queue, _ := s.Queues.Get(n.Recipient)
				s.Queues.Set(n.Recipient, slices.DeleteFunc(slices.Clone(queue), func(id string) bool { return id == e.ID }))
			}
		}
		w.project.Engine().Commit(s, n.Recipient, idsOf(ours), ocm.ModePush)
		return nil
	})
	if err != nil {
		return fmt.Errorf("commit a delivery: %w", err)
	}
	w.p.at(atAccepted)
	n.Accepted = true
	if err := w.p.notes.put(ctx, n); err != nil {
		return err
	}
	w.fine()
	w.log.Info("opencomms: delivered", "session", n.Recipient, "messages", n.ids())
	return w.finish(ctx, v, n, resumed)
}

// finish waits for the end of the turn. What becomes of it is the session's own matter:
// the messages are delivered.
func (w *watcher) finish(ctx context.Context, v agent.Visit, n note, resumed bool) error {
	w.p.at(atFinish)
	err := v.Finish(ctx, agent.Prompt{Key: n.Key}, resumed)
	if err != nil && !errors.Is(err, agent.ErrNoSession) && !errors.Is(err, agent.ErrNotRun) {
		return err // it may go on: the note stays
	}
	w.p.at(atDrop)
	return errors.Join(err, w.p.notes.drop(ctx, n))
}

// putBack puts what the session does not have back to the head of the queue, or ends it
// after the last attempt. Its error says so, unless nothing had been taken.
func (w *watcher) putBack(ctx context.Context, n note, why error) error {
	w.p.at(atRequeue)
	var waits, failed []string
	err := w.project.Update(ctx, func(s *ocm.State) error {
		waits, failed = nil, nil
		ours := slices.DeleteFunc(n.ours(s), func(e *ocm.Envelope) bool { return e.Status != ocm.StatusInFlight })
		if len(ours) == 0 {
			return nil
		}
		eng := w.project.Engine()
		waits = eng.Requeue(s, n.Recipient, idsOf(ours))
		for _, e := range ours {
			if e.Status == ocm.StatusFailed {
				failed = append(failed, e.ID)
			}
		}
		eng.RecordError(s, fmt.Sprintf("delivery to %s failed: %s", mesh.CleanLine(n.Recipient), shown(why)))
		return nil
	})
	if err != nil {
		return fmt.Errorf("put a delivery back: %w", err)
	}
	w.p.at(atRequeued)
	w.setBatch(n.Recipient, waits)
	if err := w.p.notes.drop(ctx, n); err != nil || len(waits)+len(failed) == 0 {
		return err
	}
	if len(failed) > 0 {
		w.log.Warn("opencomms: given up after the last attempt", "session", n.Recipient, "messages", failed, "err", shown(why))
	}
	return fmt.Errorf("delivery to %s: %w", n.Recipient, why)
}

// send makes a delivery of what waits for a recipient, if it is this node's to make.
func (w *watcher) send(ctx context.Context, recipient string) (time.Duration, error) {
	if ours, err := w.owns(ctx, recipient); err != nil || !ours {
		return w.p.cfg.Look, err
	}
	v, err := w.p.agent.Visit(ctx, recipient)
	if errors.Is(err, agent.ErrNoSession) {
		return w.p.cfg.Look, nil
	}
	if err != nil {
		return 0, err
	}
	defer v.Leave()
	if err := v.Idle(ctx); err != nil {
		return 0, err
	}
	rows, text, system, n, err := w.take(ctx, recipient)
	if err != nil || len(rows) == 0 {
		// What waits cannot be drained now, whatever it is: not to be tried at once.
		return w.p.cfg.Retry, err
	}
	w.p.at(atPrompt)
	err = v.Prompt(ctx, agent.Prompt{Key: n.Key, System: system, Text: text})
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return w.resolve(ctx, v, n, false, err)
	}
	return 0, w.accept(ctx, v, n, false)
}

// owns says whether this node is to deliver to a session.
func (w *watcher) owns(ctx context.Context, recipient string) (bool, error) {
	hosted, err := w.p.agent.Hosted(ctx, recipient)
	switch {
	case errors.Is(err, agent.ErrNoSession):
		return false, nil
	case err != nil:
		return false, err
	case hosted.Parent != "":
		w.refuse(recipient, "it is a sub-agent's")
		return false, nil
	case !inside(w.project.Dir(), hosted.Dir):
		// Whoever may write this file must not reach the sessions of other directories.
		w.refuse(recipient, "it is of another directory", "dir", hosted.Dir)
		return false, nil
	}
	plugin, err := w.p.agent.Plugin(ctx, hosted.Dir, pluginNames)
	if err != nil {
		return false, err
	}
	switch {
	case inside(hosted.Dir, w.project.Dir()): // the same
		w.found(plugin)
	case plugin != "":
		w.refuse(recipient, "a plugin of opencode delivers in its directory", "plugin", plugin)
	}
	return plugin == "", nil
}

// inside says whether a directory is another one or lies in it, links resolved.
func inside(outer, dir string) bool {
	outer, err := filepath.EvalSymlinks(outer)
	if err != nil {
		return false
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return false
	}
	rel, err := filepath.Rel(outer, dir)
	return err == nil && filepath.IsLocal(rel)
}

// take notes and drains what may be delivered now, and frames it.
func (w *watcher) take(ctx context.Context, recipient string) (rows []*ocm.Envelope, text, system string, n note, err error) {
	// A drain that is thrown away says what a real one would take.
	s, err := w.project.Read(ctx)
	if err != nil {
		return nil, "", "", n, err
	}
	n = newNote(w.project.Dir(), recipient, w.drain(s, recipient, w.batch(recipient)))
	w.setBatch(recipient, nil)
	if len(n.Rows) > 0 {
		w.p.at(atNote)
		if err := w.p.notes.put(ctx, n); err != nil {
			return nil, "", "", n, err
		}
	}
	w.p.at(atDrain)
	// Also if nothing can be taken: what grew too old meanwhile ends here.
	err = w.project.Update(ctx, func(s *ocm.State) error {
		rows = w.drain(s, recipient, n.ids())
		names := engine.ChannelNames(s)
		text = ocm.FrameBatch(rows, func(id string) string { return names[id] })
		system = roles(s, recipient)
		return nil
	})
	if err == nil && len(rows) > 0 {
		return rows, text, system, n, nil
	}
	if err != nil {
		// Whether it was written is not known: the note says what to look for.
		return nil, "", "", n, fmt.Errorf("drain a queue: %w", err)
	}
	if len(n.Rows) > 0 {
		err = w.p.notes.drop(ctx, n)
	}
	return nil, "", "", n, err
}

// drain takes what one prompt holds; with ids, of those only.
func (w *watcher) drain(s *ocm.State, recipient string, ids []string) []*ocm.Envelope {
	channels := map[string]*ocm.Channel{}
	for _, ch := range s.Channels.All() {
		channels[ch.ID] = ch
	}
	size, full := 0, false
	return w.project.Engine().Drain(s, recipient, engine.DrainOptions{Only: func(e *ocm.Envelope) bool {
		if !isPush(channels[e.ChannelID], recipient) || ids != nil && !slices.Contains(ids, e.ID) {
			return false
		}
		n := len(e.Content) + frameRoom
		// What comes later does not overtake, however short it is.
		if full = full || size > 0 && size+n > MaxBatch; full {
			return false
		}
		size += n
		return true
	}})
}

// roles are a member's role prompts, as its plugin would add them to the system prompt.
// They are the operator's or the member's own words, never a peer's.
func roles(s *ocm.State, session string) string {
	var b strings.Builder
	for _, ch := range s.Channels.All() {
		m := engine.Member(ch, session)
		if m == nil || b.Len()+len(m.RolePrompt) > MaxRoles {
			continue
		}
		role, name, id := mesh.CleanLine(m.Role), mesh.CleanLine(ch.Name), mesh.CleanLine(session)
		fmt.Fprintf(&b, "## OpenComms role instructions\n\nYou are %s on the channel %s. Where an answer is wanted, give it with the tool opencomms_send "+
			"if it has your session id %s, else with the shell command: meshnode opencomms send %s --as %s --to ROLE --reply-to MESSAGE_ID -- TEXT\n\n%s\n\n",
			role, name, id, name, id, m.RolePrompt)
	}
	return strings.TrimSpace(b.String())
}

func idsOf(rows []*ocm.Envelope) []string {
	ids := make([]string, len(rows))
	for i, e := range rows {
		ids[i] = e.ID
	}
	return ids
}

// shown is an error as it may be shown and stored.
func shown(err error) string {
	return mesh.CleanLine(ocm.Cut(err.Error(), maxError))
}
