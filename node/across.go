package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/opencomms/across"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// maxAdminBody is the largest request of an operator, in bytes.
const maxAdminBody = 64 << 10

// acrossRoutes are those for links of channels on the admin socket.
func acrossRoutes(mux chi.Router, a *across.Across) {
	mux.Get("/opencomms/links", func(w http.ResponseWriter, _ *http.Request) {
		list, err := a.Links()
		answerAdmin(w, list, err)
	})
	mux.Get("/opencomms/status", func(w http.ResponseWriter, r *http.Request) {
		s, err := a.Status(r.URL.Query().Get("project"))
		answerAdmin(w, s, err)
	})
	mux.Post("/opencomms/link", func(w http.ResponseWriter, r *http.Request) {
		var req across.LinkRequest
		if !readAdmin(w, r, &req) {
			return
		}
		l, err := a.Link(r.Context(), req)
		answerAdmin(w, l, err)
	})
	mux.Post("/opencomms/unlink", func(w http.ResponseWriter, r *http.Request) {
		var req across.UnlinkRequest
		if !readAdmin(w, r, &req) {
			return
		}
		l, err := a.Unlink(r.Context(), req)
		answerAdmin(w, l, err)
	})
}

func readAdmin(w http.ResponseWriter, r *http.Request, v any) bool {
	err := decodeBody(r, maxAdminBody, v)
	if err != nil {
		adminError(w, err)
	}
	return err == nil
}

// decodeBody reads the body of a request.
func decodeBody(r *http.Request, most int64, v any) error {
	err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, most)).Decode(v)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return api.Errorf(api.CodeTooLarge, "the request has more than %d bytes", most)
	case err != nil:
		return api.Errorf(api.CodeBadRequest, "the request is not as it should be: %v", err)
	}
	return nil
}

func answerAdmin(w http.ResponseWriter, v any, err error) {
	if err != nil {
		adminError(w, err)
		return
	}
	tasks.WriteJSON(w, http.StatusOK, v)
}

// Links lists the links of the node.
func (o *Operator) Links(ctx context.Context) (list []across.Link, err error) {
	err = o.call(ctx, http.MethodGet, "/opencomms/links", nil, &list)
	return list, err
}

// Across asks how the links of a project are.
func (o *Operator) Across(ctx context.Context, project string) (s across.Status, err error) {
	err = o.call(ctx, http.MethodGet, "/opencomms/status?project="+url.QueryEscape(project), nil, &s)
	return s, err
}

// Link makes a link.
func (o *Operator) Link(ctx context.Context, r across.LinkRequest) (l across.Link, err error) {
	err = o.call(ctx, http.MethodPost, "/opencomms/link", r, &l)
	return l, err
}

// Unlink ends a link.
func (o *Operator) Unlink(ctx context.Context, r across.UnlinkRequest) (l across.Link, err error) {
	err = o.call(ctx, http.MethodPost, "/opencomms/unlink", r, &l)
	return l, err
}
