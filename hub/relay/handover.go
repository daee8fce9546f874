package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// A compaction hands a session over to a new one (mesh-protocol.md §9): a digest is
// asked of the bound session and stored; a new session gets it and acknowledges; the
// binding is swapped by compare-and-set. Whatever goes wrong before the swap leaves
// the binding as it was, and what was made is deleted. A digest that was stored stays.

// condense asks the bound session for its digest. One that is over its context cannot
// be asked any more: what is on record is handed over instead.
func (r *Relay) condense(ctx context.Context, t store.Task, b store.Binding, h store.Handover) (stage, error) {
	full, _, err := r.lastResults(ctx, t, h.Session)
	if err != nil {
		return stage{}, err
	}
	if full {
		return r.fromRecord(ctx, t, h)
	}
	last, highest, err := r.lastDigest(ctx, b)
	if err != nil {
		return stage{}, err
	}
	h.Digest = max(b.Digest, highest) + 1
	body, err := digestRequest(t.ID, h.Digest, last)
	return stage{kind: api.TurnDigest, body: body, handover: h}, err
}

// condensed reads the digest, stores it and hands it over.
func (r *Relay) condensed(ctx context.Context, t store.Task) (stage, error) {
	h, o := *t.Handover, *t.Outcome
	switch {
	case o.Session != "" && o.Session != h.Session:
		return endsWith(failed(api.TaskSessionGone, "session "+h.Session+" is gone")), nil
	case o.State == api.StateDone:
	case slices.Contains(o.Flags, api.FlagContextFull):
		return r.fromRecord(ctx, t, h)
	default:
		return endsWith(unlike(o, api.TaskMalformedDigest, "the session gave no digest")), nil
	}
	reply, err := r.part(ctx, t.ID, store.PartKey{Kind: store.PartReply, Attempt: t.Attempt, Turn: t.Turn})
	if err != nil {
		return stage{}, err
	}
	d, text, err := readDigest(t.ID, h.Digest, reply)
	if err != nil {
		return endsWith(failed(api.TaskMalformedDigest, err.Error())), nil
	}
	b, err := r.binding(ctx, bindingKey(t))
	switch {
	case err != nil:
		return stage{}, err
	case !atStart(b, h):
		return endsWith(bindingChanged()), nil
	}
	err = r.st.PutDigest(ctx, bindingKey(t), store.Digest{Context: contextOf(b), Digest: api.Digest{
		Generation: h.Digest, Task: t.ID, Session: h.Session, At: r.clock.Now(), Facts: d.Facts, Pending: d.Pending, Refs: d.Refs,
	}})
	if errors.Is(err, store.ErrExists) {
		return endsWith(failed(api.TaskBindingChanged, fmt.Sprintf("another compaction stored digest %d meanwhile", h.Digest))), nil
	}
	if err != nil {
		return stage{}, err
	}
	if _, err := r.rewrite(ctx, bindingKey(t), func(b *store.Binding, _ bool) (bool, []api.Fill) {
		newer := h.Digest > b.Digest
		b.Digest = max(b.Digest, h.Digest)
		return newer, nil
	}); err != nil {
		return stage{}, err
	}
	_, results, err := r.lastResults(ctx, t, h.Session)
	return stage{kind: api.TurnResume, body: handOver(text, results), handover: h}, err
}

// readDigest finds the digest in a reply; text is the block that is handed over.
func readDigest(task string, generation int, reply string) (d mesh.Digest, text string, err error) {
	if d, err = mesh.FindDigest(task, generation, reply); err != nil {
		return d, "", err
	}
	if text, err = d.Format(); err == nil && len(text) > api.MaxDigest {
		err = fmt.Errorf("the digest is larger than %d bytes", api.MaxDigest)
	}
	return d, text, err
}

// fromRecord hands over what is on record: the last digest of the context and the
// last results.
func (r *Relay) fromRecord(ctx context.Context, t store.Task, h store.Handover) (stage, error) {
	b, err := r.binding(ctx, bindingKey(t))
	if err != nil {
		return stage{}, err
	}
	if !atStart(b, h) {
		return endsWith(bindingChanged()), nil
	}
	last, _, err := r.lastDigest(ctx, b)
	if err != nil {
		return stage{}, err
	}
	_, results, err := r.lastResults(ctx, t, h.Session)
	if err != nil {
		return stage{}, err
	}
	text := ""
	if h.Digest = 0; last != nil {
		h.Digest = last.Generation
		if text, err = digestText(last); err != nil {
			return stage{}, err
		}
	}
	if last == nil && len(results) == 0 {
		return endsWith(failed(api.TaskNoDigest, "the session is over its context, and neither a digest nor a result of it is on record")), nil
	}
	return stage{kind: api.TurnResume, body: handOver(text, results), handover: h, flags: []api.Flag{api.FlagDigestFromRecord}}, nil
}

// handedOver swaps the binding once the new session has acknowledged.
func (r *Relay) handedOver(ctx context.Context, t store.Task) (stage, error) {
	h, o := *t.Handover, *t.Outcome
	if o.Session == h.Session { // not a new one: there is nothing to take back
		o.Session = ""
	}
	if e := o.Error; e != nil && e.Code == api.TaskInterrupted { // of the new session, which nobody knows yet
		o.Error = &api.TaskError{Code: api.TaskNotAcknowledged, Message: "the new session did not acknowledge: " + e.Message}
	}
	if o.State != api.StateDone || o.Session == "" {
		return takeBack(h, o.Session, unlike(o, api.TaskNotAcknowledged, "the new session did not acknowledge")), nil
	}
	swapped, err := r.swap(ctx, t, h, o)
	if err != nil {
		return stage{}, err
	}
	if !swapped {
		return takeBack(h, o.Session, bindingChanged()), nil
	}
	digest := "no digest"
	if h.Digest > 0 {
		digest = "digest " + strconv.Itoa(h.Digest)
	}
	return endsWith(api.Outcome{
		State: api.StateDone, Summary: fmt.Sprintf("%s -> %s, %s, session %s", filled(h.Before), filled(o.Tokens), digest, o.Session),
		Session: o.Session, NewSession: true, Tokens: o.Tokens,
	}), nil
}

