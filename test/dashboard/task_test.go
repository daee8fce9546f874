//go:build browser

package dashboard

import (
	"bytes"
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// dot is a PNG of one pixel.
const dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// hostile would run if it were read as markup.
const hostile = `<img src=x onerror="window.pwned=1"><script>window.pwned=2</script><b id=injected>`

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestATaskIsCanceledAndRunAgain(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	tasks, out := ctl.Dispatch("alpha", "--detach", "--", "SLEEP:2m")
	if len(tasks) != 1 {
		t.Fatalf("%+v", out)
	}
	id := tasks[0].Task
	p := newPage(t, f)
	p.login("/tasks")
	p.until(`document.querySelector('[data-item="` + id + `"] .state.run')`)
	p.click(`[data-item="` + id + `"] a`)
	p.until(`location.pathname === "/tasks/` + id + `" && document.querySelector("#buttons button")`)
	p.click("#buttons button")
	p.shows("Cancel this task on alpha?")
	p.click("dialog button.danger")
	p.until(`document.querySelector("#head .state").textContent === "canceled"`)
	p.until(`[...document.querySelectorAll("#life .state")].at(-1).textContent === "canceled"`)
	for _, step := range []string{"Dispatched", "accepted", "running", "canceled"} {
		p.until(`[...document.querySelectorAll("#life .state")].some((s) => s.textContent === ` + quote(step) + `)`)
	}
	p.click("#buttons button") // run again
	p.until(`document.querySelector("#life").innerText.includes("attempt 2")`)
	p.until(`document.querySelector("#head .state").textContent === "running"`)
	var v api.Task
	ctl.Get("/v1/tasks/"+id, &v)
	if v.Attempt != 2 {
		t.Errorf("attempt %d", v.Attempt)
	}
	p.click("#buttons button.danger")
	p.click("dialog button.danger")
	p.until(`document.querySelector("#head .state").textContent === "canceled"`)
}

func TestArtifactsAreDownloadedAndPreviewed(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	alpha := f.Node("alpha", parrots(t))
	ctl.Online("alpha")
	png, err := base64.StdEncoding.DecodeString(dot)
	if err != nil {
		t.Fatal(err)
	}
	svg := `<svg xmlns="http://www.w3.org/2000/svg" onload="window.pwned=3"><script>window.pwned=4</script></svg>`
	html := `<!doctype html><body onload="window.pwned=5"><script>window.pwned=6</script>`
	write(t, filepath.Join(alpha.Work, "report.txt"), []byte("line one\n"+hostile))
	write(t, filepath.Join(alpha.Work, "dot.png"), png)
	write(t, filepath.Join(alpha.Work, "evil.svg"), []byte(svg))
	write(t, filepath.Join(alpha.Work, "page.html"), []byte(html))
	write(t, filepath.Join(alpha.Work, "data.bin"), []byte{0, 1, 2, 3, 0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0})
	write(t, filepath.Join(alpha.Work, "fake.png"), []byte("no image at all, but a text"))
	write(t, filepath.Join(alpha.Work, "long.txt"), bytes.Repeat([]byte("wörter "), 100_000))
	names := []string{"report.txt", "dot.png", "evil.svg", "page.html", "data.bin", "fake.png", "long.txt", "gone.txt"}
	list := ""
	for i, name := range names {
		if i > 0 {
			list += ", "
		}
		list += name
	}
	tasks, out := ctl.Dispatch("alpha", "--", say(ending("", "done", "made files", list)))
	if len(tasks) != 1 || tasks[0].State != api.StateDone {
		t.Fatalf("%+v", out)
	}
	p := newPage(t, f)
	dir := t.TempDir()
	p.login("/tasks/" + tasks[0].Task)
	p.shows("made files")
	row := func(i int) string { return `.artifact:nth-child(` + string(rune('1'+i)) + `)` }
	preview := func(i int) { t.Helper(); p.click(row(i) + ` button[aria-expanded="false"]`) }

	preview(0)
	p.until(`document.querySelector("` + row(0) + ` pre").textContent === ` + quote("line one\n"+hostile))
	preview(1)
	p.until(`document.querySelector("` + row(1) + ` img").naturalWidth === 1`)
	preview(2) // shown as what it is made of, never drawn
	p.until(`document.querySelector("` + row(2) + ` pre").textContent === ` + quote(svg))
	preview(3)
	p.until(`document.querySelector("` + row(3) + ` pre").textContent === ` + quote(html))
	preview(4)
	p.shows("This is neither text nor an image")
	preview(5)
	p.until(`document.querySelector("` + row(5) + ` pre").textContent === "no image at all, but a text"`)
	preview(6)
	p.until(`document.querySelector("` + row(6) + `").innerText.includes("Only the first")`)
	if n := js[int](p, `new TextEncoder().encode(document.querySelector("`+row(6)+` pre").textContent).length`); n > 256<<10 || n < 256<<10-4 {
		t.Errorf("%d bytes of a long file are shown", n)
	}
	p.until(`!document.querySelector("` + row(7) + ` button")`) // what is not there is not offered
	if js[bool](p, `Boolean(window.pwned || document.querySelector("#injected, main svg, main script, iframe, object, embed"))`) {
		t.Error("a file was read as markup")
	}

	call(p, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: browser.SetDownloadBehaviorBehaviorAllow, DownloadPath: dir})
	p.click(row(2) + ` a.button`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		if b, err := os.ReadFile(filepath.Join(dir, "evil.svg")); err == nil && string(b) == svg {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the file is not downloaded")
		}
		time.Sleep(50 * time.Millisecond)
	}
	// What cannot be had says why, where it was asked for.
	alpha.Kill()
	ctl.AwaitNode("alpha", func(n api.Node) bool { return n.State == "offline" })
	p.expect("502")
	p.click(row(0) + ` a.button`)
	p.until(`document.querySelector("` + row(0) + `").innerText.includes("The node is not connected")`)
}

