package peers

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"opencode-mesh/protocol/peers"
)

const (
	// ReadyWait is how long a message waits for the endpoint's messages to be read from
	// the disk, after a start.
	ReadyWait = 10 * time.Second
	// acceptTimeout bounds what is done for one request, the lock of the spool included,
	// for which a message waits for spool.AcceptTimeout only. It does not end with the
	// client: what was begun is finished.
	acceptTimeout = 8 * time.Second
)

// ServeHTTP takes the requests of peers. The order of the checks is that of the
// original, which others rely on.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := s.bearer(r.Header.Get("Authorization"))
	switch {
	case e == nil:
		fail(w, http.StatusUnauthorized, "unauthorized")
	case r.Method == http.MethodGet && r.RequestURI == "/health":
		answer(w, http.StatusOK, []byte(`{"ok":true}`))
	case r.Method == http.MethodPost && r.RequestURI == "/message":
		s.serveMessage(w, r, e)
	case r.Method == http.MethodPost && r.RequestURI == "/ack":
		s.serveAck(w, r, e)
	default:
		fail(w, http.StatusNotFound, "not found")
	}
}

// bearer is the endpoint that a header has the token of. All are compared, and each in
// constant time, so that the time tells nothing about any.
func (s *Service) bearer(header string) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *endpoint
	for _, e := range s.endpoints {
		if subtle.ConstantTimeCompare([]byte(header), []byte("Bearer "+e.token)) == 1 {
			found = e
		}
	}
	return found
}

// body reads the JSON of a request; if it is none, that was answered.
func (s *Service) body(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	limit := int64(s.cfg.Options.MaxBody())
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case r.ContentLength > limit, errors.As(err, &large):
		w.Header().Set("Connection", "close")
		fail(w, http.StatusRequestEntityTooLarge, "message too large")
		return nil, false
	case err != nil, !json.Valid(b):
		fail(w, http.StatusBadRequest, "invalid json")
		return nil, false
	}
	return b, true
}

func (s *Service) serveMessage(w http.ResponseWriter, r *http.Request, e *endpoint) {
	b, ok := s.body(w, r)
	if !ok {
		return
	}
	m, err := peers.ReadMessage(b)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid message shape")
		return
	}
	switch age := math.Abs(float64(s.cfg.now().UnixMilli()) - m.SentAt); {
	case len(m.Text) > s.cfg.Options.MaxMessageBytes:
		fail(w, http.StatusRequestEntityTooLarge, "message too large")
		return
	case age > float64(s.cfg.Options.MaxMessageAge.Milliseconds()):
		fail(w, http.StatusBadRequest, "stale message")
		return
	case !m.V1 && m.ToEndpoint != e.id || !e.awaitReady(r.Context()):
		fail(w, http.StatusNotFound, "endpoint not found")
		return
	case !s.received.allow(rated{from: m.FromEndpoint, to: e.id}):
		answerReceipt(w, peers.Full)
		return
	}
	got, err := s.receive(r.Context(), e, m)
	if errors.Is(err, ErrNoEndpoint) {
		fail(w, http.StatusNotFound, "endpoint not found")
		return
	}
	if err != nil {
		s.cfg.Log.Error("peers: a message could not be kept, so its sender was told", "endpoint", e.id, "err", err)
		fail(w, http.StatusInternalServerError, "internal error")
		return
	}
	answerReceipt(w, got)
}

func (s *Service) serveAck(w http.ResponseWriter, r *http.Request, e *endpoint) {
	b, ok := s.body(w, r)
	if !ok {
		return
	}
	a, err := peers.ReadAck(b)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid acknowledgement shape")
		return
	}
	if err := s.acked(r.Context(), e, a); err != nil {
		s.cfg.Log.Error("peers: a final acknowledgement could not be kept, so it will come again", "endpoint", e.id, "err", err)
		w.WriteHeader(http.StatusInternalServerError) // without a body, as the original does
		return
	}
	answer(w, http.StatusAccepted, peers.EncodeReceipt("accepted"))
}

// acked takes a final acknowledgement: the outbox knows it, or whoever relays.
func (s *Service) acked(ctx context.Context, e *endpoint, a peers.Ack) error {
	if a.FromEndpoint != e.id {
		return nil // the token of another endpoint says nothing about this one
	}
	if !s.enter() {
		return errStopping // and so it comes again
	}
	defer s.work.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptTimeout)
	defer cancel()
	applied, err := s.outbox.Ack(a)
	if applied || err != nil {
		s.settled(e.id)
		return err
	}
	_, err = e.receiver().Acked(ctx, a)
	return err
}

func answerReceipt(w http.ResponseWriter, receipt string) {
	answer(w, peers.HTTPStatus(receipt), peers.EncodeReceipt(receipt))
}

// fail answers with words that need no escaping.
func fail(w http.ResponseWriter, code int, words string) {
	answer(w, code, []byte(`{"error":"`+words+`"}`))
}

func answer(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // whoever went away asks again
}
