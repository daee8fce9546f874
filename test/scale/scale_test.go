// Package scale connects a thousand nodes and more to one real hub process and
// looks at what they cost: memory per idle tunnel, and a full reconnect after the
// hub was killed. The nodes are clients in the test's own process.
package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/test/fleet"
	"opencode-mesh/tunnel"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// maxPerTunnel is what an idle tunnel's share of the hub's memory must stay below
// in any surroundings, in bytes: twice the target. How near the target is shows the
// figure that is printed (docs/performance.md).
const maxPerTunnel = 100 << 10

func TestAThousandNodesStayOnOneHubAndComeBackAfterItWasKilled(t *testing.T) {
	run(t, 1000)
}

func BenchmarkFiveThousandNodes(b *testing.B) {
	for range b.N {
		run(b, 5000)
	}
}

func run(tb testing.TB, n int) {
	dir := filepath.Join(tb.TempDir(), "hub")
	secrets := seed(tb, dir, n)
	f := fleet.NewAt(tb, dir, "--tls", "off", "--log-level", "error")
	// A small GOGC makes the resident memory that of what lives, as after a
	// collection; with the default about as much again is room for garbage.
	f.Hub.Kill()
	f.Hub.Env = []string{"GOGC=10"}
	f.Hub.Start()
	before := rss(tb, f.Hub.Pid())
	fl := connect(tb, f, secrets)
	fl.await(n)
	per := (idle(tb, f) - before) / int64(n)
	tb.Logf("%d idle tunnels: %d KiB of hub memory each", n, per>>10)
	if per > maxPerTunnel {
		tb.Errorf("an idle tunnel costs %d bytes, more than %d", per, maxPerTunnel)
	}

	fl.gone()
	f.Hub.Kill()
	f.Hub.Start()
	start := time.Now()
	fl.await(n)
	took := time.Since(start)
	tb.Logf("all %d nodes were back %s after the hub served again: %.0f a second, %d refusals", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), fl.refused.Load())
	if r := fl.refused.Load(); r > 0 {
		tb.Errorf("%d connections were refused", r)
	}
	if b, ok := tb.(*testing.B); ok {
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(per)/1024, "KiB/tunnel")
		b.ReportMetric(float64(n)/took.Seconds(), "reconnects/s")
	}
}

// idle is the hub's memory once it falls no more: what a storm of connections left
// behind goes back to the system little by little.
func idle(tb testing.TB, f *fleet.Fleet) int64 {
	tb.Helper()
	least, calm := int64(1)<<62, 0
	for range 60 {
		collect(tb, f)
		now := rss(tb, f.Hub.Pid())
		if now < least-least/200 {
			least, calm = now, 0
		} else if calm++; calm == 3 {
			break
		}
		time.Sleep(time.Second) // the runtime returns memory by the clock
	}
	return least
}

