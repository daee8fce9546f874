package forward_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/client/forward"
)

// childEnv makes the test binary forward a raw stream of the hub that it names, with the
// credential in the other, until it is killed.
const (
	childEnv       = "FORWARD_TEST_HUB"
	childSecretEnv = "FORWARD_TEST_SECRET"
)

func childForward(hub string) int {
	svc, err := serviceAt(hub, auth.Secret(os.Getenv(childSecretEnv)))
	if err == nil {
		var l net.Listener
		if l, err = forward.Listen(""); err == nil {
			f := forward.New(l, forward.Config{Service: svc, TCP: true})
			fmt.Println(f.URL())
			err = f.Serve(context.Background())
		}
	}
	fmt.Println(err)
	return 1
}

func TestTheClientOfAKilledForwardSeesNoEnd(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	h := &hub{t: t, service: http.NotFound, stream: func(c net.Conn) {
		_, _ = io.WriteString(c, "half of it")
		<-done
	}}
	h.Server = httptest.NewServer(h) // another process calls it, which the race detector does not see
	t.Cleanup(h.Close)
	defer close(done)
	child := exec.Command(exe)
	child.Env = append(os.Environ(), childEnv+"="+h.URL, childSecretEnv+"="+credential)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", strings.TrimPrefix(strings.TrimSpace(line), "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF { //nolint:errorlint // the clean end is just this
		t.Errorf("the client read %d bytes, %v", n, err)
	}
}
