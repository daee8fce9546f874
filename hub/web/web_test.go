package web_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/auth"
	"opencode-mesh/hub/access"
	"opencode-mesh/hub/gate"
	"opencode-mesh/hub/web"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store/bolt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	password = "correct horse"
	own      = "https://box.lan:8443"
)

// desk is the pages on a real store, with an interface that answers as a test says.
type desk struct {
	t      *testing.T
	web    *web.Web
	access *access.Access
	now    time.Time
	asked  []string
	before int // how many were asked before the last event was looked up
	answer func(path string) (int, string)
	cookie *http.Cookie
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	st, err := bolt.Open(bolt.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	verifier, err := auth.NewVerifier(auth.VerifierConfig{Check: func(_, pw string) (bool, error) { return pw == password, nil }})
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, now: time.Now()}
	clock := func() time.Time { return d.now }
	limiter, err := auth.NewLimiter(auth.LimiterConfig{Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	d.access = access.New(access.Config{Store: st, Verifier: verifier, Limiter: limiter, Now: clock, Log: log, Failed: func(string) {}})
	if err := d.access.SetPassword(context.Background(), password); err != nil {
		t.Fatal(err)
	}
	d.answer = func(path string) (int, string) { return http.StatusOK, `{"nodes":[],"sessions":[],"tasks":[]}` }
	d.web = web.New(web.Config{
		Gate: gate.New(gate.Config{Access: d.access, Names: []string{"box.lan"}}), LastEvent: func() string { d.before = len(d.asked); return "g-b-7" }, Version: "test", Log: log,
		Ask: func(_ *http.Request, path string) (int, []byte) {
			d.asked = append(d.asked, path)
			status, body := d.answer(path)
			return status, []byte(body)
		},
	})
	return d
}

// do makes a request, as whoever is logged in; header pairs follow.
func (d *desk) do(method, target, form string, header ...string) (*http.Response, string) {
	d.t.Helper()
	r := httptest.NewRequest(method, own+target, strings.NewReader(form))
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	if d.cookie != nil {
		r.AddCookie(d.cookie)
	}
	w := httptest.NewRecorder()
	d.web.ServeHTTP(w, r)
	resp := w.Result()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp, string(body)
}

// login logs in by the form.
func (d *desk) login() {
	d.t.Helper()
	resp, body := d.do(http.MethodPost, "/login", url.Values{"password": {password}}.Encode(), "Origin", own)
	if resp.StatusCode != http.StatusSeeOther || len(resp.Cookies()) != 1 {
		d.t.Fatalf("login: %d %s", resp.StatusCode, body)
	}
	d.cookie = resp.Cookies()[0]
}

func TestStrangersGetTheLoginPageAndNothingElse(t *testing.T) {
	d := newDesk(t)
	for path, back := range map[string]string{
		"/": "/login", "/tasks": "/login?next=%2Ftasks", "/tasks/a-1?x=1": "/login?next=%2Ftasks%2Fa-1%3Fx%3D1", "/nothing": "/login?next=%2Fnothing",
	} {
		resp, _ := d.do(http.MethodGet, path, "")
		if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != back {
			t.Errorf("%s: %d to %q, want %q", path, resp.StatusCode, resp.Header.Get("Location"), back)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if resp, _ := d.do(method, "/", "", "Origin", own); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", method, resp.StatusCode)
		}
	}
	resp, body := d.do(http.MethodGet, "/login", "")
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, `name="password"`) || strings.Contains(body, "test") {
		t.Errorf("login: %d %s", resp.StatusCode, body)
	}
	if len(d.asked) != 0 {
		t.Errorf("a stranger had %v asked", d.asked)
	}
}

func TestAfterTheLoginThePageThatWasAskedForIsShown(t *testing.T) {
	for next, want := range map[string]string{
		"": "/", "/": "/", "/tasks?state=done": "/tasks?state=done", "/sessions/a/b": "/sessions/a/b",
		"https://evil.example/": "/", "//evil.example/": "/", `/\evil.example`: "/", "/\t/evil.example": "/", "\n//evil.example": "/",
		"evil.example": "/", "javascript:alert(1)": "/", "/\u0000": "/", "/" + strings.Repeat("x", 3000): "/",
	} {
		d := newDesk(t)
		resp, _ := d.do(http.MethodPost, "/login", url.Values{"password": {password}, "next": {next}}.Encode(), "Origin", own)
		if got := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || got != want {
			t.Errorf("next %q leads to %q, want %q (%d)", next, got, want, resp.StatusCode)
		}
		d.cookie = resp.Cookies()[0]
		resp, _ = d.do(http.MethodGet, "/login?"+url.Values{"next": {next}}.Encode(), "")
		if got := resp.Header.Get("Location"); got != want {
			t.Errorf("who is logged in is led to %q by next %q", got, next)
		}
	}
}

func TestAWrongPasswordIsSaidAndTooManyWithTheWait(t *testing.T) {
	d := newDesk(t)
	try := func(pw string) (*http.Response, string) {
		return d.do(http.MethodPost, "/login", url.Values{"password": {pw}, "name": {"ann"}, "next": {"/tasks"}}.Encode(), "Origin", own)
	}
	resp, body := try("wrong")
	if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(body, "The password is wrong.") || len(resp.Cookies()) != 0 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	if !strings.Contains(body, `value="ann"`) || !strings.Contains(body, `value="/tasks"`) || strings.Contains(body, `value="wrong"`) {
		t.Error("the form does not keep what it should, or keeps the password")
	}
	for range 4 {
		try("wrong")
	}
	resp, body = try(password)
	wait := resp.Header.Get("Retry-After")
	if resp.StatusCode != http.StatusTooManyRequests || wait == "" || wait == "0" {
		t.Fatalf("%d, Retry-After %q", resp.StatusCode, wait)
	}
	if !strings.Contains(body, "Try again in "+wait+" s.") || !strings.Contains(body, `data-wait="`+wait+`"`) {
		t.Errorf("the page does not tell the wait of %s s: %s", wait, body)
	}
	d.now = d.now.Add(time.Minute)
	if resp, _ = try(password); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("after the wait: %d", resp.StatusCode)
	}
}

