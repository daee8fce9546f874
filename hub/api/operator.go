package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func (s *Server) abandon(w http.ResponseWriter, r *http.Request) {
	s.act(w, r, "", func(ctx context.Context, id string) (store.Task, error) {
		t, err := s.cfg.Relay.Abandon(ctx, id)
		if err == nil {
			s.cfg.Access.Audit(ctx, who(r), s.peer(r), "abandoned", id, "")
		}
		return t, err
	})
}

func (s *Server) credentials(w http.ResponseWriter, r *http.Request) {
	list, err := s.cfg.Store.Credentials(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := api.CredentialList{Credentials: make([]api.Credential, 0, len(list))}
	for _, c := range list {
		v := api.Credential{ID: c.ID, Name: c.Name, Role: c.Role, CreatedAt: c.CreatedAt, Browser: c.Browser}
		if c.Browser {
			v.ExpiresAt = &c.ExpiresAt
		}
		if !c.LastUsed.IsZero() {
			v.LastUsed = &c.LastUsed
		}
		if !c.RevokedAt.IsZero() {
			v.RevokedAt = &c.RevokedAt
		}
		out.Credentials = append(out.Credentials, v)
	}
	slices.SortFunc(out.Credentials, func(a, b api.Credential) int { return a.CreatedAt.Compare(b.CreatedAt) })
	reply(w, http.StatusOK, out)
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	if err := s.cfg.Access.Revoke(context.WithoutCancel(r.Context()), who(r), s.peer(r), chi.URLParam(r, "name")); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
