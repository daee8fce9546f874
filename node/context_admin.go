package node

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/ocp/host"
	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// contextTimeout bounds what a request about context may take on the admin socket:
// providers are started and asked meanwhile.
const contextTimeout = host.QueryTimeout + adminTimeout

// owner is who consents on the admin socket.
const owner = "the owner of the machine"

// contextRoutes are those for context on the admin socket.
func contextRoutes(mux chi.Router, h *host.Host) {
	// patient gives a request the time that it needs.
	patient := func(do http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			// Without it the answer may come too late, and that is all.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(contextTimeout))
			do(w, r)
		}
	}
	mux.Get("/ocp/providers", patient(func(w http.ResponseWriter, r *http.Request) {
		list, err := h.Providers(r.Context())
		answerAdmin(w, list, err)
	}))
	mux.Post("/ocp/query", patient(func(w http.ResponseWriter, r *http.Request) {
		var q ocp.Query
		err := decodeBody(r, maxContextBody, &q)
		var out api.ContextAnswer
		if err == nil {
			out.Legs, err = h.Ask(r.Context(), q, memory.Scope{All: true})
		}
		answerAdmin(w, out, err)
	}))
	mux.Put("/ocp/consents/{provider}", patient(func(w http.ResponseWriter, r *http.Request) {
		var c api.ContextConsent
		err := decodeBody(r, maxAdminBody, &c)
		if err == nil {
			c.GrantedBy = owner
			err = h.Consent(r.Context(), pathParam(r, "provider"), c)
		}
		answerAdmin(w, struct{}{}, err)
	}))
	mux.Delete("/ocp/consents/{provider}", patient(func(w http.ResponseWriter, r *http.Request) {
		answerAdmin(w, struct{}{}, h.Revoke(r.Context(), pathParam(r, "provider")))
	}))
}

// ContextProviders lists the node's context providers with their consents.
func (o *Operator) ContextProviders(ctx context.Context) (list api.ContextProviders, err error) {
	err = o.callFor(ctx, contextTimeout, http.MethodGet, "/ocp/providers", nil, &list)
	return list, err
}

// QueryContext asks the providers. The whole memory may be seen.
func (o *Operator) QueryContext(ctx context.Context, q ocp.Query) (a api.ContextAnswer, err error) {
	err = o.callFor(ctx, contextTimeout, http.MethodPost, "/ocp/query", q, &a)
	return a, err
}

// Consent lets a provider be asked.
func (o *Operator) Consent(ctx context.Context, provider string, c api.ContextConsent) error {
	return o.callFor(ctx, contextTimeout, http.MethodPut, "/ocp/consents/"+url.PathEscape(provider), c, nil)
}

// RevokeConsent takes that back.
func (o *Operator) RevokeConsent(ctx context.Context, provider string) error {
	return o.callFor(ctx, contextTimeout, http.MethodDelete, "/ocp/consents/"+url.PathEscape(provider), nil, nil)
}
