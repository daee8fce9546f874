//go:build browser && screenshots

package dashboard

import (
	"path/filepath"
	"slices"
	"testing"
)

// shownTwice are the pages whose pictures are also taken in dark and on a phone.
var shownTwice = []string{"fleet", "task", "questions", "session"}

// TestScreenshots takes the pictures of docs/screenshots (make screenshots).
func TestScreenshots(t *testing.T) {
	s := newShowcase(t)
	p := newPage(t, s.Fleet)
	p.login("/")
	for _, page := range s.pages {
		if page.name == "nothing" {
			continue
		}
		for _, look := range []struct {
			name          string
			dark          bool
			width, height int64
		}{{"light", false, 1000, 640}, {"dark", true, 1000, 640}, {"phone", false, 360, 740}} {
			if look.name != "light" && !slices.Contains(shownTwice, page.name) {
				continue
			}
			p.dark(look.dark)
			p.size(look.width, look.height)
			p.visit(page)
			p.shoot(filepath.Join("..", "..", "docs", "screenshots", page.name+"-"+look.name+".png"))
		}
	}
}
