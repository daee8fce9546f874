package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// plan says how long things are measured.
type plan struct {
	rounds            int
	one, beside, slow time.Duration // a measurement of each kind
	upload            int64         // bytes that one upload sends; of 8, each sends a quarter
	idle              int           // idle streams whose memory is measured
}

var (
	wholePlan = plan{rounds: 5, one: 700 * time.Millisecond, beside: 2 * time.Second, slow: 4 * time.Second, upload: 256 << 20, idle: 500}
	// shortPlan (go test -short) only shows that everything runs.
	shortPlan = plan{rounds: 1, one: 150 * time.Millisecond, beside: 500 * time.Millisecond, slow: time.Second, upload: 32 << 20, idle: 50}
)

// BenchmarkServices measures requests to a node's service against the origin itself,
// a reverse proxy without a tunnel, and other tunnels that are installed, and prints
// the table of targets. Every ratio is taken within one round, in which all variants
// have their turn; rounds begin with another variant each.
func BenchmarkServices(b *testing.B) {
	p := wholePlan
	if testing.Short() {
		p = shortPlan
	}
	for _, tls := range []string{"off", "self"} {
		b.Run("tls="+tls, func(b *testing.B) {
			f := figures{}
			s := newServices(b, tls, p)
			s.idle(f) // first: later the processes have memory to spare
			s.smallAndBulk(f)
			s.beside(f)
			s.slowLine(f)
			s.stalled(f)
			b.ReportMetric(0, "ns/op")
			f.table(os.Stdout, fmt.Sprintf("services, TLS %s, median of %d rounds", tls, p.rounds), tls == "off")
		})
	}
}

// services is a bed with a node that exposes the origin.
type services struct {
	*testing.B
	plan plan
	bed  *bed
	node *fleet.Node

	direct, plain, mesh, tcp *path
	chisel, frp              *path // nil: not installed
	credential, origin       string
}

func newServices(b *testing.B, tls string, p plan) *services {
	b.Helper()
	s := &services{B: b, plan: p, bed: newBed(b, tls, 0, 1)}
	s.origin = startRole(b, roleOrigin)
	who, err := enroll(s.bed.fleet.Hub.Link, auth.EnrollLogin, "load")
	if err != nil {
		b.Fatal(err)
	}
	s.credential = who.Credential.Reveal()
	s.node = s.startNode("near")
	env := []string{targetVar + "=" + s.origin}
	if tls != "off" {
		env = append(env, tlsVar+"=1")
	}
	s.direct = await(b, &path{name: "direct", addr: s.origin}, true)
	s.plain = await(b, &path{name: "plain-RP", addr: startRole(b, rolePlain, env...), tls: tls != "off"}, true)
	s.mesh = await(b, s.via("near"), true)
	_, raw, _ := strings.Cut(s.bed.fleet.Ctl("forwarder").Forward("near/raw"), "://")
	s.tcp = await(b, &path{name: "raw TCP", addr: raw}, true)
	if tls == "off" {
		s.chisel, s.frp = startChisel(b, s.origin), startFRP(b, s.origin)
	}
	return s
}

// startNode starts a node that exposes the origin, perhaps through another address
// of the hub.
func (s *services) startNode(name string, more ...fleet.NodeOption) *fleet.Node {
	return s.bed.fleet.Node(name, append(more, fleet.Args("--log-level", "error", "--agent", "command",
		"--service", "web=http://"+s.origin, "--service", "raw=tcp://"+s.origin, "--", "true"))...)
}

// via is the way through a node's service.
func (s *services) via(node string) *path {
	return &path{
		name: "mesh", addr: s.bed.fleet.Hub.Addr(), tls: strings.HasPrefix(s.bed.fleet.Hub.URL, "https://"),
		prefix: "/v1/nodes/" + node + "/services/web", header: api.HeaderAuthorization + ": Bearer " + s.credential + "\r\n",
	}
}

// must fails the benchmark.
func (s *services) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// kinds of load, each a figure per second of one path.
var kinds = []struct {
	name string
	raw  bool // goes through the raw forward as well
	run  func(p *path, pl plan) (float64, error)
}{
	{"get1", true, rate(1)},
	{"get8", false, rate(8)},
	{"get64", true, rate(64)},
	{"down1", false, func(p *path, pl plan) (float64, error) { return p.down(context.Background(), 1, pl.one) }},
	{"down8", false, func(p *path, pl plan) (float64, error) { return p.down(context.Background(), 8, pl.one) }},
	{"up1", false, func(p *path, pl plan) (float64, error) { return p.up(context.Background(), 1, pl.upload) }},
	{"up8", false, func(p *path, pl plan) (float64, error) { return p.up(context.Background(), 8, pl.upload/4) }},
}

// rate is small requests per second.
func rate(flight int) func(*path, plan) (float64, error) {
	return func(p *path, pl plan) (float64, error) {
		a, err := p.gets(flight, pl.one, 0)
		return float64(len(a.took)) / a.elapsed.Seconds(), err
	}
}