// TestWhatAnAgentSaysIsNeverMarkup shows every text that an agent controls on every
// page that shows it.
func TestWhatAnAgentSaysIsNeverMarkup(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	alpha := f.Node("alpha", parrots(t))
	ctl.Online("alpha")
	write(t, filepath.Join(alpha.Work, "<b id=injected>x.txt"), []byte(hostile))
	p := newPage(t, f)
	literal := func(where string) {
		t.Helper()
		p.until(`document.querySelector(` + quote(where) + `)?.innerText.includes(` + quote(hostile) + `)`)
		if js[bool](p, `Boolean(window.pwned || document.querySelector("#injected, main img, main script"))`) {
			t.Errorf("%s: what an agent says was read as markup", where)
		}
	}
	p.login("/dispatch")
	p.until(`document.querySelectorAll("#nodes .state.ok").length === 1`)
	p.click("#online")
	text := asking("first "+hostile, "option "+hostile+" | two", ending("reply "+hostile+"\n", "partial", "summary "+hostile, "<b id=injected>x.txt"))
	js[bool](p, `document.getElementById("text").value = `+quote(text)+`, true`)
	p.click("#send")
	literal("#targets .question pre")
	literal("#targets .option")
	id := js[string](p, `document.querySelector("#targets .card").dataset.task`)

	p.open("/questions")
	literal("#questions pre")
	literal("#questions .option")
	p.open("/tasks")
	literal("#tasks .card") // the question, while it waits
	p.open("/tasks/" + id)
	literal("#ask pre")
	p.click("#ask .option")
	p.until(`document.querySelector("#ask").innerText.includes("Answered by you: option <img")`)
	p.until(`document.querySelector("#head .state").textContent === "partly done"`)
	literal("#summary")
	literal("#text pre")
	literal("#reply pre")
	p.until(`document.querySelector(".artifact").innerText.includes("<b id=injected>x.txt")`)
	p.click(".artifact button")
	literal(".artifact pre")

	// A result on the page that dispatched it, and in the list.
	p.open("/dispatch")
	p.click("#online")
	js[bool](p, `document.getElementById("text").value = `+quote(say(ending("", "failed", hostile, "<b id=injected>x.txt")))+`, true`)
	p.click("#send")
	literal("#targets .said")
	p.until(`document.querySelector("#targets .artifact").innerText.includes("<b id=injected>x.txt")`)
	// A reply without a block.
	p.click("#send") // nothing is written: it says so
	p.shows("Say what is to be done.")
	js[bool](p, `document.getElementById("text").value = `+quote(say(hostile))+`, true`)
	p.click("#send")
	p.until(`document.querySelector("#targets code")?.textContent === "free_reply"`)
	literal("#targets .said")
	p.open("/tasks")
	p.until(`document.querySelectorAll("#tasks .card").length === 3`)
	literal("#tasks")
	// The address of the page is no way in either.
	p.open("/tasks?q=%3Cimg%20src%3Dx%20onerror%3Dwindow.pwned%3D1%3E")
	p.until(`document.querySelector("#search").value.startsWith("<img")`)
	if js[bool](p, `Boolean(window.pwned || document.querySelector("#injected, main img, main script"))`) {
		t.Error("the address was read as markup")
	}
}

// TestWhatARunningAgentDoesIsNeverMarkup has a real opencode call a tool that says so.
func TestWhatARunningAgentDoesIsNeverMarkup(t *testing.T) {
	llm := stubllm.Start(t)
	f := fleet.New(t)
	alpha := opencodeNode(t, f, llm, "alpha")
	f.Ctl("desk").Healthy("alpha")
	const shown = `<b id=injected><img src=x onerror=window.pwned=1>`
	p := newPage(t, f)
	p.login("/dispatch?node=alpha")
	p.until(`document.querySelectorAll("#chips button").length === 1`)
	js[bool](p, `document.getElementById("text").value = `+quote("TOOL:true '"+shown+"'; until test -e gate; do sleep 0.1; done")+`, true`)
	p.click("#send")
	literal := func(where string) {
		t.Helper()
		p.until(`document.querySelector(` + quote(where) + `)?.innerText.includes(` + quote(shown) + `)`)
		if js[bool](p, `Boolean(window.pwned || document.querySelector("#injected, main img"))`) {
			t.Errorf("%s: what an agent does was read as markup", where)
		}
	}
	literal("#targets .card")
	id := js[string](p, `document.querySelector("#targets .card").dataset.task`)
	p.open("/tasks")
	literal("#tasks .card")
	p.open("/tasks/" + id)
	literal("#activity")
	write(t, filepath.Join(alpha.Work, "gate"), nil)
	p.until(`document.querySelector("#head .state.done") && !document.querySelector("#activity")`)
	p.until(`document.querySelector("#outcome .ctx")`) // its tokens
}