func TestNoOtherPageLogsAnybodyInOrOut(t *testing.T) {
	d := newDesk(t)
	form := url.Values{"password": {password}}.Encode()
	for _, origin := range []string{"https://evil.example", "null", "http://box.lan:8443", ""} {
		resp, _ := d.do(http.MethodPost, "/login", form, "Origin", origin)
		if resp.StatusCode != http.StatusForbidden || len(resp.Cookies()) != 0 {
			t.Errorf("login from %q: %d", origin, resp.StatusCode)
		}
	}
	d.login()
	if resp, _ := d.do(http.MethodPost, "/logout", "", "Origin", "https://evil.example"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("logout from elsewhere: %d", resp.StatusCode)
	}
	if resp, _ := d.do(http.MethodGet, "/logout", ""); resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("logout by a link: %d", resp.StatusCode)
	}
	if resp, _ := d.do(http.MethodGet, "/", ""); resp.StatusCode != http.StatusOK {
		t.Fatalf("still logged in: %d", resp.StatusCode)
	}
	resp, _ := d.do(http.MethodPost, "/logout", "", "Origin", own)
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/login" {
		t.Errorf("logout: %d", resp.StatusCode)
	}
	if resp, _ := d.do(http.MethodGet, "/", ""); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
}

func TestAForeignNameIsRefusedWithWhatToDo(t *testing.T) {
	d := newDesk(t)
	d.login()
	for _, path := range []string{"/", "/login", "/assets/x/y"} {
		resp, body := d.do(http.MethodGet, path, "", "Host", "evil.example")
		if resp.StatusCode != http.StatusForbidden || !strings.Contains(body, "--web-host") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

func TestWhoFollowsALinkElsewhereIsNotAskedToLogInAgain(t *testing.T) {
	d := newDesk(t)
	cross := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	resp, body := d.do(http.MethodGet, "/?a=1", "", cross...) // the browser keeps the cookie back
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Refresh") != "0; url=/?a=1" || !strings.Contains(body, `href="/?a=1"`) {
		t.Errorf("%d, Refresh %q: %s", resp.StatusCode, resp.Header.Get("Refresh"), body)
	}
	resp, _ = d.do(http.MethodGet, "/?a=1", "", "Sec-Fetch-Site", "same-origin")
	if resp.StatusCode != http.StatusSeeOther {
		t.Errorf("the second time: %d", resp.StatusCode)
	}
}

func TestEveryAnswerCarriesThePolicy(t *testing.T) {
	d := newDesk(t)
	d.login()
	_, body := d.do(http.MethodGet, "/", "")
	asset := regexp.MustCompile(`/assets/[^"]+\.js`).FindString(body)
	for _, path := range []string{"/", "/login", "/nothing", asset, "/assets/x/none.js"} {
		resp, _ := d.do(http.MethodGet, path, "")
		for name, want := range map[string]string{
			"Content-Security-Policy":    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options":     "nosniff",
			"Referrer-Policy":            "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
	}
	if resp, _ := d.do(http.MethodGet, "/", ""); resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("a page may be kept: %q", resp.Header.Get("Cache-Control"))
	}
}

func TestAssetsAreKeptForEverUnderTheHashOfTheirBuild(t *testing.T) {
	d := newDesk(t)
	_, body := d.do(http.MethodGet, "/login", "")
	for _, name := range []string{"mesh.css", "icon.svg", "js/theme.js", "js/login.js"} {
		path := regexp.MustCompile(`/assets/[0-9a-f]{16}/` + regexp.QuoteMeta(name)).FindString(body)
		resp, text := d.do(http.MethodGet, path, "")
		if path == "" || resp.StatusCode != http.StatusOK || text == "" || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s at %q: %d", name, path, resp.StatusCode)
		}
		types := map[string]string{"css": "text/css; charset=utf-8", "svg": "image/svg+xml", ".js": "text/javascript; charset=utf-8"}
		if got, want := resp.Header.Get("Content-Type"), types[name[len(name)-3:]]; got != want {
			t.Errorf("%s is %q", name, got)
		}
		again, text := d.do(http.MethodGet, path, "", "If-None-Match", resp.Header.Get("ETag"))
		if again.StatusCode != http.StatusNotModified || text != "" {
			t.Errorf("%s again: %d", name, again.StatusCode)
		}
		old := strings.Replace(path, "/assets/", "/assets/0", 1)
		if resp, _ := d.do(http.MethodGet, old, ""); resp.StatusCode != http.StatusNotFound || strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s of another build: %d", name, resp.StatusCode)
		}
		if resp, _ := d.do(http.MethodGet, path+"/../../../web.go", ""); resp.StatusCode == http.StatusOK {
			t.Error("a file that is none of the assets is served")
		}
	}
}

