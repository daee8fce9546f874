//go:build browser

package dashboard

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

func TestAQuestionIsAnsweredInOneClick(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	p := newPage(t, f)
	p.login("/questions")
	p.shows("Nothing waits for an answer.")
	task := func(text string) string {
		t.Helper()
		tasks, out := ctl.Dispatch("alpha", "--detach", "--", text)
		if len(tasks) != 1 {
			t.Fatalf("%+v", out)
		}
		return tasks[0].Task
	}
	state := func(id string) (v api.Task) {
		t.Helper()
		ctl.Get("/v1/tasks/"+id+"?wait=30s", &v)
		return v
	}

	id := task("ASK:Which colour?|red|blue")
	p.shows("Which colour?")
	p.until(`document.title.startsWith("(1) ")`)
	p.until(`document.querySelector("#nav-questions .badge").textContent === "1"`)
	p.click(`[data-task="` + id + `"] .option:nth-child(2)`)
	p.shows("Answered by you: blue")
	p.until(`!document.title.startsWith("(")`)
	if v := state(id); v.State != api.StateDone {
		t.Errorf("%+v", v)
	}

	// The badge is on every page, and a question on a task's own page is answered there,
	// in words, by the keyboard.
	// A page out of sight has the browser tell, if it may.
	js[bool](p, `Object.defineProperty(document, "hidden", { value: true }), window.told = [], window.Notification = class { static permission = "granted"; constructor(...args) { window.told.push(args); } }, true`)
	id = task("ASK:Which name?")
	p.until(`window.told.length === 1`)
	if told := js[string](p, `JSON.stringify(window.told[0])`); told != `["alpha asks",{"body":"Which name?","tag":"`+id+`"}]` {
		t.Errorf("the browser tells %s", told)
	}
	p.until(`document.title.startsWith("(1) ")`)
	p.open("/tasks/" + id)
	p.until(`document.title.startsWith("(1) ")`)
	p.shows("Which name?")
	p.do("write", chromedp.Focus("#ask textarea"), chromedp.KeyEvent("hopper"))
	p.press("\t")
	p.press("\r")
	p.shows("Answered by you: hopper")
	p.until(`document.querySelector("#head .state.done")`)
	if v := state(id); v.State != api.StateDone {
		t.Errorf("%+v", v)
	}

	// Answered elsewhere.
	p.open("/questions")
	id = task("ASK:Which way?|left|right")
	p.shows("Which way?")
	if out := ctl.Run("task", "answer", id, "left"); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	p.shows("It waits no longer: answered elsewhere")
	p.until(`!document.querySelector('[data-task="` + id + `"] .option')`)

	// Somebody else is first by a hair.
	id = task("ASK:Which day?|today|tomorrow")
	p.shows("Which day?")
	p.do("be faster", chromedp.Evaluate[chromedp.Void](`(() => {
  const real = window.fetch;
  window.fetch = async (url, options) => {
    if (String(url).endsWith("/answer")) await real(url, { ...options, body: JSON.stringify({ text: "yesterday" }) });
    return real(url, options);
  };
})()`))
	p.expect("409")
	p.press("j") // the first card, of before
	p.until(`document.activeElement.matches("#questions > [data-task]")`)
	for range 5 {
		if js[bool](p, `document.activeElement.dataset.task === `+quote(id)) {
			break
		}
		p.press("j")
	}
	p.press("2")
	p.shows("Not taken: it has been answered already")
	p.hides("Answered by you: tomorrow")
}

// TestAPermissionIsGrantedOrRejectedInTheBrowser lets a real opencode ask for leave.
func TestAPermissionIsGrantedOrRejectedInTheBrowser(t *testing.T) {
	llm := stubllm.Start(t)
	f := fleet.New(t)
	opencodeNode(t, f, llm, "alpha")
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	secret := filepath.Join(t.TempDir(), "secret.txt")
	write(t, secret, []byte("the word is plum"))
	p := newPage(t, f)
	p.login("/questions")
	ask := func() string {
		t.Helper()
		tasks, out := ctl.Dispatch("alpha", "--new", "--", "TOOL:cat "+secret)
		if len(tasks) != 1 || tasks[0].State != api.StateQuestion {
			t.Fatalf("%+v", out)
		}
		return tasks[0].Task
	}
	end := func(id string) (v api.Task) {
		t.Helper()
		ctl.Get("/v1/tasks/"+id+"?wait=60s", &v)
		return v
	}
	id := ask()
	p.shows("The agent asks for permission")
	p.shows("it is rejected")
	p.click(`[data-task="` + id + `"] .option:nth-child(1)`)
	p.shows("Answered by you: Allow once")
	if v := end(id); v.State != api.StateDone || !strings.Contains(v.Reply, "plum") {
		t.Errorf("granted: %+v", v)
	}
	id = ask()
	p.until(`document.querySelector('[data-task="` + id + `"] textarea')`)
	p.enter(`[data-task="`+id+`"] textarea`, "read the README")
	p.press("\t")
	p.press("\r")
	p.shows("Answered by you: read the README")
	if v := end(id); !slices.Contains(v.Flags, api.FlagPermissionRejected) || !strings.Contains(v.Reply, "read the README") {
		t.Errorf("rejected: %+v", v)
	}
}
