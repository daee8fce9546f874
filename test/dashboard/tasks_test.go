//go:build browser

package dashboard

import (
	"fmt"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/test/fleet"
)

// rows are the tasks that the list knows, whether they are near the window or not.
const rows = `Number(document.querySelector("#tasks [aria-setsize]")?.getAttribute("aria-setsize") || 0)`

func TestTheListOfTasksIsFilteredSearchedAndKept(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk")
	f.Node("alpha", f.Demo())
	f.Node("beta", f.Demo())
	ctl.Online("alpha")
	ctl.Online("beta")
	ctl.Dispatch("alpha", "--", "the word is plum")
	ctl.Dispatch("beta", "--", "FAIL:no such luck")
	ctl.Dispatch("beta", "--detach", "--", "ASK:Which way? | left | right")
	p := newPage(t, f)
	p.login("/tasks")
	p.until(rows + ` === 3`)
	js[string](p, `window.mark = "same page"`)
	state := func(value string) {
		t.Helper()
		js[bool](p, `((s) => { s.value = `+quote(value)+`; return s.dispatchEvent(new Event("input", { bubbles: true })); })(document.querySelector("#state"))`)
	}
	state("failed")
	p.until(rows + ` === 1`)
	p.shows("no such luck")
	state("")
	p.until(rows + ` === 3`)
	p.enter("#target", "alpha\r")
	p.until(rows + ` === 1`)
	p.expect("404")
	p.enter("#target", "nobody\r")
	p.shows(`"nobody"`) // who is not known is said, and what was shown stays
	p.until(rows + ` === 1`)
	p.enter("#target", " \r")
	p.until(rows + ` === 3 && document.querySelector("#problem").hidden`)
	p.enter("#search", "PLUM") // it stands in the text alone, which the hub searches
	p.until(rows + ` === 1 && location.search === "?q=PLUM"`)
	p.enter("#search", " ")
	p.click("#open")
	p.until(rows + ` === 1 && location.search === "?open=true"`)
	p.shows("Which way?")

	// What ends leaves the list of the open ones, and what comes joins it.
	ctl.Dispatch("alpha", "--detach", "--", "SLEEP:1m")
	p.until(rows + ` === 2`)
	var open api.TaskPage
	ctl.Get("/v1/tasks?state=question", &open)
	if out := ctl.Run("task", "answer", open.Tasks[0].Task, "left"); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	p.until(rows + ` === 1 && document.querySelector("#tasks .state.run")`)
	if js[string](p, `window.mark`) != "same page" {
		t.Error("the page was loaded again")
	}
	// The address keeps the filter.
	p.open("/tasks?open=true")
	p.until(rows + ` === 1 && document.querySelector("#open").checked`)
}

func TestThousandsOfTasksAreLoadedAsTheReaderComesToThem(t *testing.T) {
	f := fleet.New(t)
	f.Node("away", f.Demo()).Kill()
	ctl := f.Ctl("desk")
	if f.Join(f.Hub.Link, "--name", "asleep", "--data", t.TempDir()).Code != 0 {
		t.Fatal("no node")
	}
	const all = 1100
	for n := 0; n < all; n += 100 {
		for range 100 {
			d := api.Dispatch{Text: fmt.Sprintf("number %d", n), Targets: []api.DispatchTarget{{Name: "asleep", ID: mesh.NewID("desk")}}}
			if status, answer := ctl.API("POST", "/v1/tasks", d); status != 201 {
				t.Fatalf("%d %s", status, answer)
			}
		}
	}
	p := newPage(t, f)
	p.login("/tasks")
	p.until(rows + ` === 200`)
	p.until(`(scrollTo(0, document.body.scrollHeight), ` + rows + ` === 1100 && document.querySelector("#older").hidden)`)
	if n := js[int](p, `document.querySelectorAll("#tasks .card").length`); n > 60 {
		t.Errorf("%d rows exist", n)
	}
	p.shows("Tasks: 1,100")
}

func TestALateResultIsMarkedAndKeptBesideTheTask(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("boss", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	tasks, out := ctl.Dispatch("alpha", "--detach", "--", "SLEEP:4s")
	if len(tasks) != 1 {
		t.Fatalf("%+v", out)
	}
	id := tasks[0].Task
	p := newPage(t, f)
	p.login("/tasks/" + id)
	p.until(`document.querySelector("#head .state.run")`)
	if status, answer := ctl.API("POST", "/v1/tasks/"+id+"/abandon", nil); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	p.until(`document.querySelector("#head .state").textContent === "failed"`)
	p.shows("The node did not return in time, or the task was given up.")
	p.shows("The work may have been done, in part or in whole.")
	p.shows("late result")
	p.until(`document.querySelector("#head .state").textContent === "failed" && document.querySelector("#reply pre").textContent.includes("opencode-mesh-result")`)
	p.shows("Reply as it was received (a late one, if none came in time)")
	p.open("/tasks")
	p.until(`document.querySelector('[data-item="` + id + `"]').innerText.includes("late result")`)
}
