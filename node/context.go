package node

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/ocp/host"
	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// MemoryProvider is the name of the node's memory among its context providers.
const MemoryProvider = "memory"

const (
	// maxContextBody is the largest request about context, in bytes: more than a query
	// within the limits has.
	maxContextBody = 1 << 20
	// answerReserve is what of an answer is kept for all but frames, in bytes.
	answerReserve = 256 << 10
)

// newHost makes what asks the node's context providers: its memory, if it has one, and
// those of the configuration.
func newHost(cfg Config, remembers *memory.Index) (*host.Host, error) {
	var list []host.Provider
	if remembers != nil {
		list = append(list, host.Provider{Name: MemoryProvider, Source: remembers, Kinds: memory.Kinds(), Version: cfg.Version})
	}
	return host.New(host.Config{Providers: append(list, cfg.ContextProviders...), Path: host.Path(cfg.DataDir), Log: cfg.Log})
}

// startContext begins to look after the providers; they are asked from New on.
func (n *Node) startContext(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	work.Go(func() { n.context.Run(ctx) })
	n.endContext = func() {
		cancel()
		work.Wait()
	}
}

// contextDesk answers the hub about context.
type contextDesk struct {
	host *host.Host
	off  bool // refuse everything
	log  *slog.Logger
}

var errNoContext = api.Errorf(api.CodeRefused, "this node answers no queries of context through its hub")

// providers tells of the providers.
func (d contextDesk) providers(ctx context.Context) (api.ContextProviders, error) {
	if d.off {
		return api.ContextProviders{}, errNoContext
	}
	return d.host.Providers(ctx)
}

// ask has the providers asked for somebody of the hub, who sees of the memory what it
// dispatched, or everything as an operator.
func (d contextDesk) ask(ctx context.Context, in api.ContextAsk) (api.ContextAnswer, error) {
	if d.off {
		return api.ContextAnswer{}, errNoContext
	}
	scope := memory.Scope{All: in.Operator}
	if !in.Operator {
		scope.Controller = in.Asker.ID
	}
	legs, err := d.host.Ask(ctx, in.Query, scope)
	if err != nil {
		return api.ContextAnswer{}, err
	}
	return api.ContextAnswer{Legs: passable(legs, api.MaxTunnelBody-answerReserve)}, nil
}

// consent gives consent to a provider, or takes it back with nil.
func (d contextDesk) consent(ctx context.Context, provider string, c *api.ContextConsent) error {
	switch {
	case d.off:
		return errNoContext
	case c == nil:
		return d.host.Revoke(ctx, provider)
	}
	return d.host.Consent(ctx, provider, *c)
}

// passable replaces the frames of legs that would make an answer larger than most bytes:
// a leg without them must not cost the others theirs.
func passable(legs []api.ContextAnswerLeg, most int) []api.ContextAnswerLeg {
	for i := range legs {
		l := &legs[i]
		data, err := json.Marshal(l.Result)
		if err == nil && len(data) <= most {
			most -= len(data)
			continue
		}
		l.Outcome, l.Used, l.Tokens = api.ContextFailed, 0, 0
		l.Error = "its frames are too large to be passed on; ask for fewer"
		l.Result = ocp.Result{Frames: []ocp.Frame{}}
	}
	return legs
}

// tunnelRoutes are those for the hub.
func (d contextDesk) tunnelRoutes(mux chi.Router) {
	mux.Get("/v1/ocp/providers", func(w http.ResponseWriter, r *http.Request) {
		list, err := d.providers(r.Context())
		d.answer(w, list, err)
	})
	mux.Post("/v1/ocp/query", func(w http.ResponseWriter, r *http.Request) {
		var in api.ContextAsk
		err := decodeBody(r, maxContextBody, &in)
		var out api.ContextAnswer
		if err == nil {
			out, err = d.ask(r.Context(), in)
		}
		d.answer(w, out, err)
	})
	mux.Put("/v1/ocp/consents/{provider}", func(w http.ResponseWriter, r *http.Request) {
		var in api.ContextConsent
		err := decodeBody(r, maxContextBody, &in)
		if err == nil {
			err = d.consent(r.Context(), pathParam(r, "provider"), &in)
		}
		d.answer(w, struct{}{}, err)
	})
	mux.Delete("/v1/ocp/consents/{provider}", func(w http.ResponseWriter, r *http.Request) {
		d.answer(w, struct{}{}, d.consent(r.Context(), pathParam(r, "provider"), nil))
	})
}

// answer answers the hub, which learns no internal texts.
func (d contextDesk) answer(w http.ResponseWriter, v any, err error) {
	var e *api.Error
	switch {
	case err == nil:
		tasks.WriteJSON(w, http.StatusOK, v)
		return
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e = api.Errorf(api.CodeUnavailable, "the request ended before it was done")
	default:
		d.log.Error("a request about context providers failed", "err", err)
		e = api.Errorf(api.CodeInternal, "something went wrong in the node; its log says what")
	}
	tasks.WriteError(w, e)
}

// pathParam is a part of a request's path as it was meant.
func pathParam(r *http.Request, name string) string {
	v := chi.URLParam(r, name)
	if r.URL.RawPath != "" { // then it is as it was sent
		v, _ = url.PathUnescape(v) // the server has parsed it before
	}
	return v
}
