package api

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/federation"
	"opencode-mesh/hub/proxy"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// defaultContextQueries is how many queries a listing has whose request names no number.
const defaultContextQueries = 50

// asker is the caller as the federation knows it.
func asker(r *http.Request) federation.Asker {
	p := who(r)
	return federation.Asker{Party: api.Party{ID: p.Identity.ID, Name: p.Identity.Name}, Operator: p.Operator()}
}

// contextQuery asks nodes for what helps with a goal.
func (s *Server) contextQuery(w http.ResponseWriter, r *http.Request) {
	var q api.ContextQuery
	err := decode(w, r, api.MaxBody, &q)
	var out api.ContextResult
	if err == nil {
		err = s.holding(r, func(ctx context.Context) (err error) {
			out, err = s.context.Query(ctx, asker(r), q)
			return err
		})
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, out)
}

// contextProviders lists whom a query can reach.
func (s *Server) contextProviders(w http.ResponseWriter, r *http.Request) {
	var out api.ContextProviders
	err := s.holding(r, func(ctx context.Context) (err error) {
		out, err = s.context.Providers(ctx, asker(r))
		return err
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, out)
}

// holding does something about context that calls nodes and may take its time.
func (s *Server) holding(r *http.Request, do func(context.Context) error) error {
	ctx, done, err := s.hold(r, who(r), asking)
	if err != nil {
		return err
	}
	defer done()
	return do(ctx)
}

// consentID is what a consent is about: a node, or one of its providers.
func consentID(r *http.Request) string {
	id := chi.URLParam(r, "node")
	if provider := chi.URLParam(r, "provider"); provider != "" {
		id += "/" + provider
	}
	return id
}

// contextConsent records a consent of the caller, contextRevoke takes it back. Both are
// in the audit log.
func (s *Server) contextConsent(w http.ResponseWriter, r *http.Request) {
	var c api.ContextConsent
	err := decode(w, r, api.MaxBody, &c)
	if err == nil {
		err = s.holding(r, func(ctx context.Context) error {
			return s.context.Consent(ctx, asker(r), consentID(r), c)
		})
	}
	s.consented(w, r, "consented", c.Scope, err)
}

func (s *Server) contextRevoke(w http.ResponseWriter, r *http.Request) {
	err := s.holding(r, func(ctx context.Context) error {
		return s.context.Revoke(ctx, asker(r), consentID(r))
	})
	s.consented(w, r, "withdrew_consent", "", err)
}

// consented answers a change of a consent and notes it in the audit log.
func (s *Server) consented(w http.ResponseWriter, r *http.Request, action, scope string, err error) {
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.cfg.Access.Audit(r.Context(), who(r), s.peer(r), action, consentID(r), scope)
	w.WriteHeader(http.StatusNoContent)
}

// composed notes which tasks have a query's frames in them. They are accepted already:
// that the note fails takes nothing back.
func (s *Server) composed(r *http.Request, query string, made []store.Task) {
	if query == "" {
		return
	}
	ids := make([]string, len(made))
	for i, t := range made {
		ids[i] = t.ID
	}
	if err := s.context.Used(context.WithoutCancel(r.Context()), asker(r), query, ids); err != nil {
		s.cfg.Log.Warn("it is not noted which tasks have the frames of a context query", "query", shown.Line(query, maxLabel), "err", err)
	}
}

// contextQueries lists what was asked and cited.
func (s *Server) contextQueries(w http.ResponseWriter, r *http.Request) {
	limit, err := numbered(r.URL.Query(), "limit", defaultContextQueries, 1, api.MaxContextQueries)
	var out api.ContextRecords
	if err == nil {
		out, err = s.context.Records(r.Context(), asker(r), limit)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, out)
}

// contextNodes are the connected nodes that take anything from an asker.
type contextNodes struct{ s *Server }

func takes(c *registry.Conn, a federation.Asker) error {
	return c.Services.Takes(proxy.Caller{ID: a.ID, Name: a.Name})
}

// Online implements federation.Nodes.
func (n contextNodes) Online(_ context.Context, a federation.Asker) (list []federation.Node, err error) {
	for _, c := range n.s.cfg.Registry.All() {
		if takes(c, a) == nil {
			list = append(list, contextNode{c})
		}
	}
	return list, nil
}

// Named implements federation.Nodes.
func (n contextNodes) Named(ctx context.Context, a federation.Asker, name string) (federation.Node, error) {
	c, err := n.s.connected(ctx, name)
	if err == nil {
		err = takes(c, a)
	}
	return contextNode{c}, err
}

// contextNode is a connected node as the federation calls it.
type contextNode struct{ c *registry.Conn }

// What it means that a node has nothing at a path.
var (
	errNoContext  = api.Errorf(api.CodeNotSupported, "the version of the node has no context providers")
	errNoProvider = api.Errorf(api.CodeNotFound, "the node has no such provider, or no consent to it")
)

func (n contextNode) Party() api.Party {
	return api.Party{ID: n.c.Identity.ID, Name: n.c.Identity.Name}
}

func (n contextNode) Ask(ctx context.Context, ask api.ContextAsk) (api.ContextAnswer, error) {
	answer, err := n.c.Client.AskContext(ctx, ask)
	return answer, told(n.c, errNoContext, err)
}

func (n contextNode) Providers(ctx context.Context) (api.ContextProviders, error) {
	list, err := n.c.Client.ContextProviders(ctx)
	return list, told(n.c, errNoContext, err)
}

func (n contextNode) Consent(ctx context.Context, provider string, c *api.ContextConsent) error {
	return told(n.c, errNoProvider, n.c.Client.ContextConsent(ctx, provider, c))
}
