package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// Transport limits of one node's connections (performance.md, decision 6).
const (
	maxIdleStreams  = 256
	idleStreamLimit = 90 * time.Second
	// chunkBuffer takes a copy buffer and what frames it, in bytes: a piece of a chunked
	// body then leaves in one write, not in three.
	chunkBuffer = bufferSize + 1<<10
)

// Node is the services of one connected node: what it said of them, in memory only,
// and the idle streams to them. It ends with its tunnel. Safe for concurrent use.
type Node struct {
	name      string
	session   *tunnel.Session
	transport *http.Transport
	idle      idlers // see RoundTrip
	policy    string
	allow     []string
	under     atomic.Int64 // requests under way

	mu       sync.Mutex // guards the following field
	services []api.Service
}

// NewNode makes the services of a node that said h.
func NewNode(name string, s *tunnel.Session, h api.Hello) *Node {
	n := &Node{name: name, session: s, policy: h.Policy, allow: h.AcceptFrom, services: h.Services}
	n.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			service, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return n.dial(ctx, service)
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdleStreams,
		IdleConnTimeout:        idleStreamLimit,
		ExpectContinueTimeout:  continueLimit,
		WriteBufferSize:        chunkBuffer,
		MaxResponseHeaderBytes: maxAnswerHeader,
	}
	return n
}

// Close drops the idle streams.
func (n *Node) Close() {
	n.transport.CloseIdleConnections()
	n.idle.close()
}

// SetServices replaces what the node offers: a server was started again and has a
// new password.
func (n *Node) SetServices(list []api.Service) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.services = list
}

// List is what the node offers to a caller, without passwords.
func (n *Node) List(by Caller) ([]api.ServiceInfo, error) {
	if err := n.Takes(by); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]api.ServiceInfo, len(n.services))
	for i, s := range n.services {
		out[i] = api.ServiceInfo{Name: s.Name, Kind: s.Kind, Filter: s.Filter}
		if n.readOnly(s) {
			out[i].Policy = n.policy
		}
	}
	return out, nil
}

// Takes refuses callers that the node takes nothing from.
func (n *Node) Takes(by Caller) error {
	if len(n.allow) > 0 && !slices.Contains(n.allow, by.ID) && !slices.Contains(n.allow, by.Name) {
		return api.Errorf(api.CodeRefused, "node %s takes nothing from %s", n.name, by.Name)
	}
	return nil
}

// readOnly reports whether the node's policy lets nothing be changed by a service.
func (n *Node) readOnly(s api.Service) bool {
	return isOpencode(s) && (n.policy == api.PolicyHold || n.policy == api.PolicyRefuse)
}

// admit finds a service, for a caller that the node takes anything from.
func (n *Node) admit(service string, by Caller) (api.Service, error) {
	if err := n.Takes(by); err != nil {
		return api.Service{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	names := make([]string, 0, len(n.services))
	for _, s := range n.services {
		if s.Name == service {
			return s, nil
		}
		names = append(names, s.Name)
	}
	offers := "it offers none"
	if len(names) > 0 {
		offers = "it offers: " + strings.Join(names, ", ")
	}
	return api.Service{}, api.Errorf(api.CodeNotFound, "node %s has no service of that name (%s)", n.name, offers)
}

// Hosts reports why a service cannot have an origin of its own for a caller.
func (n *Node) Hosts(service string, by Caller) error {
	s, err := n.admit(service, by)
	if err == nil && s.Kind != api.ServiceHTTP {
		err = api.Errorf(api.CodeBadRequest, "%s of node %s is a raw stream, which no browser can use", service, n.name)
	}
	return err
}

// enter counts a request, within the node's limit.
func (n *Node) enter() (done func(), err error) {
	if n.under.Add(1) > api.MaxRequestsPerNode {
		n.under.Add(-1)
		e := api.Errorf(api.CodeUnavailable, "%d requests to services of node %s are under way; try again when some have ended", api.MaxRequestsPerNode, n.name)
		e.RetryAfter = retryBusy
		return nil, e
	}
	return func() { n.under.Add(-1) }, nil
}

// dial opens a stream to a service. That the service took the connection shows with
// the first byte; how it is refused, in failed.
func (n *Node) dial(ctx context.Context, service string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := n.session.Open(ctx, tunnel.Service(service))
	if err != nil {
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	return conn, nil
}

// dialTaken is dial that returns once the service took the connection.
func (n *Node) dialTaken(ctx context.Context, service string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit+takenMargin)
	defer cancel()
	conn, err := n.session.OpenTaken(ctx, service)
	if err != nil {
		return nil, fmt.Errorf("open a raw stream: %w", err)
	}
	return conn, nil
}
