package api

import (
	"net/http"

	"opencode-mesh/protocol/api"
)

// memory tells a node what it may remember.
func (s *Server) memory(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := numbered(q, "limit", api.MaxMemoryPage/2, 1, api.MaxMemoryPage)
	if err == nil {
		err = s.greeted(r)
	}
	var page api.MemoryPage
	if err == nil {
		page, err = s.cfg.Relay.Memory(r.Context(), linkOf(r).who.Identity.ID, q.Get("after"), limit)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, page)
}