// smallAndBulk compares every path at every kind of load.
func (s *services) smallAndBulk(f figures) {
	paths := []*path{s.direct, s.plain, s.mesh}
	for _, p := range []*path{s.chisel, s.frp} {
		if p != nil {
			paths = append(paths, p)
		}
	}
	for _, k := range kinds {
		run := paths
		if k.raw {
			run = append(run[:len(run):len(run)], s.tcp)
		}
		for round := range s.plan.rounds {
			got := map[*path]float64{}
			for i := range run {
				p := run[(round+i)%len(run)]
				v, err := k.run(p, s.plan)
				s.must(err)
				got[p] = v
			}
			f.ratios(k.name, got[s.mesh], map[string]float64{"direct": got[s.direct], "plain": got[s.plain], "chisel": got[s.chisel], "frp": got[s.frp]})
			if flight, ok := strings.CutPrefix(k.name, "get"); ok {
				f.add(k.name+"/s", got[s.mesh])
				if k.raw {
					f.ratios("tcp"+flight, got[s.tcp], map[string]float64{"direct": got[s.direct], "chisel": got[s.chisel]})
				}
			} else {
				f.add(k.name+"-MB/s", got[s.mesh]/1e6)
			}
		}
	}
}

// ratios adds ours over each of the others that was measured.
func (f figures) ratios(kind string, ours float64, others map[string]float64) {
	for name, v := range others {
		if v > 0 {
			f.add(kind+"/"+name, ours/v)
		}
	}
}

// Paced clients, whose latency counts, not their number.
const (
	pacedClients = 8
	pace         = 10 * time.Millisecond
)

// beside measures small requests beside a bulk transfer and a stalled stream.
func (s *services) beside(f figures) {
	for range s.plan.rounds {
		for unit, p := range map[string]*path{"beside-p99-ms": s.mesh, "beside-plain-p99-ms": s.plain} {
			a := s.loaded(p, 1, pacedClients, pace, s.plan.beside, download)
			f.add(unit, ms(a.quantile(0.99)))
		}
	}
}

// download and upload run until ctx ends.
func download(ctx context.Context, p *path) (float64, error) { return p.down(ctx, 1, time.Minute) }

func upload(ctx context.Context, p *path) (float64, error) { return p.up(ctx, 1, endless) }

// loaded makes small requests while one bulk transfer runs and some readers have
// stalled.
func (s *services) loaded(p *path, stalled, flight int, pace, d time.Duration, bulk func(context.Context, *path) (float64, error)) answers {
	s.Helper()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for range stalled {
		c, err := p.stall()
		s.must(err)
		held = append(held, c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var flowed float64
	var bulkErr error
	running.Go(func() { flowed, bulkErr = bulk(ctx, p) })
	a, err := p.gets(flight, d, pace)
	cancel()
	running.Wait()
	s.must(err)
	s.must(bulkErr)
	if flowed == 0 {
		s.Fatalf("%s: the bulk transfer stood still", p.name)
	}
	return a
}

// stalled looks at the hub's memory while many readers have stalled.
func (s *services) stalled(f figures) {
	stop, done := make(chan struct{}), make(chan float64)
	go func() {
		var peak float64
		for {
			peak = max(peak, resident(s.bed.fleet.Hub.Pid()))
			select {
			case <-stop:
				done <- peak
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	a := s.loaded(s.mesh, 64, pacedClients, pace, s.plan.beside, download)
	close(stop)
	if peak := <-done; peak > 0 {
		f.add("stalled64-MB", peak/1e6)
	}
	f.add("stalled64-p99-ms", ms(a.quantile(0.99)))
}

// slowLine measures through a line of 100 Mb/s and 40 ms between node and hub.
func (s *services) slowLine(f figures) {
	line := newSlowLink(s, s.bed.fleet.Hub.Addr(), 100e6, 40*time.Millisecond)
	far := s.startNode("far", fleet.Via(line.through(s.bed.fleet.Hub.Link)))
	p := await(s, s.via("far"), true)
	idle, err := p.gets(1, s.plan.slow, 0)
	s.must(err)
	base := idle.quantile(0.5)
	f.add("slow-idle-ms", ms(base))
	down := s.loaded(p, 0, 1, 0, s.plan.slow, download)
	f.add("slow-down/idle", float64(down.quantile(0.5))/float64(base))
	up := s.loaded(p, 0, 1, 0, s.plan.slow, upload)
	f.add("slow-up/idle", float64(up.quantile(0.5))/float64(base))
	far.Kill()
}

// idle measures what an idle raw stream costs. It is what the processes grew by, so
// it counts what they have not given back yet too.
func (s *services) idle(f figures) {
	hub, node := resident(s.bed.fleet.Hub.Pid()), resident(s.node.Pid())
	if hub == 0 {
		return
	}
	p := s.via("near")
	p.prefix = "/v1/nodes/near/services/raw"
	var held []net.Conn
	for range s.plan.idle {
		c, err := p.dial()
		s.must(err)
		held = append(held, c)
		_, err = io.WriteString(c, p.request("GET", "", "Connection: Upgrade\r\nUpgrade: "+api.UpgradeStream+"\r\n"))
		s.must(err)
		head := make([]byte, 12)
		_, err = io.ReadFull(c, head)
		s.must(err)
		if string(head) != "HTTP/1.1 101" {
			s.Fatalf("a raw stream is answered %q", head)
		}
	}
	n := float64(len(held))
	f.add("stream-hub-KiB", max(0, resident(s.bed.fleet.Hub.Pid())-hub)/n/1024)
	f.add("stream-node-KiB", max(0, resident(s.node.Pid())-node)/n/1024)
	for _, c := range held {
		_ = c.Close()
	}
}

// resident is a process's memory in bytes, 0 where that cannot be told.
func resident(pid int) float64 {
	if runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kib float64
	_, _ = fmt.Sscan(rest, &kib)
	return kib * 1024
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
