package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"opencode-mesh/auth"
	"opencode-mesh/auth/local"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

// Admin returns a client of the local admin interface (URLs start with
// http://local) of the hub in dir: of the running process, or of the files when
// none runs. done releases the files.
func Admin(ctx context.Context, dir string, log *slog.Logger) (hc *http.Client, done func() error, err error) {
	hc = local.Client(dir)
	resp, err := hc.Get("http://local/v1/link")
	if err == nil {
		_ = resp.Body.Close()
		return hc, func() error { return nil }, nil
	}
	if !errors.Is(err, local.ErrNotRunning) {
		return nil, nil, err
	}
	cfg := Config{DataDir: dir, Log: log}
	if err := cfg.complete(); err != nil {
		return nil, nil, err
	}
	h := &Hub{cfg: cfg, log: log}
	if h.store, err = bolt.Open(bolt.Config{Dir: dir, Log: log}); err != nil {
		return nil, nil, err
	}
	if err := h.wire(ctx); err != nil {
		return nil, nil, errors.Join(err, h.store.Close())
	}
	if b, _, err := h.store.Setting(ctx, linkKey); err == nil {
		if h.link, err = auth.ParseLink(string(b)); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("stored join link: %w", err), h.store.Close())
		}
	} else if !errors.Is(err, store.ErrNotFound) {
		return nil, nil, errors.Join(err, h.store.Close())
	}
	return &http.Client{Transport: inProcess{h.api.Admin()}}, func() error {
		h.api.Close(ctx)
		return h.stopStore(ctx)
	}, nil
}

// inProcess calls a handler without a connection. Answers are buffered.
type inProcess struct{ h http.Handler }

// errAborted is what a client sees of an answer that was cut.
var errAborted = errors.New("the answer was cut; the log says why")

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(r *http.Request) (_ *http.Response, err error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer func() {
		switch p := recover(); {
		case p == http.ErrAbortHandler: //nolint:errorlint // compared by identity, as net/http does
			err = errAborted
		case p != nil:
			panic(p)
		}
	}()
	w := &answer{header: http.Header{}, status: http.StatusOK}
	t.h.ServeHTTP(w, r)
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
func (a *answer) WriteHeader(status int)      { a.status = status }
