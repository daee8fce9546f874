package relay

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// A feed first tells all digests, binding after binding, and then the tasks that settled.
// Its cursor is "d." with the last binding that was told, or "t." with the place of the last
// task, and of the last one that changed behind the feed, see overtaken. A compaction, a reset,
// a clear and a task with a new session bring the digests of their binding along, so that the
// first part needs no repeat.
const (
	digestsPart = "d."
	tasksPart   = "t."
)

// memoryFeed makes one page.
type memoryFeed struct {
	*Relay
	ctx   context.Context
	party string
	limit int
	read  int // bytes of texts
	names map[string]string
	page  api.MemoryPage
}

// Memory is a page of what is told to an identity for its memory: digests and settled tasks
// in which it is controller or target. A cursor that is none is api.CodeBadRequest.
func (r *Relay) Memory(ctx context.Context, party, cursor string, limit int) (api.MemoryPage, error) {
	f := &memoryFeed{
		Relay: r, ctx: ctx, party: party, limit: min(max(limit, 1), api.MaxMemoryPage), names: map[string]string{},
		page: api.MemoryPage{Items: []api.MemoryItem{}},
	}
	part, rest := digestsPart, ""
	if cursor != "" {
		part, rest = cursor[:min(2, len(cursor))], cursor[min(2, len(cursor)):]
	}
	var err error
	switch part {
	case digestsPart:
		var after []byte
		if after, err = base64.RawURLEncoding.DecodeString(rest); err == nil {
			err = f.digests(string(after))
			return f.page, err
		}
	case tasksPart:
		var place tasksPlace
		if place, err = parsePlace(rest); err == nil {
			err = f.tasks(place)
			return f.page, err
		}
	}
	return f.page, api.Errorf(api.CodeBadRequest, "after is the cursor of an earlier page")
}

// tasksPlace is a place among the tasks that settled.
type tasksPlace struct {
	mark      store.SettledMark
	overtaken overtakenPlace
}

func parsePlace(s string) (p tasksPlace, err error) {
	parts := strings.Split(s, ".")
	if len(parts) != 4 {
		return p, errors.New("not four parts")
	}
	var errs [3]error
	p.mark.Ended, errs[0] = strconv.ParseInt(parts[0], 10, 64)
	p.mark.Seq, errs[1] = strconv.ParseUint(parts[1], 10, 64)
	p.overtaken.run = parts[2]
	p.overtaken.n, errs[2] = strconv.ParseUint(parts[3], 10, 64)
	return p, errors.Join(errs[:]...)
}

func (p tasksPlace) cursor() string {
	return fmt.Sprintf("%s%d.%d.%s.%d", tasksPart, p.mark.Ended, p.mark.Seq, p.overtaken.run, p.overtaken.n)
}

func (f *memoryFeed) full() bool {
	return len(f.page.Items) >= f.limit || f.read >= api.MaxMemoryRead
}

// digests tells those of the bindings behind one.
func (f *memoryFeed) digests(after string) error {
	own, err := f.st.Bindings(f.ctx, f.party, "")
	if err != nil {
		return err
	}
	others, err := f.st.Bindings(f.ctx, "", f.party)
	if err != nil {
		return err
	}
	list := append(own, others...)
	slices.SortFunc(list, func(a, b store.Binding) int { return cmp.Compare(orderOf(a), orderOf(b)) })
	list = slices.CompactFunc(list, func(a, b store.Binding) bool { return a.BindingKey == b.BindingKey })
	f.page.More = true
	for _, b := range list {
		if orderOf(b) <= after {
			continue
		}
		if f.full() {
			return nil
		}
		if err := f.binding(b); err != nil {
			return err
		}
		f.page.Next = digestsPart + base64.RawURLEncoding.EncodeToString([]byte(orderOf(b)))
	}
	f.page.Next = tasksPlace{}.cursor()
	return nil
}

// orderOf is where a binding is in the order of all; it is not empty.
func orderOf(b store.Binding) string {
	return "\x01" + b.Controller + "\x00" + b.Target + "\x00" + b.Workspace
}

// binding tells the digests of one.
func (f *memoryFeed) binding(b store.Binding) error {
	if b.Digest == 0 {
		return nil
	}
	stored, err := f.st.Digests(f.ctx, b.BindingKey)
	if err != nil {
		return err
	}
	all, err := f.Digests(f.ctx, b.BindingKey)
	if err != nil {
		return err
	}
	controller, err := f.named(b.Controller)
	if err != nil {
		return err
	}
	target, err := f.named(b.Target)
	if err != nil {
		return err
	}
	n := min(len(all), len(stored))
	for i := max(0, n-api.MaxMemoryDigests); i < n; i++ {
		m := api.MemoryDigest{Controller: controller, Target: target, Workspace: b.Workspace, Digest: all[i]}
		ended, why := contextEnd(b, stored[i].Context)
		switch {
		case why == api.EndedClear:
			m.Gone, m.Digest = true, api.Digest{Generation: all[i].Generation, At: all[i].At}
		case i+1 < n && stored[i+1].Context == stored[i].Context:
			m.ValidTo = all[i+1].At
		default:
			m.ValidTo = ended
		}
		for _, fact := range m.Digest.Facts {
			f.read += len(fact)
		}
		f.page.Items = append(f.page.Items, api.MemoryItem{Digest: &m})
	}
	return nil
}

