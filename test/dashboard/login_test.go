//go:build browser

package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
)

// attempt fills the form in and sends it.
func (p *page) attempt(password string) {
	p.t.Helper()
	p.enter("#password", password)
	js[bool](p, `window.sent = true`)
	p.do("send the form", chromedp.Click("form.login button", chromedp.NodeVisible))
	p.until(`!window.sent && document.readyState === "complete"`) // it is another page
}

func TestAWrongPasswordIsSaidAndTheRightOneLeadsToThePage(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	p.expect("status of 401")
	p.open("/?from=a-link")
	p.until(`location.pathname === "/login"`)
	if at := js[string](p, `document.activeElement.id`); at != "password" {
		t.Errorf("the focus is at %q", at)
	}
	p.attempt("wrong")
	p.shows("The password is wrong.")
	if left := js[string](p, `document.getElementById("password").value`); left != "" {
		t.Errorf("the form came back with the password")
	}
	p.attempt(fleet.Password)
	p.until(`location.pathname + location.search === "/?from=a-link"`)
	p.shows("No node has joined yet")

	cookies, err := chromedp.Call(p, network.GetCookies, network.GetCookiesParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cookies.Cookies {
		if c.Name != "__Host-mesh_session" || !c.HTTPOnly || !c.Secure || c.SameSite != network.CookieSameSiteStrict {
			t.Errorf("cookie %+v", c)
		}
	}
	if seen := js[string](p, `document.cookie`); len(cookies.Cookies) != 1 || strings.Contains(seen, "session") {
		t.Errorf("%d cookies; scripts see %q", len(cookies.Cookies), seen)
	}
}

func TestTooManyTriesAreRefusedWithAWaitThatIsCountedDown(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	p.expect("status of 401")
	p.expect("status of 429")
	p.open("/login")
	for range 6 {
		p.attempt("wrong")
	}
	p.shows("Too many tries. Try again in")
	left := js[int](p, `Number(document.getElementById("problem").dataset.wait)`)
	if left < 1 || left > 60 {
		t.Errorf("the wait is %d s", left)
	}
	p.until(fmt.Sprintf(`Number(document.getElementById("problem").textContent.match(/\d+/)) < %d`, left))
	p.shows("You can try again now.")
	p.attempt(fleet.Password)
	p.until(`location.pathname === "/"`)
}

func TestLoginWorksWithoutScripts(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	p.open("/")
	p.until(`location.pathname === "/login"`)
	p.do("type", chromedp.SendKeys("#password", fleet.Password+"\r"))
	p.until(`location.pathname === "/"`)
	p.shows("These pages need JavaScript")
}

func TestLogoutEndsThisBrowserInAllItsTabsAndNoOther(t *testing.T) {
	f := fleet.New(t)
	f.Node("alpha", f.Demo())
	p, other := newPage(t, f), newPage(t, f)
	p.expect("status of 401") // of what the second tab asks for
	p.login("/")
	other.login("/")
	p.shows("alpha")
	other.shows("alpha")

	ctx, cancel := chromedp.NewContext(p.Context) // a tab of the same browser
	t.Cleanup(cancel)
	tab := &page{Context: ctx, t: t, url: p.url}
	// The tab lives as long as the context of the first thing that is done in it.
	if err := chromedp.Listen(ctx, tab.note); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	tab.open("/")
	tab.shows("alpha")
	p.click(`form[action="/logout"] button`)
	p.until(`location.pathname === "/login"`)
	tab.until(`location.pathname === "/login"`) // its stream ended, and it asked why
	f.Node("beta", f.Demo())
	other.shows("beta")
	p.open("/")
	p.until(`location.pathname === "/login"`)
}

func TestANewPasswordEndsTheSession(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	p.expect("status of 401")
	p.login("/")
	p.shows("No node has joined yet")
	if out := f.Hub.Passwd("another password"); out.Code != 0 {
		t.Fatalf("passwd: %+v", out)
	}
	p.until(`location.pathname === "/login"`)
	p.attempt("another password")
	p.until(`location.pathname === "/"`)
}

func TestALinkFromElsewhereLeadsInWithoutAnotherLogin(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	p.login("/")
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<link rel="icon" href="data:,"><a href="%s/?from=elsewhere">in</a>`, p.url)
	}))
	t.Cleanup(elsewhere.Close)
	p.do("a page elsewhere", chromedp.Navigate(elsewhere.URL))
	js[bool](p, `(document.querySelector("a").click(), true)`)
	p.until(`location.search === "?from=elsewhere" && document.getElementById("count")`)
}

func TestTheAuditLogKnowsOfBrowsers(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	p.login("/")
	p.click(`form[action="/logout"] button`)
	p.until(`location.pathname === "/login"`)
	var page api.AuditPage
	f.Ctl("boss", "--operator").Get("/v1/audit", &page)
	var got []string
	for _, e := range page.Entries {
		if e.Object == "dashboard" {
			got = append(got, e.Action+" "+e.Detail)
		}
	}
	if strings.Join(got, ", ") != "login operator in a browser, logout " {
		t.Errorf("the audit log has %q", got)
	}
}
