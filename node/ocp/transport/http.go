package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"opencode-mesh/protocol/ocp"
)

// maxErrorBody is how much of a refusal's body is read and shown, in bytes.
const maxErrorBody = 512

// Address is where an HTTP provider is.
type Address struct {
	// ID is the host's name of the provider.
	ID string
	// URL takes every message; nothing is appended to it.
	URL string
	// Token is sent as a bearer token, unless it is empty.
	Token string
	// AllowPlain permits http:// to other machines.
	AllowPlain bool
	// Quiet: Close sends no shutdown.
	Quiet bool
	// Timeout bounds each exchange, the answer's body included; 0 is ExchangeTimeout.
	Timeout time.Duration
	// Look gets each answer as Command.Look does.
	Look func(answer []byte)
}

// HTTP is a provider behind an HTTP address. It is safe for concurrent use.
type HTTP struct {
	addr   Address
	client *http.Client

	turn    chan struct{} // holds a value while nobody exchanges; guards session
	session session
	closing sync.Once
	closed  chan struct{}
}

// Dial prepares exchanges with an address; nothing is sent yet. Redirects are not
// followed: they would take queries to where nobody consented to.
func Dial(a Address) (*HTTP, error) {
	u, err := url.Parse(a.URL)
	switch {
	case err != nil: // which would repeat the address, password and all
		return nil, fmt.Errorf("provider %s: the URL cannot be read", a.ID)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("provider %s: the URL is not http:// or https:// with a host", a.ID)
	case u.User != nil:
		return nil, fmt.Errorf("provider %s: the URL holds a user or password; give a token instead", a.ID)
	case u.Scheme == "http" && !a.AllowPlain && !loopback(u.Hostname()):
		return nil, &InsecureTransportError{ID: a.ID}
	}
	if a.Timeout <= 0 {
		a.Timeout = ExchangeTimeout
	}
	own := http.DefaultTransport.(*http.Transport).Clone()
	h := &HTTP{
		addr: a, session: session{id: a.ID, look: a.Look}, turn: make(chan struct{}, 1), closed: make(chan struct{}),
		client: &http.Client{
			Transport:     own,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	h.turn <- struct{}{}
	return h, nil
}

// loopback reports whether a host is this machine by its name alone.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Exchange implements Conn. What a provider answers to a handshake is taken with egress,
// whatever it says: the messages leave this process for a network.
func (h *HTTP) Exchange(ctx context.Context, e ocp.Envelope) (ocp.Envelope, error) {
	ctx, cancel := context.WithTimeout(ctx, h.addr.Timeout)
	defer cancel()
	started := time.Now()
	select {
	case <-h.turn:
		defer func() { h.turn <- struct{}{} }()
	case <-ctx.Done():
		return ocp.Envelope{}, h.overdue(ctx, started)
	}
	select {
	case <-h.closed:
		return ocp.Envelope{}, fmt.Errorf("provider %s: %w", h.addr.ID, ErrBroken)
	default:
	}
	sent, line, err := h.session.encode(e)
	if err != nil {
		return ocp.Envelope{}, err
	}
	body, err := h.post(ctx, line)
	if err != nil {
		if ctx.Err() != nil {
			return ocp.Envelope{}, h.overdue(ctx, started)
		}
		return ocp.Envelope{}, err
	}
	answer, err := h.session.decode(sent, body)
	if err == nil && answer.HandshakeAck != nil {
		answer.HandshakeAck.Provider.DataFlow.Egress = true
	}
	return answer, err
}

// post sends a body and returns that of the answer.
func (h *HTTP) post(ctx context.Context, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.addr.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("provider %s: make request: %w", h.addr.ID, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "*/*")
	if h.addr.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.addr.Token)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address may hold a secret in its query
		}
		return nil, &ExchangeError{ID: h.addr.ID, Message: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, &UnauthorizedError{ID: h.addr.ID}
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		message := fmt.Sprintf("HTTP %d: %s", resp.StatusCode, ocp.Line(string(text), maxErrorBody))
		if resp.StatusCode >= 300 && resp.StatusCode <= 399 {
			message = fmt.Sprintf("HTTP %d: redirects are not followed; configure the address itself", resp.StatusCode)
		}
		return nil, &ExchangeError{ID: h.addr.ID, Message: message}
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, ocp.MaxMessage+1))
	switch {
	case err != nil:
		return nil, &ExchangeError{ID: h.addr.ID, Message: "the answer broke off: " + err.Error()}
	case len(answer) > ocp.MaxMessage:
		return nil, &ExchangeError{ID: h.addr.ID, Message: fmt.Sprintf("its answer has more than %d bytes", ocp.MaxMessage)}
	}
	return answer, nil
}

// overdue is the error of a wait that ctx ended.
func (h *HTTP) overdue(ctx context.Context, started time.Time) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &TimeoutError{ID: h.addr.ID, After: time.Since(started)}
	}
	return fmt.Errorf("provider %s: %w", h.addr.ID, context.Cause(ctx))
}

// Close implements Conn. Nobody waits for more than that shutdown was taken, if it is sent:
// a server does not end for one host.
func (h *HTTP) Close() error {
	h.closing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), ShutdownGrace)
		defer cancel()
		select {
		case <-h.turn:
			if _, line, err := h.session.encode(ocp.Envelope{Shutdown: true}); err == nil && !h.addr.Quiet {
				_, _ = h.post(ctx, line)
			}
			close(h.closed)
			h.turn <- struct{}{}
		case <-ctx.Done():
			close(h.closed)
		}
		h.client.CloseIdleConnections()
	})
	return nil
}
