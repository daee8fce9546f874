//go:build browser

package dashboard

import (
	"testing"

	"opencode-mesh/test/fleet"
)

// focused is what has the focus: its name to readers of the screen, or its text.
const focused = `(() => { const a = document.activeElement; return a === document.body ? "nothing" : a.getAttribute("aria-label") || a.textContent; })()`

// give gives the focus as Tab would.
func (p *page) give(selector string) {
	p.t.Helper()
	// In one step: what is found may be replaced before a second one.
	p.until(`(document.querySelector(` + quote(selector) + `)?.focus(), document.activeElement?.matches(` + quote(selector) + `))`)
}

// yes confirms what a dialog asks, by keyboard.
func (p *page) yes() {
	p.t.Helper()
	p.until(`document.querySelector("dialog[open]")`)
	p.give("dialog[open] button.danger")
	p.press("\r")
	p.until(`!document.querySelector("dialog")`)
}

func TestTheKeyboardKeepsItsPlaceWhereATaskChanges(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	detach := func(text string) string {
		tasks, out := ctl.Dispatch("alpha", "--detach", "--", text)
		if len(tasks) != 1 {
			t.Fatalf("%+v", out)
		}
		return tasks[0].Task
	}
	p := newPage(t, f)
	p.login("/tasks")
	shows := func(state string) {
		t.Helper()
		p.until(`document.querySelector("#head .state." + ` + quote(state) + `) || document.querySelector("#head .state")?.textContent === ` + quote(state))
	}

	// It begins to run while the reader is at Cancel.
	first := detach("SLEEP:2m")
	id := detach("SLEEP:2m")
	p.open("/tasks/" + id)
	p.give(`#buttons [data-control="cancel"]`)
	ctl.Run("task", "cancel", first)
	shows("running")
	p.until(focused + ` === "Cancel: ` + id + `"`)

	// Canceled by keyboard, then run again.
	p.press("\r")
	p.yes()
	shows("canceled")
	p.until(`document.querySelector('#buttons [data-control="retry"]') && document.activeElement.closest("#buttons")`)
	p.give(`#buttons [data-control="retry"]`)
	p.press("\r")
	p.until(`document.querySelector("dialog[open]") || document.querySelector('#buttons [data-control="cancel"]')`)
	if js[bool](p, `Boolean(document.querySelector("dialog[open]"))`) {
		p.yes()
	}
	shows("running")
	p.until(`document.activeElement.closest("#buttons")`)

	// The task ends while the reader is asked.
	p.give(`#buttons [data-control="cancel"]`)
	p.press("\r")
	p.until(`document.querySelector("dialog[open]")`)
	ctl.Run("task", "cancel", id)
	shows("canceled")
	p.press("\x1b")
	p.until(`!document.querySelector("dialog") && ` + focused + ` === "Retry: ` + id + `"`)

	// On a card of a dispatch.
	p.open("/dispatch?node=alpha")
	p.until(`document.querySelector("#chips button")`)
	p.enter("#text", "SLEEP:2m")
	p.click("#send")
	p.until(`document.querySelector("#targets .state")?.textContent === "running"`)
	p.give(`#targets [data-control="cancel"]`)
	p.press("\r")
	p.yes()
	p.until(`document.querySelector('#targets [data-control="retry"]') && document.activeElement.closest("#targets .card")`)
}

func TestTheKeyboardKeepsItsPlaceInAListThatChanges(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	for _, n := range []string{"alpha", "beta", "gamma"} {
		f.Node(n, f.Demo())
	}
	for _, n := range []string{"alpha", "beta", "gamma"} {
		ctl.Online(n)
	}
	p := newPage(t, f)
	p.login("/")
	order := func(names string) {
		t.Helper()
		p.until(`[...document.querySelectorAll("#nodes .card")].map((c) => c.dataset.item).join() === ` + quote(names))
	}
	p.choose("#sort", "work")
	order("alpha,beta,gamma")

	// The card with the focus rises, and others pass it.
	p.give(`[data-item="beta"] button`)
	b, _ := ctl.Dispatch("beta", "--detach", "--", "SLEEP:2m")
	order("beta,alpha,gamma")
	p.until(focused + ` === "Details: beta"`)
	var g []string
	for range 2 {
		tasks, _ := ctl.Dispatch("gamma", "--detach", "--", "SLEEP:2m")
		g = append(g, tasks[0].Task)
	}
	order("gamma,beta,alpha")
	p.until(focused + ` === "Details: beta"`)

	// A row that is listed no more leaves the focus to the next, the last to the heading.
	p.open("/tasks?open=true")
	p.give(`[data-item="` + g[0] + `"] a`)
	ctl.Run("task", "cancel", g[0])
	p.until(`!document.querySelector('[data-item="` + g[0] + `"]') && document.activeElement.closest("[data-item]").dataset.item === ` + quote(b[0].Task))
	ctl.Run("task", "cancel", g[1])
	p.until(`!document.querySelector('[data-item="` + g[1] + `"]') && document.activeElement.closest("[data-item]").dataset.item === ` + quote(b[0].Task))
	ctl.Run("task", "cancel", b[0].Task)
	p.until(`!document.querySelector("[data-item]") && document.activeElement.matches("#main h1")`)
}
