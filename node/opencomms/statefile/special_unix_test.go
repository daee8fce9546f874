//go:build unix

package statefile

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWhatIsNoFileIsNeitherReadNorReplacedAndNeverWaitedFor(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere.json")
	write(t, elsewhere, "theirs")
	for name, put := range map[string]func(path string) error{
		"pipe":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"link":          func(path string) error { return os.Symlink(elsewhere, path) },
		"dangling link": func(path string) error { return os.Symlink("nowhere", path) },
		"endless link":  func(path string) error { return os.Symlink("/dev/zero", path) },
		"socket": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				l.(*net.UnixListener).SetUnlinkOnClose(false)
				l.Close()
			}
			return err
		},
	} {
		project, err := os.MkdirTemp("", "sf") // short: a socket's path is bounded
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(project) })
		s := Open(project, Options{})
		if err := os.Mkdir(s.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := put(s.path); err != nil {
			t.Fatal(name, err)
		}
		before, err := os.Lstat(s.path)
		if err != nil {
			t.Fatal(err)
		}
		_, readErr := s.Read(t.Context())
		for _, err := range []error{readErr, s.Update(t.Context(), nothing), s.Touch(t.Context())} {
			var not *NotRegularError
			if !errors.As(err, &not) || not.Path != s.path {
				t.Error(name, err)
			}
		}
		if after, err := os.Lstat(s.path); err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
			t.Error(name, "was replaced", err)
		}
		want(t, names(t, s.dir), []string{stateName})
	}
	if read(t, elsewhere) != "theirs" {
		t.Error("what a link points at was written")
	}
}

func TestADirectoryMayBeALinkToOneThatProjectsShare(t *testing.T) {
	shared, project := t.TempDir(), t.TempDir()
	s := Open(project, Options{})
	if err := os.Symlink(shared, s.dir); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, s, "ocm_1")
	want(t, names(t, shared), []string{stateName})
	if info, err := os.Lstat(s.dir); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced", err)
	}
}
