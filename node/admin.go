package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/auth/local"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// adminTimeout bounds what one request to the admin socket may take.
const adminTimeout = 10 * time.Second

// admin serves the operator's socket in the data directory. Who may use it is
// decided by the file system (see auth/local).
type admin struct {
	listener net.Listener
	server   *http.Server
	served   chan struct{}
}

// newAdmin opens the socket; the caller holds the journal's lock.
func newAdmin(n *Node) (*admin, error) {
	l, err := local.Listen(n.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	return &admin{listener: l, served: make(chan struct{}), server: &http.Server{
		Handler:           adminRoutes(n),
		ReadHeaderTimeout: adminTimeout,
		WriteTimeout:      adminTimeout,
		ErrorLog:          slog.NewLogLogger(n.cfg.Log.Handler(), slog.LevelDebug),
	}}, nil
}

func (a *admin) start() {
	go func() {
		defer close(a.served)
		_ = a.server.Serve(a.listener) // ends by close
	}()
}

func (a *admin) close() {
	_ = a.server.Close()
	<-a.served
}

// adminRoutes is the interface on the socket.
func adminRoutes(n *Node) http.Handler {
	mux := chi.NewRouter()
	mux.Get("/status", func(w http.ResponseWriter, r *http.Request) {
		tasks.WriteJSON(w, http.StatusOK, n.Status(r.Context()))
	})
	mux.Get("/held", func(w http.ResponseWriter, _ *http.Request) {
		held, err := n.Held()
		if err != nil {
			adminError(w, err)
			return
		}
		tasks.WriteJSON(w, http.StatusOK, held)
	})
	decide := func(do func(task string) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := do(chi.URLParam(r, "id")); err != nil {
				adminError(w, err)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}
	}
	mux.Post("/held/{id}/release", decide(n.Release))
	mux.Post("/held/{id}/refuse", decide(n.Refuse))
	acrossRoutes(mux, n.across)
	peersRoutes(mux, n)
	memoryRoutes(mux, n)
	contextRoutes(mux, n.context)
	return mux
}

// adminError answers an operator, who may read internal texts.
func adminError(w http.ResponseWriter, err error) {
	e := api.Errorf(api.CodeInternal, "%v", err)
	var refusal *api.Error
	switch {
	case errors.As(err, &refusal):
		e = refusal
	case errors.Is(err, tasks.ErrNotHeld):
		e.Code = api.CodeNotFound
	}
	tasks.WriteError(w, e)
}

// Operator calls the node that runs on a data directory. Its methods fail with
// local.ErrNotRunning when none does, and with *api.Error when the node refuses.
type Operator struct{ client *http.Client }

// NewOperator makes an Operator for a data directory.
func NewOperator(dataDir string) *Operator { return &Operator{client: local.Client(dataDir)} }

// Status asks how the node is.
func (o *Operator) Status(ctx context.Context) (s Status, err error) {
	err = o.call(ctx, http.MethodGet, "/status", nil, &s)
	return s, err
}

// Held lists the tasks that wait for an operator.
func (o *Operator) Held(ctx context.Context) (held []tasks.TaskInfo, err error) {
	err = o.call(ctx, http.MethodGet, "/held", nil, &held)
	return held, err
}

// Release lets a held task start.
func (o *Operator) Release(ctx context.Context, task string) error {
	return o.call(ctx, http.MethodPost, "/held/"+url.PathEscape(task)+"/release", nil, nil)
}

// Refuse ends a held task as refused.
func (o *Operator) Refuse(ctx context.Context, task string) error {
	return o.call(ctx, http.MethodPost, "/held/"+url.PathEscape(task)+"/refuse", nil, nil)
}

// call makes one request; in is sent as JSON unless it is nil.
func (o *Operator) call(ctx context.Context, method, path string, in, out any) error {
	return o.callFor(ctx, adminTimeout, method, path, in, out)
}

// callFor is call for what may take longer.
func (o *Operator) callFor(ctx context.Context, most time.Duration, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://local"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("read the node's answer: %w", err)
	case resp.StatusCode > 299:
		return api.DecodeError(resp.StatusCode, answer)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("the node's answer is not what was expected: %w", err)
	}
	return nil
}
