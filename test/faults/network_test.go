//go:build faults

package faults

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

func offline(n api.Node) bool { return n.State == api.NodeOffline }

// TestAFrozenNetworkIsNoticedAndSurvived is the half-open tunnel: nothing is
// closed, no byte passes.
func TestAFrozenNetworkIsNoticedAndSurvived(t *testing.T) {
	f := fleet.New(t, quick...)
	proxy, link := f.Proxy()
	f.Node("alpha", fleet.Via(link), f.Demo())
	near := f.Node("beta", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	ctl.Online("beta")

	proxy.Freeze()
	start := time.Now()
	ctl.AwaitNode("alpha", offline)
	noticed := time.Since(start)
	// The same wait on a node that says goodbye is the cost of looking alone.
	start = time.Now()
	near.Stop()
	ctl.AwaitNode("beta", offline)
	t.Logf("frozen: offline after %s; stopped: after %s; two heartbeat intervals are 2s", noticed, time.Since(start))

	tasks, _ := ctl.Dispatch("alpha", "--detach", "--", "while frozen")
	if tasks[0].State != api.StateQueued {
		t.Errorf("state %s", tasks[0].State)
	}
	proxy.Thaw()
	done, out := ctl.Tasks("task", "wait", tasks[0].Task)
	if out.Code != 0 || done[0].State != api.StateDone {
		t.Errorf("%+v", out)
	}
}

func TestAnOfflineNodesTasksWaitAndStartInOrder(t *testing.T) {
	f := fleet.New(t, quick...)
	log := filepath.Join(f.Dir, "order")
	node := f.Node("alpha", fleet.Args("--max-parallel", "1"), f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	node.Stop()
	ctl.AwaitNode("alpha", offline)
	var ids []string
	for range 10 {
		tasks, out := ctl.Dispatch("alpha", "--detach", "--", "APPEND:"+log)
		if out.Code != 0 {
			t.Fatalf("%+v", out)
		}
		ids = append(ids, tasks[0].Task)
	}
	node.Start()
	if out := ctl.Run(append([]string{"task", "wait"}, ids...)...); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	if got := order(t, log); strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Errorf("started in the order %v, dispatched in %v", got, ids)
	}
}

// TestACopyStartedBesideARunningNodeTouchesNothingOfIts is the clumsiest copy: of a
// node that runs a task, on the same machine.
func TestACopyStartedBesideARunningNodeTouchesNothingOfIts(t *testing.T) {
	f := fleet.New(t, quick...)
	log := filepath.Join(f.Dir, "starts")
	node := f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk", "--operator")
	ctl.Online("alpha")
	tasks, _ := ctl.Dispatch("alpha", "--detach", "--", "APPEND:"+log+"\nSLEEP:4s")
	ctl.AwaitNode("alpha", func(n api.Node) bool { return n.Running > 0 })
	copied := filepath.Join(f.Dir, "alpha-copy")
	copyDir(t, node.Dir, copied)
	f.Node("alpha", fleet.DataDir(copied), f.Demo())
	ctl.AwaitNode("alpha", func(n api.Node) bool { return len(n.Alarms) > 0 })
	done, out := ctl.Tasks("task", "wait", tasks[0].Task)
	if out.Code != 0 || done[0].State != api.StateDone {
		t.Errorf("%+v\n%s", out, node.Log())
	}
	if runs := started(t, log); runs[tasks[0].Task] != 1 {
		t.Errorf("starts %v", runs)
	}
}

// TestACopyStartedAfterItsNodeStoppedLeavesTheProgramAlone: the program goes on
// under its shim, whose records the copy has too.
func TestACopyStartedAfterItsNodeStoppedLeavesTheProgramAlone(t *testing.T) {
	f := fleet.New(t, quick...)
	log := filepath.Join(f.Dir, "starts")
	node := f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk", "--operator")
	ctl.Online("alpha")
	ctl.Dispatch("alpha", "--detach", "--", "SLEEP:4s\nAPPEND:"+log)
	ctl.AwaitNode("alpha", func(n api.Node) bool { return n.Running > 0 })
	node.Stop()
	copied := filepath.Join(f.Dir, "alpha-copy")
	copyDir(t, node.Dir, copied)
	f.Node("alpha", fleet.DataDir(copied), f.Demo())
	for deadline := time.Now().Add(settleTime); len(started(t, log)) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the program did not come to its end")
		}
	}
}

// TestACopiedDirectoryIsNoticedAndDoesNotFight copies a node's directory and runs both:
// the newest connection wins once, the older parks and does not come back.
func TestACopiedDirectoryIsNoticedAndDoesNotFight(t *testing.T) {
	f := fleet.New(t, quick...)
	log := filepath.Join(f.Dir, "starts")
	node := f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk", "--operator")
	ctl.Online("alpha")
	tasks, out := ctl.Dispatch("alpha", "--", "APPEND:"+log)
	if out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	node.Stop()
	copied := filepath.Join(f.Dir, "alpha-copy")
	copyDir(t, node.Dir, copied)
	node.Start() // the original's epoch moves on
	ctl.Online("alpha")
	second := f.Node("alpha", fleet.DataDir(copied), f.Demo())
	forked := ctl.AwaitNode("alpha", func(n api.Node) bool { return len(n.Alarms) > 0 && n.Superseded > 0 })
	if !strings.Contains(forked.Alarms[0], "journal_forked") {
		t.Errorf("alarms %v", forked.Alarms)
	}
	// The copy has the name now and works; the original is parked, not fighting.
	more, out := ctl.Dispatch("alpha", "--", "APPEND:"+log)
	if out.Code != 0 || more[0].State != api.StateDone {
		t.Fatalf("%+v\n%s", out, second.Log())
	}
	if n := ctl.Online("alpha"); n.Superseded != forked.Superseded {
		t.Errorf("the name was taken over %d times, then %d", forked.Superseded, n.Superseded)
	}
	if node.Ended() {
		t.Log("the superseded process ended")
	}
	if runs := started(t, log); runs[tasks[0].Task] != 1 || runs[more[0].Task] != 1 {
		t.Errorf("starts %v", runs)
	}
}

func TestARejoinedNameStartsEmpty(t *testing.T) {
	f := fleet.New(t, quick...)
	node := f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	node.Stop()
	ctl.AwaitNode("alpha", offline)
	tasks, _ := ctl.Dispatch("alpha", "--detach", "--", "for the old one")
	fresh := filepath.Join(f.Dir, "fresh")
	if refused := f.Node("alpha", fleet.DataDir(fresh), f.Demo()); refused.Wait() == 0 || !strings.Contains(refused.Log(), "--replace") {
		t.Fatalf("a taken name: %s", refused.Log())
	}
	join := f.Join(f.Hub.Link, "--name", "alpha", "--data", fresh, "--replace")
	if join.Code != 0 {
		t.Fatalf("%+v", join)
	}
	f.Node("alpha", fleet.DataDir(fresh), f.Demo())
	ctl.Online("alpha")
	old, out := ctl.Tasks("task", "wait", tasks[0].Task)
	if out.Code != 1 || old[0].State != api.StateCanceled || old[0].Error.Code != api.TaskTargetReplaced {
		t.Errorf("%+v", out)
	}
	if _, out := ctl.Dispatch("alpha", "--", "for the new one"); out.Code != 0 {
		t.Errorf("%+v", out)
	}
	// The old directory's credential is void.
	node.Start()
	if code := node.Wait(); code != 3 {
		t.Errorf("the old node ended with %d: %s", code, node.Log())
	}
}
