package files_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/node/peers/files/filestest"
)

func TestAFileIsOnDiskBeforeItHasItsNameAndItsNameBeforeReplaceReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	sys := &filestest.Faults{FS: files.OS{}}
	if err := files.Replace(sys, path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	var what []string
	for _, s := range sys.Steps() {
		for _, w := range []string{"create", "write", "sync directory", "sync", "chmod", "rename"} {
			if len(s) >= len(w) && s[:len(w)] == w {
				what = append(what, w)
				break
			}
		}
	}
	at := func(w string) int { return slices.Index(what, w) }
	if order := []int{at("create"), at("write"), at("sync"), at("rename"), at("sync directory")}; order[0] < 0 || !slices.IsSorted(order) {
		t.Errorf("the steps are %q", sys.Steps())
	}
}

func TestAStepThatFailsLeavesTheOldFileOrTheNewOneAndNothingBeside(t *testing.T) {
	full := errors.New("the disk is full")
	for at := 1; ; at++ {
		dir := t.TempDir()
		path := filepath.Join(dir, "f.json")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		sys := &filestest.Faults{FS: files.OS{}, At: at, Err: full, Half: true}
		err := files.Replace(sys, path, []byte("new"))
		if len(sys.Steps()) < at {
			if err != nil || at < 5 {
				t.Errorf("%d steps, and %v", at-1, err)
			}
			return
		}
		if !errors.Is(err, full) {
			t.Errorf("%s failed, and yet %v", sys.Steps()[at-1], err)
		}
		got, err := files.Read(files.OS{}, path, 10)
		if err != nil || string(got) != "old" && string(got) != "new" {
			t.Errorf("%s failed: %q, %v", sys.Steps()[at-1], got, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s failed: %v", sys.Steps()[at-1], left)
		}
	}
}

func TestDirectoriesAndFilesAreForTheOwnerAloneAndDurable(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "a", "b")
	sys := &filestest.Faults{FS: files.OS{}}
	if err := files.MakeDir(sys, deep); err != nil {
		t.Fatal(err)
	}
	if want := []string{"mkdir a", "sync directory " + filepath.Base(dir), "mkdir b", "sync directory a"}; !slices.Equal(sys.Steps(), want) {
		t.Errorf("the steps are %q, want %q", sys.Steps(), want)
	}
	if err := files.MakeDir(sys, deep); err != nil || len(sys.Steps()) != 4 {
		t.Errorf("again: %v, %q", err, sys.Steps())
	}
	path := filepath.Join(deep, "f")
	if err := files.Replace(files.OS{}, path, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := files.MakeDir(files.OS{}, path); err == nil {
		t.Error("a file was taken for a directory")
	}
	if runtime.GOOS == "windows" {
		return // there are no modes
	}
	for p, want := range map[string]fs.FileMode{filepath.Join(dir, "a"): 0o700, deep: 0o700, path: 0o600} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
}

func TestOnlyRegularFilesOfABoundedSizeAreRead(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	if err := os.WriteFile(path, []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := files.Read(files.OS{}, path, 4); err != nil || string(got) != "four" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := files.Read(files.OS{}, path, 3); !errors.Is(err, files.ErrTooBig) {
		t.Errorf("one byte too many: %v", err)
	}
	if _, err := files.Read(files.OS{}, dir, 4); !errors.Is(err, files.ErrNotRegular) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := files.Read(files.OS{}, filepath.Join(dir, "none"), 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	if os.Symlink(path, link) == nil {
		if _, err := files.Read(files.OS{}, link, 4); !errors.Is(err, files.ErrNotRegular) {
			t.Errorf("a link: %v", err)
		}
	}
}
