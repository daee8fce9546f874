package tunnel_test

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
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/tunnel"
)

// The ratios are to the same client and server without a tunnel between them, in
// the same run; absolute figures say little on a shared machine. All processes
// are one here, so the tunnel pays for both of its ends.

// rounds is how often the two variants take turns.
const rounds = 5

func BenchmarkSmallGET(b *testing.B) {
	body := strings.Repeat("x", 256)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
	defer origin.Close()
	hubSide, _ := service(b, origin.Listener.Addr().String())
	direct := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	defer direct.CloseIdleConnections()
	for _, conc := range []int{1, 64} {
		b.Run(fmt.Sprintf("inflight=%d", conc), func(b *testing.B) {
			run := func(c *http.Client, addr string, n int) time.Duration {
				start := time.Now()
				var wg sync.WaitGroup
				for i := range conc {
					wg.Go(func() {
						for range n/conc + btoi(i < n%conc) {
							get(b, c, addr)
						}
					})
				}
				wg.Wait()
				return time.Since(start)
			}
			compare(b, func(n int) time.Duration { return run(direct, origin.URL, n) },
				func(n int) time.Duration { return run(serviceClient(b, hubSide), "http://svc/", n) })
		})
	}
}

func btoi(v bool) int {
	if v {
		return 1
	}
	return 0
}

// compare lets the two variants take turns at b.N operations and reports how many
// operations of the second take the time of one of the first.
func compare(b *testing.B, direct, through func(n int) time.Duration) {
	b.Helper()
	n := max(1, b.N/rounds)
	var d, t time.Duration
	for range rounds {
		d += direct(n)
		t += through(n)
	}
	b.ReportMetric(0, "ns/op") // the sum of both says nothing
	b.ReportMetric(d.Seconds()/t.Seconds(), "x-direct")
	b.ReportMetric(float64(n*rounds)/t.Seconds(), "ops/s")
}

func BenchmarkBulk(b *testing.B) {
	const size = 32 << 20
	blob := make([]byte, size)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = w.Write(blob)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer origin.Close()
	hubSide, _ := service(b, origin.Listener.Addr().String())
	direct := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer direct.CloseIdleConnections()
	for name, once := range map[string]func(c *http.Client, addr string) error{
		"down": func(c *http.Client, addr string) error {
			resp, err := c.Get(addr)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		},
		"up": func(c *http.Client, addr string) error {
			resp, err := c.Post(addr, "application/octet-stream", strings.NewReader(string(blob)))
			if err != nil {
				return err
			}
			return resp.Body.Close()
		},
	} {
		b.Run(name, func(b *testing.B) {
			run := func(c *http.Client, addr string) func(int) time.Duration {
				return func(n int) time.Duration {
					start := time.Now()
					for range n {
						if err := once(c, addr); err != nil {
							b.Fatal(err)
						}
					}
					return time.Since(start)
				}
			}
			compare(b, run(direct, origin.URL), run(serviceClient(b, hubSide), "http://svc/"))
		})
	}
}

// BenchmarkIdleTunnel prints what an idle tunnel costs the hub, whose process
// this is; the nodes are in another. It measures, and gates nothing.
func BenchmarkIdleTunnel(b *testing.B) {
	const tunnels = 1000
	for name, use := range map[string]func(*tunnel.Session){
		"alone": func(*tunnel.Session) {},
		"with an http.Server each": func(s *tunnel.Session) {
			srv := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: patience}
			go func() { _ = srv.Serve(s) }()
		},
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				measureIdle(b, tunnels, use)
			}
		})
	}
}

func measureIdle(b *testing.B, tunnels int, use func(*tunnel.Session)) {
	b.Helper()
	h := newHub(b, tunnel.Config{}, nil)
	before := usage()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), exe)
	cmd.Env = append(os.Environ(), childEnv+"=idle", "TUNNEL_TEST_URL="+h.URL, fmt.Sprint("TUNNEL_TEST_COUNT=", tunnels))
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	var sessions []*tunnel.Session
	for range tunnels {
		s := h.next(b)
		use(s)
		sessions = append(sessions, s)
	}
	node, err := bufio.NewReader(out).ReadString('\n') // all are up
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range sessions {
		await(b, "the first pings", func() bool { return s.Stats().RTT > 0 })
	}
	after := usage()
	_ = in.Close()
	_ = cmd.Wait()
	kb := func(x, y int64) float64 { return float64(y-x) / 1024 / float64(tunnels) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(kb(before.rss, after.rss), "rss-KB")
	b.ReportMetric(kb(before.heap, after.heap), "heap-KB")
	b.ReportMetric(kb(before.stack, after.stack), "stack-KB")
	b.ReportMetric(float64(after.goroutines-before.goroutines)/float64(tunnels), "goroutines")
	var nodeRSS float64
	if _, err := fmt.Sscan(node, &nodeRSS); err == nil {
		b.ReportMetric(nodeRSS, "node-rss-KB")
	}
}

type resources struct {
	rss, heap, stack int64 // bytes
	goroutines       int
}

func usage() resources {
	debug.FreeOSMemory() // garbage of the opening is not what a tunnel costs
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return resources{rss: rss(), heap: int64(m.HeapAlloc), stack: int64(m.StackInuse), goroutines: runtime.NumGoroutine()}
}

// rss is the resident size of this process in bytes; 0 where /proc is not.
func rss() int64 {
	var size, resident int64
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// childIdle holds tunnels open until its standard input ends.
func childIdle() int {
	var count int
	if _, err := fmt.Sscan(os.Getenv("TUNNEL_TEST_COUNT"), &count); err != nil {
		return 2
	}
	cfg := tunnel.DialConfig{URL: os.Getenv("TUNNEL_TEST_URL"), Proxy: noProxy, Config: tunnel.Config{
		ServiceDial: func(context.Context, string) (net.Conn, error) { return nil, tunnel.ErrNoService },
	}}
	before := usage()
	var sessions []*tunnel.Session
	for range count {
		s, err := tunnel.Dial(context.Background(), cfg)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		sessions = append(sessions, s)
	}
	after := usage()
	fmt.Println(float64(after.rss-before.rss) / 1024 / float64(count))
	_, _ = io.Copy(io.Discard, os.Stdin)
	var wg sync.WaitGroup
	for _, s := range sessions {
		wg.Go(func() { _ = s.Close() })
	}
	wg.Wait()
	return 0
}
