//go:build browser && screenshots

package dashboard

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
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

// shoot keeps a picture of the window in a file.
func (p *page) shoot(file string) {
	p.t.Helper()
	picture, err := chromedp.Run(p, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatalf("picture: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, picture, 0o644); err != nil {
		p.t.Fatal(err)
	}
}
