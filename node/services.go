package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// server is an agent.Agent with a local HTTP server that may be used from afar; ok is
// false while it has none. The address may change whenever the server is started.
type server interface {
	Server() (url, username, password string, ok bool)
}

// services are the local servers that are reachable through the tunnel: those that
// the configuration names, the agent's own, and no others.
type services struct {
	named map[string]backend
	agent server // of the service "opencode"; nil when it is not offered or named
	table bool   // whether the hub filters that service
}

// backend is where a local server listens.
type backend struct {
	addr     string
	kind     string
	tls      *tls.Config // nil: none
	username string
	password string
}

// newServices reads a configuration. Errors never repeat an address, which may hold
// a password.
func newServices(named map[string]string, a agent.Agent, own, table bool) (*services, error) {
	s := &services{named: make(map[string]backend, len(named)), table: table}
	for name, raw := range named {
		if _, ok := tunnel.Service(name).Service(); !ok {
			return nil, fmt.Errorf("node config: %q cannot name a service", name)
		}
		b, err := parseBackend(raw)
		if err != nil {
			return nil, fmt.Errorf("node config: service %s %w", name, err)
		}
		s.named[name] = b
	}
	if _, taken := s.named[api.ServiceOpencode]; own && !taken {
		s.agent, _ = a.(server)
	}
	return s, nil
}

var errBackend = errors.New("needs http://host:port, https://host:port or tcp://host:port, without a path")

func parseBackend(raw string) (backend, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return backend{}, errBackend
	}
	b := backend{kind: api.ServiceHTTP, username: u.User.Username()}
	b.password, _ = u.User.Password()
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if port == "" {
			port = "443"
		}
		b.tls = backendTLS(u.Hostname())
	case "tcp":
		b.kind = api.ServiceTCP
	default:
		return b, errBackend
	}
	switch {
	case u.Hostname() == "", port == "", u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return b, errBackend
	case u.User != nil && b.kind == api.ServiceTCP:
		return b, errors.New("is a raw stream, to which no password can be added")
	case u.User != nil && b.password == "":
		return b, errors.New("has a user without a password")
	}
	b.addr = net.JoinHostPort(u.Hostname(), port)
	return b, nil
}

// backendTLS is how the node speaks to an https service. On loopback nobody is in
// between, and what listens there mostly signed its certificate itself, so that is
// not checked.
func backendTLS(host string) *tls.Config {
	ip, err := netip.ParseAddr(host)
	loopback := host == "localhost" || err == nil && ip.IsLoopback()
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: host, NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: loopback, //nolint:gosec // see above
	}
}

// find is where the named service listens now.
func (s *services) find(name string) (backend, error) {
	if b, ok := s.named[name]; ok {
		return b, nil
	}
	if name != api.ServiceOpencode || s.agent == nil {
		return backend{}, tunnel.ErrNoService
	}
	raw, _, _, ok := s.agent.Server()
	if !ok {
		return backend{}, errors.New("the agent's server is not up")
	}
	b, err := parseBackend(raw)
	if err != nil {
		return b, fmt.Errorf("the agent's server %w", err)
	}
	return b, nil
}

// dial connects a stream of the tunnel to a local server.
func (s *services) dial(ctx context.Context, name string) (net.Conn, error) {
	b, err := s.find(name)
	if err != nil {
		return nil, err
	}
	if b.tls != nil {
		return (&tls.Dialer{Config: b.tls}).DialContext(ctx, "tcp", b.addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", b.addr)
}

// list describes the services to the hub, passwords included.
func (s *services) list() []api.Service {
	out := make([]api.Service, 0, len(s.named)+1)
	for _, name := range s.names() {
		b, named := s.named[name]
		svc := api.Service{Name: name, Kind: api.ServiceHTTP, Filter: name == api.ServiceOpencode && s.table}
		if named {
			svc.Kind, svc.Username, svc.Password = b.kind, b.username, b.password
			svc.Filter = svc.Filter && b.kind == api.ServiceHTTP
		} else {
			_, svc.Username, svc.Password, _ = s.agent.Server()
		}
		if svc.Password == "" {
			svc.Username = ""
		}
		out = append(out, svc)
	}
	return out
}

// names lists what is offered, in order.
func (s *services) names() []string {
	names := slices.Collect(maps.Keys(s.named))
	if s.agent != nil {
		names = append(names, api.ServiceOpencode)
	}
	slices.Sort(names)
	return names
}
