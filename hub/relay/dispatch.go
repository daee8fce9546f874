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

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// target is a node that a dispatch names.
type target struct {
	id  store.Identity
	rec store.NodeRecord
}

// workspace is the workspace that is meant: the target's default one if none is
// named, as far as its hello is known.
func (tg target) workspace(named string) string {
	if ws := tg.rec.Hello.Workspaces; named == "" && len(ws) > 0 && ValidWorkspace(ws[0]) {
		return ws[0]
	}
	return named
}

// sessions reports whether the target's agent has sessions; one that was never heard
// of may.
func (tg target) sessions() bool { return tg.rec.Hello.JournalID == "" || tg.rec.Hello.Sessions }

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
	return api.Errorf(api.CodeUnknownTarget, "no node is named %q (%s)", quoted(name), list)
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
		return api.Errorf(api.CodeBadRequest, "mode is one-shot or session, not %q", quoted(d.Mode))
	case d.AutoCompact < 0 || d.AutoCompact > 100:
		return api.Errorf(api.CodeBadRequest, "auto-compact is a percentage from 0 to 100; 0 never compacts")
	case !ValidWorkspace(d.Workspace):
		return api.Errorf(api.CodeBadRequest, "%q cannot name a workspace: visible characters, at most %d bytes", quoted(d.Workspace), api.MaxName)
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
	if err := checkAutoAnswer(d.AutoAnswer); err != nil {
		return err
	}
	names, ids := map[string]bool{}, map[string]bool{}
	for _, t := range d.Targets {
		switch {
		case !mesh.ValidTaskID(t.ID):
			return api.Errorf(api.CodeBadRequest, "%q is not a task id; use letters, digits, '.', '_' and '-', at most 64", quoted(t.ID))
		case names[t.Name]:
			return api.Errorf(api.CodeBadRequest, "target %q is named twice", quoted(t.Name))
		case ids[t.ID]:
			return api.Errorf(api.CodeBadRequest, "task id %s is used for two targets; each needs its own", t.ID)
		}
		names[t.Name], ids[t.ID] = true, true
	}
	return nil
}

// ValidWorkspace reports whether w may name a workspace; "" is the default one.
func ValidWorkspace(w string) bool { return len(w) <= api.MaxName && mesh.CleanLine(w) == w }

// quoted is what an error repeats of what it refuses.
func quoted(s string) string { return shown.Line(s, 2*api.MaxName) }

func ms(v int64, def time.Duration) time.Duration {
	if v == 0 {
		return def
	}
	return time.Duration(v) * time.Millisecond
}

// bodyHash covers controller, target, workspace, mode, new and text as they were
// asked for.
func bodyHash(t store.Task, workspace, text string) string {
	return hashOf(t.Controller.ID, t.Target.ID, workspace, t.Mode, strconv.FormatBool(t.New), text)
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
