package api

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// innerRoutes are what a node reaches inside its tunnel.
func (s *Server) innerRoutes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.recover, s.withLink, s.arriving, s.withRoom)
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed)
	r.Route("/v1", func(r chi.Router) {
		r.Put("/tasks/{id}/result", s.result)
		r.Put("/tasks/{id}/progress", s.progress)
		r.Group(func(r chi.Router) {
			r.Use(s.notDraining)
			r.Post("/hello", s.hello)
			r.Put("/status", s.nodeStatus)
			r.Put("/tasks/{id}/question", s.question)
			r.Put("/mail/{id}", s.mail)
			r.Post("/mail/known", s.mailKnown)
			r.Get("/memory", s.memory)
			r.Put("/peers", s.sayPeers)
			r.Get("/peers", s.otherPeers)
			s.controllerRoutes(r)
		})
	})
	return r
}

// notDraining keeps a superseded process to the delivery of what it has.
func (s *Server) notDraining(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if linkOf(r).drain {
			s.fail(w, r, api.Errorf(api.CodeSuperseded, "a draining tunnel delivers results and takes no name"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) nodeStatus(w http.ResponseWriter, r *http.Request) {
	l := linkOf(r)
	var n api.NodeReport
	if err := decode(w, r, api.MaxBody, &n); err != nil {
		s.fail(w, r, err)
		return
	}
	c := l.registered()
	if c == nil {
		s.fail(w, r, api.Errorf(api.CodeConflict, "say hello first"))
		return
	}
	id := l.who.Identity
	s.cfg.Relay.Drain(id.ID, n.Draining)
	services := tidyServices(n.Services)
	if n.Services != nil {
		c.Services.SetServices(services)
	}
	agent, changed := tidyAgent(n.Agent), false
	rec, err := s.changeNode(r.Context(), id.ID, func(rec *store.NodeRecord) error {
		changed = !reflect.DeepEqual(rec.Agent, agent)
		rec.Agent = agent
		if known := withoutPasswords(services); n.Services != nil && !slices.Equal(rec.Hello.Services, known) {
			rec.Hello.Services, changed = known, true
		}
		if !changed {
			return errUnchanged
		}
		return nil
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if changed {
		s.cfg.Bus.Node(s.nodeView(id, rec))
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) result(w http.ResponseWriter, r *http.Request) {
	var res api.Result
	if err := decode(w, r, api.MaxTunnelBody, &res); err != nil {
		s.fail(w, r, err)
		return
	}
	res.Task = chi.URLParam(r, "id")
	if err := s.cfg.Relay.Result(context.WithoutCancel(r.Context()), linkOf(r).who.Identity, res); err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, struct{}{})
}

func (s *Server) progress(w http.ResponseWriter, r *http.Request) {
	var p api.Progress
	if err := decode(w, r, api.MaxBody, &p); err != nil {
		s.fail(w, r, err)
		return
	}
	p.Task = chi.URLParam(r, "id")
	if err := s.cfg.Relay.ProgressFrom(r.Context(), linkOf(r).who.Identity, p); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) question(w http.ResponseWriter, r *http.Request) {
	var a api.Ask
	if err := decode(w, r, api.MaxBody, &a); err != nil {
		s.fail(w, r, err)
		return
	}
	a.Task = chi.URLParam(r, "id")
	if err := s.cfg.Relay.Asked(context.WithoutCancel(r.Context()), linkOf(r).who.Identity, a); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
