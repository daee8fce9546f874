package tunnel_test

import (
	"context"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"opencode-mesh/tunnel"
)

func TestTheNodesSocketIsTuned(t *testing.T) {
	h := newHub(t, tunnel.Config{}, nil)
	var conn net.Conn
	s, err := tunnel.Dial(t.Context(), tunnel.DialConfig{
		URL: h.URL, Proxy: noProxy,
		NetDial: func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return conn, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var lowat, nodelay int
	if err := raw.Control(func(fd uintptr) {
		lowat, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		nodelay, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY)
	}); err != nil {
		t.Fatal(err)
	}
	if lowat != tunnel.NotSentLowat || nodelay == 0 {
		t.Errorf("TCP_NOTSENT_LOWAT is %d, TCP_NODELAY %d", lowat, nodelay)
	}
}
