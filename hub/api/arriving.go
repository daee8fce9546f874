package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"opencode-mesh/protocol/api"
)

// body reads a body of at most limit bytes.
func body(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if _, ok := r.Body.(*roomyBody); ok && r.ContentLength > 0 && r.ContentLength <= limit {
		b.Grow(int(r.ContentLength) + bytes.MinRead) // there is room for it, not for copies while it grows
	}
	_, err := b.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	if err == nil { // else the server still reads, in the time that arriving gave
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	var tooLarge *http.MaxBytesError
	var refusal *api.Error
	if err != nil && !errors.As(err, &tooLarge) && !errors.As(err, &refusal) {
		return nil, api.Errorf(api.CodeBadRequest, "the body did not arrive whole")
	}
	return b.Bytes(), err
}

// arriving bounds how long a request's body may take, whether or not its handler
// reads it: the server reads what is left before it answers.
func (s *Server) arriving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			s.mustArrive(w)
		}
		next.ServeHTTP(w, r)
	})
}

// mustArrive starts the time that a body has.
func (s *Server) mustArrive(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout))
}

// withRoom has the body of a request from inside a tunnel wait until there is room for
// it: bodies are large there and a node has many streams, by which a slow or hostile one
// could fill the hub's memory. The room is held until the request has been answered.
func (s *Server) withRoom(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		b := &roomyBody{ReadCloser: r.Body, server: s, w: w, link: linkOf(r), bytes: r.ContentLength, release: func() {}}
		if b.bytes < 0 || b.bytes > api.MaxTunnelBody {
			b.bytes = api.MaxTunnelBody // more is not read
		}
		defer func() { b.release() }()
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// roomyBody is a body that takes room before it is read.
type roomyBody struct {
	io.ReadCloser
	server  *Server
	w       http.ResponseWriter
	link    *link
	bytes   int64
	asked   bool
	err     error
	release func()
}

// Read implements io.Reader.
func (b *roomyBody) Read(p []byte) (int, error) {
	if !b.asked {
		b.asked = true
		b.err = b.take()
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}

// take waits for room. The time that the body has begins when there is some.
func (b *roomyBody) take() error {
	ctx, cancel := context.WithTimeout(b.link.session.Context(), b.server.cfg.RoomTimeout)
	defer cancel()
	release, err := b.server.room.Take(ctx, b.link.who.Identity.ID, b.bytes)
	if err != nil {
		e := api.Errorf(api.CodeUnavailable, "node %s sends more than the hub can take at a time; try again", b.link.who.Identity.Name)
		e.RetryAfter = retryBusy
		return e
	}
	b.release = release
	b.server.mustArrive(b.w)
	return nil
}
