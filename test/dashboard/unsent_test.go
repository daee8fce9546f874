//go:build browser

package dashboard

import (
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"opencode-mesh/test/fleet"
)

func TestAnAnswerThatIsNotSentStaysToBeCopied(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	p := newPage(t, f)
	p.login("/questions")

	// Answered elsewhere, in the inbox.
	tasks, _ := ctl.Dispatch("alpha", "--detach", "--", "ASK:Which way?|left|right")
	id := tasks[0].Task
	card := `#questions [data-task="` + id + `"]`
	p.until(`document.querySelectorAll('` + card + ` .option').length === 2`)
	p.do("write", chromedp.Focus(card+" textarea"), chromedp.KeyEvent("well considered"))
	ctl.Run("task", "answer", id, "left")
	p.shows("answered elsewhere")
	p.until(`document.querySelector('` + card + ` textarea')?.readOnly`)
	if v := js[string](p, `document.activeElement.value`); v != "well considered" {
		t.Errorf("in the field that has the focus is %q", v)
	}
	p.until(`!document.querySelector('` + card + ` .option, ` + card + ` [type="submit"]')`)
	p.click(card + " .kept form button")
	p.until(`!document.querySelector('` + card + ` textarea') && document.activeElement.matches("[role=status]")`)

	// The task is over, at the task itself.
	tasks, _ = ctl.Dispatch("alpha", "--detach", "--", "ASK:Which day?|today|tomorrow")
	p.open("/tasks/" + tasks[0].Task)
	p.until(`document.querySelector("#ask textarea")`)
	p.do("write", chromedp.Focus("#ask textarea"), chromedp.KeyEvent("the day after"))
	ctl.Run("task", "cancel", tasks[0].Task)
	p.until(`document.querySelector("#ask textarea").readOnly && document.querySelector("#ask textarea").value === "the day after"`)
}

func TestAPreviewThatIsHiddenIsNotFetchedOn(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	alpha := f.Node("alpha", parrots(t))
	ctl.Online("alpha")
	write(t, filepath.Join(alpha.Work, "notes.txt"), []byte("some notes"))
	tasks, out := ctl.Dispatch("alpha", "--", say(ending("notes\n", "done", "written", "notes.txt")))
	if len(tasks) != 1 {
		t.Fatalf("%+v", out)
	}
	p := newPage(t, f)
	p.login("/tasks")
	p.open("/tasks/" + tasks[0].Task)
	p.until(`document.querySelector(".artifacts button")`)
	p.do("watch what is fetched", chromedp.Evaluate[chromedp.Void](`(() => {
  const real = window.fetch;
  window.asked = [];
  window.fetch = async (url, options) => {
    const one = { signal: options.signal };
    window.asked.push(one);
    try {
      return await real(url, options);
    } finally {
      one.over = true;
    }
  };
  const show = document.querySelector(".artifacts button");
  show.click();
  show.click();
})()`))
	p.until(`window.asked.length === 1 && window.asked[0].over && window.asked[0].signal.aborted`)
	p.until(`document.querySelector(".artifacts .preview").hidden && !document.querySelector(".artifacts .preview").textContent`)
	p.follow(".artifacts button")
	p.until(`document.querySelector(".artifacts .preview").textContent === "some notes"`)
}

func TestWhatIsNotSentOutlivesASessionThatIsEnded(t *testing.T) {
	f := fleet.New(t)
	ctl := f.Ctl("desk", "--operator")
	f.Node("alpha", f.Demo())
	ctl.Online("alpha")
	p := newPage(t, f)
	p.expect("401")
	p.login("/dispatch?node=alpha")
	again := func() {
		t.Helper()
		f.Hub.Passwd(fleet.Password)
		p.until(`location.pathname === "/login" && document.readyState === "complete"`)
		p.enter("#password", fleet.Password)
		p.click("form.login button")
	}
	p.until(`document.querySelector("#chips button")`)
	p.enter("#text", "a precious draft")
	again()
	p.until(`location.pathname === "/dispatch" && document.querySelector("#text")?.value === "a precious draft"`)
	p.shows("Nodes chosen: 1")

	ctl.Dispatch("alpha", "--detach", "--", "ASK:Which way?|left|right")
	p.open("/questions")
	p.until(`document.querySelector("#questions textarea")`)
	p.do("write", chromedp.Focus("#questions textarea"), chromedp.KeyEvent("half of it"))
	again()
	p.until(`location.pathname === "/questions" && document.querySelector("#questions textarea")?.value === "half of it"`)

	// Whoever logs out, on any page, leaves nothing behind.
	p.open("/tasks")
	p.click(`form[action="/logout"] button`)
	p.until(`location.pathname === "/login" && document.readyState === "complete"`)
	if kept := js[int](p, `sessionStorage.length`); kept != 0 {
		t.Errorf("%d items are kept in the tab", kept)
	}
}

func TestADraftWithoutWordsOfItsOwnShowsWhatWasComposed(t *testing.T) {
	f := fleet.New(t)
	f.Ctl("desk", "--operator")
	p := newPage(t, f)
	p.login("/dispatch")
	p.do("keep a draft as an earlier page did", chromedp.Evaluate[chromedp.Void](`sessionStorage.setItem("mesh-draft-dispatch", JSON.stringify({
  whose: document.querySelector(".user").textContent,
  draft: { content: { names: [], text: "composed before" }, ids: null },
}))`))
	p.open("/dispatch")
	p.until(`document.getElementById("text").value === "composed before"`)
}