// hostile is what nodes may call themselves, or say, if they could.
const hostile = `</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>"'` + "\u2028"

func TestWhatAPageShowsFirstCannotEndItsBlock(t *testing.T) {
	d := newDesk(t)
	said, _ := json.Marshal(map[string]any{"nodes": []map[string]string{{"name": hostile}}, "sessions": []any{}, "tasks": []any{}})
	raw := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&", `\u2028`, "\u2028").Replace(string(said)) // as a careless encoder writes it
	d.answer = func(string) (int, string) { return http.StatusOK, raw }
	d.login()
	resp, body := d.do(http.MethodGet, "/", "")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	_, rest, ok := strings.Cut(body, `<script type="application/json" id="first">`)
	block, _, _ := strings.Cut(rest, "</script>")
	if !ok || strings.ContainsAny(block, "<>\u2028") {
		t.Fatalf("the block is %q", block)
	}
	var first struct {
		LastEvent string `json:"last_event"`
		Nodes     struct{ Nodes []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(block), &first); err != nil || first.Nodes.Nodes[0].Name != hostile || first.LastEvent != "g-b-7" {
		t.Errorf("the block says %+v (%v)", first, err)
	}
	if n := strings.Count(body, "<script"); n != 4 {
		t.Errorf("%d scripts, want theme, catalogue, first and the page's", n)
	}
}

func TestNothingOfARequestIsMarkupInAnAnswer(t *testing.T) {
	d := newDesk(t)
	try := func(what string, resp *http.Response, body string) {
		t.Helper()
		if strings.Contains(body, "<script>") || strings.Contains(body, "<img") || strings.Contains(resp.Header.Get("Location"), "<") {
			t.Errorf("%s: %d %s", what, resp.StatusCode, body)
		}
	}
	form := url.Values{"password": {"x"}, "name": {hostile}, "next": {"/" + hostile}}.Encode()
	resp, body := d.do(http.MethodPost, "/login", form, "Origin", own)
	try("the form", resp, body)
	resp, body = d.do(http.MethodGet, "/?"+url.Values{"lang": {hostile}, "x": {hostile}}.Encode(), "")
	try("the language", resp, body)
	resp, body = d.do(http.MethodGet, "/", "", "Host", "x<script>alert(1)")
	try("the host", resp, body)
	d.login()
	resp, body = d.do(http.MethodGet, "/"+url.PathEscape(hostile), "")
	try("the path", resp, body)
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown page: %d", resp.StatusCode)
	}
	d.answer = func(string) (int, string) {
		b, _ := json.Marshal(api.ErrorBody{Error: api.Errorf(api.CodeConflict, "%s", hostile)})
		return http.StatusConflict, string(b)
	}
	resp, body = d.do(http.MethodGet, "/", "")
	try("an error", resp, body)
	if resp.StatusCode != http.StatusConflict {
		t.Errorf("a page whose data is refused: %d", resp.StatusCode)
	}
}

