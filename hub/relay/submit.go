package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// Author is who dispatches.
type Author struct {
	Identity store.Identity
	// Token is the lineage token of the task that the dispatch comes from, "" for
	// none (semantics 20).
	Token string
}

// Submit creates the tasks of a dispatch, all or none, and returns them in the
// order of the targets once they are on disk. A repeat with the same ids and the
// same content returns the tasks as they are now; with other content it is
// CodeTaskConflict (semantics 4).
func (r *Relay) Submit(ctx context.Context, by Author, d api.Dispatch) ([]store.Task, error) {
	if err := checkDispatch(&d); err != nil {
		return nil, err
	}
	targets, err := r.targets(ctx, d)
	if err != nil {
		return nil, err
	}
	via, parent, err := r.lineage(by)
	if err != nil {
		return nil, err
	}
	now := r.clock.Now()
	news := make([]store.NewTask, len(targets))
	for i, tg := range targets {
		gen, err := r.generation(ctx, by.Identity.ID, tg, d)
		if err != nil {
			return nil, err
		}
		t := store.Task{
			ID: d.Targets[i].ID, Controller: api.Party{ID: by.Identity.ID, Name: by.Identity.Name}, Platform: by.Identity.Platform,
			Target: api.Party{ID: tg.id.ID, Name: tg.id.Name}, Workspace: d.Workspace, Mode: d.Mode, New: d.New, Generation: gen,
			State: api.StateQueued, Since: now, CreatedAt: now, ExpiresAt: now.Add(ms(d.TTLMS, api.DefaultTTL)),
			Deadline: ms(d.DeadlineMS, 0), QuestionTimeout: ms(d.QuestionTimeoutMS, 0),
			Attempt: 1, Turn: 1, Kind: api.TurnTask, Via: via, Parent: parent,
		}
		t.Hash = bodyHash(t, d.Text)
		t.TurnHash = t.Hash
		news[i] = store.NewTask{Task: t, Text: []byte(d.Text)}
	}
	return r.create(ctx, by, news)
}

// create commits new tasks and enters them into their lanes. When the target is
// attached, the offer to its journal is part of the same commit, which spares the
// one that otherwise precedes the offer (semantics 5).
func (r *Relay) create(ctx context.Context, by Author, news []store.NewTask) ([]store.Task, error) {
	r.mu.Lock()
	if wait := r.pace(by.Identity.ID, len(news)); wait > 0 {
		r.mu.Unlock()
		e := api.Errorf(api.CodeRateLimited, "%s dispatches more than %d tasks a second; try again in %s", by.Identity.Name, MaxDispatchRate, wait.Round(time.Millisecond))
		e.RetryAfter = wait
		return nil, e
	}
	if n := r.byAuthor[by.Identity.ID] + len(news); n > api.MaxOpenPerController {
		r.mu.Unlock()
		return nil, api.Errorf(api.CodeQueueFull, "%s has %d unsettled tasks; wait for some of them or cancel them", by.Identity.Name, n-len(news))
	}
	ends := make([]func(), 0, len(news))
	now := r.clock.Now()
	for i := range news {
		t := &news[i].Task
		q := r.queue(t.Target.ID)
		if q.open >= api.MaxOpenPerTarget {
			for _, end := range ends {
				end()
			}
			name, n := t.Target.Name, q.open
			r.mu.Unlock()
			return nil, api.Errorf(api.CodeQueueFull, "%d tasks wait for %s already; wait for some of them or cancel them", n, name)
		}
		if q.conn != nil {
			t.Journal, t.State = q.conn.Hello.JournalID, api.StateOffered
		}
		t.Life = []api.Step{{At: now, State: t.State, Attempt: 1, Turn: 1}}
		ends = append(ends, r.begin(t.Target.ID, laneKey(t.Controller.ID, t.Workspace, t.Generation)))
	}
	r.mu.Unlock()

	made, err := r.st.CreateTasks(ctx, news)

	r.mu.Lock()
	if err == nil {
		for i, t := range made {
			var text []byte
			if t.State == api.StateOffered {
				text = news[i].Text // its offer is imminent
			}
			if r.tasks[t.ID] == nil {
				r.add(t, text)
				r.publish(t)
			}
		}
	}
	for _, end := range ends {
		end()
	}
	r.mu.Unlock()
	switch {
	case errors.Is(err, store.ErrForgotten):
		return nil, api.Errorf(api.CodeTaskForgotten, "that task id was used and its task has been forgotten; use a new id")
	case errors.Is(err, store.ErrExists):
		return r.repeated(ctx, by, news)
	}
	return made, err
}

// repeated answers a dispatch whose ids exist.
func (r *Relay) repeated(ctx context.Context, by Author, news []store.NewTask) ([]store.Task, error) {
	out := make([]store.Task, 0, len(news))
	for _, n := range news {
		t, _, err := r.current(ctx, n.Task.ID)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil, api.Errorf(api.CodeTaskConflict, "some of the task ids exist already and others do not; use new ids")
		case err != nil:
			return nil, err
		case t.Controller.ID != by.Identity.ID:
			return nil, api.Errorf(api.CodeTaskConflict, "task id %s is taken; use a new id", n.Task.ID)
		case t.Hash != n.Task.Hash:
			return nil, api.Errorf(api.CodeTaskConflict, "task id %s was used for another text, target or option; use a new id", n.Task.ID)
		}
		out = append(out, t)
	}
	return out, nil
}

