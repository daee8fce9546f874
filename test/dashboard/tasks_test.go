//go:build browser

package dashboard

import (
	"fmt"
	"path/filepath"
	"testing"

	"opencode-mesh/protocol/api"
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
	// Blanks around a name change nothing, for what comes by events either.
	p.enter("#controller", " desk ")
	p.enter("#target", " alpha \r")
	p.until(rows + ` === 1`)
	ctl.Dispatch("alpha", "--", "the word is pear")
	p.until(rows + ` === 2`)
	js[string](p, `document.querySelector("#controller").value = ""`)
	p.enter("#target", "beta\r")
	p.until(rows + ` === 2 && location.search === "?target=beta"`)
	p.enter("#target", " \r")
	p.until(rows + ` === 4`)
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

func TestWhatATextHidesIsShown(t *testing.T) {
	p := newPage(t, fleet.New(t))
	p.login("/tasks")
	p.until(started)
	const of = `import(document.querySelector("script[type=module]").src.replace("js/tasks.js", "js/text.js")).then((m) => m.`
	if got := js[string](p, of+`line("invoice\u202egpj.exe \u001b[31m", 100))`); got != `invoice\u{202e}gpj.exe \u{1b}[31m` {
		t.Errorf("a line is shown as %q", got)
	}
	if got := js[string](p, of+`visible("one\r\n\ttwo\u2066 \u4e2d"))`); got != "one\n\ttwo\\u{2066} 中" {
		t.Errorf("a text is shown as %q", got)
	}
}

func TestWhatDoesNotFitAPageIsLoadedOrCounted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hub")
	stock(t, dir)
	f := fleet.NewAt(t, dir, "--log-level", "error")
	ctl := f.Ctl("desk", "--operator")
	p := newPage(t, f)

	// Older tasks come as the reader comes near the end, and few rows exist at a time.
	p.login("/tasks")
	p.until(rows + ` === 200`)
	p.until(`(scrollTo(0, document.body.scrollHeight), ` + rows + ` >= 600)`)
	if n := js[int](p, `document.querySelectorAll("#tasks .card").length`); n > 60 {
		t.Errorf("%d rows exist", n)
	}

	// A hundred nodes are offered at once; the search finds the others.
	const targets = 130
	query := "/dispatch?"
	for i := range targets {
		query += "&node=" + nodeName(i)
	}
	p.open(query)
	p.shows(fmt.Sprintf("Nodes chosen: %d", targets))
	p.until(`document.querySelectorAll("#nodes input").length === 100`)
	p.shows("More that fit: 1,900.")
	p.enter("#search", nodeName(1999))
	p.until(`document.querySelectorAll("#nodes input").length === 1`)
	p.press("\r")
	p.shows(fmt.Sprintf("Nodes chosen: %d", targets+1))

	// Of many targets the first are shown one by one, and all are counted.
	p.enter("#text", "when you are back")
	p.click("#send")
	p.shows(fmt.Sprintf("%d queued", targets+1))
	p.shows("Targets that are counted above and not shown here: 31.")
	if n := js[int](p, `document.querySelectorAll("#targets .card").length`); n != 100 {
		t.Errorf("%d targets are shown", n)
	}
	var queued api.TaskPage
	ctl.Get("/v1/tasks?limit=1000&state=queued", &queued)
	if len(queued.Tasks) != targets+1 {
		t.Fatalf("%d tasks wait", len(queued.Tasks))
	}
	for _, v := range queued.Tasks {
		if status, answer := ctl.API("POST", "/v1/tasks/"+v.Task+"/cancel", nil); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	p.until(fmt.Sprintf(`document.querySelector("#tally").textContent === "%d canceled"`, targets+1))
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
