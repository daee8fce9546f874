package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// journal is the node's journal file.
func journal(t *testing.T, n *fleet.Node) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.Dir, "journal-*.db"))
	if err != nil || len(files) != 1 {
		t.Fatalf("journals %v: %v", files, err)
	}
	return files[0]
}

func TestTasksSettleOnTheRealOpencode(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	alpha := f.Node("alpha", using(server))
	ctl := f.Ctl("desk", "--operator")
	ctl.Healthy("alpha")

	// lose kills the node and starts it without its journal; the returned function
	// brings the journal back.
	lose := func(t *testing.T) (bring func()) {
		t.Helper()
		alpha.Kill()
		path := journal(t, alpha)
		if err := os.Rename(path, path+".lost"); err != nil {
			t.Fatal(err)
		}
		alpha.Start()
		ctl.Healthy("alpha")
		return func() {
			t.Helper()
			alpha.Kill()
			if err := os.Rename(path+".lost", path); err != nil {
				t.Fatal(err)
			}
			alpha.Start()
			ctl.Healthy("alpha")
		}
	}
	state := func(t *testing.T, id string, want api.State) api.Task {
		t.Helper()
		var task api.Task
		eventually(t, string(want), func() bool { task = shownTask(t, ctl, id); return task.State == want })
		return task
	}

	t.Run("a task whose node lost its journal is unknown, and settles when it is back", func(t *testing.T) {
		ctl := ctl.In(t)
		id := detached(t, ctl, "alpha", "--", "GATE:back")
		asked(t, llm, has(id))
		bring := lose(t)
		state(t, id, api.StateUnknown)
		llm.Open("back")
		bring()
		task := waited(t, ctl, id)
		if task.State != api.StateDone || task.Summary != "stub ok" || task.Attempt != 1 {
			t.Errorf("%+v", task)
		}
	})
	t.Run("a task that is abandoned keeps its late result beside the record", func(t *testing.T) {
		ctl := ctl.In(t)
		id := detached(t, ctl, "alpha", "--", "GATE:late")
		asked(t, llm, has(id))
		bring := lose(t)
		state(t, id, api.StateUnknown)
		if out := f.In(t).Ctl("laptop").Run("task", "abandon", id); out.Code != 3 && out.Code != 1 {
			t.Errorf("anybody may abandon: %+v", out)
		}
		if out := ctl.Run("task", "abandon", id); out.Code != 0 && out.Code != 1 {
			t.Errorf("%+v", out)
		}
		task := state(t, id, api.StateFailed)
		if task.Error == nil || task.Error.Code != api.TaskNodeLost || task.LateResult {
			t.Errorf("%+v", task)
		}
		llm.Open("late")
		bring()
		eventually(t, "the late result", func() bool { return shownTask(t, ctl, id).LateResult })
		if task := shownTask(t, ctl, id); task.State != api.StateFailed {
			t.Errorf("the late result changed the end: %+v", task)
		}
		if out := ctl.Run("task", "show", id); !strings.Contains(out.Stdout, "late") {
			t.Errorf("nobody sees it: %+v", out)
		}
	})
	t.Run("a retry is a new attempt of the same task", func(t *testing.T) {
		ctl := ctl.In(t)
		task := do(t, ctl, api.StateFailed, "alpha", "--", "FAIL:401:1")
		out := ctl.Run("task", "retry", task.Task)
		if out.Code != 0 {
			t.Fatalf("%+v", out)
		}
		again := waited(t, ctl, task.Task)
		if again.State != api.StateDone || again.Attempt != 2 || again.Task != task.Task {
			t.Errorf("%+v", again)
		}
	})
	t.Run("a turn outlives its node", func(t *testing.T) {
		ctl := ctl.In(t)
		id := detached(t, ctl, "alpha", "--", "GATE:outlive")
		asked(t, llm, has(id))
		alpha.Kill()
		llm.Open("outlive")
		alpha.Start()
		if task := waited(t, ctl, id); task.State != api.StateDone || task.Attempt != 1 {
			t.Errorf("%+v", task)
		}
		if n := llm.Count(func(r stubllm.Request) bool { return r.Kind == stubllm.KindChat && strings.Contains(r.User, id) }); n != 1 {
			t.Errorf("the model was asked %d times", n)
		}
	})
}