// target is a node that a dispatch names.
type target struct {
	id  store.Identity
	rec store.NodeRecord
}

// targets resolves the names of a dispatch; any that is unknown refuses it whole.
func (r *Relay) targets(ctx context.Context, d api.Dispatch) ([]target, error) {
	out := make([]target, 0, len(d.Targets))
	for _, dt := range d.Targets {
		id, err := r.st.IdentityByName(ctx, dt.Name)
		if errors.Is(err, store.ErrNotFound) || err == nil && id.Role != api.RoleNode {
			return nil, r.unknownTarget(ctx, dt.Name)
		}
		if err != nil {
			return nil, err
		}
		rec, err := r.st.NodeRecord(ctx, id.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if ws := rec.Hello.Workspaces; d.Workspace != "" && rec.Hello.JournalID != "" && !slices.Contains(ws, d.Workspace) {
			return nil, api.Errorf(api.CodeBadRequest, "%s offers no workspace %q; it offers: %s", id.Name, d.Workspace, strings.Join(ws, ", "))
		}
		out = append(out, target{id: id, rec: rec})
	}
	return out, nil
}

// unknownTarget names the nodes there are.
func (r *Relay) unknownTarget(ctx context.Context, name string) error {
	const most = 20
	ids, err := r.st.Identities(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, id := range ids {
		if id.Live() && id.Role == api.RoleNode {
			known = append(known, id.Name)
		}
	}
	slices.Sort(known)
	list := "no node has joined yet"
	if n := len(known); n > 0 {
		list = "known: " + strings.Join(known[:min(n, most)], ", ")
		if n > most {
			list += fmt.Sprintf(" and %d more", n-most)
		}
	}
	return api.Errorf(api.CodeUnknownTarget, "no node is named %q (%s)", mesh.CleanLine(name), list)
}

// checkDispatch refuses bad input and fills defaults in.
func checkDispatch(d *api.Dispatch) error {
	if d.Mode == "" {
		d.Mode = string(mesh.ModeSession)
	}
	switch {
	case len(d.Targets) == 0:
		return api.Errorf(api.CodeBadRequest, "name at least one target")
	case len(d.Targets) > api.MaxTargets:
		return api.Errorf(api.CodeBadRequest, "at most %d targets in one dispatch", api.MaxTargets)
	case strings.TrimSpace(d.Text) == "":
		return api.Errorf(api.CodeBadRequest, "the task has no text")
	case len(d.Text) > api.MaxText:
		return api.Errorf(api.CodeTooLarge, "the text is larger than %d bytes; put it into a file in the workspace and name the file", api.MaxText)
	case len(d.Text)*len(d.Targets) > api.MaxDispatch:
		return api.Errorf(api.CodeTooLarge, "the text times %d targets is larger than %d bytes; name fewer targets or a smaller text", len(d.Targets), api.MaxDispatch)
	case d.Mode != string(mesh.ModeSession) && d.Mode != string(mesh.ModeOneShot):
		return api.Errorf(api.CodeBadRequest, "mode is one-shot or session, not %q", d.Mode)
	case len(d.Workspace) > api.MaxName:
		return api.Errorf(api.CodeBadRequest, "the workspace's name is too long")
	}
	for _, b := range []struct {
		what string
		v    int64
		most time.Duration
	}{{"ttl", d.TTLMS, api.MaxTTL}, {"deadline", d.DeadlineMS, api.MaxDeadline}, {"question timeout", d.QuestionTimeoutMS, api.MaxTTL}} {
		if b.v < 0 || b.v > b.most.Milliseconds() {
			return api.Errorf(api.CodeBadRequest, "the %s must be between 0 and %s", b.what, b.most)
		}
	}
	names, ids := map[string]bool{}, map[string]bool{}
	for _, t := range d.Targets {
		switch {
		case !mesh.ValidTaskID(t.ID):
			return api.Errorf(api.CodeBadRequest, "%q is not a task id; use letters, digits, '.', '_' and '-', at most 64", mesh.CleanLine(t.ID))
		case names[t.Name]:
			return api.Errorf(api.CodeBadRequest, "target %q is named twice", mesh.CleanLine(t.Name))
		case ids[t.ID]:
			return api.Errorf(api.CodeBadRequest, "task id %s is used for two targets; each needs its own", t.ID)
		}
		names[t.Name], ids[t.ID] = true, true
	}
	return nil
}

func ms(v int64, def time.Duration) time.Duration {
	if v == 0 {
		return def
	}
	return time.Duration(v) * time.Millisecond
}

// bodyHash covers controller, target, workspace, mode, new and text.
func bodyHash(t store.Task, text string) string {
	return hashOf(t.Controller.ID, t.Target.ID, t.Workspace, t.Mode, strconv.FormatBool(t.New), text)
}

// hashOf hashes its parts so that no two lists of parts look alike.
func hashOf(parts ...string) string {
	h := sha256.New()
	var n [20]byte
	for _, p := range parts {
		h.Write(append(strconv.AppendInt(n[:0], int64(len(p)), 10), ':'))
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
