//go:build browser

package dashboard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// axe is the source of axe-core, which the Makefile pins and installs.
func axe(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("../../.tools/axe-*/node_modules/axe-core/axe.min.js")
	if len(found) == 0 {
		t.Fatal("no axe-core here: run make tools-browser")
	}
	source, err := os.ReadFile(found[len(found)-1])
	if err != nil {
		t.Fatal(err)
	}
	return string(source)
}

// violations are what axe-core calls serious or critical.
func (p *page) violations(source string) []string {
	p.t.Helper()
	js[bool](p, `if (!globalThis.axe) { `+source+` }; true`)
	return js[[]string](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.filter((v) => v.impact === "serious" || v.impact === "critical").flatMap((v) => v.nodes.slice(0, 5).map((n) => v.id + " at " + n.target + ": " + n.failureSummary)))`)
}

// TestEveryPageIsAccessible visits every page in light and dark, on a desk and on a
// phone.
func TestEveryPageIsAccessible(t *testing.T) {
	source := axe(t)
	s := newShowcase(t)
	p := newPage(t, s.Fleet)
	p.expect("/nothing")
	look := func(what string) {
		t.Helper()
		for _, dark := range []bool{false, true} {
			p.dark(dark)
			for _, width := range []int64{1280, 360} {
				p.size(width, 740)
				for _, v := range p.violations(source) {
					t.Errorf("%s, dark %v, %d wide: %s", what, dark, width, v)
				}
				if wide := js[int64](p, `document.documentElement.scrollWidth`); wide > width {
					p.t.Errorf("%s is %d wide in a window of %d", what, wide, width)
				}
			}
		}
	}
	p.open("/login")
	p.until(started)
	look("login")
	p.do("break the page", chromedp.Evaluate[chromedp.Void](`document.querySelector("label[for=name]").remove()`))
	if len(p.violations(source)) != 1 {
		t.Error("axe-core does not see a field without a label")
	}
	p.login("/")
	for _, page := range s.pages {
		p.visit(page)
		look(page.name)
	}
	// The window is a phone's now: where the reader is stands in view.
	p.visit(s.page("audit"))
	p.until(`document.querySelector(".places [aria-current]").getBoundingClientRect().right <= innerWidth`)
	// What opens above the pages.
	p.visit(s.pages[0])
	p.press("?")
	p.until(`document.querySelector("dialog[open]")`)
	look("shortcuts")
	p.press(kb.Escape)
	p.click(`[data-item="desktop"] button`)
	p.until(`document.querySelector("#detail[open]")`)
	look("details of a node")
	session := s.page("session")
	for _, dialog := range []string{"reset", "clear"} {
		p.visit(session)
		p.click("#" + dialog)
		p.until(`document.querySelector("#ask-` + dialog + `[open]")`)
		look("the question before a " + dialog)
	}
	p.visit(session)
	p.click("#compact")
	p.until(`document.querySelector("#outcome.ok")`)
	look("a session that was compacted")
	p.expect("net::ERR_")
	s.Hub.Kill()
	p.shows("Connection lost")
	look("a page without its hub")
}

func (s *showcase) page(name string) showpage {
	for _, page := range s.pages {
		if page.name == name {
			return page
		}
	}
	s.TB.Fatalf("no page %s", name)
	return showpage{}
}

// TestPagesAreFoundAndSpokenEverywhere goes through all pages by the keyboard alone,
// and through both languages.
func TestPagesAreFoundAndSpokenEverywhere(t *testing.T) {
	s := newShowcase(t)
	p := newPage(t, s.Fleet)
	p.expect("/nothing")
	p.login("/")
	places := js[[]string](p, `[...document.querySelectorAll("nav.places a")].map((a) => a.dataset.key + a.getAttribute("href"))`)
	if len(places) < 4 {
		t.Fatalf("the navigation has %q", places)
	}
	for _, place := range places {
		key, path := place[:1], place[1:]
		p.press("?")
		p.until(`document.querySelector("dialog[open]")`)
		if shown := p.shown(); !strings.Contains(shown, "Keyboard shortcuts") {
			t.Errorf("? shows %q", shown)
		}
		p.press(kb.Escape)
		p.until(`!document.querySelector("dialog[open]")`)
		p.press("g")
		p.press(key)
		p.until(`location.pathname === ` + quote(path) + ` && ` + started + ` && document.querySelector("#help:not([hidden])")`)
		p.until(`document.querySelector("nav.places a[aria-current]").dataset.key === ` + quote(key))
	}
	for _, page := range s.pages {
		p.visit(page)
		english := js[string](p, `document.querySelector("h1").innerText`)
		const address = `location.pathname + [...new URLSearchParams(location.search)].sort()`
		where := js[string](p, address)
		p.follow(`a[hreflang="zh"]`)
		p.until(`document.documentElement.lang === "zh" && ` + started)
		p.until(`/[\u4e00-\u9fff]/.test(document.querySelector("h1").innerText) && ` + address + ` === ` + quote(where))
		if missing := js[[]string](p, `[...document.body.innerText.matchAll(/\b(?:fleet|task|tasks|dispatch|question|questions|session|sessions|channels|audit|digest|ctx|node|live|keys|op|state|member|message|peer|peers|context|consent|flow|leg|cited|quote|words)\.[a-z][a-z.]*\b/g)].map((m) => m[0])`); len(missing) > 0 {
			t.Errorf("%s shows the keys %q", page.name, missing)
		}
		p.follow(`a[hreflang="en"]`)
		p.until(`document.documentElement.lang === "en" && document.querySelector("h1").innerText === ` + quote(english))
	}
}
