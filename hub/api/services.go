package api

import (
	"context"
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
	_, by, err := s.servicePrincipal(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	var list []api.ServiceInfo
	c, err := s.connected(r.Context(), chi.URLParam(r, "node"))
	if err == nil {
		list, err = c.Services.List(by)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, api.ServiceList{Services: list})
}

// services passes a request on to a service of a node.
func (s *Server) services(w http.ResponseWriter, r *http.Request) {
	node, service, target, ok := proxy.Cut(r)
	if !ok {
		notFound(w, r)
		return
	}
	p, by, err := s.servicePrincipal(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.serve(w, r, p, node, service, target, by)
}

// serve passes an authenticated request on.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, p access.Principal, node, service string, t proxy.Target, by proxy.Caller) {
	c, err := s.connected(r.Context(), node)
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

// servicePrincipal recognises who calls one of the service routes, in the one way that
// all of them have: by Mesh-Authorization, else by Authorization, where tools that
// speak nothing else may use HTTP Basic with a credential as password. Never by a
// cookie (semantics 23).
func (s *Server) servicePrincipal(r *http.Request) (p access.Principal, by proxy.Caller, err error) {
	if v := r.Header.Values(api.HeaderAuthorization); len(v) > 0 {
		by.Apart = true
		scheme, secret, _ := strings.Cut(v[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return p, by, api.Errorf(api.CodeUnauthorized, "%s is Bearer with a credential", api.HeaderAuthorization)
		}
		p, err = s.cfg.Access.Authenticate(r.Context(), strings.TrimSpace(secret))
	} else if _, secret, ok := r.BasicAuth(); ok {
		p, err = s.cfg.Access.Authenticate(r.Context(), secret)
	} else {
		p, err = s.principal(r)
	}
	by.ID, by.Name = p.Identity.ID, p.Identity.Name
	return p, by, err
}

// connected is the connection of a node by its name.
func (s *Server) connected(ctx context.Context, name string) (*registry.Conn, error) {
	if c, ok := s.cfg.Registry.Named(name); ok {
		return c, nil
	}
	id, err := s.cfg.Store.IdentityByName(ctx, name)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, err
	case err != nil || id.Role != api.RoleNode:
		return nil, api.Errorf(api.CodeUnknownTarget, "no node is named %q: meshctl nodes lists them", quoted(name))
	}
	return nil, api.Errorf(api.CodeNodeOffline, "node %s is offline", id.Name)
}
