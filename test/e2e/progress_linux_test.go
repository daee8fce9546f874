package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// TestProgressIsSeenAndNeverStored watches a task whose tool runs until the test lets
// it end.
func TestProgressIsSeenAndNeverStored(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	alpha := f.Node("alpha", using(server))
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	watch, plain := ctl.Start("watch", "--json"), ctl.Start("watch")
	// As the node writes it, it stands in no text that is stored.
	const tool = "bash: until test -e gate"
	dispatched := ctl.Terminal("dispatch", "alpha", "--", "USAGE:130000,5 TICKS:seen TOOL:until test -e gate; do sleep 0.1; done")
	doing := func() *api.Activity { return listed(t, ctl)[0].Activity }
	for name, p := range map[string]*fleet.Running{"watch --json": watch, "watch": plain, "dispatch": dispatched} {
		eventually(t, name+" shows the tool call", func() bool { return strings.Contains(p.Output(), tool) })
	}
	if a := doing(); a == nil || !strings.HasPrefix(a.Tool, tool) {
		t.Errorf("activity %+v", a)
	}
	if err := os.WriteFile(filepath.Join(alpha.Work, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last line and the tokens so far are shown", func() bool {
		a := doing()
		return a != nil && strings.HasPrefix(a.Line, "tick ") && a.Tokens != nil && a.Tokens.Total == 130005
	})
	llm.Open("seen")
	if code := dispatched.Wait(); code != 0 {
		t.Errorf("dispatch: exit %d\n%s", code, dispatched.Output())
	}
	if task := listed(t, ctl)[0]; task.State != api.StateDone || task.Activity != nil {
		t.Errorf("after the end: %+v", task)
	}
	if code := f.Hub.Stop(); code != 0 {
		t.Errorf("hub: exit %d", code)
	}
	raw, err := os.ReadFile(filepath.Join(f.Hub.Dir, "hub.db"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte(tool)) {
		t.Error("the store holds what the agent did")
	}
}

// listed are all tasks of a controller.
func listed(t *testing.T, ctl *fleet.Ctl) []api.Task {
	t.Helper()
	var page api.TaskPage
	ctl.Get("/v1/tasks", &page)
	return page.Tasks
}
