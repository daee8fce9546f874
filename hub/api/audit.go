package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// audit lists the audit log: oldest first after an entry, or newest first where
// before is in the query. format=jsonl is all of it as a file.
func (s *Server) audit(w http.ResponseWriter, r *http.Request) {
	q, err := auditQuery(r.URL.Query())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if r.URL.Query().Get("format") == "jsonl" {
		s.auditFile(w, r, q)
		return
	}
	page, err := s.cfg.Store.Audit(r.Context(), q)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, api.AuditPage{Entries: append([]api.AuditEntry{}, page.Entries...), Next: page.Next})
}

func auditQuery(v url.Values) (q store.AuditQuery, err error) {
	q = store.AuditQuery{Newest: v.Has("before"), Action: v.Get("action"), Name: v.Get("name")}
	if q.Newest && v.Has("after") {
		return q, api.Errorf(api.CodeBadRequest, "after lists the oldest entry first and before the newest; give one of them")
	}
	for name, to := range map[string]*uint64{"after": &q.After, "before": &q.Before} {
		if text := v.Get(name); text != "" {
			if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
				return q, api.Errorf(api.CodeBadRequest, "%s is the number of an entry", name)
			}
		}
	}
	switch v.Get("format") {
	case "", "json", "jsonl":
	default:
		return q, api.Errorf(api.CodeBadRequest, "format is json or jsonl")
	}
	q.Limit, err = numbered(v, "limit", api.MaxPage, 1, api.MaxPage)
	return q, err
}

// auditFile sends every entry that a query means as a line of JSON, page by page. What
// goes wrong on the way cuts the connection, so that a part is never taken for the
// whole.
func (s *Server) auditFile(w http.ResponseWriter, r *http.Request, q store.AuditQuery) {
	ctx, done, err := s.hold(r, who(r), streams)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer done()
	q.Limit = api.MaxPage
	page, err := s.cfg.Store.Audit(ctx, q)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Content-Disposition", attachment("audit-"+s.cfg.Now().Format("20060102-150405")+".jsonl"))
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	rc, lines := http.NewResponseController(w), json.NewEncoder(w)
	for {
		_ = rc.SetWriteDeadline(time.Now().Add(s.cfg.ArtifactStall))
		for _, e := range page.Entries {
			if err == nil {
				err = lines.Encode(e)
			}
		}
		if err == nil {
			err = rc.Flush()
		}
		if q.Newest {
			q.Before = page.Next
		} else {
			q.After = page.Next
		}
		switch {
		case err != nil, ctx.Err() != nil:
			s.cfg.Log.Debug("the audit log was not sent whole", "err", err)
			panic(http.ErrAbortHandler)
		case page.Next == 0:
			_ = rc.SetWriteDeadline(time.Time{}) // the connection goes on
			return
		}
		page, err = s.cfg.Store.Audit(ctx, q)
	}
}
