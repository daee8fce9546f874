package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/events"
	"opencode-mesh/protocol/api"
)

// eventWriteLimit is how long one event may take to be written before the stream
// is given up; the client comes back with its last id.
const eventWriteLimit = 10 * time.Second

// events streams what the caller may see: its own tasks and every node; an
// operator sees all.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	p := who(r)
	s.stream(w, r, func(e *events.Event) bool {
		return e.Type == api.EventNode || p.Operator() || e.Controller == p.Identity.ID
	})
}

// taskEvents streams one task.
func (s *Server) taskEvents(w http.ResponseWriter, r *http.Request) {
	t, err := s.find(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.stream(w, r, func(e *events.Event) bool { return e.Task == t.ID })
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, filter func(*events.Event) bool) {
	ctx, done, err := s.hold(r, who(r), streams)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer done()
	missed, sub, resync := s.cfg.Bus.Subscribe(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")), filter)
	defer sub.Close()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := &sse{w: w, rc: http.NewResponseController(w), limit: s.cfg.EventTimeout}
	if resync {
		out.value("", api.EventResync, api.Resync{Reason: "the events since then are no longer here; load the state anew"})
	}
	for _, e := range missed {
		out.event(s.cfg.Bus.ID(e), e.Type, e.JSON())
	}
	out.value("", api.EventBeat, api.Beat{At: s.cfg.Now()})
	s.pump(ctx, out, sub)
	switch {
	case ctx.Err() == nil && errors.Is(sub.Err(), events.ErrLagged):
		s.cut(r, "lagged")
	case out.stalled:
		s.cut(r, "stalled")
	}
}

// cut notes that a stream was ended because its client did not keep up.
func (s *Server) cut(r *http.Request, why string) {
	s.cfg.Metrics.StreamCut(why)
	s.cfg.Log.Info("an event stream was cut: its client does not read", "reason", why, "by", who(r).Identity.Name, "peer", s.peer(r))
}

// hold enters a request that stays open, so that a revocation ends it, and the hub's
// end: ctx is its own then. Call done when it is over.
func (s *Server) hold(r *http.Request, by access.Principal, what kind) (ctx context.Context, done func(), err error) {
	ctx, cancel := context.WithCancel(r.Context())
	if by.Browser() {
		ctx, cancel = context.WithDeadline(r.Context(), time.Now().Add(by.Ends.Sub(s.cfg.Now())))
	}
	op := &opening{kind: what, by: by, end: cancel}
	if err := s.open.add(ctx, op); err != nil {
		cancel()
		return nil, nil, err
	}
	stopping := context.AfterFunc(s.ctx, cancel)
	return ctx, func() {
		stopping()
		cancel()
		s.open.remove(op)
	}, nil
}

// pump writes events until the client, the hub or a revocation ends the stream.
func (s *Server) pump(ctx context.Context, out *sse, sub *events.Sub) {
	beat := time.NewTicker(api.EventHeartbeat)
	defer beat.Stop()
	for out.err == nil {
		out.flush()
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			out.value("", api.EventBeat, api.Beat{At: s.cfg.Now()})
		case e, ok := <-sub.C:
			if !ok { // did not keep up, or the hub stops: the client resumes
				if errors.Is(sub.Err(), events.ErrLagged) {
					out.value("", api.EventCut, api.Cut{Reason: "events came faster than they were read; resume after the last one"})
					out.flush()
				}
				return
			}
			out.event(s.cfg.Bus.ID(e), e.Type, e.JSON())
			for more := true; more && out.err == nil; { // one flush for what waits already
				select {
				case e, ok := <-sub.C:
					if ok {
						out.event(s.cfg.Bus.ID(e), e.Type, e.JSON())
					}
					more = ok
				default:
					more = false
				}
			}
		}
	}
}

// sse writes server-sent events; err is the first failure.
type sse struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration // for one write
	err   error
	// stalled says that err came when that time was over.
	stalled bool
	begun   time.Time // of the present write
}

func (o *sse) event(id, typ string, data []byte) {
	if o.err != nil {
		return
	}
	o.begun = time.Now()
	_ = o.rc.SetWriteDeadline(o.begun.Add(o.limit))
	var err error
	if id != "" {
		_, err = fmt.Fprintf(o.w, "id: %s\nevent: %s\ndata: %s\n\n", id, typ, data)
	} else {
		_, err = fmt.Fprintf(o.w, "event: %s\ndata: %s\n\n", typ, data)
	}
	o.note(err)
}

// note keeps the first failure.
func (o *sse) note(err error) {
	if err != nil && o.err == nil {
		o.err, o.stalled = err, time.Since(o.begun) >= o.limit
	}
}

func (o *sse) value(id, typ string, v any) {
	b, err := json.Marshal(v)
	if err != nil { // our own types always marshal
		return
	}
	o.event(id, typ, b)
}

// flush ends a write and lifts its limit: HTTP/2 would end a stream whose limit is
// reached while it is silent.
func (o *sse) flush() {
	if o.err == nil {
		o.note(o.rc.Flush())
	}
	if o.err == nil {
		_ = o.rc.SetWriteDeadline(time.Time{})
	}
}
