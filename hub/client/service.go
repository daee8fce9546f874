package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/framed"
	"opencode-mesh/protocol/api"
)

const (
	// serviceIdle is how many idle connections a Service keeps: a page of many parts
	// must not dial for each of them.
	serviceIdle = 256
	// streamTimeout is how long the hub may take to open a raw stream; it gives up
	// itself after 10 s.
	streamTimeout = 30 * time.Second
)

// Services lists what a node exposes.
func (c *Client) Services(ctx context.Context, node string) ([]api.ServiceInfo, error) {
	var out api.ServiceList
	err := c.repeat(ctx, http.MethodGet, nodePath(node)+"/services", nil, &out)
	return out.Services, err
}

func nodePath(name string) string { return "/v1/nodes/" + url.PathEscape(name) }

// Service is one service of a node, reached through the hub with the client's
// credential. It has connections of its own, which wait for an answer as long as the
// request's context does: a service may be silent for hours. Safe for concurrent
// use; Close frees idle connections.
type Service struct {
	client *Client
	hub    *url.URL
	prefix string // of every path
	// shared says that the hub may stand behind a proxy that serves several names and
	// tells them apart by the Host of a request.
	shared    bool
	transport *http.Transport
}

// Service returns a node's service; whether it is there shows when it is used.
func (c *Client) Service(node, name string) (*Service, error) {
	hub, err := url.Parse(c.base)
	if err != nil {
		return nil, err
	}
	common, ok := c.hc.Transport.(*http.Transport)
	if !ok {
		return nil, errors.New("client: no transport to make connections to services with")
	}
	t := common.Clone()
	t.DisableCompression = true // bytes are passed on as they come
	t.ResponseHeaderTimeout = 0
	t.MaxIdleConns, t.MaxIdleConnsPerHost = serviceIdle, serviceIdle
	if hub.Scheme == "http" {
		t.Proxy = nil // it would want other request lines, and pass no upgrades
	}
	return &Service{
		client: c, hub: hub, transport: t, shared: c.trusted,
		prefix: nodePath(node) + "/services/" + url.PathEscape(name),
	}, nil
}

// Close frees idle connections.
func (s *Service) Close() { s.transport.CloseIdleConnections() }

// URL is the hub's address of a path of the service. Path and query are those of a
// request line and stay as they are, byte for byte: nothing is decoded or cleaned.
func (s *Service) URL(path, query string, hasQuery bool) *url.URL {
	return &url.URL{Scheme: s.hub.Scheme, Host: s.hub.Host, Opaque: s.prefix + path, RawQuery: query, ForceQuery: hasQuery}
}

// RoundTrip implements http.RoundTripper for requests to a URL of this service.
// Their Host is what the service sees as its own name; Authorization and cookies are
// between the caller and the service. The answer is as the service gave it, or an
// api.ErrorBody of the hub; when there is none, the error wraps ErrUnreachable. It is
// for an origin of its own: what the hub does against pages of nodes is undone.
func (s *Service) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.WithContext(r.Context()) // a shallow copy: a RoundTripper leaves r alone
	out.Header = r.Header.Clone()
	out.Header.Set(api.HeaderHost, r.Host)
	if s.shared {
		out.Host = s.hub.Host
	}
	s.client.signService(out.Header)
	resp, err := s.transport.RoundTrip(out)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	undo(resp.Header)
	return resp, nil
}

// confined are headers that the hub sets against pages of nodes, or drops.
var confined = []string{"Set-Cookie", "Content-Security-Policy", "X-Content-Type-Options"}

// undo gives an answer the headers back that the service had set.
func undo(h http.Header) {
	for _, name := range confined {
		delete(h, name)
	}
	for name, values := range h {
		if original, ok := strings.CutPrefix(name, api.HeaderOriginal); ok {
			delete(h, name)
			h[original] = values
		}
	}
}

// Stream is a raw stream to a service. Its end is io.EOF only when the service has
// ended it.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends the direction to the service.
	CloseWrite() error
}

// Dial opens a raw stream to a service of the kind api.ServiceTCP; ctx bounds the
// opening alone. Errors are *api.Error when the hub refused, and wrap ErrUnreachable
// when it did not answer.
func (s *Service) Dial(ctx context.Context) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.hub.String(), nil)
	if err != nil {
		return nil, err
	}
	r.URL = s.URL("", "", false)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", api.UpgradeStream)
	s.client.signService(r.Header)
	resp, err := s.transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	switch {
	case resp.StatusCode != http.StatusSwitchingProtocols:
		return nil, refusal(resp)
	case !ok:
		_ = resp.Body.Close()
		return nil, errors.New("the hub's answer is no stream")
	}
	return framed.New(conn), nil
}

// refusal reads an answer that is not the wanted one.
func refusal(resp *http.Response) *api.Error {
	defer resp.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	e := api.DecodeError(resp.StatusCode, data)
	e.RetryAfter = auth.ParseRetryAfter(resp.Header.Get("Retry-After"), time.Now())
	return e
}
