package e2e

import (
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// deaf is an address at which a server listens that takes no connections: its queue of
// one is full, and the system lets further ones wait.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := "127.0.0.1:" + strconv.Itoa(name.(*syscall.SockaddrInet4).Port)
	for {
		c, err := net.DialTimeout("tcp", at, 100*time.Millisecond)
		if err != nil {
			return at
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

// TestAServiceThatTakesNoConnectionIsATimeout waits for the limit of 10 s, by both ways.
func TestAServiceThatTakesNoConnectionIsATimeout(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, "--tls", "off")
	at := deaf(t)
	f.Node("alpha", fleet.Args("--service", "web=http://"+at, "--service", "raw=tcp://"+at), f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	base := f.Hub.URL + "/v1/nodes/alpha/services/"
	auth := []string{"Mesh-Authorization", "Bearer " + ctl.Profile().Credential.Reveal()}
	url := ctl.Forward("alpha/web")
	ends := make(chan struct{}, 3)
	go func() {
		resp, err := ask(t, base+"web/", auth...)
		refused(t, resp, err, http.StatusGatewayTimeout, api.CodeTimeout, "web")
		ends <- struct{}{}
	}()
	go func() {
		resp, err := ask(t, base+"raw", append(auth[:2:2], "Connection", "Upgrade", "Upgrade", api.UpgradeStream)...)
		refused(t, resp, err, http.StatusGatewayTimeout, api.CodeTimeout, "raw")
		ends <- struct{}{}
	}()
	go func() {
		resp, err := ask(t, url+"/")
		refused(t, resp, err, http.StatusGatewayTimeout, api.CodeTimeout, "web")
		ends <- struct{}{}
	}()
	for range cap(ends) {
		within(t, ends, "an answer")
	}
}
