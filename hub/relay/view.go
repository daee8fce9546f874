package relay

import (
	"context"
	"errors"
	"slices"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// View is a task as controllers see it in listings and events: summaries are cut
// for display and texts stay behind.
func View(t store.Task) api.Task {
	v := api.Task{
		Task: t.ID, Controller: t.Controller.Name, Target: t.Target.Name, State: t.State,
		Artifacts: []string{}, Question: t.Question, CreatedAt: t.CreatedAt, Attempt: t.Attempt, Turn: t.Turn,
		Flags: t.Flags, Mode: t.Mode, Workspace: t.Workspace, Since: t.Since, ExpiresAt: t.ExpiresAt,
		LateResult: t.Late != nil, Op: t.Op,
	}
	if v.Flags == nil {
		v.Flags = []api.Flag{}
	}
	if !t.StartedAt.IsZero() {
		v.StartedAt = &t.StartedAt
	}
	if !t.EndedAt.IsZero() {
		v.EndedAt = &t.EndedAt
		d := t.RanMS
		v.DurationMS = &d
	}
	if !t.CancelAt.IsZero() {
		v.CancelAt = &t.CancelAt
	}
	if o := t.Outcome; o != nil {
		v.Summary = shown.Text(mesh.CutSummary(o.Summary), maxRecordSummary)
		if o.Artifacts != nil {
			v.Artifacts = o.Artifacts
		}
		if o.Session != "" {
			v.Session = &o.Session
		}
		v.NewSession, v.Tokens, v.CtxPercent, v.Error = o.NewSession, o.Tokens, o.Tokens.Percent(), o.Error
	}
	return v
}

// Detail is everything that is known of a task, texts included.
func (r *Relay) Detail(ctx context.Context, t store.Task) (api.Task, error) {
	v := r.Live(t)
	v.Life = t.Life
	text, err := r.part(ctx, t.ID, firstText)
	if err != nil {
		return v, err
	}
	reply, err := r.part(ctx, t.ID, store.PartKey{Kind: store.PartReply, Attempt: t.Attempt, Turn: t.Turn})
	if err != nil {
		return v, err
	}
	if reply == "" && t.Late != nil {
		if reply, err = r.part(ctx, t.ID, lateReply); err != nil {
			return v, err
		}
	}
	v.Text, v.Reply = text, reply
	if v.Header, err = r.header(ctx, t); err != nil {
		return v, err
	}
	if o := t.Outcome; o != nil {
		v.Summary, v.Files = o.Summary, o.Files
		if slices.Contains(t.Flags, api.FlagFreeReply) && reply != "" {
			v.Summary = reply // the whole text is the summary (mesh-protocol.md §2)
		}
	}
	return v, nil
}

// header is the head of the envelope in which a task's text travels, "" of an operation,
// whose texts are the mesh's own, and of what fits none.
func (r *Relay) header(ctx context.Context, t store.Task) (string, error) {
	if t.Op != "" {
		return "", nil
	}
	target, err := r.st.Identity(ctx, t.Target.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", err
	}
	head, err := envelopeOf(t, mesh.Mode(t.Mode), mesh.Platform(target.Platform), "").Format()
	if err != nil {
		return "", nil // an offer of it failed for that, and the task says so
	}
	return head, nil
}

func (r *Relay) part(ctx context.Context, id string, key store.PartKey) (string, error) {
	b, err := r.st.Part(ctx, id, key)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return string(b), err
}
