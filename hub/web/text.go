package web

import (
	"embed"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"opencode-mesh/hub/proxy"
)

//go:embed text/*.json
var textFiles embed.FS

// languages are those that the dashboard speaks; the first is for everybody else.
var languages = []string{"en", "zh"}

// texts are the catalogues, by language and key.
var texts = readTexts()

func readTexts() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, lang := range languages {
		b, err := textFiles.ReadFile("text/" + lang + ".json")
		if err != nil {
			panic(err) // embedded
		}
		var m map[string]string
		if err := json.Unmarshal(b, &m); err != nil {
			panic(err)
		}
		all[lang] = m
	}
	return all
}

const (
	// languageCookie remembers a choice. Its name keeps it from services.
	languageCookie = proxy.CookiePrefix + "lang"
	// languageDays is for how long.
	languageDays = 365
)

// language is what a reader is spoken to in: as chosen, else as the browser asks.
func language(r *http.Request) string {
	if c, err := r.Cookie(languageCookie); err == nil && texts[c.Value] != nil {
		return c.Value
	}
	best, weight := languages[0], 0.0
	for _, part := range strings.Split(r.Header.Get("Accept-Language"), ",") {
		tag, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		q := 1.0
		if v, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			var err error
			if q, err = strconv.ParseFloat(v, 64); err != nil {
				continue
			}
		}
		primary, _, _ := strings.Cut(strings.ToLower(tag), "-")
		if texts[primary] != nil && q > weight {
			best, weight = primary, q
		}
	}
	return best
}

// chooseLanguage remembers a choice and goes back to the page.
func (w *Web) chooseLanguage(rw http.ResponseWriter, r *http.Request, lang string) {
	if texts[lang] != nil {
		http.SetCookie(rw, &http.Cookie{
			Name: languageCookie, Value: lang, Path: "/", MaxAge: languageDays * 24 * 3600,
			HttpOnly: true, Secure: w.cfg.Gate.Secure(r), SameSite: http.SameSiteLaxMode,
		})
	}
	to := *r.URL
	q := to.Query()
	q.Del("lang")
	to.RawQuery = q.Encode()
	http.Redirect(rw, r, local(to.RequestURI()), http.StatusSeeOther)
}
