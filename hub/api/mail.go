package api

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/protocol/api"
)

// maxMailRequest is the largest request of a node about mail, in bytes: a mail with
// what is around its body.
const maxMailRequest = api.MaxMailBody + 64<<10

// mail takes a mail from a node. 202: it is on disk and on its way; 200: it was known,
// and the answer says how far it is.
func (s *Server) mail(w http.ResponseWriter, r *http.Request) {
	var m api.Mail
	err := decode(w, r, maxMailRequest, &m)
	if err == nil {
		err = s.greeted(r)
	}
	if m.ID = chi.URLParam(r, "id"); err == nil {
		err = m.Check()
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	rc, fresh, err := s.cfg.Mail.Accept(context.WithoutCancel(r.Context()), linkOf(r).who.Identity, m)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	status := http.StatusOK
	if fresh {
		status = http.StatusAccepted
	}
	reply(w, status, rc)
}

// mailKnown tells a node which of its mails without a receipt it has to send again.
func (s *Server) mailKnown(w http.ResponseWriter, r *http.Request) {
	var q api.MailQuery
	err := decode(w, r, api.MaxBody, &q)
	if err == nil {
		err = s.greeted(r)
	}
	if err == nil && len(q.IDs) > api.MaxReconcile {
		err = api.Errorf(api.CodeTooLarge, "one question names at most %d mails", api.MaxReconcile)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, s.cfg.Mail.Known(linkOf(r).who.Identity, q.IDs))
}

// greeted refuses what comes through a tunnel before its hello.
func (s *Server) greeted(r *http.Request) error {
	if linkOf(r).registered() == nil {
		return api.Errorf(api.CodeUnavailable, "say hello first")
	}
	return nil
}