// sources are the files of a directory, by name.
func sources(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	all := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(dir + "/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		all[f.Name()] = string(b)
	}
	return all
}

func TestPagesHaveNoScriptOrStyleOfTheirOwn(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<script>`)
	for name, text := range sources(t, "pages") {
		if m := inline.FindString(text); m != "" {
			t.Errorf("%s has %q", name, m)
		}
	}
}

// TestModulesMakeNoMarkup greps what would turn a text into markup or code.
func TestModulesMakeNoMarkup(t *testing.T) {
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|\beval\(|new Function|srcdoc =|localStorage|sessionStorage|indexedDB|https?://`)
	allowed := map[string][]string{"theme.js": {"localStorage"}, "keys.js": {"localStorage"}, "dom.js": {"http://"}, "drafts.js": {"sessionStorage"}} // the choice of colours, whether there are shortcuts, SVG's namespace, and drafts
	for name, text := range sources(t, "assets/js") {
		for _, m := range forbidden.FindAllString(text, -1) {
			if !slices.Contains(allowed[name], m) {
				t.Errorf("%s uses %s", name, m)
			}
		}
	}
}

// catalogue is a language's texts.
func catalogue(t *testing.T, lang string) map[string]string {
	t.Helper()
	b, err := os.ReadFile("text/" + lang + ".json")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEveryTextIsThereInEveryLanguage(t *testing.T) {
	en, zh := catalogue(t, "en"), catalogue(t, "zh")
	gaps := regexp.MustCompile(`\{\w+\}`)
	holes := func(s string) []string { return slices.Sorted(slices.Values(gaps.FindAllString(s, -1))) }
	for _, key := range slices.Sorted(maps.Keys(en)) {
		if strings.TrimSpace(en[key]) == "" || strings.TrimSpace(zh[key]) == "" {
			t.Errorf("%s: %q, %q", key, en[key], zh[key])
		}
		if a, b := holes(en[key]), holes(zh[key]); !slices.Equal(a, b) {
			t.Errorf("%s leaves %v open in English and %v in Chinese", key, a, b)
		}
	}
	for key := range zh {
		if _, ok := en[key]; !ok {
			t.Errorf("%s is there in Chinese only", key)
		}
	}
}

func TestEveryTextThatIsUsedIsThere(t *testing.T) {
	en := catalogue(t, "en")
	used := regexp.MustCompile(`(?:\.T |\bt\()"([a-z_.]+)"`)
	for _, dir := range []string{"pages", "assets/js"} {
		for name, text := range sources(t, dir) {
			for _, m := range used.FindAllStringSubmatch(text, -1) {
				if _, ok := en[m[1]]; !ok && !strings.HasSuffix(m[1], ".") { // that is the beginning of one
					t.Errorf("%s uses the text %s", name, m[1])
				}
			}
		}
	}
}

func TestTheLanguageIsTheBrowsersUntilSomebodyChooses(t *testing.T) {
	d := newDesk(t)
	for header, want := range map[string]string{
		"": "en", "zh": "zh", "zh-CN,zh;q=0.9,en;q=0.8": "zh", "en-US,en;q=0.9,zh;q=0.8": "en", "fr, zh-TW;q=0.5, en;q=0.4": "zh",
		"de": "en", "zh;q=0": "en", "zh;q=x, en": "en", ";;;,,q=": "en", "en;q=0.1,zh;q=0.2": "zh",
	} {
		if _, body := d.do(http.MethodGet, "/login", "", "Accept-Language", header); !strings.Contains(body, `<html lang="`+want+`"`) {
			t.Errorf("%q does not get %s", header, want)
		}
	}
	resp, _ := d.do(http.MethodGet, "/login?lang=zh&next=%2Ftasks", "", "Accept-Language", "en")
	if len(resp.Cookies()) != 1 || resp.Header.Get("Location") != "/login?next=%2Ftasks" {
		t.Fatalf("%v to %q", resp.Cookies(), resp.Header.Get("Location"))
	}
	d.cookie = resp.Cookies()[0]
	if _, body := d.do(http.MethodGet, "/login", "", "Accept-Language", "en"); !strings.Contains(body, `<html lang="zh"`) {
		t.Error("the choice is forgotten")
	}
	resp, _ = d.do(http.MethodGet, "//evil.example?lang=en", "")
	if loc := resp.Header.Get("Location"); strings.HasPrefix(loc, "//") {
		t.Errorf("the choice leads to %q", loc)
	}
	if resp, _ = d.do(http.MethodGet, "/login?lang=tlh", ""); len(resp.Cookies()) != 0 {
		t.Error("a language that nobody speaks is remembered")
	}
}

func TestAPageAsksAsItsReaderAndShowsWhyItCannot(t *testing.T) {
	d := newDesk(t)
	d.login()
	if resp, _ := d.do(http.MethodGet, "/", ""); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.StatusCode)
	}
	if d.before != 0 { // what happens after that, the page hears
		t.Errorf("the last event was looked up after %v", d.asked[:d.before])
	}
	for _, path := range []string{"/v1/nodes?fills=40", "/v1/tasks?state=question&limit=500"} {
		if !slices.Contains(d.asked, path) {
			t.Errorf("%s was not asked: %v", path, d.asked)
		}
	}
	for _, c := range []struct {
		status int
		body   string
		want   int
		text   string
	}{
		{503, `{"error":{"code":"read_only","message":"x"}}`, 503, "read-only"},
		{404, `{"error":{"code":"not_found","message":"x"}}`, 404, "There is no such page"},
		{500, `nonsense`, 500, "its log says what"},
	} {
		d.answer = func(string) (int, string) { return c.status, c.body }
		if resp, body := d.do(http.MethodGet, "/", ""); resp.StatusCode != c.want || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d %s", c.body, resp.StatusCode, body)
		}
	}
}

func TestALargeFormIsRefused(t *testing.T) {
	d := newDesk(t)
	resp, _ := d.do(http.MethodPost, "/login", "password="+strings.Repeat("x", 1<<20), "Origin", own)
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func TestAfterARefusedLoginTheOtherLanguageKeepsTheWayBack(t *testing.T) {
	d := newDesk(t)
	_, body := d.do(http.MethodPost, "/login", url.Values{"password": {"wrong"}, "next": {"/tasks?state=done"}}.Encode(), "Origin", own)
	if want := `href="/login?lang=zh&amp;next=%2Ftasks%3Fstate%3Ddone"`; !strings.Contains(body, want) {
		t.Errorf("%s is not in %s", want, body)
	}
}

func TestThePageOfATaskIsNamedAfterIt(t *testing.T) {
	d := newDesk(t)
	d.login()
	d.answer = func(string) (int, string) { return http.StatusOK, `{}` }
	if _, body := d.do(http.MethodGet, "/tasks/desk-1-ab", ""); !strings.Contains(body, "<title>Task desk-1-ab ·") {
		t.Error(body)
	}
}
