package api

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/access"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// localOperator is who acts through the admin socket.
var localOperator = access.Principal{Identity: store.Identity{Name: "local"}, Role: api.RoleOperator}

// adminRoutes serve the local admin socket. Its file is 0600: whoever can open it
// could also read the store.
func (s *Server) adminRoutes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.recover, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), principalKey{}, localOperator)))
		})
	})
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed)
	r.Route("/v1", func(r chi.Router) {
		r.Get("/nodes", s.nodes)
		s.operatorRoutes(r)
		r.Get("/link", s.link)
		r.Post("/passwd", s.passwd)
		r.Post("/revoke-all", s.revokeAll)
		r.Get("/backup", s.backup)
	})
	return r
}

func (s *Server) link(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, Link{Link: s.cfg.JoinLink()})
}

// Link is the answer to GET /v1/link on the admin socket.
type Link struct {
	Link string `json:"link"`
}

// Passwd is the body of POST /v1/passwd on the admin socket.
type Passwd struct {
	Password  string `json:"password"`
	RevokeAll bool   `json:"revoke_all"`
}

// passwd changes the password of the running hub.
func (s *Server) passwd(w http.ResponseWriter, r *http.Request) {
	var p Passwd
	if err := decode(w, r, api.MaxBody, &p); err != nil {
		s.fail(w, r, err)
		return
	}
	ctx := context.WithoutCancel(r.Context())
	if p.Password == "" {
		s.fail(w, r, api.Errorf(api.CodeBadRequest, "the password is empty"))
		return
	}
	if err := s.cfg.Access.SetPassword(ctx, p.Password); err != nil {
		s.fail(w, r, err)
		return
	}
	s.visits.end("") // browsers, not credentials (semantics 15)
	if p.RevokeAll {
		s.revokeAll(w, r)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) revokeAll(w http.ResponseWriter, r *http.Request) {
	if err := s.cfg.Access.RevokeAll(context.WithoutCancel(r.Context()), who(r), s.peer(r)); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// backup streams a consistent copy of the store. An error in the middle cuts the
// stream, so that half a copy is never taken for a whole one.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := s.cfg.Store.Backup(r.Context(), w); err != nil {
		s.cfg.Log.Error("backup failed", "err", err)
		panic(http.ErrAbortHandler)
	}
}
