//go:build browser

package dashboard

import (
	"fmt"
	"syscall"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// halt stops a process, or lets it go on: a hub that hangs with its connections open.
func halt(t *testing.T, h *fleet.Hub, stop bool) {
	t.Helper()
	sig := syscall.SIGCONT
	if stop {
		sig = syscall.SIGSTOP
	}
	if err := syscall.Kill(h.Pid(), sig); err != nil {
		t.Fatal(err)
	}
}

// TestAFrozenHubLeavesNoFormStuck sends what the hub then has: a dispatch, an answer and
// a cancellation. Each page says after a while that nobody knows, and sends again.
func TestAFrozenHubLeavesNoFormStuck(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	asks, out := ctl.Dispatch("alpha", "--detach", "--", "ASK:Which way? | left | right")
	if len(asks) != 1 {
		t.Fatalf("%+v", out)
	}
	var pages [3]*page
	for i, path := range []string{"/dispatch?node=alpha", "/questions", "/tasks/" + asks[0].Task} {
		pages[i] = newPage(t, f)
		pages[i].expect("ERR_") // while the hub hangs
		pages[i].login(path)
		pages[i].until(started)
	}
	dispatch, question, task := pages[0], pages[1], pages[2]
	dispatch.enter("#text", "count the files")
	question.until(`document.querySelector(".question .option")`)
	task.until(`document.querySelector("#buttons .danger")`)
	halt(t, f.Hub, true)
	t.Cleanup(func() { _ = syscall.Kill(f.Hub.Pid(), syscall.SIGCONT) })
	dispatch.click("#send")
	question.click(".question .option")
	task.click("#buttons .danger")
	task.click("dialog .danger")
	dispatch.shows("It is not known whether this arrived. Sending it again repeats the same tasks")
	dispatch.until(`!document.querySelector("#send").disabled && document.querySelector("#send").textContent === "Send again, same tasks"`)
	question.shows("It is not known whether the answer arrived.")
	question.until(`!document.querySelector(".question .option").disabled`)
	task.shows("The hub did not answer in time. It is not known whether this arrived.")
	task.until(`!document.querySelector("#buttons .danger").disabled`)
	halt(t, f.Hub, false)
	dispatch.click("#send")
	dispatch.settled(1, "done")
	var page api.TaskPage
	ctl.Get("/v1/tasks?target=alpha&limit=10", &page)
	if len(page.Tasks) != 2 {
		t.Error(fmt.Sprint(len(page.Tasks), " tasks, not the question and one dispatch"))
	}
}
