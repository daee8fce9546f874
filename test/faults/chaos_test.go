//go:build faults

// Package faults breaks a mesh of real processes on purpose: kills, frozen
// networks, copied and restored directories, full disks. What was accepted must
// still settle, and nothing may run twice.
package faults

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/test/fleet"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// quick are hub settings with short intervals, so that a lost node is noticed
// within seconds.
var quick = []string{"--heartbeat", "1s", "--heartbeat-timeout", "1s"}

// settleTime bounds the wait for the end of a load; only a lost task reaches it.
const settleTime = 3 * time.Minute

func TestThirtyKillsOfHubOrNodeLoseNothingAndRunNothingTwice(t *testing.T) {
	chaos{tasks: 200, kills: 30}.run(t)
}

func TestKillingShimsTooGivesInterruptedAndNeverASecondRun(t *testing.T) {
	chaos{tasks: 100, kills: 12, shims: true}.run(t)
}

// TestSoakOfKills repeats the suite for MESH_TEST_SOAK (make soak); once without.
func TestSoakOfKills(t *testing.T) {
	limit, err := time.ParseDuration(os.Getenv("MESH_TEST_SOAK"))
	if err != nil {
		chaos{tasks: 40, kills: 4}.run(t)
		return
	}
	for start, round := time.Now(), 1; time.Since(start) < limit; round++ {
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			chaos{tasks: 200, kills: 30, shims: round%3 == 0}.run(t)
		})
	}
}

// chaos is one run of the suite.
type chaos struct {
	tasks, kills int
	shims        bool // kill shims as well
}

func (c chaos) run(t *testing.T) {
	f := fleet.New(t, quick...)
	starts := filepath.Join(f.Dir, "starts")
	nodes := []*fleet.Node{
		f.Node("alpha", fleet.Args("--max-parallel", "8"), f.Demo()),
		f.Node("beta", fleet.Args("--max-parallel", "8"), f.Demo()),
	}
	f.Ctl("watcher").Online("alpha")
	ctl := connect(t, f, "loader")

	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	var acked sync.Map
	var load sync.WaitGroup
	slots := make(chan struct{}, 16)
	load.Go(func() {
		for i := range c.tasks {
			slots <- struct{}{}
			load.Go(func() {
				defer func() { <-slots }()
				id := mesh.NewID("loader")
				text := fmt.Sprintf("APPEND:%s\nSLEEP:%dms\nwork %d", starts, rand.N(300), i)
				for ctx.Err() == nil {
					_, err := ctl.Dispatch(ctx, api.Dispatch{Text: text, Targets: []api.DispatchTarget{{Name: nodes[i%len(nodes)].Name, ID: id}}})
					if err == nil {
						acked.Store(id, true)
						return
					}
				}
			})
			time.Sleep(rand.N(100 * time.Millisecond)) // spread the load over the kills
		}
	})
	for range c.kills {
		time.Sleep(rand.N(400 * time.Millisecond)) // a random moment is the point
		switch n := rand.N(3); n {
		case 0:
			f.Hub.Kill()
			f.Hub.Start()
		default:
			nodes[n-1].Kill()
			if c.shims {
				killShims(t, nodes[n-1].Dir)
			}
			nodes[n-1].Start()
		}
	}
	load.Wait()
	c.check(ctx, t, ctl, &acked, starts)
}

// check demands that every acknowledged task settled and that none started twice.
func (c chaos) check(ctx context.Context, t *testing.T, ctl *client.Client, acked *sync.Map, starts string) {
	runs := started(t, starts)
	interrupted, n := 0, 0
	acked.Range(func(key, _ any) bool {
		id := key.(string)
		n++
		task, err := ctl.Wait(ctx, id, nil)
		if err != nil {
			t.Errorf("task %s did not settle: %v (state %s)", id, err, task.State)
			return true
		}
		switch {
		case task.State == api.StateDone:
		case c.shims && task.State == api.StateFailed && task.Error != nil && task.Error.Code == api.TaskInterrupted && slices.Contains(task.Flags, api.FlagMayHaveRun):
			interrupted++
		default:
			t.Errorf("task %s: %s %+v flags %v, life %+v", id, task.State, task.Error, task.Flags, task.Life)
		}
		return true
	})
	if n != c.tasks {
		t.Errorf("%d of %d tasks were acknowledged", n, c.tasks)
	}
	runs = started(t, starts)
	acked.Range(func(key, _ any) bool {
		id := key.(string)
		if runs[id] > 1 || !c.shims && runs[id] != 1 {
			t.Errorf("task %s started %d times", id, runs[id])
		}
		return true
	})
	t.Logf("%d tasks, %d interrupted, %d starts, %d kills", n, interrupted, len(runs), c.kills)
}

// started counts the starts that the agents wrote down.
func started(t *testing.T, file string) map[string]int {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		return map[string]int{}
	}
	defer f.Close()
	runs := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		id, _, _ := strings.Cut(lines.Text(), " ")
		runs[id]++
	}
	return runs
}

// killShims kills the shims whose runs are in a node's directory.
func killShims(t *testing.T, dir string) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		args := strings.Split(string(b), "\x00")
		if len(args) < 2 || args[1] != "shim" || !strings.Contains(string(b), dir) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// connect logs a controller in without meshctl.
func connect(t *testing.T, f *fleet.Fleet, name string) *client.Client {
	t.Helper()
	link, err := auth.ParseLink(f.Hub.Link)
	if err != nil {
		t.Fatal(err)
	}
	hc, err := link.HTTPClient("")
	if err != nil {
		t.Fatal(err)
	}
	defer hc.CloseIdleConnections()
	is, err := auth.Enroll(context.Background(), hc, link, auth.EnrollLogin, api.Login{Name: name, Password: fleet.Password})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(auth.NewProfile(link, "", is), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
