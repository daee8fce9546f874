// Package web is the dashboard: the pages that the hub serves to browsers. It decides
// nothing. A page comes with what it shows first and then asks the hub's own interface
// below /v1, with the session of whoever looks at it, so it can do what that operator
// can and no more.
//
// All files are embedded; nothing comes from elsewhere and nothing is built. There is
// no script or style in a page (the policy refuses it), and text of nodes and agents
// reaches a page as data, never as markup.
package web

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strings"

	"opencode-mesh/hub/access"
	"opencode-mesh/hub/gate"
	"opencode-mesh/protocol/api"
)

//go:embed pages/*.html
var pageFiles embed.FS

// Config is what the pages stand on.
type Config struct {
	Gate *gate.Gate
	// Ask is an answer of the interface to whoever makes the request: of a GET of a
	// path below /v1.
	Ask func(r *http.Request, path string) (status int, body []byte)
	// LastEvent is the id of the newest event; what a page shows first is not older.
	LastEvent func() string
	Version   string
	Log       *slog.Logger
}

// page is one of the dashboard's pages. Its name is that of its template in pages/, of
// its module in assets/js/ and of its texts.
type page struct {
	name    string
	pattern string // as http.ServeMux has it
	path    string // where the navigation leads; "": it is not in it
	key     string // the shortcut, after g
	// first says what the page shows first: a name in the data block and where it is
	// asked for.
	first func(r *http.Request) map[string]string
}

// pages are all of them, in the order of the navigation.
var pages = []page{
	{name: "fleet", pattern: "/{$}", path: "/", key: "f", first: asks("nodes", "/v1/nodes?fills=40")},
	{name: "dispatch", pattern: "/dispatch", path: "/dispatch", key: "d", first: asks("nodes", "/v1/nodes", "me", "/v1/whoami")},
	{name: "tasks", pattern: "/tasks", path: "/tasks", key: "t", first: tasksOf},
	{name: "task", pattern: "/tasks/{id}", first: taskOf},
	{name: "questions", pattern: "/questions", path: "/questions", key: "q", first: asks()},
	{name: "sessions", pattern: "/sessions", path: "/sessions", key: "s", first: asks("sessions", "/v1/bindings")},
	{name: "session", pattern: "/sessions/{controller}/{target}", first: ofSession},
	{name: "channels", pattern: "/channels", path: "/channels", key: "c", first: asks("nodes", "/v1/nodes")},
	{name: "peers", pattern: "/peers", path: "/peers", key: "p", first: asks("nodes", "/v1/nodes")},
	{name: "context", pattern: "/context", path: "/context", key: "x", first: asks("nodes", "/v1/nodes")},
	{name: "audit", pattern: "/audit", path: "/audit", key: "a", first: ofAudit},
}

// waiting is what every page asks first: the tasks that wait for an answer.
const waiting = "/v1/tasks?state=question&limit=500"

// asks are fixed paths, each after its name.
func asks(list ...string) func(*http.Request) map[string]string {
	all := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		all[list[i]] = list[i+1]
	}
	return func(*http.Request) map[string]string { return all }
}

// Web serves the dashboard. Safe for concurrent use.
type Web struct {
	cfg       Config
	mux       *http.ServeMux
	templates map[string]*template.Template
}

// New makes the dashboard.
func New(cfg Config) *Web {
	w := &Web{cfg: cfg, mux: http.NewServeMux(), templates: map[string]*template.Template{}}
	for _, name := range []string{"login", "error", "elsewhere"} {
		w.parse(name)
	}
	for _, p := range pages {
		w.parse(p.name)
		w.mux.Handle("GET "+p.pattern, w.let(func(rw http.ResponseWriter, r *http.Request, who access.Principal) { w.page(rw, r, who, p) }))
	}
	w.mux.HandleFunc("GET "+assetPrefix, w.asset)
	w.mux.HandleFunc("GET /login", w.loginPage)
	w.mux.HandleFunc("POST /login", w.login)
	w.mux.HandleFunc("POST /logout", w.logout)
	w.mux.Handle("/", w.let(w.unknown))
	return w
}

func (w *Web) parse(name string) {
	w.templates[name] = template.Must(template.ParseFS(pageFiles, "pages/layout.html", "pages/"+name+".html"))
}

