package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/federation"
	"opencode-mesh/hub/relay"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// dispatch creates tasks; the answer comes once they are on disk.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	var d api.Dispatch
	if err := decode(w, r, api.MaxBody, &d); err != nil {
		s.fail(w, r, err)
		return
	}
	if d.ContextQuery != "" && !federation.ValidID(d.ContextQuery) {
		s.fail(w, r, api.Errorf(api.CodeBadRequest, "context_query is the id that the answer to a context query has, not %q: give that, or leave it out", quoted(d.ContextQuery)))
		return
	}
	made, err := s.submit(r, d)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.composed(r, d.ContextQuery, made)
	out := api.Dispatched{Tasks: make([]api.Task, len(made))}
	for i, t := range made {
		out.Tasks[i] = s.cfg.Relay.Live(t)
	}
	reply(w, http.StatusCreated, out)
}

func (s *Server) submit(r *http.Request, d api.Dispatch) ([]store.Task, error) {
	const action = "dispatched"
	object, detail := dispatchEntry(d)
	by := relay.Author{
		Identity: who(r).Identity, Token: r.Header.Get(api.TaskTokenHeader),
		Entry: s.cfg.Access.Acting(who(r), s.peer(r), action, object, detail),
	}
	// What was accepted must not depend on whether the client still listens.
	made, err := s.cfg.Relay.Submit(context.WithoutCancel(r.Context()), by, d)
	if err == nil {
		s.cfg.Access.Acted(who(r), action, by.Entry)
	}
	return made, err
}

// dispatchEntry is what the audit log says of a dispatch: its targets, and how and
// under which ids.
func dispatchEntry(d api.Dispatch) (object, detail string) {
	const most = 3 // of each are named
	var names, ids []string
	for _, t := range d.Targets[:min(len(d.Targets), most)] {
		names, ids = append(names, t.Name), append(ids, t.ID)
	}
	more := ""
	if n := len(d.Targets) - most; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ") + more, cmp.Or(d.Mode, string(mesh.ModeSession)) + " " + strings.Join(ids, ", ") + more
}

// find loads the task of the path if the caller may see it. A task of somebody
// else looks like none (semantics 11).
func (s *Server) find(r *http.Request) (store.Task, error) {
	id := chi.URLParam(r, "id")
	t, err := s.cfg.Relay.Task(r.Context(), id)
	owner := t.Controller.ID
	if errors.Is(err, store.ErrForgotten) {
		tomb, terr := s.cfg.Store.Tombstone(r.Context(), id)
		owner, err = tomb.Controller, errors.Join(err, terr)
	}
	if errors.Is(err, store.ErrNotFound) || !who(r).Operator() && owner != who(r).Identity.ID {
		return store.Task{}, api.Errorf(api.CodeUnknownTask, "there is no task %q of yours", quoted(id))
	}
	return t, err
}

// task answers with one task; wait=DURATION holds the answer back until it is
// settled or asks something.
func (s *Server) task(w http.ResponseWriter, r *http.Request) {
	t, err := s.find(r)
	if err == nil && r.URL.Query().Has("wait") {
		t, err = s.wait(r, t)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	v, err := s.cfg.Relay.Detail(r.Context(), t)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, v)
}

func (s *Server) wait(r *http.Request, t store.Task) (store.Task, error) {
	d, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil || d < 0 {
		return t, api.Errorf(api.CodeBadRequest, "wait is a duration such as 30s, at most %s", api.MaxWait)
	}
	ctx, done, err := s.hold(r, who(r), streams)
	if err != nil {
		return t, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, min(d, api.MaxWait))
	defer cancel()
	return s.cfg.Relay.Wait(ctx, t.ID, true)
}

func (s *Server) tasks(w http.ResponseWriter, r *http.Request) {
	q, err := s.taskQuery(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	page, err := s.cfg.Store.Tasks(r.Context(), q)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := api.TaskPage{Tasks: make([]api.Task, len(page.Tasks)), Stopped: page.Stopped}
	for i, t := range page.Tasks {
		out.Tasks[i] = s.cfg.Relay.Live(t)
	}
	if page.Next > 0 {
		out.Next = strconv.FormatUint(page.Next, 10)
	}
	reply(w, http.StatusOK, out)
}

func (s *Server) taskQuery(r *http.Request) (store.TaskQuery, error) {
	v := r.URL.Query()
	q := store.TaskQuery{Limit: api.DefaultPage, Open: v.Get("open") == "true"}
	if !who(r).Operator() {
		q.Controller = who(r).Identity.ID
	} else if name := v.Get("controller"); name != "" {
		id, err := s.named(r.Context(), name)
		if err != nil {
			return q, err
		}
		q.Controller = id
	}
	if name := v.Get("target"); name != "" {
		id, err := s.named(r.Context(), name)
		if err != nil {
			return q, err
		}
		q.Target = id
	}
	for _, st := range v["state"] {
		if !api.State(st).Valid() {
			return q, api.Errorf(api.CodeBadRequest, "%q is not a state", quoted(st))
		}
		if !slices.Contains(q.States, api.State(st)) {
			q.States = append(q.States, api.State(st))
		}
	}
	var err error
	if q.Limit, err = numbered(v, "limit", api.DefaultPage, 1, api.MaxPage); err != nil {
		return q, err
	}
	if q.Text = strings.TrimSpace(v.Get("q")); len(q.Text) > api.MaxQuery {
		return q, api.Errorf(api.CodeBadRequest, "q is a text of at most %d bytes", api.MaxQuery)
	}
	if c := v.Get("before"); c != "" {
		i, err := strconv.ParseUint(c, 10, 64)
		if err != nil {
			return q, api.Errorf(api.CodeBadRequest, "before is the cursor of an earlier page")
		}
		q.Before = i
	}
	return q, nil
}

// numbered reads a number of a query, which is absent if it is not given.
func numbered(v url.Values, name string, absent, least, most int) (int, error) {
	text := v.Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, api.Errorf(api.CodeBadRequest, "%s is a number from %d to %d", name, least, most)
	}
	return n, nil
}

