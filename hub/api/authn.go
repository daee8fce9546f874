package api

import (
	"context"
	"net/http"
	"net/netip"
	"strings"

	"opencode-mesh/auth"
	"opencode-mesh/hub/access"
	"opencode-mesh/protocol/api"
)

type principalKey struct{}

// principal recognises the credential of a request.
func (s *Server) principal(r *http.Request) (access.Principal, error) {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return access.Principal{}, api.Errorf(api.CodeUnauthorized, "a credential is needed: log in (meshctl login) or join (meshnode join)")
	}
	return s.cfg.Access.Authenticate(r.Context(), strings.TrimSpace(secret))
}

// browserOr recognises the cookie of a browser where a request carries no credential,
// if it is a request of the hub's own pages.
func (s *Server) browserOr(r *http.Request) (access.Principal, error) {
	if r.Header.Get("Authorization") == "" && s.cfg.Gate != nil && s.cfg.Gate.Has(r) {
		return s.cfg.Gate.Principal(r)
	}
	return s.principal(r)
}

// recogniseFunc says whom a request comes from.
type recogniseFunc = func(*http.Request) (access.Principal, error)

// authenticate lets those in whom recognise knows.
func (s *Server) authenticate(recognise recogniseFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, err := recognise(r)
			if err != nil {
				s.fail(w, r, err)
				return
			}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), principalKey{}, p)))
		})
	}
}

// who is the principal that authenticate, the tunnel or the admin socket put into
// the request.
func who(r *http.Request) access.Principal {
	p, _ := r.Context().Value(principalKey{}).(access.Principal)
	return p
}

// peer is the address that a request came from, for limits and the audit log; not
// valid inside tunnels.
func (s *Server) peer(r *http.Request) netip.Addr { return auth.ClientIP(r, s.cfg.TrustedProxies) }

func operatorsOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !who(r).Operator() {
			e := api.Errorf(api.CodeForbidden, "this needs an operator: log in with meshctl login --operator")
			reply(w, e.Code.Status(), api.ErrorBody{Error: e})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) { s.enroll(w, r, s.cfg.Access.Login) }

func (s *Server) join(w http.ResponseWriter, r *http.Request) { s.enroll(w, r, s.cfg.Access.Join) }

func (s *Server) enroll(w http.ResponseWriter, r *http.Request, do enrollFunc) {
	var req api.Login
	if err := decode(w, r, api.MaxBody, &req); err != nil {
		s.fail(w, r, err)
		return
	}
	issued, err := do(r.Context(), s.peer(r), req)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, issued)
}

func (s *Server) whoami(w http.ResponseWriter, r *http.Request) {
	p := who(r)
	reply(w, http.StatusOK, api.Issued{HubID: s.cfg.Store.Info().HubID, IdentityID: p.Identity.ID, Name: p.Identity.Name, Role: p.Role, CredentialID: p.Credential})
}

type enrollFunc = func(ctx context.Context, peer netip.Addr, req api.Login) (api.Issued, error)
