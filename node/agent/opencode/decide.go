package opencode

import (
	"context"
	"errors"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// maxHops is how many messages lie at most between a tool call and the message whose
// turn it belongs to.
const maxHops = 4

// decide answers what the turn asks a human: as the node's policy says, and where that
// would ask a controller, that nobody is there.
func (v *visit) decide(ctx context.Context) error {
	asks, err := v.r.ownAsks(ctx, v.c)
	if err != nil || len(asks) == 0 {
		return err
	}
	v.r.cp.Answers = make(map[string]string)
	for _, a := range asks {
		if _, decided := v.r.verdict(a); decided {
			continue
		}
		if !a.question {
			v.r.cp.Answers[a.id] = api.PermitReject + " " + declined
		}
		for i := range a.parts {
			v.r.cp.Answers[partID(a, i)] = declined
		}
	}
	return v.r.attend(ctx, v.c)
}

// judge answers what the turn asks a human as the visitor decides.
func (v *visit) judge(ctx context.Context, message string, decide func(agent.Request) (agent.Verdict, string)) error {
	asks, err := v.r.ownAsks(ctx, v.c)
	if err != nil {
		return err
	}
	left := make(map[string]bool) // by session
	type rejection struct {
		ask
		why string
	}
	var rejections []rejection
	for _, a := range asks {
		q, err := v.request(ctx, a, message)
		if err != nil {
			return err
		}
		switch verdict, why := decide(q); {
		case verdict == agent.Reject:
			rejections = append(rejections, rejection{a, why})
		case verdict == agent.Allow && !a.question:
			if err := v.r.permit(ctx, v.c, a, api.PermitOnce); err != nil {
				return err
			}
		default:
			left[a.session] = true
		}
	}
	// A rejection takes all that waits in its session with it, also what is left to a
	// person.
	for _, x := range rejections {
		switch {
		case x.question:
			err = errors.Join(err, v.answer(ctx, x.ask, x.why))
		case !left[x.session]:
			err = errors.Join(err, v.r.permit(ctx, v.c, x.ask, api.PermitReject+" "+x.why))
		}
	}
	return err
}

// answer gives every part of a question the same answer.
func (v *visit) answer(ctx context.Context, a ask, text string) error {
	answers := make([][]string, len(a.parts))
	for i := range answers {
		answers[i] = []string{text}
	}
	return unlessGone(v.c.inform(ctx, v.r.dir, a.id, answers))
}

// request is an ask as the visitor sees it.
func (v *visit) request(ctx context.Context, a ask, message string) (agent.Request, error) {
	if _, seen := v.first[a.id]; !seen {
		v.first[a.id] = time.Now()
	}
	q := agent.Request{ID: a.id, Session: a.session, Question: a.question, Permission: a.permission, Patterns: a.patterns,
		Details: a.details, Since: v.first[a.id]}
	at := a.message
	for hops := 0; at != "" && a.session == v.r.session; hops++ {
		switch {
		case at == message:
			q.Origin = agent.OriginPrompt
			return q, nil
		case hops == maxHops:
			return q, nil
		}
		above, err := v.c.answered(ctx, a.session, at)
		switch {
		case errors.Is(err, errNotFound):
			return q, nil
		case err != nil:
			return q, err
		case above == "":
			q.Origin = agent.OriginOther
			return q, nil
		}
		at = above
	}
	return q, nil
}
