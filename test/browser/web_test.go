//go:build browser

package browser

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// pagePatience bounds a whole visit of the browser.
const pagePatience = 2 * time.Minute

// page is a browser with one page, and what that page asked for.
type page struct {
	context.Context
	t *testing.T

	mu     sync.Mutex // guards the following field
	hosts  map[string]bool
	failed []string // requests that were answered 400 or worse
}

// newPage starts a browser that ends with the test.
func newPage(t *testing.T) *page {
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
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(bin), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 900))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // its sandbox refuses root
	}
	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &page{Context: ctx, t: t, hosts: map[string]bool{}}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatalf("start the browser: %v", err)
	}
	return p
}

// note remembers whom the page asked, and what went wrong.
func (p *page) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if _, rest, ok := strings.Cut(e.Request.URL, "://"); ok {
			host, _, _ := strings.Cut(rest, "/")
			p.hosts[host] = true
		}
	case *network.EventResponseReceived:
		if e.Response.Status >= 400 {
			p.failed = append(p.failed, e.Response.URL+" "+e.Response.StatusText)
		}
	}
}

// do does something in the page.
func (p *page) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p, steps...); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// script runs a script in the page and returns the text that it ends with.
func (p *page) script(text string) string {
	p.t.Helper()
	out, err := chromedp.Run(p, chromedp.Evaluate[string](text, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("script in the page: %v", err)
	}
	return out
}

// await waits until the page shows a text.
func (p *page) await(text string) {
	p.t.Helper()
	var shown string
	for until := time.Now().Add(pagePatience / 2); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		if shown = p.script(`document.body.innerText`); strings.Contains(shown, text) {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.Fatalf("the page never shows %q; it shows:\n%s\nfailed requests: %v", text, shown, p.failed)
}

func TestTheWebInterfaceOfANodeWorksInABrowser(t *testing.T) {
	s := newSeat(t)
	url := s.ctl.Forward("alpha")
	_, host, _ := strings.Cut(url, "://")
	session := newSession(t, url, s.node.Work)
	p := newPage(t)

	// The page loads.
	p.do("load the page", chromedp.Navigate(url))
	p.await("Projects")

	// A prompt is answered.
	const prompt = `[contenteditable="true"]`
	p.do("open the session", chromedp.Navigate(url+"/"+base64.RawURLEncoding.EncodeToString([]byte(s.node.Work))+"/session/"+session), chromedp.WaitVisible(prompt))
	p.do("type", chromedp.SendKeys(prompt, "REPLY:hello-from-the-other-side"), chromedp.SendKeys(prompt, "\r"))
	p.await("\nhello-from-the-other-side")

	// A terminal opens.
	if out := p.script(terminal42); !strings.Contains(out, "mesh-42") {
		t.Errorf("the terminal says %q", out)
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.hosts) != 1 || !p.hosts[host] {
		t.Errorf("the page asked %v, not %s alone", p.hosts, host)
	}
}

// terminal42 opens a terminal as the page does and returns what it says to a
// command.
const terminal42 = `(async () => {
  const post = async (path, init) => (await fetch(path, {method: "POST", ...init})).json();
  const pty = await post("/pty", {headers: {"content-type": "application/json"}, body: JSON.stringify({title: "t"})});
  const {ticket} = await post("/pty/" + pty.id + "/connect-token", {headers: {"x-opencode-ticket": "1"}});
  return await new Promise((done) => {
    let out = "";
    const ws = new WebSocket("ws://" + location.host + "/pty/" + pty.id + "/connect?ticket=" + ticket);
    ws.onopen = () => ws.send("echo mesh-$((6*7))\r");
    ws.onmessage = (e) => {
      if (typeof e.data === "string") out += e.data;
      if (out.includes("mesh-42")) { ws.close(); done(out); }
    };
    ws.onerror = () => done("error; " + out);
    setTimeout(() => done("nothing more came; " + out), 20000);
  });
})()`

// newSession makes a session of opencode and returns its id.
func newSession(t *testing.T, url, dir string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url+"/session?directory="+dir, bytes.NewReader([]byte(`{"title":"from afar"}`)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var made struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.ID == "" {
		t.Fatalf("no session: %d %v", resp.StatusCode, err)
	}
	return made.ID
}
