package api

import (
	"context"
	"errors"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/gate"
	"opencode-mesh/hub/proxy"
	"opencode-mesh/protocol/api"
)

// Services may have origins of their own, SERVICE.NODE.DOMAIN, for browsers: what a
// node serves then cannot reach into the hub's origin or another service's. A browser
// gets in by a URL that works once and leaves a cookie of that origin.
const (
	// enterPath is where such a URL leads. Nothing else on the origin is the hub's.
	enterPath = "/.mesh/enter"
	// hostRoute names these requests in metrics.
	hostRoute = "{service}.{node}"
)

// cookieName is that of a visit. With TLS it has the prefix that keeps neighbours
// from setting it.
func cookieName(secure bool) string {
	if secure {
		return "__Host-" + proxy.CookiePrefix + "service"
	}
	return proxy.CookiePrefix + "service"
}

// origin is where a service's origin is, and whether by TLS.
func (s *Server) origin(node, service string) (origin string, secure bool) {
	base, err := url.Parse(s.cfg.BaseURL())
	if err != nil { // the hub's own
		return "", false
	}
	host := service + "." + node + "." + s.cfg.ServiceDomain
	if port := base.Port(); port != "" {
		host = net.JoinHostPort(host, port)
	}
	return base.Scheme + "://" + host, base.Scheme == "https"
}

// handover makes a URL that lets a browser in at a service's own origin. Without such
// origins the path is the service's, like any other.
func (s *Server) handover(w http.ResponseWriter, r *http.Request) {
	if s.cfg.ServiceDomain == "" {
		s.services(w, r)
		return
	}
	p, by, err := s.servicePrincipal(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	node, service := chi.URLParam(r, "node"), chi.URLParam(r, "service")
	c, err := s.connected(r.Context(), node)
	if err == nil {
		err = c.Services.Hosts(service, by)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	origin, _ := s.origin(node, service)
	w.Header().Set("Cache-Control", "no-store")
	reply(w, http.StatusOK, api.Handover{URL: origin + enterPath + "?" + url.Values{"token": {s.visits.invite(p, node, service)}}.Encode()})
}

// byHost takes the requests to the origins of services.
func (s *Server) byHost(next http.Handler) http.Handler {
	if s.cfg.ServiceDomain == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node, service, ok := s.ofHost(r.Host)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		chi.RouteContext(r.Context()).RoutePatterns = []string{hostRoute}
		if node == "" {
			s.fail(w, r, api.Errorf(api.CodeNotFound, "addresses below %s are SERVICE.NODE.%s", s.cfg.ServiceDomain, s.cfg.ServiceDomain))
			return
		}
		s.hosted(w, r, node, service)
	})
}

// ofHost reads the name that a request is for. ok says that it is below the domain;
// node is "" when it is that of no service.
func (s *Server) ofHost(host string) (node, service string, ok bool) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	name, ok := strings.CutSuffix(strings.TrimSuffix(strings.ToLower(host), "."), "."+s.cfg.ServiceDomain)
	if !ok {
		return "", "", false
	}
	service, node, _ = strings.Cut(name, ".")
	if !api.ValidName(service) || !api.ValidName(node) {
		return "", "", true
	}
	return node, service, true
}

// hosted serves a request to a service's own origin.
func (s *Server) hosted(w http.ResponseWriter, r *http.Request, node, service string) {
	var by proxy.Caller
	var p access.Principal
	var err error
	switch {
	case r.URL.Path == enterPath:
		s.enter(w, r, node, service)
		return
	case len(r.Header.Values(api.HeaderAuthorization)) > 0: // no browser
		p, by, err = s.servicePrincipal(r)
	default:
		var v *visit
		if v, err = s.visiting(r, node, service); err == nil {
			p = v.who
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(v.ctx, cancel)()
			r = r.WithContext(ctx)
		}
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	by.ID, by.Name, by.Hosted = p.Identity.ID, p.Identity.Name, true
	s.serve(w, r, p, node, service, proxy.Root(r), by)
}

// visiting is the visit that a browser's cookie stands for, if the request is one
// that the origin's own pages make.
func (s *Server) visiting(r *http.Request, node, service string) (*visit, error) {
	origin, secure := s.origin(node, service)
	c, err := r.Cookie(cookieName(secure))
	if err != nil {
		return nil, api.Errorf(api.CodeUnauthorized, "ask the hub for a URL that lets your browser in: POST /v1/nodes/%s/services/%s/handover", node, service)
	}
	v, ok := s.visits.find(c.Value, node, service)
	if !ok {
		return nil, api.Errorf(api.CodeUnauthorized, "this visit is over; ask the hub for another URL")
	}
	if err := gate.SameOrigin(r, origin); err != nil {
		return nil, err
	}
	return v, nil
}

// entered is the page after the exchange. It goes on by itself: the cookie, which
// pages elsewhere must not cause to be sent, would not go along with a redirect that
// one of them began.
var entered = template.Must(template.New("entered").Parse(`<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>{{.}}</title><p>You are in. <a href="/">Go on</a></p>
`))

// enter exchanges the one-time secret of the URL for the cookie.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, node, service string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet {
		s.fail(w, r, api.Errorf(api.CodeMethodNotAllowed, "%s does not go with this path", quoted(r.Method)))
		return
	}
	cookie, ok := s.visits.enter(r.URL.Query().Get("token"), node, service)
	if !ok {
		s.fail(w, r, api.Errorf(api.CodeUnauthorized, "this URL was used already, or is older than %s; ask the hub for another", api.HandoverLimit))
		return
	}
	_, secure := s.origin(node, service)
	http.SetCookie(w, &http.Cookie{Name: cookieName(secure), Value: cookie, Path: "/", Secure: secure, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	h.Set("Content-Type", "text/html; charset=utf-8")
	_ = entered.Execute(w, service+" of "+node)
}

var errServiceDomain = errors.New("is a domain such as mesh.example.org, in lower case and without port")

// ValidServiceDomain reports what is wrong with the domain below which services have
// their origins.
func ValidServiceDomain(domain string) error {
	for label := range strings.SplitSeq(domain, ".") {
		if len(label) > 63 || !validLabel(label) {
			return errServiceDomain
		}
	}
	return nil
}

func validLabel(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && s[0] != '-' && s[len(s)-1] != '-'
}