// ServeHTTP implements http.Handler.
func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	secure(rw.Header())
	if err := w.cfg.Gate.Host(r); err != nil {
		w.fail(rw, r, access.Principal{}, err)
		return
	}
	if lang := r.URL.Query().Get("lang"); lang != "" && r.Method == http.MethodGet {
		w.chooseLanguage(rw, r, lang)
		return
	}
	w.mux.ServeHTTP(rw, r)
}

// secure sets what every answer carries. The referrer stays within the hub; without
// any, browsers would send forms with no origin, see gate.SameOrigin.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// let lets those in who are logged in; others are sent to log in.
func (w *Web) let(next func(http.ResponseWriter, *http.Request, access.Principal)) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		who, err := w.cfg.Gate.Principal(r)
		switch {
		case err == nil:
			next(rw, r, who)
		case api.ErrorCode(err) != api.CodeUnauthorized || r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.fail(rw, r, who, err)
		case foreign(r) && !w.cfg.Gate.Has(r):
			w.again(rw, r)
		default:
			http.Redirect(rw, r, loginURL(r.URL.RequestURI()), http.StatusSeeOther)
		}
	})
}

// foreign reports whether a page elsewhere led to a request: browsers keep the cookie
// back then, also of who is logged in.
func foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

// again is a page that asks for the same once more, this time from the hub itself.
func (w *Web) again(rw http.ResponseWriter, r *http.Request) {
	v := w.view(r, access.Principal{}, "elsewhere")
	v.Next = local(r.URL.RequestURI())
	rw.Header().Set("Refresh", "0; url="+v.Next)
	w.show(rw, http.StatusOK, v)
}

// page shows one with what it shows first.
func (w *Web) page(rw http.ResponseWriter, r *http.Request, who access.Principal, p page) {
	v := w.view(r, who, p.name)
	v.First = map[string]json.RawMessage{}
	v.Subject = cmp.Or(r.PathValue("id"), r.PathValue("target"))
	last, err := json.Marshal(w.cfg.LastEvent()) // before what it must not miss is read
	if err != nil {
		w.fail(rw, r, who, err)
		return
	}
	v.First["last_event"] = last
	paths := map[string]string{"waiting": waiting}
	for name, path := range p.first(r) {
		paths[name] = path
	}
	for name, path := range paths {
		status, body := w.cfg.Ask(r, path)
		if status != http.StatusOK {
			w.fail(rw, r, who, refusal(status, body))
			return
		}
		v.First[name] = body
	}
	w.show(rw, http.StatusOK, v)
}

// refusal is the error of an answer that is one.
func refusal(status int, body []byte) error {
	var e api.ErrorBody
	if err := json.Unmarshal(body, &e); err == nil && e.Error != nil {
		return e.Error
	}
	return fmt.Errorf("the hub answers its own page with status %d", status)
}

func (w *Web) unknown(rw http.ResponseWriter, r *http.Request, who access.Principal) {
	w.fail(rw, r, who, api.Errorf(api.CodeNotFound, "there is no such page"))
}

// fail shows what went wrong.
func (w *Web) fail(rw http.ResponseWriter, r *http.Request, who access.Principal, err error) {
	var e *api.Error
	if e = asError(err); e.Code == api.CodeInternal {
		w.cfg.Log.Error("a page could not be shown", "path", r.URL.Path, "err", err)
	}
	v := w.view(r, who, "error")
	v.Problem = e
	retryAfter(rw.Header(), e)
	w.show(rw, e.Code.Status(), v)
}

// show writes a page, whole or not at all.
func (w *Web) show(rw http.ResponseWriter, status int, v *view) {
	var b bytes.Buffer
	if err := w.templates[v.Page].ExecuteTemplate(&b, "layout", v); err != nil {
		w.cfg.Log.Error("a page could not be made", "page", v.Page, "err", err)
		http.Error(rw, "the page could not be made; the hub's log says why", http.StatusInternalServerError)
		return
	}
	h := rw.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Language", v.Lang)
	h.Set("Vary", "Cookie, Accept-Language")
	rw.WriteHeader(status)
	_, _ = rw.Write(b.Bytes())
}

// local is where a page of the hub is, for a way back to it: nothing that a browser
// would take for another origin.
func local(next string) string {
	odd := func(r rune) bool { return r <= ' ' || r == '\\' || r == 0x7f }
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.IndexFunc(next, odd) >= 0 || len(next) > maxNext {
		return "/"
	}
	return next
}

// maxNext is the longest way back that is taken, in bytes.
const maxNext = 2048
