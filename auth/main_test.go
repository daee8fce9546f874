package auth_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// proxyListener is where HTTPS_PROXY points in this process. net/http reads the
// variable once, so it has to be there before the first test; one test serves on
// it. Loopback addresses are never proxied, so no other test gets there.
var proxyListener net.Listener

func TestMain(m *testing.M) {
	var err error
	if proxyListener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		os.Unsetenv(name)
	}
	os.Setenv("HTTPS_PROXY", "http://"+proxyListener.Addr().String())
	goleak.VerifyTestMain(m)
}

// must returns a test's own value and fails it on an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}