// contextEnd is when the context of a binding ended, and why; zero while it is the bound
// one. A context goes on through compactions.
func contextEnd(b store.Binding, began uint64) (time.Time, string) {
	if began == cmp.Or(b.Context, b.Lane, b.Generation) {
		return time.Time{}, ""
	}
	for _, former := range b.Former { // oldest first
		if former.Generation >= began && former.Why != api.EndedCompact {
			return former.EndedAt, former.Why
		}
	}
	return b.BoundAt, ""
}

// named finds the name of an identity.
func (f *memoryFeed) named(id string) (api.Party, error) {
	name, known := f.names[id]
	if !known {
		who, err := f.st.Identity(f.ctx, id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return api.Party{}, err
		}
		name = who.Name
		f.names[id] = name
	}
	return api.Party{ID: id, Name: name}, nil
}

// tasks tells those that settled after a place, and before them what changed behind it.
func (f *memoryFeed) tasks(from tasksPlace) error {
	if more, err := f.changed(&from); err != nil || more {
		f.page.Next, f.page.More = from.cursor(), true
		return err
	}
	after := from.mark
	list, err := f.st.Settled(f.ctx, store.SettledQuery{Party: f.party, After: after, Limit: f.limit})
	if err != nil {
		return err
	}
	f.page.More = len(list) == f.limit
	for i := range list {
		if f.full() {
			f.page.More = true
			break
		}
		if err := f.task(list[i]); err != nil {
			return err
		}
		after = list[i].Mark()
	}
	if !f.page.More {
		again := store.SettledMark{Ended: f.clock.Now().Add(-api.MemoryOverlap).UnixNano()}
		if again.Compare(after) < 0 {
			after = again
		}
	}
	from.mark = after
	f.page.Next = from.cursor()
	return nil
}

// changed tells what changed behind a place, and moves it. It reports whether the page is
// full with it.
func (f *memoryFeed) changed(at *tasksPlace) (full bool, err error) {
	for !f.full() {
		ids, next := f.passed(f.party, at.overtaken, 1)
		at.overtaken = next
		if len(ids) == 0 {
			return false, nil
		}
		t, err := f.st.Task(f.ctx, ids[0])
		switch {
		case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrForgotten): // it was removed meanwhile
			continue
		case err != nil:
			return true, err
		}
		if err := f.task(t); err != nil {
			return true, err
		}
	}
	return true, nil
}

// task tells one: of an operation on a session the digests of its binding.
func (f *memoryFeed) task(t store.Task) error {
	if t.Op != "" {
		return f.digestsOf(t)
	}
	o, key := t.Outcome, store.PartKey{Kind: store.PartReply, Attempt: t.Attempt, Turn: t.Turn}
	if t.Late != nil {
		o, key = t.Late, lateReply
	}
	if o == nil {
		return nil
	}
	text, err := f.part(f.ctx, t.ID, firstText)
	if err != nil {
		return err
	}
	reply, err := f.part(f.ctx, t.ID, key)
	if err != nil {
		return err
	}
	f.read += len(text) + len(reply)
	m := api.MemoryResult{
		Task: t.ID, Controller: t.Controller, Target: t.Target, Workspace: t.Workspace, State: t.State, Attempt: t.Attempt,
		CreatedAt: t.CreatedAt, EndedAt: time.Unix(0, t.Mark().Ended).UTC(),
		Text: shown.Text(shown.Cut(text, api.MaxMemoryText), api.MaxMemoryText), Summary: shown.Text(o.Summary, maxRecordSummary),
		Reply: shown.Text(shown.Cut(reply, api.MaxMemoryText), api.MaxMemoryText), Artifacts: o.Files,
	}
	if m.Artifacts == nil {
		for _, path := range o.Artifacts {
			m.Artifacts = append(m.Artifacts, api.Artifact{Path: path})
		}
	}
	f.page.Items = append(f.page.Items, api.MemoryItem{Result: &m})
	if t.New { // it ended what the digests of the session before hold for
		return f.digestsOf(t)
	}
	return nil
}

// digestsOf tells the digests of a task's binding.
func (f *memoryFeed) digestsOf(t store.Task) error {
	b, err := f.st.Binding(f.ctx, bindingKey(t))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.binding(b)
}