func (s *Server) named(ctx context.Context, name string) (string, error) {
	id, err := s.cfg.Store.IdentityByName(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return "", api.Errorf(api.CodeUnknownTarget, "nobody is named %q", quoted(name))
	}
	return id.ID, err
}

// act runs a change of one task and answers with the task. The audit log has it under
// action; "": do sees to that.
func (s *Server) act(w http.ResponseWriter, r *http.Request, action string, do func(ctx context.Context, id string) (store.Task, error)) {
	t, err := s.find(r)
	if err == nil {
		t, err = do(context.WithoutCancel(r.Context()), t.ID)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if action != "" {
		s.cfg.Access.Act(who(r), s.peer(r), action, t.ID, t.Controller.Name+" -> "+t.Target.Name)
	}
	reply(w, http.StatusOK, s.cfg.Relay.Live(t))
}

func (s *Server) cancel(w http.ResponseWriter, r *http.Request) {
	s.act(w, r, "canceled", s.cfg.Relay.Cancel)
}

func (s *Server) retry(w http.ResponseWriter, r *http.Request) {
	s.act(w, r, "retried", s.cfg.Relay.Retry)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	var a api.Answer
	if err := decode(w, r, api.MaxBody, &a); err != nil {
		s.fail(w, r, err)
		return
	}
	s.act(w, r, "answered", func(ctx context.Context, id string) (store.Task, error) {
		return s.cfg.Relay.Answer(ctx, id, a.Question, a.Text)
	})
}

// envelope takes a ready-made envelope text (?target=NAME) and answers with the
// task; with wait=DURATION it answers with the reply text once there is one.
func (s *Server) envelope(w http.ResponseWriter, r *http.Request) {
	text, err := body(w, r, api.MaxBody)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	env, err := mesh.ParseEnvelope(string(text))
	if err != nil {
		s.fail(w, r, envelopeError(err))
		return
	}
	if me := who(r).Identity.Name; env.From != me {
		s.cfg.Access.Refused(r.Context(), who(r), s.peer(r), "from_mismatch", env.Task, env.From)
		s.fail(w, r, api.Errorf(api.CodeFromMismatch, "the envelope says from: %s, but you are %s", quoted(env.From), me))
		return
	}
	d, err := travel(r.URL.Query())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	d.Targets = []api.DispatchTarget{{Name: r.URL.Query().Get("target"), ID: env.Task}}
	d.Text, d.Mode = env.Body, string(env.Mode)
	made, err := s.submit(r, d)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	t := made[0]
	if r.URL.Query().Has("wait") {
		if t, err = s.wait(r, t); err != nil {
			s.fail(w, r, err)
			return
		}
		if t.State.Settled() || t.State == api.StateQuestion {
			s.replyText(w, r, t)
			return
		}
	}
	reply(w, http.StatusAccepted, s.cfg.Relay.Live(t))
}

// travel reads what an envelope does not say: fields of a Dispatch, under their names.
func travel(v url.Values) (api.Dispatch, error) {
	d := api.Dispatch{New: v.Get("new") == "true", Workspace: v.Get("workspace"), AutoAnswer: v.Get("auto_answer")}
	var compact int64
	for name, to := range map[string]*int64{
		"ttl_ms": &d.TTLMS, "deadline_ms": &d.DeadlineMS, "question_timeout_ms": &d.QuestionTimeoutMS, "auto_compact": &compact,
	} {
		if text := v.Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return d, api.Errorf(api.CodeBadRequest, "%s is a number", name)
			}
			*to = n
		}
	}
	d.AutoCompact = int(min(max(compact, -1), math.MaxInt32)) // what is no percentage stays none
	return d, nil
}

// replyText answers with the agent's reply as it was received.
func (s *Server) replyText(w http.ResponseWriter, r *http.Request, t store.Task) {
	v, err := s.cfg.Relay.Detail(r.Context(), t)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Mesh-Task-State", string(t.State))
	_, _ = io.WriteString(w, v.Reply)
}

func envelopeError(err error) error {
	var syn *mesh.SyntaxError
	if !errors.As(err, &syn) {
		return err
	}
	code := api.CodeMalformedEnvelope
	switch syn.Code {
	case mesh.CodeUnsupportedVersion:
		code = api.CodeUnsupportedVersion
	case mesh.CodeTooLarge:
		code = api.CodeTooLarge
	}
	e := api.Errorf(code, "%s", err.Error())
	e.Line = syn.Line
	return e
}
