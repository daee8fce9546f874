package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/cmd/internal/clitest"
	"opencode-mesh/protocol/api"
)

// artifactHub is a shell at a hub whose task t1 has files; changed holds those that
// are others by now.
func artifactHub(t *testing.T, files map[string]string, changed map[string]string, extra ...api.Artifact) *clitest.Shell {
	t.Helper()
	return stubHub(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/tasks/t1/artifacts") {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(api.CodeUnknownTask, "no such task")})
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/file") {
			list := append([]api.Artifact{}, extra...)
			for p, text := range files {
				h := sha256.Sum256([]byte(text))
				list = append(list, api.Artifact{Path: p, Size: int64(len(text)), SHA256: hex.EncodeToString(h[:])})
			}
			slices.SortFunc(list, func(a, b api.Artifact) int { return strings.Compare(a.Path, b.Path) })
			_ = json.NewEncoder(w).Encode(api.ArtifactList{Artifacts: list})
			return
		}
		p := r.URL.Query().Get("path")
		text, ok := changed[p]
		if !ok {
			text, ok = files[p]
		}
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.Errorf(api.CodeNotFound, "beta does not give the file")})
			return
		}
		w.Header().Set("Etag", `"v"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	})
}

// below lists the files of a directory with what is in them.
func below(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		got[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := below(t, dir)
	for p, text := range want {
		if got[p] != text {
			t.Errorf("%s holds %.40q, want %.40q", p, got[p], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d files: %q", len(got), got)
	}
}

func TestArtifactsAreListed(t *testing.T) {
	sh := artifactHub(t, map[string]string{"out/a.txt": "hello"}, nil, api.Artifact{Path: "b\x1b[31m.txt", Problem: "not there"})
	res := sh.Want(0, []string{"artifact", "list", "t1"})
	wantText(t, res.Out, "SIZE", "5 B", "2cf24dba5fb0", "out/a.txt", "not there  -  ")
	if strings.Contains(res.Out, "\x1b") {
		t.Errorf("%q", res.Out)
	}
	got := jsonLines(t, sh.Want(0, []string{"artifact", "list", "t1", "--json"}).Out)
	if len(got) != 2 || got[1]["path"] != "out/a.txt" || got[1]["size"] != 5.0 || len(got[1]["sha256"].(string)) != 64 || got[0]["problem"] != "not there" {
		t.Errorf("%v", got)
	}
	sh.Want(cli.ExitUsage, []string{"artifact", "list", "t2"})
	sh.Want(cli.ExitUsage, []string{"artifact", "list"})
}

func TestOneArtifactGoesWhereThePersonSays(t *testing.T) {
	big := strings.Repeat("0123456789", 100000)
	sh := artifactHub(t, map[string]string{"out/a.txt": "hello", "big": big}, nil)
	dir := t.TempDir()
	res := sh.Want(0, []string{"artifact", "get", "t1", "out/a.txt", "-o", filepath.Join(dir, "x.txt")})
	if res.Out != "" {
		t.Errorf("stdout carries %q", res.Out)
	}
	wantText(t, res.Err, "saved "+filepath.Join(dir, "x.txt")+" (5 B)")
	sh.Want(0, []string{"artifact", "get", "t1", "big", "-o", filepath.Join(dir, "x.txt")}) // named, so it may be overwritten
	sh.Want(0, []string{"artifact", "get", "t1", "out/a.txt", "-o", dir})
	wantFiles(t, dir, map[string]string{"x.txt": big, "a.txt": "hello"})
	res = sh.Want(0, []string{"artifact", "get", "t1", "big", "-o", "-"})
	if res.Out != big || res.Err != "" {
		t.Errorf("%d bytes on stdout, stderr %q", len(res.Out), res.Err)
	}
	t.Run("here, without -o", func(t *testing.T) {
		t.Chdir(dir)
		wantText(t, sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", "out/a.txt"}).Err, "a.txt is there already", "--force")
		sh.Want(0, []string{"artifact", "get", "t1", "out/a.txt", "--force"})
		sh.Want(0, []string{"artifact", "get", "t1", "big"})
		wantFiles(t, dir, map[string]string{"x.txt": big, "a.txt": "hello", "big": big})
	})
	for _, args := range [][]string{{"t1", "a.txt"}, {"t1", "out/../out/a.txt"}, {"t1", "-o", "-"}, {"t1", "a", "b"}, {}} {
		sh.Want(cli.ExitUsage, append([]string{"artifact", "get"}, args...))
	}
}

func TestAllArtifactsGoBelowADirectoryAndNowhereElse(t *testing.T) {
	sh := artifactHub(t, map[string]string{
		"a.txt": "1", "out/b.txt": "2", "../up.txt": "3", "/abs/c.txt": "4", `C:\work\d.txt`: "5", `..\..\e.txt`: "6", "out/../../f.txt": "7", "link/g.txt": "8",
	}, nil)
	top := t.TempDir()
	dir := filepath.Join(top, "in", "here")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(top, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	res := sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", "-o", dir})
	wantText(t, res.Err, "link/g.txt: ") // a link here that leads away is not followed
	if err := os.Remove(filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, top, map[string]string{
		"in/here/a.txt": "1", "in/here/out/b.txt": "2", "in/here/up.txt": "3", "in/here/abs/c.txt": "4", "in/here/work/d.txt": "5",
		"in/here/e.txt": "6", "in/here/f.txt": "7",
	})
	t.Run("a directory is made", func(t *testing.T) {
		made := filepath.Join(top, "made", "anew")
		sh.Want(0, []string{"artifact", "get", "t1", "-o", made})
		wantFiles(t, made, map[string]string{"a.txt": "1", "out/b.txt": "2", "up.txt": "3", "abs/c.txt": "4", "work/d.txt": "5", "e.txt": "6", "f.txt": "7", "link/g.txt": "8"})
	})
}

func TestWhatTheAgentNamesOverwritesNothing(t *testing.T) {
	sh := artifactHub(t, map[string]string{".profile": "evil", "b.txt": "new"}, nil)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".profile"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantText(t, sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", "-o", dir}).Err, ".profile is there already")
	wantFiles(t, dir, map[string]string{".profile": "mine", "b.txt": "new"})
	sh.Want(0, []string{"artifact", "get", "t1", "-o", dir, "--force"})
	wantFiles(t, dir, map[string]string{".profile": "evil", "b.txt": "new"})
}

func TestAFileThatIsNotWhatTheTaskLeftIsNotTaken(t *testing.T) {
	sh := artifactHub(t, map[string]string{"hash": "hello", "size": "hello", "longer": "hello"},
		map[string]string{"hash": "jello", "size": "hell", "longer": strings.Repeat("hello", 1000)},
		api.Artifact{Path: "gone", Problem: "not there"}, api.Artifact{Path: "unhashed", Size: 3})
	for _, name := range []string{"hash", "size", "longer"} {
		dir := t.TempDir()
		res := sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", name, "-o", filepath.Join(dir, "x")})
		wantText(t, res.Err, "changed since the task ended", "--changed")
		wantFiles(t, dir, nil) // nothing of it stays
		sh.Want(0, []string{"artifact", "get", "t1", name, "--changed", "-o", filepath.Join(dir, "x")})
		if len(below(t, dir)) != 1 {
			t.Errorf("%s: --changed brought %v", name, below(t, dir))
		}
		sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", name, "-o", "-"})
	}
	wantText(t, sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", "gone", "-o", "-"}).Err, "not there")
	wantText(t, sh.Want(cli.ExitNotDone, []string{"artifact", "get", "t1", "gone", "--changed", "-o", "-"}).Err, "beta does not give")
}

func TestATransferShowsHowFarItIsOnATerminal(t *testing.T) {
	var out bytes.Buffer
	b := &bar{m: NewMain(&cli.App{Stderr: &out, Size: func() (int, int) { return 60, 24 }}), name: "out/report.html", total: 4 << 20, start: time.Unix(0, 0)}
	b.at = 1 << 20
	if got := b.line(time.Unix(2, 0)); got != "[#####---------------]  25%  1.0 MiB of 4.0 MiB  512.0 KiB/s  out/report.html" {
		t.Errorf("%q", got)
	}
	b.draw(b.line(time.Unix(2, 0)))
	b.draw("short")
	b.end()
	for _, line := range strings.Split(out.String(), "\r") {
		if columns(line) > 59 {
			t.Errorf("%q breaks the line", line)
		}
	}
	if !strings.HasSuffix(out.String(), "\r"+strings.Repeat(" ", 5)+"\r") {
		t.Errorf("%q does not end with an empty line", out.String())
	}
	b.total = -1
	if got := b.line(time.Unix(2, 0)); got != "out/report.html  1.0 MiB  512.0 KiB/s" {
		t.Errorf("%q", got)
	}
	sh := artifactHub(t, map[string]string{"a\x1b[31m.txt": "hello"}, nil)
	res := sh.Want(0, []string{"artifact", "get", "t1", "a\x1b[31m.txt", "-o", "-"}, func(app *cli.App) { app.StderrTerminal = true })
	if res.Out != "hello" || strings.Contains(res.Err, "\x1b") || !strings.Contains(res.Err, "100%") {
		t.Errorf("stdout %q, stderr %q", res.Out, res.Err)
	}
}

func TestSizesAreShownInUnits(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1000 << 10: "1.0 MiB", 5 << 30: "5.0 GiB", 1 << 50: "1024.0 TiB"} {
		if got := byteSize(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
