package node

import (
	"context"
	"net"

	"opencode-mesh/tunnel"
)

// serviceDial connects streams of the tunnel to local servers: those that the
// configuration names, and no others.
func serviceDial(addrs map[string]string) func(ctx context.Context, name string) (net.Conn, error) {
	var dialer net.Dialer
	return func(ctx context.Context, name string) (net.Conn, error) {
		addr, ok := addrs[name]
		if !ok {
			return nil, tunnel.ErrNoService
		}
		return dialer.DialContext(ctx, "tcp", addr)
	}
}
