package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

func baseContext(ctx context.Context) func(net.Listener) context.Context {
	return func(net.Listener) context.Context { return ctx }
}

// reply writes a JSON answer.
func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // our own types always marshal
		status, b = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the answer could not be written"}}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// fail answers with an error in the one shape. What is not ours is logged here,
// once, and hidden from the client.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := publicError(err)
	if e.Code == api.CodeInternal {
		s.cfg.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Code == api.CodeUnauthorized || e.Code == api.CodeRevoked {
		w.Header().Set("WWW-Authenticate", `Bearer realm="opencode-mesh"`)
	}
	reply(w, e.Code.Status(), api.ErrorBody{Error: e})
}

// How long a client is asked to wait: for a disk, and for a queue.
const (
	retryTrouble = 5 * time.Second
	retryBusy    = time.Second
)

// publicError turns any error into one that a client may see.
func publicError(err error) *api.Error {
	var e *api.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &tooLarge):
		return api.Errorf(api.CodeTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, store.ErrFull):
		e = api.Errorf(api.CodeDiskFull, "the hub's disk is full; nothing was taken; try again when there is room")
		e.RetryAfter = retryTrouble
	case errors.Is(err, store.ErrReadOnly):
		e = api.Errorf(api.CodeReadOnly, "the hub's disk is read-only; nothing was taken; try again when it is writable")
		e.RetryAfter = retryTrouble
	case errors.Is(err, store.ErrBusy):
		e = api.Errorf(api.CodeUnavailable, "the hub has too much to write; try again")
		e.RetryAfter = retryBusy
	case errors.Is(err, store.ErrFailed), errors.Is(err, store.ErrClosed):
		e = api.Errorf(api.CodeShuttingDown, "the hub is stopping; try again soon")
		e.RetryAfter = retryTrouble
	case errors.Is(err, store.ErrForgotten):
		e = api.Errorf(api.CodeTaskForgotten, "the task ended long ago and was forgotten")
	case errors.Is(err, store.ErrNotFound):
		e = api.Errorf(api.CodeNotFound, "there is no such thing here")
	case errors.Is(err, store.ErrConflict):
		e = api.Errorf(api.CodeConflict, "it changed meanwhile; look again")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e = api.Errorf(api.CodeUnavailable, "the request ended before it was done")
	default:
		e = api.Errorf(api.CodeInternal, "something went wrong in the hub; its log says what")
	}
	return e
}

// decode reads a JSON body of at most limit bytes.
func decode(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	b, err := body(w, r, limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return api.Errorf(api.CodeBadRequest, "the body is not the JSON that is expected: %s", jsonWhy(err))
	}
	return nil
}

// jsonWhy says where a body is wrong, without internal type names.
func jsonWhy(err error) string {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("syntax error at byte %d", syntax.Offset)
	case errors.As(err, &typ):
		return fmt.Sprintf("%q cannot be a %s", typ.Field, quoted(typ.Value))
	}
	return "it ends early"
}

// quoted is what an error repeats of a request.
func quoted(s string) string { return shown.Line(s, 2*api.MaxName) }

func notFound(w http.ResponseWriter, r *http.Request) {
	e := api.Errorf(api.CodeNotFound, "there is no %s here", quoted(r.URL.Path))
	reply(w, e.Code.Status(), api.ErrorBody{Error: e})
}

func methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	e := api.Errorf(api.CodeMethodNotAllowed, "%s does not go with this path", quoted(r.Method))
	reply(w, e.Code.Status(), api.ErrorBody{Error: e})
}

// statusWriter remembers the status for metrics; Unwrap keeps flushing, deadlines
// and hijacking reachable.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap serves http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// measure counts requests by route pattern.
func (s *Server) measure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw := &statusWriter{ResponseWriter: w}
		start := time.Now()
		next.ServeHTTP(sw, r)
		route := chi.RouteContext(r.Context()).RoutePattern()
		if route == "" {
			route = "other"
		}
		method := r.Method
		switch method {
		case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
		default:
			method = "other"
		}
		s.cfg.Metrics.Request(route, method, sw.status, time.Since(start), isStream(route))
	})
}

func isStream(route string) bool {
	switch route {
	case "/v1/events", "/v1/tasks/{id}/events", "/v1/tasks/{id}/artifacts/file", "/v1/tunnel", serviceRoute, servicesBelow, hostRoute:
		return true
	}
	return false
}

// recover turns a panic into an error answer, so that one bad request does not
// end the hub.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // compared by identity, as net/http does
				panic(p)
			}
			s.cfg.Log.Error("a handler panicked", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			s.fail(w, r, errors.New("panic"))
		}()
		next.ServeHTTP(w, r)
	})
}
