package board

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// Routes adds what the hub may ask.
func (b *Board) Routes(mux chi.Router) {
	mux.Get("/v1/opencomms/channels", func(w http.ResponseWriter, r *http.Request) {
		list, err := b.List(r.Context())
		answer(w, list, err)
	})
	mux.Get("/v1/opencomms/channels/{project}/{name}/messages", func(w http.ResponseWriter, r *http.Request) {
		page, err := b.page(r)
		answer(w, page, err)
	})
}

func (b *Board) page(r *http.Request) (api.ChannelMessages, error) {
	limit := api.DefaultChannelPage
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > api.MaxChannelPage {
			return api.ChannelMessages{}, api.Errorf(api.CodeBadRequest, "limit is a number from 1 to %d", api.MaxChannelPage)
		}
		limit = n
	}
	name := chi.URLParam(r, "name")
	if r.URL.RawPath != "" { // then it is as it was sent
		name, _ = url.PathUnescape(name) // the server has parsed it before
	}
	return b.Messages(r.Context(), chi.URLParam(r, "project"), name, limit, r.URL.Query().Get("before"))
}

func answer(w http.ResponseWriter, v any, err error) {
	var e *api.Error
	switch {
	case err == nil:
		tasks.WriteJSON(w, http.StatusOK, v)
		return
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e = api.Errorf(api.CodeUnavailable, "the request ended before it was done")
	default:
		e = api.Errorf(api.CodeInternal, "something went wrong in the node; its log says what")
	}
	tasks.WriteError(w, e)
}
