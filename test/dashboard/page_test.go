//go:build browser

// Package dashboard works the hub's pages as a person does: in Chromium, against real
// processes, by mouse and by keyboard. It needs Chromium (make tools-browser) and
// belongs to make test-all.
package dashboard

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"opencode-mesh/test/fleet"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// patience bounds each step in a page, and four times what is waited for in it; only a
// hang reaches it. A whole visit may take as long as the test.
const patience = 2 * time.Minute

// page is a browser of its own, without cookies, with one page.
type page struct {
	context.Context
	t   *testing.T
	url string // of the hub

	mu       sync.Mutex // guards the following fields
	problems []string   // what the console complained of
	alerts   int        // dialogs that a script opened
	expected []string   // problems that the test causes itself
}

// newPage starts a browser that ends with the test.
func newPage(t *testing.T, f *fleet.Fleet) *page {
	t.Helper()
	bin := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			bin = path
			break
		}
	}
	if bin == "" {
		t.Fatal("no Chromium here: run make tools-browser")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(bin), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 900),
		chromedp.Flag("ignore-certificate-errors", true), // the hub's key is its own
		chromedp.Flag("accept-lang", "en-US"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // its sandbox refuses root
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &page{Context: ctx, t: t, url: f.Hub.URL}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatalf("start the browser: %v", err)
	}
	t.Cleanup(p.judge)
	return p
}

// note remembers what should not happen: complaints in the console, such as of the
// content security policy, and dialogs.
func (p *page) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.problems = append(p.problems, exception(e.ExceptionDetails))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			p.problems = append(p.problems, string(e.Entry.Source)+": "+e.Entry.Text+" "+e.Entry.URL)
		}
	case *cdppage.EventJavascriptDialogOpening:
		p.alerts++
		go func() {
			_, _ = chromedp.Call(p, cdppage.HandleJavaScriptDialog, cdppage.HandleJavaScriptDialogParams{})
		}()
	}
}

func exception(d *runtime.ExceptionDetails) string {
	text := "exception: " + d.Text
	if d.Exception != nil {
		text += " " + d.Exception.Description
	}
	return text
}

// expect says that complaints with a text are the test's own doing.
func (p *page) expect(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, text)
}

// judge fails the test for what was noted.
func (p *page) judge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alerts > 0 {
		p.t.Errorf("scripts opened %d dialogs", p.alerts)
	}
next:
	for _, problem := range p.problems {
		for _, text := range p.expected {
			if strings.Contains(problem, text) {
				continue next
			}
		}
		p.t.Errorf("the browser complains: %s", problem)
	}
}

// do does something in the page.
func (p *page) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatalf("%s: %v; the page shows:\n%s", what, err, p.shown())
	}
}

// open loads one of the hub's pages.
func (p *page) open(path string) {
	p.t.Helper()
	p.do("load "+path, chromedp.Navigate(p.url+path))
}

// js is what an expression in the page is worth; promises are awaited.
func js[T any](p *page, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s in the page: %v", expression, err)
	}
	return out
}

// quote is a string as scripts write it.
func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// shown is the text that the page shows; "" when it cannot be asked.
func (p *page) shown() string {
	ctx, cancel := context.WithTimeout(p, patience/4)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
	if err != nil {
		return err.Error()
	}
	return out
}

// until waits until an expression in the page is true. A page that is being replaced
// by another cannot be asked, and is asked again.
func (p *page) until(expression string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p, patience)
	defer cancel()
	var err error
	for end := time.Now().Add(patience / 4); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var ok bool
		if ok, err = chromedp.Run(ctx, chromedp.Evaluate[bool](`Boolean(`+expression+`)`)); err == nil && ok {
			return
		}
	}
	p.t.Fatalf("it never is so: %s (%v); the page shows:\n%s", expression, err, p.shown())
}

// shows waits until the page shows a text.
func (p *page) shows(text string) {
	p.t.Helper()
	p.until(`document.body.innerText.includes(` + quote(text) + `)`)
}

// hides waits until the page does not show a text.
func (p *page) hides(text string) {
	p.t.Helper()
	p.until(`!document.body.innerText.includes(` + quote(text) + `)`)
}

// click clicks what a selector finds.
func (p *page) click(selector string) {
	p.t.Helper()
	p.do("click "+selector, chromedp.Click(selector, chromedp.NodeVisible))
}

// enter replaces what is in a field.
func (p *page) enter(selector, text string) {
	p.t.Helper()
	whole := chromedp.Evaluate[chromedp.Void](`document.querySelector(` + quote(selector) + `).select()`)
	p.do("enter into "+selector, chromedp.Focus(selector), whole, chromedp.KeyEvent(text))
}

// press presses keys, wherever the focus is. As on a keyboard, a key and what it types
// are one event, so that a page which takes the key keeps it from being typed.
func (p *page) press(keys string) {
	p.t.Helper()
	for _, r := range keys {
		events := kb.Encode(r)
		down := *events[0]
		for _, e := range events {
			if e.Type == kb.KeyChar {
				down.Text, down.UnmodifiedText = e.Text, e.UnmodifiedText
			}
		}
		call(p, input.DispatchKeyEvent, down)
		call(p, input.DispatchKeyEvent, *events[len(events)-1])
	}
}

// login logs in at a page that needs it, and waits until that is shown.
func (p *page) login(path string) {
	p.t.Helper()
	p.open(path)
	p.until(`location.pathname === "/login"`)
	p.enter("#password", fleet.Password)
	p.click("form.login button")
	p.until(`location.pathname + location.search === ` + quote(path))
	p.until(`document.readyState === "complete"`)
}

// call sends a command of the browser's protocol.
func call[P, R any](p *page, cmd cdp.Command[P, R], params P) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p, patience)
	defer cancel()
	if _, err := chromedp.Call(ctx, cmd, params); err != nil {
		p.t.Fatalf("%s: %v", cmd.Method, err)
	}
}

// size sets the window's.
func (p *page) size(width, height int64) {
	p.t.Helper()
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
}

// dark asks for the dark colours, or the light ones.
func (p *page) dark(on bool) {
	p.t.Helper()
	scheme := "light"
	if on {
		scheme = "dark"
	}
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// follow clicks an element that a list may draw anew at any moment, and so may have no
// stable place for a mouse. It waits for the element, which a list has once it is loaded.
func (p *page) follow(selector string) {
	p.t.Helper()
	p.until(`document.querySelector(` + quote(selector) + `)`)
	p.do("follow "+selector, chromedp.Evaluate[chromedp.Void](`document.querySelector(`+quote(selector)+`).click()`))
}

// choose chooses in a list as a reader does, once the list has the value.
func (p *page) choose(selector, value string) {
	p.t.Helper()
	p.until(`[...document.querySelector(` + quote(selector) + `)?.options ?? []].some((v) => v.value === ` + quote(value) + `)`)
	p.do("choose in "+selector, chromedp.Evaluate[chromedp.Void](`{
		const list = document.querySelector(`+quote(selector)+`);
		list.value = `+quote(value)+`;
		list.dispatchEvent(new Event("input", {bubbles: true}));
		list.dispatchEvent(new Event("change", {bubbles: true}));
	}`))
}
