package web

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"opencode-mesh/hub/access"
	"opencode-mesh/protocol/api"
)

// view is what templates see.
type view struct {
	Page    string // name of the template and the module
	Lang    string
	User    string // "": a stranger
	Version string
	// Subject is whose page it is, for the title; "" of most.
	Subject string
	// First is the data block: what the page shows first, by name.
	First map[string]json.RawMessage
	// Problem is what the page is about when something went wrong.
	Problem *api.Error
	// Next is where to go on, Name who wants to log in, and Wait for how many seconds
	// that is refused.
	Next, Name string
	Wait       int

	path, query string
	texts       map[string]string
}

func (w *Web) view(r *http.Request, who access.Principal, name string) *view {
	lang := language(r)
	return &view{
		Page: name, Lang: lang, User: who.Identity.Name, Version: w.cfg.Version,
		path: r.URL.Path, query: r.URL.RawQuery, texts: texts[lang],
	}
}

// T is a text in the reader's language; args are names and values of what it leaves
// open, as {name}.
func (v *view) T(key string, args ...string) string {
	text, ok := v.texts[key]
	if !ok {
		return key
	}
	for i := 0; i+1 < len(args); i += 2 {
		args[i] = "{" + args[i] + "}"
	}
	return strings.NewReplacer(args...).Replace(text)
}

// Title is the page's.
func (v *view) Title() string { return v.T(v.Page + ".title") }

// Asset is where one of the embedded files is.
func (v *view) Asset(name string) string { return assets.url(name) }

// Catalogue is every text, for the modules.
func (v *view) Catalogue() map[string]string { return v.texts }

// place is an entry of the navigation.
type place struct {
	Name, Path, Key string
	Current         bool
}

// Nav is the navigation.
func (v *view) Nav() (list []place) {
	for _, p := range pages {
		if p.path != "" {
			current := v.path == p.path || p.path != "/" && strings.HasPrefix(v.path, p.path+"/")
			list = append(list, place{Name: p.name, Path: p.path, Key: p.key, Current: current})
		}
	}
	return list
}

// Speak is where this page is in another language.
func (v *view) Speak(lang string) string {
	q, err := url.ParseQuery(v.query)
	if err != nil {
		q = url.Values{}
	}
	q.Set("lang", lang)
	return local((&url.URL{Path: v.path}).EscapedPath()) + "?" + q.Encode()
}

// Why is what went wrong, in the reader's language if there is a text for it.
func (v *view) Why() string {
	if text, ok := v.texts["error."+string(v.Problem.Code)]; ok {
		return text
	}
	return v.Problem.Message
}

// asError is the error that a reader may see.
func asError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return api.Errorf(api.CodeInternal, "something went wrong in the hub; its log says what")
}

// retryAfter says when to try again, and returns it in seconds.
func retryAfter(h http.Header, e *api.Error) int {
	if e.RetryAfter <= 0 {
		return 0
	}
	wait := int(math.Ceil(e.RetryAfter.Seconds()))
	h.Set("Retry-After", strconv.Itoa(wait))
	return wait
}
