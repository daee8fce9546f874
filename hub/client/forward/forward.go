// Package forward serves one service of a node on a local port.
//
// An http service is a reverse proxy: it answers to this machine's own names and to
// pages from there only, so that no foreign page in the browser reaches the node, and
// passes everything on byte for byte, streams and upgrades included. A tcp service is
// a raw stream per connection. There is no limit on connections; each is one of the
// hub's. What is open breaks when hub or node go away, what comes after they are back
// works.
//
// Whoever can connect to loopback of this machine can use the port; Config.Password
// keeps other users of the machine out.
package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"opencode-mesh/hub/client"
)

// Config says what is served.
type Config struct {
	// Service is where it goes. Needed; Serve does not close it.
	Service *client.Service
	// TCP says that the service is of the kind api.ServiceTCP.
	TCP bool
	// Password is what requests to an http service must show by HTTP Basic, with the
	// name Username. Default: none, and their Authorization is the service's own.
	Password string
	// Report is told when requests begin to fail because the hub does not answer or
	// will not open a stream, and with nil when they work again; one call at a time.
	// Default: nobody is told.
	Report func(error)
}

// Username goes with Config.Password.
const Username = "opencode"

// Forward is a service on a local port.
type Forward struct {
	cfg      Config
	listener net.Listener
	traffic  Traffic

	mu   sync.Mutex // guards the following fields, and calls of Report
	said string     // what was reported last; "" when all is well
}

// New makes a Forward on a listener of Listen, which is its own from then on.
func New(l net.Listener, cfg Config) *Forward {
	return &Forward{cfg: cfg, listener: l}
}

// URL is where it serves: http://127.0.0.1:PORT, or tcp://.
func (f *Forward) URL() string {
	if f.cfg.TCP {
		return "tcp://" + f.listener.Addr().String()
	}
	return "http://" + f.listener.Addr().String()
}

// Traffic counts what passes.
func (f *Forward) Traffic() *Traffic { return &f.traffic }

// Serve serves until ctx ends, then cuts what is open and returns nil once nothing of
// it runs any more. It is called once.
func (f *Forward) Serve(ctx context.Context) error {
	l := &countingListener{Listener: f.listener, traffic: &f.traffic}
	if f.cfg.TCP {
		return f.serveTCP(ctx, l)
	}
	return f.serveHTTP(ctx, l)
}

// report tells the owner when trouble begins, changes and ends.
func (f *Forward) report(err error) {
	if f.cfg.Report == nil {
		return
	}
	now := ""
	if err != nil {
		now = err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now != f.said {
		f.said = now
		f.cfg.Report(err)
	}
}

// Listen listens on a local address: PORT, :PORT or HOST:PORT, where HOST is
// localhost, 127.0.0.1 or [::1]; "" picks a free port of 127.0.0.1. Other hosts are
// refused: the service would be open to whoever reaches them.
func Listen(addr string) (net.Listener, error) {
	host, port := "", addr
	if addr == "" {
		port = "0"
	} else if _, err := strconv.ParseUint(addr, 10, 16); err != nil {
		if host, port, err = net.SplitHostPort(addr); err != nil {
			return nil, fmt.Errorf("%q is no local address: give a port, or 127.0.0.1:PORT", addr)
		}
	}
	switch host {
	case "", "localhost":
		host = "127.0.0.1"
	case "127.0.0.1", "::1":
	default:
		return nil, fmt.Errorf("%s would open the service to whoever reaches that address: it is served on localhost, 127.0.0.1 or [::1] only", host)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return nil, fmt.Errorf("%q is no port", port)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrListen, err)
	}
	return l, nil
}

// ErrListen means that an address is fine but cannot be had, such as one in use.
var ErrListen = errors.New("cannot listen")
