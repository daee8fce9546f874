package tunnel_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"opencode-mesh/tunnel"
)

// childPipe is a node that offers one service, until it is killed.
func childPipe() int {
	s, err := tunnel.Dial(context.Background(), tunnel.DialConfig{
		URL: os.Getenv("TUNNEL_TEST_URL"),
		Config: tunnel.Config{ServiceDial: func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", os.Getenv("TUNNEL_TEST_SERVICE"))
		}},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	<-s.Done()
	return 0
}

func TestALocalServerDoesNotTakeTheEndOfAKilledNodeForThatOfAnUpload(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr, conns := tcpServer(t)
	h := newHub(t, tunnel.Config{}, nil)
	node := exec.Command(exe)
	node.Env = append(os.Environ(), childEnv+"=pipe", "TUNNEL_TEST_URL="+h.URL, "TUNNEL_TEST_SERVICE="+addr)
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	defer node.Wait()
	defer node.Process.Kill()
	c, err := h.next(t).Open(within(t), tunnel.Service("svc"))
	if err != nil {
		t.Fatal(err)
	}
	deadline(t, c)
	if _, err := io.WriteString(c, "half of it"); err != nil {
		t.Fatal(err)
	}
	server := receive(t, conns, "the connection to the service")
	defer server.Close()
	deadline(t, server)
	if _, err := io.ReadFull(server, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := node.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if n, err := server.Read(make([]byte, 1)); err == nil || err == io.EOF { //nolint:errorlint // the clean end is just this
		t.Errorf("the server read %d bytes, %v", n, err)
	}
}
