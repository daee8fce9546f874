package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

func TestANodeWithoutItsAgentSaysSoAndItsTasksDoNotHang(t *testing.T) {
	t.Parallel()
	f := fleet.New(t)
	f.Node("alpha", fleet.Args("--agent", "opencode", "--opencode", "http://127.0.0.1:1"))
	ctl := f.Ctl("desk")
	n := ctl.AwaitNode("alpha", func(n api.Node) bool { return n.State == api.NodeOnline && n.Agent.Health == api.HealthUnreachable })
	if n.Agent.Detail == "" {
		t.Error("nobody says why")
	}
	tasks, out := ctl.Dispatch("alpha", "--timeout", "1s", "--", "hello")
	task := one(t, tasks, out)
	if out.Code != 4 || task.State.Settled() && task.State != api.StateFailed {
		t.Errorf("%+v %+v", task, out)
	}
	if out := ctl.Run("task", "cancel", task.Task); out.Code != 0 {
		t.Errorf("cancel: %+v", out)
	}
	done, out := ctl.Tasks("task", "wait", task.Task)
	if after := one(t, done, out); !after.State.Settled() {
		t.Errorf("%+v %+v", after, out)
	}
}

func TestWhatARunLeftBehindIsRemovedOnceItsResultIsAcknowledged(t *testing.T) {
	t.Parallel()
	f := fleet.New(t)
	node := f.Node("alpha", f.Demo())
	ctl := f.Ctl("desk")
	ctl.Online("alpha")
	for range 3 {
		if _, out := ctl.Dispatch("alpha", "--", "hello"); out.Code != 0 {
			t.Fatalf("%+v", out)
		}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left, err := os.ReadDir(filepath.Join(node.Dir, "runs"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d runs are left", len(left))
		}
	}
}
