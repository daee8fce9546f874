package opencode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// send sends the prompt: for the first time, again because it left no trace, or
// again because the turn stopped half way.
func (r *run) send(ctx context.Context, c client) (*api.Outcome, error) {
	if out, err := r.compose(ctx, c); out != nil || err != nil {
		return out, err
	}
	if r.cp.Message == "" {
		// What waits for a human in an idle session is left over from an earlier turn.
		asks, err := c.asks(ctx, r.dir)
		if err != nil {
			return nil, err
		}
		for _, a := range asks {
			r.cp.Stale = append(r.cp.Stale, a.id)
		}
		r.cp.Session, r.cp.Message = r.session, r.prompt.message
	}
	if err := r.save(ctx); err != nil {
		if r.sent > 0 || r.earlier {
			return r.interrupted(err.Error()), nil
		}
		return nil, err
	}
	r.signs.clear()
	r.sent++
	r.stalled, r.aborted = time.Time{}, time.Time{}
	if r.began.IsZero() {
		r.began = time.Now()
	}
	err := c.prompt(ctx, r.session, r.prompt)
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, errNotFound):
		if r.earlier || r.cp.Seen || r.sent > 1 || r.turn.Kind == api.TurnDigest {
			return r.gone(), nil
		}
		r.cp, r.prompt = checkpoint{Replaced: true}, prompt{}
		r.sent, r.began = 0, time.Time{}
		return nil, errReplaced
	case errors.Is(err, errUnauthorized), refused(err):
		if r.sent > 1 || r.earlier {
			return nil, err
		}
		return r.failed(api.TaskNotStarted, "opencode refused the prompt: "+err.Error()), nil
	}
	// It may have arrived: the next look tells.
	r.log.Warn("prompt without an answer", "error", err)
	return nil, nil
}

// compose makes the prompt. The model is always named: opencode would remember
// the one of an earlier prompt.
func (r *run) compose(ctx context.Context, c client) (*api.Outcome, error) {
	if r.prompt.message != "" {
		return nil, nil
	}
	all, err := c.models(ctx, r.dir)
	if err != nil {
		return nil, err
	}
	wanted := all.preferred
	if provider, id, ok := splitModel(r.cfg.Model); ok {
		wanted = &model{provider: provider, id: id}
	}
	if wanted == nil {
		return r.unable("opencode has no model: log in to a provider or configure one"), nil
	}
	if _, ok := all.find(wanted.provider, wanted.id); !ok {
		return r.unable(fmt.Sprintf("opencode does not have the model %s/%s", wanted.provider, wanted.id)), nil
	}
	message, part := messageIDs(r.turn, r.session)
	r.models = all
	r.progress.know(all)
	r.prompt = prompt{message: message, part: part, provider: wanted.provider, model: wanted.id, agent: r.cfg.AgentName,
		system: mesh.Conduct(), text: r.turn.Text}
	return nil, nil
}

// unable is the outcome when the prompt cannot be made.
func (r *run) unable(message string) *api.Outcome {
	if r.begun() {
		return r.interrupted(message)
	}
	return r.failed(api.TaskNotStarted, message)
}
