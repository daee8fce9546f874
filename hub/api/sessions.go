package api

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// ownController stands for the caller where a path names a controller.
const ownController = "-"

// owner finds whose sessions a request means. Those of another controller look like
// none, unless an operator asks (semantics 11).
func (s *Server) owner(r *http.Request, name string) (store.Identity, error) {
	p := who(r)
	if name == ownController || name == p.Identity.Name {
		return p.Identity, nil
	}
	id, err := store.Identity{}, store.ErrNotFound
	if p.Operator() {
		id, err = s.cfg.Store.IdentityByName(r.Context(), name)
	}
	if errors.Is(err, store.ErrNotFound) {
		err = api.Errorf(api.CodeNotFound, "there is no session of %q", quoted(name))
	}
	return id, err
}

// bindings lists sessions: the caller's, or for an operator everybody's.
func (s *Server) bindings(w http.ResponseWriter, r *http.Request) {
	list, err := s.sessions(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, api.SessionList{Sessions: append([]api.Session{}, list...)})
}

func (s *Server) sessions(r *http.Request) ([]api.Session, error) {
	q := r.URL.Query()
	controller, targets := who(r).Identity.ID, []string{""}
	if name := q.Get("controller"); name != "" {
		id, err := s.owner(r, name)
		if err != nil {
			return nil, err
		}
		controller = id.ID
	} else if who(r).Operator() {
		controller = ""
	}
	if names := slices.DeleteFunc(slices.Clone(q["target"]), func(name string) bool { return name == "" }); len(names) > 0 {
		slices.Sort(names)
		targets = nil
		for _, name := range slices.Compact(names) {
			id, err := s.named(r.Context(), name)
			if err != nil {
				return nil, err
			}
			targets = append(targets, id)
		}
	}
	fills, err := numbered(q, "fills", 0, 0, api.MaxListedFills)
	if err != nil {
		return nil, err
	}
	var all []api.Session
	for _, target := range targets {
		list, err := s.cfg.Relay.Sessions(r.Context(), controller, target, fills)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// bindingKey is the key of the binding that a request names. An unnamed workspace is
// the target's first, as in a dispatch.
func (s *Server) bindingKey(r *http.Request, controller, target string) (key store.BindingKey, err error) {
	id, err := s.owner(r, controller)
	if err != nil {
		return key, err
	}
	key = store.BindingKey{Controller: id.ID, Workspace: r.URL.Query().Get("workspace")}
	if !relay.ValidWorkspace(key.Workspace) {
		return key, api.Errorf(api.CodeBadRequest, "%q cannot name a workspace: visible characters, at most %d bytes", quoted(key.Workspace), api.MaxName)
	}
	if key.Target, err = s.named(r.Context(), target); err != nil || key.Workspace != "" {
		return key, err
	}
	rec, err := s.cfg.Store.NodeRecord(r.Context(), key.Target)
	switch {
	case errors.Is(err, store.ErrNotFound): // it never said hello
		err = nil
	case err == nil && len(rec.Hello.Workspaces) > 0:
		key.Workspace = rec.Hello.Workspaces[0]
	}
	return key, err
}

// binding answers with one session, its former ones and its fills.
func (s *Server) binding(w http.ResponseWriter, r *http.Request) {
	target := chi.URLParam(r, "target")
	key, err := s.bindingKey(r, chi.URLParam(r, "controller"), target)
	var out api.Session
	if err == nil {
		out, err = s.cfg.Relay.Session(r.Context(), key)
		if errors.Is(err, store.ErrNotFound) {
			err = api.Errorf(api.CodeNotFound, "there is no session on %s in workspace %q yet; the first dispatch makes one", quoted(target), quoted(key.Workspace))
		}
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, out)
}

// digests lists all generations of a session's digest.
func (s *Server) digests(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	controller := q.Get("controller")
	if controller == "" {
		controller = ownController
	}
	key, err := s.bindingKey(r, controller, q.Get("target"))
	var list []api.Digest
	if err == nil {
		list, err = s.cfg.Relay.Digests(r.Context(), key)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, api.DigestList{Digests: append([]api.Digest{}, list...)})
}

// operate makes the handler of an operation on a session. The answer comes once the
// operation is on disk; its end is waited for as that of a task.
func (s *Server) operate(op string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, err := s.operation(w, r, op)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		reply(w, http.StatusCreated, relay.View(t))
	}
}

func (s *Server) operation(w http.ResponseWriter, r *http.Request, op string) (store.Task, error) {
	var o api.Operate
	if err := decode(w, r, api.MaxBody, &o); err != nil {
		return store.Task{}, err
	}
	controller, err := s.owner(r, chi.URLParam(r, "controller"))
	if err != nil {
		return store.Task{}, err
	}
	// What was accepted must not depend on whether the client still listens.
	ctx := context.WithoutCancel(r.Context())
	_, known := s.cfg.Relay.Task(ctx, o.ID)
	t, err := s.cfg.Relay.Operate(ctx, who(r).Identity, controller, chi.URLParam(r, "target"), op, o)
	if err == nil && errors.Is(known, store.ErrNotFound) { // a repeat is no second act
		s.cfg.Access.Act(who(r), s.peer(r), "session_"+op, controller.Name+" -> "+t.Target.Name, t.ID)
	}
	return t, err
}
