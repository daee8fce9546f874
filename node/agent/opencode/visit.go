package opencode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

var _ agent.Prompter = (*Agent)(nil)

// confirmEvery is how often a message is looked for that the server took.
const confirmEvery = 100 * time.Millisecond

// Hosted implements agent.Prompter.
func (a *Agent) Hosted(ctx context.Context, id string) (agent.Hosted, error) {
	s, err := a.health.ready(ctx, probeTimeout)
	if err != nil {
		return agent.Hosted{}, err
	}
	found, err := s.client.session(ctx, id)
	if err != nil {
		return agent.Hosted{}, noSession(err)
	}
	all, err := s.client.statuses(ctx, found.dir)
	if err != nil {
		return agent.Hosted{}, err
	}
	h := agent.Hosted{Session: id, Dir: found.dir, Parent: found.parent, Title: found.title, Status: agent.StatusIdle,
		Created: found.created, Updated: found.updated}
	if now, busy := all[id]; busy {
		h.Status = agent.StatusBusy
		if now.retry {
			h.Status = agent.StatusRetry
		}
	}
	return h, nil
}

// noSession turns the answer that a session is not there into the caller's error.
func noSession(err error) error {
	if errors.Is(err, errNotFound) {
		return agent.ErrNoSession
	}
	return err
}

// visit is a session that is kept for a caller from outside of any task.
type visit struct {
	r    *run // for its lanes, events and asks; it belongs to no task
	c    client
	stop func()
	// above are the sessions whose turns a sub-agent's belongs to, the nearest first
	above []string
	first map[string]time.Time // when an ask was seen first, by its id
}

// nobody is the host of a turn without a task: no one is there to ask, and its records
// are its caller's.
type nobody struct{}

func (nobody) Checkpoint(context.Context, []byte) error               { return nil }
func (nobody) SessionMade(context.Context, string) error              { return nil }
func (nobody) Progress(api.Activity)                                  {}
func (nobody) Ask(context.Context, string, api.Asked) (string, error) { return "", agent.ErrNoAnswer }

// Visit implements agent.Prompter.
func (a *Agent) Visit(ctx context.Context, id string) (agent.Visit, error) {
	v := &visit{stop: func() {}, first: make(map[string]time.Time), r: &run{
		cfg: a.cfg, rest: a.health, lanes: a.lanes, host: nobody{}, signs: newSigns(), log: a.cfg.Log.With("session", id),
		flags: make(map[api.Flag]bool), kin: make(map[string]bool), progress: newProgress(nobody{}),
	}}
	if err := v.enter(ctx, id); err != nil {
		v.Leave()
		return nil, noSession(err)
	}
	return v, nil
}

// enter takes the lanes, from the outermost session inwards, and looks at the session
// then: what is known of the server is old when lanes were waited for.
func (v *visit) enter(ctx context.Context, id string) error {
	if err := v.climb(ctx, id); err != nil {
		return err
	}
	for _, parent := range slices.Backward(v.above) {
		if err := v.r.enterLane(ctx, sessionLane(parent)); err != nil {
			return err
		}
	}
	if err := v.r.takeLane(ctx, id); err != nil {
		return err
	}
	s, err := v.r.rest.ready(ctx, probeTimeout)
	if err != nil {
		return err
	}
	v.c = s.client
	found, err := v.c.session(ctx, id)
	if err != nil {
		return err
	}
	if err := v.r.bind(ctx, found); err != nil {
		return err
	}
	v.stop = v.r.follow(ctx, v.c)
	return nil
}

// climb finds the sessions above one, which never change.
func (v *visit) climb(ctx context.Context, id string) error {
	s, err := v.r.rest.ready(ctx, probeTimeout)
	if err != nil {
		return err
	}
	for at := id; len(v.above) < maxDepth; {
		found, err := s.client.session(ctx, at)
		if err != nil {
			return err
		}
		if at = found.parent; at == "" {
			return nil
		}
		v.above = append(v.above, at)
	}
	return fmt.Errorf("the session %s lies deeper than %d others", id, maxDepth)
}

// Leave implements agent.Visit.
func (v *visit) Leave() {
	v.stop()
	v.r.withdraw()
	v.r.work.Wait()
	for _, leave := range v.r.leave {
		leave()
	}
}

// busy says whether something runs in one of some sessions.
func (v *visit) busy(ctx context.Context, sessions ...string) (bool, error) {
	all, err := v.c.statuses(ctx, v.r.dir)
	for _, id := range sessions {
		if _, busy := all[id]; busy {
			return true, err
		}
	}
	return false, err
}

// pause waits for an event, at most for d.
func (v *visit) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-v.r.signs.changed:
	case <-timer.C:
	}
	return nil
}

// Idle implements agent.Visit. What a turn that runs there asks is not answered: a
// person may be at it.
func (v *visit) Idle(ctx context.Context) error {
	for {
		if busy, err := v.busy(ctx, append(v.above, v.r.session)...); err != nil || !busy {
			return err
		}
		if err := v.pause(ctx, v.r.cfg.PollInterval); err != nil {
			return err
		}
	}
}

