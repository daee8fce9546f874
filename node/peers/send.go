package peers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/protocol/peers"
)

// retryV1 is after how long a peer of version 1 is tried once more, as the original does.
const retryV1 = 300 * time.Millisecond

// What Send refuses before anything is written or sent.
var (
	ErrSelf  = errors.New("an agent cannot write to itself")
	ErrBlank = errors.New("the message is blank")
)

// TooLongError means that a message is larger than receivers take.
type TooLongError struct {
	Bytes, Max int
	// Encoded: as it is sent, in which control characters have six bytes each.
	Encoded bool
}

func (e *TooLongError) Error() string {
	if e.Encoded {
		return fmt.Sprintf("the message has %d bytes as it is sent, because of control characters in it, and %d is the most: take them out", e.Bytes, e.Max)
	}
	return fmt.Sprintf("the message has %d bytes, and %d is the most: put it into a file and name that", e.Bytes, e.Max)
}

// RateError means that a target got as many messages as it may in a minute.
type RateError struct{ PerMinute int }

func (e *RateError) Error() string {
	return fmt.Sprintf("this target got %d messages within a minute, which is the most: wait a moment", e.PerMinute)
}

// Send writes a text from one of our endpoints to a peer. What was sent is in the outbox
// before it goes out, and the record that is returned says what the peer answered: a
// receipt of full, refused or dropped means that it is not there. Without a receipt there
// is an error; MayHaveArrived says of it whether the message may have arrived all the same,
// when a final acknowledgement will tell.
//
// It is posted once; a peer of version 1, which recognises a message that comes twice, may
// get it a second time.
func (s *Service) Send(ctx context.Context, from string, to registry.Peer, text string) (outbox.Record, error) {
	e := s.find(from)
	text = strings.ToValidUTF8(text, "\uFFFD")
	most := s.cfg.Options.MaxMessageBytes
	switch {
	case e == nil:
		return outbox.Record{}, ErrNoEndpoint
	case to.EndpointID == from:
		return outbox.Record{}, ErrSelf
	case strings.TrimSpace(text) == "":
		return outbox.Record{}, ErrBlank
	case len(text) > most:
		return outbox.Record{}, &TooLongError{Bytes: len(text), Max: most}
	case !to.Alive:
		return outbox.Record{}, fmt.Errorf("%w: %s", ErrOffline, to.Reason)
	}
	what := e.told()
	m := peers.Message{
		ID: peers.NewMessageID(), FromEndpoint: from, ToEndpoint: to.EndpointID, V1: to.V1, Text: text, Via: []string{from},
		From:   peers.Sender{InstanceID: from, Name: what.Name, Directory: what.Directory},
		SentAt: float64(s.cfg.now().UnixMilli()),
	}
	if n := len(m.Encode()); n > s.cfg.Options.MaxBody() {
		return outbox.Record{}, &TooLongError{Bytes: n, Max: s.cfg.Options.MaxBody(), Encoded: true}
	}
	if !s.sent.allow(rated{from: from, to: to.EndpointID}) {
		return outbox.Record{}, &RateError{PerMinute: s.cfg.Options.SendRate}
	}
	if !s.enter() {
		return outbox.Record{}, errStopping
	}
	defer s.work.Done()
	s.traces.note(ctx, from)
	if err := s.outbox.Begin(outbox.Record{MessageID: m.ID, FromEndpoint: from, ToEndpoint: to.EndpointID, ToName: to.Name, Text: text}); err != nil {
		return outbox.Record{}, fmt.Errorf("keep the message before it is sent: %w", err)
	}
	receipt, err := s.post(ctx, to, m)
	switch {
	case err == nil:
		if err = s.outbox.Receipt(from, m.ID, receipt); err != nil {
			err = &Unknown{Err: err} // the peer has answered: it was under way
		}
	case gone(err):
		err = errors.Join(err, s.outbox.Unsent(from, m.ID, nil))
	case MayHaveArrived(err):
		err = errors.Join(err, s.outbox.Failed(from, m.ID, err))
	default:
		err = errors.Join(err, s.outbox.Unsent(from, m.ID, err))
	}
	r, readErr := s.outbox.Get(from, m.ID)
	return r, errors.Join(err, readErr)
}

// post sends a message, to a peer of version 1 twice if need be.
func (s *Service) post(ctx context.Context, to registry.Peer, m peers.Message) (receipt string, err error) {
	receipt, err = s.Post(ctx, to, m)
	var refused *StatusError
	if err == nil || !to.V1 || errors.As(err, &refused) {
		return receipt, err
	}
	first := err
	defer func() {
		if err != nil && MayHaveArrived(first) && !MayHaveArrived(err) {
			err = &Unknown{Err: err} // the first attempt may have, whatever came of the second
		}
	}()
	select {
	case <-ctx.Done():
		return "", err
	case <-time.After(retryV1):
	}
	if receipt, err = s.Post(ctx, to, m); err == nil || errors.As(err, &refused) {
		return receipt, err
	}
	at, placeErr := placeOf(to.Entry)
	if placeErr != nil {
		return "", placeErr
	}
	if code, _, healthErr := call(ctx, at, http.MethodGet, "/health", nil); healthErr == nil && code == http.StatusOK {
		return "", fmt.Errorf("the peer is there and does not take the message: %w", err)
	}
	return "", fmt.Errorf("%w: %w", ErrOffline, err)
}

// Post sends a message once and returns the receipt. Nothing is kept of it. *Unknown means
// that it may have arrived, *StatusError that the peer answered something else; with
// other errors it was not sent.
func (s *Service) Post(ctx context.Context, to registry.Peer, m peers.Message) (receipt string, err error) {
	at, err := placeOf(to.Entry)
	if err != nil {
		return "", fmt.Errorf("send to the peer: %w", err)
	}
	m.V1 = to.V1
	code, answer, err := call(ctx, at, http.MethodPost, "/message", m.Encode())
	if err != nil {
		return "", err
	}
	return receiptOf(code, answer)
}

// MayHaveArrived reports whether an error of Send or Post leaves open that the peer has
// the message: it was under way, or the peer answered what can be said after it was kept.
func MayHaveArrived(err error) bool {
	var unknown *Unknown
	var answer *StatusError
	if errors.As(err, &unknown) {
		return true
	}
	return errors.As(err, &answer) && (answer.Code < 300 || answer.Code >= 500)
}

// gone reports that a peer does not know the endpoint or token any more, of which the
// original keeps nothing.
func gone(err error) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Gone()
}

// placeV1 reads where a peer of version 1 listens.
func placeV1(e peers.Entry) (place, error) {
	p := place{token: e.InboxToken}
	host, port, err := hostPort(e.InboxURL)
	if err != nil {
		return p, err
	}
	return loopback(p, host, port)
}
