package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed assets
var assetFiles embed.FS

// assetPrefix is where assets are, below the hash of all of them: another build has
// other addresses, so browsers keep what they have for ever, and modules that import
// each other are of one build.
const assetPrefix = "/assets/"

// assetTypes are what assets are; the system's own tables may say anything.
var assetTypes = map[string]string{
	".js":  "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// assets are the embedded files.
var assets = readAssets()

type assetSet struct {
	hash  string
	files map[string][]byte // by name
}

func readAssets() *assetSet {
	set := &assetSet{files: map[string][]byte{}}
	sum := sha256.New()
	err := fs.WalkDir(assetFiles, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := assetFiles.ReadFile(name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "assets/")
		set.files[name] = b
		sum.Write([]byte(name + "\x00"))
		sum.Write(b)
		return nil
	})
	if err != nil {
		panic(err) // embedded
	}
	set.hash = hex.EncodeToString(sum.Sum(nil)[:8])
	return set
}

func (s *assetSet) url(name string) string { return assetPrefix + s.hash + "/" + name }

// asset serves one of them to anybody.
func (w *Web) asset(rw http.ResponseWriter, r *http.Request) {
	hash, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, assetPrefix), "/")
	b, ok := assets.files[name]
	if !ok || hash != assets.hash {
		http.Error(rw, "this is not here, or no longer: load the page anew", http.StatusNotFound)
		return
	}
	h := rw.Header()
	h.Set("Content-Type", assetTypes[path.Ext(name)])
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("ETag", `"`+hash+`"`)
	if r.Header.Get("If-None-Match") == `"`+hash+`"` {
		rw.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = rw.Write(b)
}
