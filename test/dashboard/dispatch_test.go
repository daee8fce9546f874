//go:build browser

package dashboard

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// settled waits until so many targets of a dispatch have ended on the dispatch page.
func (p *page) settled(n int, word string) {
	p.t.Helper()
	p.until(fmt.Sprintf(`[...document.querySelectorAll("#targets .card .state")].filter((s) => s.textContent === %s).length === %d`, quote(word), n))
}

func TestADispatchToTwoNodesShowsTheirResultsWithoutReload(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	f.Node("beta", f.Demo())
	ctl.Online("alpha")
	ctl.Online("beta")
	p := newPage(t, f)
	p.login("/dispatch")
	js[string](p, `window.mark = "same page"`)
	p.until(`document.querySelectorAll("#nodes .state.ok").length === 2`)
	p.click("#online")
	p.shows("Nodes chosen: 2")
	p.enter("#text", "count the files\nSLEEP:300ms")
	p.click("#send")
	p.settled(2, "done")
	p.shows(`the task was "count the files"`)
	p.shows("2 done")
	if js[string](p, `window.mark`) != "same page" {
		t.Error("the page was loaded again")
	}
	if text := js[string](p, `document.getElementById("text").value`); text != "" {
		t.Errorf("the form still has %q", text)
	}
	for _, name := range []string{"alpha", "beta"} {
		var tasks api.TaskPage
		ctl.Get("/v1/tasks?target="+name, &tasks)
		if len(tasks.Tasks) != 1 || tasks.Tasks[0].State != api.StateDone || tasks.Tasks[0].Controller != "dashboard" {
			t.Errorf("%s: %+v", name, tasks.Tasks)
		}
	}
}

func TestADispatchByKeyboardAlone(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	f.Node("beta", f.Demo())
	ctl.Online("alpha")
	ctl.Online("beta")
	p := newPage(t, f)
	p.login("/")
	p.shows("beta")
	p.press("g")
	p.press("d")
	p.until(`location.pathname === "/dispatch" && document.querySelectorAll("#nodes input").length === 2`)
	p.press("/")
	p.press("beta\r")
	p.shows("Nodes chosen: 1")
	tab := func(selector string) {
		t.Helper()
		for range 20 {
			if js[bool](p, `document.activeElement.matches(`+quote(selector)+`)`) {
				return
			}
			p.press("\t")
		}
		t.Fatalf("Tab does not lead to %s", selector)
	}
	tab("#nodes input")
	if name := js[string](p, `document.activeElement.value`); name != "alpha" {
		t.Fatalf("Tab leads to %s, not to the first of the list", name)
	}
	p.press(" ")
	p.shows("Nodes chosen: 2")
	tab("#text")
	p.press("hello from the keyboard")
	tab(`input[name="mode"]`)
	tab("#send")
	p.press("\r")
	p.settled(2, "done")
	p.shows(`the task was "hello from the keyboard"`)
	if at := js[string](p, `document.activeElement.id`); at != "progress-title" {
		t.Errorf("the focus is at %q, not where the progress is", at)
	}
	tab("#targets a")
	p.press("\r")
	p.until(`location.pathname.startsWith("/tasks/")`)
}

// loseAnswer lets the hub's answer to one dispatch not arrive.
const loseAnswer = `(() => {
  const real = window.fetch;
  window.sent = [];
  window.fetch = async (url, options) => {
    if (url !== "/v1/tasks" || options.method !== "POST") return real(url, options);
    window.sent.push(options.body);
    const resp = await real(url, options);
    if (window.sent.length === 1) throw new TypeError("the answer was lost");
    return resp;
  };
})()`

func TestASendWhoseAnswerIsLostIsRepeatedUnderTheSameIDs(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	p := newPage(t, f)
	p.login("/dispatch")
	p.until(`document.querySelectorAll("#nodes .state.ok").length === 1`)
	p.click("#online")
	p.enter("#text", "once and no more")
	p.do("lose an answer", chromedp.Evaluate[chromedp.Void](loseAnswer))
	p.click("#send")
	p.shows("It is not known whether this arrived")
	if text := js[string](p, `document.getElementById("text").value`); text != "once and no more" {
		t.Errorf("the draft is %q", text)
	}
	p.click("#send")
	p.settled(1, "done")
	if !js[bool](p, `window.sent.length === 2 && window.sent[0] === window.sent[1]`) {
		t.Errorf("sent: %s", js[string](p, `window.sent.join("\n")`))
	}
	var tasks api.TaskPage
	ctl.Get("/v1/tasks", &tasks)
	if len(tasks.Tasks) != 1 {
		t.Errorf("%d tasks", len(tasks.Tasks))
	}

	// The same over a reload: the draft is still there, with its ids.
	p.enter("#text", "over a reload")
	js[bool](p, `window.sent.length = 0, true`)
	p.click("#send")
	p.shows("It is not known whether this arrived")
	first := js[string](p, `window.sent[0]`)
	p.open("/dispatch")
	p.shows("It is not known whether this arrived")
	p.do("watch", chromedp.Evaluate[chromedp.Void](`(() => { const real = window.fetch; window.fetch = (u, o) => { if (o.method === "POST") window.sent = o.body; return real(u, o); }; })()`))
	p.click("#send")
	p.settled(1, "done")
	if again := js[string](p, `window.sent`); again != first {
		t.Errorf("first\n%s\nafter the reload\n%s", first, again)
	}
	ctl.Get("/v1/tasks", &tasks)
	if len(tasks.Tasks) != 2 {
		t.Errorf("%d tasks", len(tasks.Tasks))
	}
	// What was not sent yet is there again too, and nothing is sent twice by that.
	p.enter("#text", "not sent yet")
	p.open("/tasks")
	p.open("/dispatch")
	p.until(`document.querySelector("#text").value === "not sent yet" && document.querySelector("#unsure").hidden`)
	p.enter("#text", " ")
	// Once it is known, nothing of it is kept.
	if kept := js[int](p, `sessionStorage.length`); kept != 0 {
		t.Errorf("%d items are kept in the tab", kept)
	}
}

func TestADraftOutlivesTheEndOfTheSession(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	p := newPage(t, f)
	p.login("/dispatch")
	p.until(`document.querySelectorAll("#nodes .state.ok").length === 1`)
	p.click("#online")
	p.enter("#text", "written before the end")
	p.expect("401")
	js[bool](p, `fetch("/logout", { method: "POST" }).then(() => (document.querySelector("#send").click(), true))`)
	p.until(`location.pathname === "/login" && document.readyState === "complete"`)
	p.enter("#password", fleet.Password)
	p.click("form.login button")
	p.until(`location.pathname === "/dispatch" && document.querySelector("#text")?.value === "written before the end"`)
	p.shows("Nodes chosen: 1")
	p.click("#send")
	p.settled(1, "done")
	var tasks api.TaskPage
	ctl.Get("/v1/tasks", &tasks)
	if len(tasks.Tasks) != 1 {
		t.Errorf("%d tasks", len(tasks.Tasks))
	}

	// Who logs out leaves nothing behind.
	p.enter("#text", "nobody's business")
	p.click(`form[action="/logout"] button`)
	p.until(`location.pathname === "/login" && document.readyState === "complete"`)
	if kept := js[int](p, `sessionStorage.length`); kept != 0 {
		t.Errorf("%d items are kept in the tab", kept)
	}
}