// collect makes the hub collect its garbage some times over, which it does by
// itself every two minutes: what the handshakes left behind is freed then, and
// stacks that grew in them shrink.
func collect(tb testing.TB, f *fleet.Fleet) {
	tb.Helper()
	for range 300 {
		resp, err := http.Get(f.Hub.URL + "/metrics")
		if err != nil {
			tb.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// seed writes the nodes' identities into a store that the hub then opens, which
// spares a thousand password checks.
func seed(tb testing.TB, dir string, n int) []string {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	st, err := bolt.Open(bolt.Config{Dir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	secrets := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			secret, hash := auth.NewSecret()
			secrets[i] = secret
			name := fmt.Sprintf("n%d", i)
			id := store.Identity{ID: "id_" + name, Name: name, Role: api.RoleNode, CreatedAt: time.Now()}
			cred := store.Credential{ID: "cred_" + name, IdentityID: id.ID, Name: name, Role: api.RoleNode, Hash: hash, CreatedAt: time.Now()}
			if err := st.CreateIdentity(context.Background(), id, cred); err != nil {
				tb.Error(err)
			}
		})
	}
	wg.Wait()
	if err := st.Close(); err != nil {
		tb.Fatal(err)
	}
	return secrets
}

// clients are nodes that do nothing but stay connected.
type clients struct {
	tb      testing.TB
	refused atomic.Int64

	mu     sync.Mutex
	online map[int]bool
	change chan struct{}
}

func connect(tb testing.TB, f *fleet.Fleet, secrets []string) *clients {
	tb.Helper()
	c := &clients{tb: tb, online: map[int]bool{}, change: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	tb.Cleanup(func() { cancel(); wg.Wait() })
	link, err := auth.ParseLink(f.Hub.Link)
	if err != nil {
		tb.Fatal(err)
	}
	for i, secret := range secrets {
		wg.Go(func() {
			epoch := uint64(0)
			_ = tunnel.Keep(ctx, tunnel.KeepConfig{
				Backoff: tunnel.Backoff{Min: 50 * time.Millisecond, Max: 100 * time.Millisecond},
				Dial: func(ctx context.Context) (*tunnel.Session, error) {
					s, err := tunnel.Dial(ctx, tunnel.DialConfig{URL: link.TunnelURL(), Timeout: 30 * time.Second, Header: http.Header{"Authorization": {"Bearer " + secret}}})
					var refused *tunnel.RefusedError
					if asRefused(err, &refused) {
						c.refused.Add(1)
					}
					return s, err
				},
				Serve: func(ctx context.Context, s *tunnel.Session) error {
					epoch++
					return c.serve(ctx, s, i, epoch)
				},
			})
		})
	}
	return c
}

func asRefused(err error, target **tunnel.RefusedError) bool {
	r, ok := err.(*tunnel.RefusedError) //nolint:errorlint // Dial returns it as it is
	*target = r
	return ok
}

// serve says hello and answers the hub until the session ends.
func (c *clients) serve(ctx context.Context, s *tunnel.Session, i int, epoch uint64) error {
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Reconciled{Tasks: []api.Receipt{}})
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(s) })
	defer serving.Wait()
	defer srv.Close()
	hc := &http.Client{Transport: &http.Transport{DialContext: s.DialContext, DisableKeepAlives: true}}
	b, err := json.Marshal(api.Hello{Protocol: api.ProtocolVersion, Version: "test", OS: "linux", Arch: "amd64", JournalID: fmt.Sprintf("j%d", i), Epoch: epoch, Instance: strconv.Itoa(i)})
	if err != nil {
		return err
	}
	resp, err := hc.Post("http://hub/v1/hello", "application/json", bytes.NewReader(b))
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		c.refused.Add(1)
		return fmt.Errorf("hello: %s", resp.Status)
	}
	c.set(i, true)
	defer c.set(i, false)
	select {
	case <-s.Done():
	case <-ctx.Done():
	}
	return s.Close()
}

func (c *clients) set(i int, on bool) {
	c.mu.Lock()
	if on {
		c.online[i] = true
	} else {
		delete(c.online, i)
	}
	c.mu.Unlock()
	select {
	case c.change <- struct{}{}:
	default:
	}
}

// gone forgets who is online: only what comes after it counts.
func (c *clients) gone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.online = map[int]bool{}
}

// await waits until n are online; only a node that never comes reaches the limit.
func (c *clients) await(n int) {
	c.tb.Helper()
	limit := time.NewTimer(4 * time.Minute)
	defer limit.Stop()
	for {
		c.mu.Lock()
		have := len(c.online)
		c.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-c.change:
		case <-limit.C:
			c.tb.Fatalf("%d of %d nodes are online", have, n)
		}
	}
}

// rss is a process's resident memory in bytes.
func rss(tb testing.TB, pid int) int64 {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return kb << 10
		}
	}
	tb.Fatal("no VmRSS")
	return 0
}
