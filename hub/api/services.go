package api

import (
	"errors"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/proxy"
	"opencode-mesh/hub/registry"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// The routes of a node's services.
const (
	serviceRoute  = "/v1/nodes/{node}/services/{service}"
	servicesBelow = serviceRoute + "/*"
)

// serviceNames lists services for people.
func serviceNames(list []api.Service) []string {
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}

// serviceList says what a node offers.
func (s *Server) serviceList(w http.ResponseWriter, r *http.Request) {
	c, err := s.connected(r, chi.URLParam(r, "node"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, api.ServiceList{Services: c.Services.List()})
}

// services passes a request on to a service of a node.
func (s *Server) services(w http.ResponseWriter, r *http.Request) {
	node, service, target, ok := proxy.Cut(r)
	if !ok {
		notFound(w, r)
		return
	}
	p, apart, err := s.servicePrincipal(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.serve(w, r, p, node, service, target, proxy.Caller{ID: p.Identity.ID, Name: p.Identity.Name, Apart: apart})
}

// serve passes an authenticated request on.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, p access.Principal, node, service string, t proxy.Target, by proxy.Caller) {
	c, err := s.connected(r, node)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, done, err := s.hold(r, p, calls)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer done()
	s.proxy.Serve(w, r.WithContext(ctx), c.Services, service, t, by)
}

// servicePrincipal recognises who calls a service: by Mesh-Authorization, else by
// Authorization, where tools that speak nothing else may use HTTP Basic with a
// credential as password. Never by a cookie (semantics 23). apart says that it was
// the former.
func (s *Server) servicePrincipal(r *http.Request) (p access.Principal, apart bool, err error) {
	if v := r.Header.Values(api.HeaderAuthorization); len(v) > 0 {
		scheme, secret, _ := strings.Cut(v[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return p, true, api.Errorf(api.CodeUnauthorized, "%s is Bearer with a credential", api.HeaderAuthorization)
		}
		p, err = s.cfg.Access.Authenticate(r.Context(), strings.TrimSpace(secret))
		return p, true, err
	}
	if _, secret, ok := r.BasicAuth(); ok {
		p, err = s.cfg.Access.Authenticate(r.Context(), secret)
		return p, false, err
	}
	p, err = s.principal(r)
	return p, false, err
}

// connected is the connection of a node by its name.
func (s *Server) connected(r *http.Request, name string) (*registry.Conn, error) {
	if c, ok := s.cfg.Registry.Named(name); ok {
		return c, nil
	}
	id, err := s.cfg.Store.IdentityByName(r.Context(), name)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, err
	case err != nil || id.Role != api.RoleNode:
		return nil, api.Errorf(api.CodeUnknownTarget, "no node is named %q: meshctl nodes lists them", quoted(name))
	}
	return nil, api.Errorf(api.CodeNodeOffline, "node %s is offline", id.Name)
}
