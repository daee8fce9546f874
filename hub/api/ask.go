package api

import (
	"bytes"
	"context"
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"
)

// Ask answers a GET of a path below /v1 as the public interface would answer whoever
// makes r, for the pages that show it.
func (s *Server) Ask(r *http.Request, path string) (status int, body []byte) {
	u, err := url.Parse(path)
	if err != nil {
		return http.StatusBadRequest, nil
	}
	in := r.Clone(context.WithValue(r.Context(), chi.RouteCtxKey, nil)) // a request of its own to the router
	in.Method, in.URL, in.RequestURI, in.Body, in.ContentLength = http.MethodGet, u, path, http.NoBody, 0
	out := &kept{header: http.Header{}, status: http.StatusOK}
	s.public.ServeHTTP(out, in)
	return out.status, out.body.Bytes()
}

// kept is an answer that is kept.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header         { return k.header }
func (k *kept) Write(b []byte) (int, error) { return k.body.Write(b) }
func (k *kept) WriteHeader(status int)      { k.status = status }