// filled is a fill in words.
func filled(k *api.Tokens) string {
	switch p := k.Percent(); {
	case p != nil:
		return strconv.Itoa(*p) + "%"
	case k != nil:
		return strconv.FormatInt(k.Total, 10) + " tokens"
	}
	return "unknown"
}

// swap binds the new session in place of the one that the compaction began with, by
// compare-and-set on the generation. It may be done again.
func (r *Relay) swap(ctx context.Context, t store.Task, h store.Handover, o api.Outcome) (swapped bool, err error) {
	_, err = r.rewrite(ctx, bindingKey(t), func(b *store.Binding, _ bool) (bool, []api.Fill) {
		if sessionIn(*b, h.Generation+1) == o.Session {
			swapped = true // before a crash
			return false, nil
		}
		if swapped = atStart(*b, h); !swapped {
			return false, nil
		}
		now := r.clock.Now()
		moveOn(b, api.EndedCompact, now)
		b.Session, b.Tokens, b.BoundAt, b.Title = o.Session, o.Tokens, now, sessionTitle(t.Controller.Name)
		if o.Tokens == nil {
			return true, nil
		}
		return true, []api.Fill{{At: now, Generation: b.Generation, Tokens: *o.Tokens}}
	})
	return swapped, err
}

// atStart reports whether the binding is as the operation found it.
func atStart(b store.Binding, h store.Handover) bool {
	return generationOf(b) == h.Generation && b.Session == h.Session
}

func bindingChanged() api.Outcome {
	return failed(api.TaskBindingChanged, "another session was bound meanwhile; nothing was changed")
}

// takeBack ends a compaction that came to nothing. The session that it made is
// deleted first, if it made one.
func takeBack(h store.Handover, fresh string, ending api.Outcome) stage {
	if fresh == "" {
		return endsWith(ending)
	}
	h.Fresh, h.Ending = fresh, &ending
	return stage{kind: api.TurnDelete, body: deletion, handover: h}
}

// takenBack is how a compaction ends whose new session was deleted, or was not.
func takenBack(h store.Handover, deleted bool) api.Outcome {
	o := *h.Ending
	if deleted {
		return o
	}
	stays := "session " + h.Fresh + ", which was made for it, could not be deleted and stays at the node"
	if o.Error != nil {
		o.Error = &api.TaskError{Code: o.Error.Code, Message: o.Error.Message + "; " + stays}
	} else {
		o.Summary = stays
	}
	return o
}

// unlike is how an operation ends whose turn did not come to what it should: for the
// turn's own reason, if the mesh gave one.
func unlike(o api.Outcome, code, what string) api.Outcome {
	switch {
	case o.State == api.StateQuestion && o.Question != nil:
		return failed(code, what+" and asked instead: "+mesh.CutSummary(o.Question.Text))
	case o.Error != nil, o.State == api.StateCanceled, o.State == api.StateExpired, o.State == api.StateRefused:
		return api.Outcome{State: o.State, Error: o.Error, Summary: o.Summary}
	case o.Summary == "":
		return failed(code, fmt.Sprintf("%s; its turn ended %s", what, o.State))
	}
	return failed(code, fmt.Sprintf("%s; its turn ended %s: %s", what, o.State, mesh.CutSummary(o.Summary)))
}

// lost is how a task ends whose turn its node does not know any more.
func lost(t store.Task) api.Outcome {
	if t.Handover != nil && t.Handover.Ending != nil {
		return takenBack(*t.Handover, false)
	}
	return failed(api.TaskJournalLost, "the node no longer knows this task", api.FlagMayHaveRun)
}

// lastDigest is the newest digest of the binding's context, nil when there is none,
// and the highest generation of all.
func (r *Relay) lastDigest(ctx context.Context, b store.Binding) (last *store.Digest, highest int, err error) {
	all, err := r.st.Digests(ctx, b.BindingKey)
	for i := range all {
		highest = max(highest, all[i].Generation)
		if all[i].Context == contextOf(b) {
			last = &all[i]
		}
	}
	return last, highest, err
}

const (
	// maxSearched is how many tasks of the pair are looked through for the results of a
	// session; older ones are not worth handing over.
	maxSearched = 2000
	searchPage  = 200 // how many of them are read at once
)

// lastResults are the newest results of a session, newest first, at most
// api.MaxResultsHandedOver. full says that the last of all ended because the session
// is over its context.
func (r *Relay) lastResults(ctx context.Context, t store.Task, session string) (full bool, results []store.Task, err error) {
	q := store.TaskQuery{Controller: t.Controller.ID, Target: t.Target.ID, Limit: searchPage}
	seen := false
	for range maxSearched / searchPage {
		page, err := r.st.Tasks(ctx, q)
		if err != nil {
			return false, nil, err
		}
		for _, x := range page.Tasks {
			if x.Op != "" || !x.State.Settled() || x.Outcome == nil || x.Outcome.Session != session {
				continue
			}
			if !seen {
				seen, full = true, slices.Contains(x.Outcome.Flags, api.FlagContextFull)
			}
			if mesh.Status(x.State).Valid() && x.Outcome.Error == nil {
				results = append(results, x)
			}
			if len(results) == api.MaxResultsHandedOver {
				return full, results, nil
			}
		}
		if q.Before = page.Next; q.Before == 0 {
			break
		}
	}
	return full, results, nil
}