// Stored implements agent.Visit.
func (v *visit) Stored(ctx context.Context, what agent.Prompt) (bool, error) {
	message, _ := promptIDs(v.r.session, what)
	return v.c.stored(ctx, v.r.session, message)
}

// Prompt implements agent.Visit. The server answers before it knows whether it can do
// anything with a prompt, and sometimes loses one: only what is stored was accepted.
func (v *visit) Prompt(ctx context.Context, what agent.Prompt) error {
	asks, err := v.c.asks(ctx, v.r.dir)
	if err != nil {
		return err
	}
	v.r.cp.Stale = nil
	for _, a := range asks { // left over from an earlier turn, the session being idle
		v.r.cp.Stale = append(v.r.cp.Stale, a.id)
	}
	p, err := v.compose(ctx)
	if err != nil {
		return err
	}
	p.message, p.part = promptIDs(v.r.session, what)
	p.system, p.text = what.System, what.Text
	p.synthetic, p.metadata = what.Synthetic, what.Metadata
	v.r.signs.clear()
	if err := v.c.prompt(ctx, v.r.session, p); err != nil {
		return noSession(err)
	}
	for until := time.Now().Add(v.r.cfg.StallAfter); ; {
		stored, err := v.c.stored(ctx, v.r.session, p.message)
		switch {
		case err != nil || stored:
			return err
		case v.r.signs.fault() != "":
			return fmt.Errorf("opencode did not take the prompt: %s", v.r.signs.fault())
		case time.Now().After(until):
			return errors.New("opencode took the prompt but did not store it")
		}
		if err := v.pause(ctx, confirmEvery); err != nil {
			return err
		}
	}
}

// compose says by which model and agent a message is run: those of the session's last
// prompt, because what comes from outside must not change what a session may do.
func (v *visit) compose(ctx context.Context) (prompt, error) {
	was, err := v.c.habits(ctx, v.r.session)
	if err != nil {
		return prompt{}, noSession(err)
	}
	all, err := v.c.models(ctx, v.r.dir)
	if err != nil {
		return prompt{}, err
	}
	p := prompt{provider: was.provider, model: was.model, agent: was.agent}
	setDefault(&p.agent, v.r.cfg.AgentName)
	if _, ok := all.find(p.provider, p.model); ok {
		return p, nil
	}
	if provider, id, ok := splitModel(v.r.cfg.Model); ok {
		p.provider, p.model = provider, id
	} else if all.preferred != nil {
		p.provider, p.model = all.preferred.provider, all.preferred.id
	}
	if _, ok := all.find(p.provider, p.model); !ok {
		return prompt{}, fmt.Errorf("%w: opencode has no model for it: log in to a provider or configure one", agent.ErrNotRun)
	}
	return p, nil
}

// Finish implements agent.Visit.
func (v *visit) Finish(ctx context.Context, what agent.Prompt, resumed bool) error {
	message, _ := promptIDs(v.r.session, what)
	v.r.stalled = time.Time{}
	// The server that this node supervised ended with it, and so did the turn.
	ended := resumed && v.r.cfg.URL == ""
	for repeats := 0; ; {
		busy, err := v.busy(ctx, v.r.session)
		if err != nil {
			return err
		}
		if busy {
			v.r.stalled = time.Time{}
			if what.Decide != nil {
				err = v.judge(ctx, message, what.Decide)
			} else {
				err = v.decide(ctx)
			}
			if err != nil {
				return err
			}
		} else {
			turn, err := v.c.answers(ctx, v.r.session, message)
			switch {
			case errors.Is(err, errTooLarge):
				return nil // that is an answer
			case err != nil:
				return noSession(err)
			case !turn.cutOff(ended):
				return nil
			case v.r.stuck() && repeats == maxRepeats:
				return agent.ErrNotRun
			case v.r.stuck():
				repeats++
				ended = false
				if err := v.again(ctx, message); err != nil {
					return err
				}
			}
		}
		if err := v.pause(ctx, v.r.cfg.PollInterval); err != nil {
			return err
		}
	}
}

// cutOff says that nothing answers a message to the end, the session being idle, or that
// the answer was aborted although nobody wanted that.
func (a answers) cutOff(serverEnded bool) bool {
	if len(a.list) == 0 {
		return true
	}
	last := a.list[len(a.list)-1]
	return last.fault == nil && !last.completed || serverEnded && last.aborted()
}

// again has a stored message run: its server lost it, or ended before it was answered.
func (v *visit) again(ctx context.Context, message string) error {
	p, err := v.compose(ctx)
	if err != nil {
		return err
	}
	p.message = message
	v.r.stalled = time.Time{}
	if err = noSession(v.c.prompt(ctx, v.r.session, p)); refused(err) {
		return fmt.Errorf("%w: %w", agent.ErrNotRun, err)
	}
	return err
}
