package web

import (
	"net/http"
	"net/url"

	"opencode-mesh/hub/access"
	"opencode-mesh/protocol/api"
)

const (
	// defaultName is who logs in unless the form says otherwise (semantics 11).
	defaultName = "dashboard"
	// maxForm bounds the login form, in bytes.
	maxForm = 16 << 10
)

// loginURL is where to log in, to come back to a page.
func loginURL(next string) string {
	if next = local(next); next == "/" {
		return "/login"
	}
	return "/login?" + url.Values{"next": {next}}.Encode()
}

func (w *Web) loginPage(rw http.ResponseWriter, r *http.Request) {
	next := local(r.URL.Query().Get("next"))
	if _, err := w.cfg.Gate.Principal(r); err == nil {
		http.Redirect(rw, r, next, http.StatusSeeOther)
		return
	}
	v := w.view(r, access.Principal{}, "login")
	v.Name, v.Next = defaultName, next
	w.show(rw, http.StatusOK, v)
}

// login is the form, which works without a script.
func (w *Web) login(rw http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(rw, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		w.fail(rw, r, access.Principal{}, api.Errorf(api.CodeBadRequest, "the form did not arrive whole"))
		return
	}
	name, next := r.PostForm.Get("name"), local(r.PostForm.Get("next"))
	if name == "" {
		name = defaultName
	}
	err := w.cfg.Gate.Login(rw, r, name, r.PostForm.Get("password"))
	if err == nil {
		http.Redirect(rw, r, next, http.StatusSeeOther)
		return
	}
	e := asError(err)
	if e.Code == api.CodeInternal {
		w.cfg.Log.Error("a login failed", "err", err)
	}
	v := w.view(r, access.Principal{}, "login")
	v.query = url.Values{"next": {next}}.Encode() // for the page in another language
	v.Name, v.Next, v.Problem, v.Wait = name, next, e, retryAfter(rw.Header(), e)
	w.show(rw, e.Code.Status(), v)
}

func (w *Web) logout(rw http.ResponseWriter, r *http.Request) {
	if err := w.cfg.Gate.Logout(rw, r); err != nil {
		w.fail(rw, r, access.Principal{}, err)
		return
	}
	http.Redirect(rw, r, "/login", http.StatusSeeOther)
}
