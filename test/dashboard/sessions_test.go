//go:build browser

package dashboard

import (
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/opencodebin"
	"opencode-mesh/test/stubllm"
)

// hostileMarkup would open a dialog if it were ever read as markup.
const hostileMarkup = `<img src=x onerror=alert(1)><script>alert(2)</script>`

// acknowledged is what an agent replies to a hand-over.
const acknowledged = `REPLY:[opencode-mesh-result v1]\ntask: {task}\nstatus: done\nsummary: taken over\nartifacts: none\n[/opencode-mesh-result]`

// opencodeNode is a node with a real opencode, whose model is the stub.
func opencodeNode(t *testing.T, f *fleet.Fleet, llm *stubllm.Server, name string) *fleet.Node {
	t.Helper()
	env, bin := opencodebin.Env(t, opencodebin.Options{ModelURL: llm.URL()}), opencodebin.Find(t)
	return f.Node(name, fleet.Environ(env), fleet.Args("--agent", "opencode", "--opencode-bin", bin))
}

func handsOver(user string) bool { return strings.Contains(user, "mode: resume") }

func digests(user string) bool {
	return strings.Contains(user, "digest") && strings.Contains(user, "gen: ") && !handsOver(user)
}

// compacted compacts the session that the page shows and waits for its digest.
func (p *page) compacted(generation string) {
	p.t.Helper()
	p.click("#compact")
	p.until(`document.querySelector("#outcome.ok")?.innerText.includes("done")`)
	p.until(`document.querySelector("#to").value === ` + quote(generation))
}

func TestASessionIsCompactedResetAndClearedInTheBrowser(t *testing.T) {
	llm := stubllm.Start(t)
	f := fleet.New(t)
	opencodeNode(t, f, llm, "alpha")
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	if tasks, out := ctl.Dispatch("alpha", "--", "USAGE:124000,0 begin"); len(tasks) != 1 || tasks[0].State != api.StateDone {
		t.Fatalf("%+v", out)
	}
	t.Cleanup(llm.Direct(handsOver, "USAGE:9000,10 "+acknowledged))
	stop := llm.Direct(digests, "FACTS:the door is blue | build with make | "+hostileMarkup)

	p := newPage(t, f)
	p.login("/sessions")
	p.shows("desk → alpha")
	p.shows("ctx 62 % · filling")
	p.follow(`[data-item="desk/alpha/main"] h2 a`)
	p.until(`location.pathname === "/sessions/desk/alpha" && document.querySelector("#plot svg.plot")`)

	// Compact, twice: the page shows each step and what the digests hand over.
	p.compacted("1")
	p.shows("the door is blue")
	p.shows(hostileMarkup)
	p.until(`document.querySelector("#facts").innerText.includes("ctx 5 % · roomy")`)
	p.shows("Handed over by a digest")
	stop()
	t.Cleanup(llm.Direct(digests, "FACTS:the door is green | build with make | tests pass"))
	p.compacted("2")
	p.until(`document.querySelector("#digest .changed del")?.innerText === "blue" && document.querySelector("#digest .changed ins").innerText === "green"`)
	p.until(`document.querySelector("#digest .added").innerText.includes("tests pass") && document.querySelector("#digest .removed").innerText.includes("onerror")`)
	p.until(`document.querySelectorAll("#plot .turn").length === 2`)

	// A reset asks once, and takes no for an answer.
	p.click("#reset")
	p.click(`#ask-reset button[value="no"]`)
	p.until(`!document.querySelector("dialog[open]")`)
	var before api.Session
	ctl.Get("/v1/bindings/desk/alpha?workspace=main", &before)
	if before.Session == nil {
		t.Fatal("a reset that was not confirmed happened")
	}
	p.click("#reset")
	p.click(`#ask-reset button[value="yes"]`)
	p.until(`document.querySelector("#outcome.ok")?.innerText.includes("Reset: done")`)
	p.until(`document.querySelector("#facts").innerText.includes("none bound") && document.querySelector("#compact").disabled && document.querySelector("#clear").disabled`)

	// Clear asks for the node's name.
	if tasks, out := ctl.Dispatch("alpha", "--", "again"); len(tasks) != 1 || tasks[0].State != api.StateDone {
		t.Fatalf("%+v", out)
	}
	p.until(`!document.querySelector("#clear").disabled`)
	p.click("#clear")
	p.until(`document.querySelector("#clear-yes").disabled && document.activeElement.id === "clear-name"`)
	p.enter("#clear-name", "beta")
	p.press("\r")
	p.until(`document.querySelector("#ask-clear[open]") && document.querySelector("#clear-yes").disabled`)
	p.enter("#clear-name", "alpha")
	p.click("#clear-yes")
	p.until(`document.querySelector("#outcome.ok")?.innerText.includes("Clear: done")`)
	p.shows("deleted for good")

	// And all of it stands in the audit log, from where it is downloaded.
	p.open("/audit?action=session_clear")
	p.shows("session cleared")
	p.shows("desk -> alpha")
	if rows := js[int](p, `document.querySelectorAll("#entries tr").length`); rows != 1 {
		t.Errorf("the filter leaves %d entries", rows)
	}
}

func TestACompactionThatWaitsForItsNodeIsShownAndCanceled(t *testing.T) {
	llm := stubllm.Start(t)
	f := fleet.New(t)
	n := opencodeNode(t, f, llm, "alpha")
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	if tasks, out := ctl.Dispatch("alpha", "--", "begin"); len(tasks) != 1 || tasks[0].State != api.StateDone {
		t.Fatalf("%+v", out)
	}
	p := newPage(t, f)
	p.login("/sessions/desk/alpha?workspace=main")
	p.until(`document.querySelector("#offline").hidden`)
	n.Stop()
	p.shows("The node is offline")
	p.click("#compact")
	p.until(`document.querySelector("#outcome.warn")?.innerText.includes("Compact: queued") && document.querySelector("#compact").disabled && document.activeElement.id === "outcome"`)

	other := newPage(t, f)
	other.login("/sessions")
	other.shows("Compact: queued")

	p.click("#outcome button")
	p.until(`document.querySelector("#outcome.bad")?.innerText.includes("Compact: canceled") && !document.querySelector("#compact").disabled`)
	other.hides("Compact: queued")
}
