package bench

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// freePort is a port that was free a moment ago.
func freePort(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// program starts a foreign program that ends with the test.
func program(tb testing.TB, name string, args ...string) {
	tb.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "GOGC=400")
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// installed reports whether all programs are on PATH.
func installed(names ...string) bool {
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			return false
		}
	}
	return true
}

// startChisel makes a chisel server and a client beside the origin that offers it
// there; nil when chisel is not on PATH. It carries TCP and does not read HTTP.
func startChisel(tb testing.TB, origin string) *path {
	tb.Helper()
	if !installed("chisel") {
		return nil
	}
	server, local := freePort(tb), freePort(tb)
	program(tb, "chisel", "server", "--host", "127.0.0.1", "--port", server, "--reverse")
	await(tb, &path{name: "chisel", addr: "127.0.0.1:" + server}, false)
	program(tb, "chisel", "client", "http://127.0.0.1:"+server, "R:127.0.0.1:"+local+":"+origin)
	return await(tb, &path{name: "chisel", addr: "127.0.0.1:" + local}, true)
}

// startFRP makes frps and, beside the origin, frpc that speaks WebSocket to it and
// offers it as an HTTP service; nil when they are not on PATH.
func startFRP(tb testing.TB, origin string) *path {
	tb.Helper()
	if !installed("frps", "frpc") {
		return nil
	}
	server, web := freePort(tb), freePort(tb)
	host, port, err := net.SplitHostPort(origin)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
		return file
	}
	program(tb, "frps", "-c", write("frps.toml", fmt.Sprintf("bindAddr = \"127.0.0.1\"\nproxyBindAddr = \"127.0.0.1\"\nbindPort = %s\nvhostHTTPPort = %s\nlog.level = \"error\"\n", server, web)))
	await(tb, &path{name: "frp", addr: "127.0.0.1:" + web}, false)
	program(tb, "frpc", "-c", write("frpc.toml", fmt.Sprintf(
		"serverAddr = \"127.0.0.1\"\nserverPort = %s\ntransport.protocol = \"websocket\"\ntransport.tls.enable = false\nlog.level = \"error\"\n[[proxies]]\nname = \"web\"\ntype = \"http\"\nlocalIP = %q\nlocalPort = %s\ncustomDomains = [\"origin.bench\"]\n", server, host, port)))
	return await(tb, &path{name: "frp", addr: "127.0.0.1:" + web}, true)
}

// await waits until a path takes connections, and with answers until the origin
// answers there.
func await(tb testing.TB, p *path, answers bool) *path {
	tb.Helper()
	var err error
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		var c *conn
		if c, err = p.open(); err != nil {
			continue
		}
		if answers {
			err = c.get()
		}
		_ = c.Close()
		if err == nil {
			return p
		}
	}
	tb.Fatalf("%s does not come up: %v", p.name, err)
	return nil
}
