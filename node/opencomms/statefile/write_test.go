package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"opencode-mesh/protocol/opencomms"
)

func TestNewFilesAreForTheOwnerAndOldOnesKeepTheirMode(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // it has no modes
	}
	s := Open(t.TempDir(), Options{})
	mode := func(path string) fs.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	mustAdd(t, s, "ocm_1")
	if d, f := mode(s.dir), mode(s.path); d != 0o700 || f != 0o600 {
		t.Errorf("made with %v and %v", d, f)
	}
	if err := errors.Join(os.Chmod(s.dir, 0o755), os.Chmod(s.path, 0o666)); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, s, "ocm_2")
	if d, f := mode(s.dir), mode(s.path); d != 0o755 || f != 0o666 {
		t.Errorf("changed to %v and %v", d, f)
	}
}

func TestARefusalOrNoChangeWritesNothing(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	refused := errors.New("refused")
	if err := s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_1"); return refused }); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if err := errors.Join(s.Update(t.Context(), nothing), s.Touch(t.Context())); err != nil {
		t.Fatal(err)
	}
	want(t, names(t, s.dir), nil)
	mustAdd(t, s, "ocm_1")
	before, err := os.Stat(s.path)
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, s.path)
	if err := s.Update(t.Context(), nothing); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(s.path); err != nil || !os.SameFile(before, after) {
		t.Error("a state that did not change was written", err)
	}
	if err := s.Touch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(s.path); err != nil || os.SameFile(before, after) {
		t.Error("Touch did not write", err)
	}
	if read(t, s.path) != text {
		t.Error("Touch changed the state")
	}
}

func TestAStateThatOthersWouldRejectIsNotWritten(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	before := read(t, s.path)
	err := s.Update(t.Context(), func(st *opencomms.State) error {
		c, _ := st.Channels.Get("review")
		c.Name = "another"
		return nil
	})
	var invalid *opencomms.InvalidError
	if !errors.As(err, &invalid) {
		t.Error(err)
	}
	if read(t, s.path) != before {
		t.Error("it was written")
	}
	want(t, names(t, s.dir), []string{stateName})
}

func TestTheNewFileIsOnTheDiskBeforeItReplacesTheOldAndTheLockGoesBeforeTheDirectoryIsSynced(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	d := &faulty{disk: osDisk{}}
	s.disk = d
	mustAdd(t, s, "ocm_2")
	var steps []string
	for _, step := range d.log {
		step = step[strings.IndexByte(step, ' ')+1:]
		if !strings.HasPrefix(step, "open ") {
			steps = append(steps, regexp.MustCompile(`\.state\.[0-9]+\.[0-9a-f]{8}\.tmp`).ReplaceAllString(step, "TMP"))
		}
	}
	want(t, steps, []string{
		"mkdir " + Dir, "create " + lockName, "write " + lockName,
		"create TMP", "write TMP", "sync TMP", "rename to " + stateName,
		"remove " + lockName, "sync directory",
	})
}

// The steps are those of an Update of a file that is there. Each is failed by a full
// disk, a broken one and a write that stops half way.
func TestAWriteThatFailsAtAnyStepLosesNothingAndLeavesNothingBehind(t *testing.T) {
	for _, errno := range []error{syscall.ENOSPC, syscall.EIO} {
		for at := 1; ; at++ {
			s := Open(t.TempDir(), Options{})
			mustAdd(t, s, "ocm_1")
			before := read(t, s.path)
			d := &faulty{disk: osDisk{}, at: at, err: errno, half: true}
			s.disk = d
			err := s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_2"); return nil })
			if d.step < at {
				if at < 9 {
					t.Fatal("only these steps were failed:", d.log)
				}
				break
			}
			step := fmt.Sprintf("%v at %s: %v", errno, d.log[at-1], err)
			s.disk = osDisk{}
			// Only what comes after the rename may fail without an error, and a rename
			// that failed is tried again.
			wrote := read(t, s.path) != before
			if wrote != (err == nil) {
				t.Error(step, "; written:", wrote)
			}
			if err != nil && !errors.Is(err, errno) && !errors.Is(err, ErrLockLost) {
				t.Error(step)
			}
			if err == nil && !slices.ContainsFunc([]string{"rename", "sync directory", "remove"}, func(name string) bool {
				return strings.Contains(d.log[at-1], name)
			}) && !strings.Contains(d.log[at-1], "open "+lockName) {
				t.Error(step, "was not told")
			}
			for _, name := range names(t, s.dir) {
				if name == lockName && (strings.Contains(d.log[at-1], "remove") || strings.Contains(d.log[at-1], "open "+lockName)) {
					age(t, filepath.Join(s.dir, lockName), time.Minute) // the one thing that a dead disk can keep us from
				} else if name != stateName {
					t.Error(step, "left", name)
				}
			}
			mustAdd(t, s, "ocm_3")
			if got := ids(t, s); got[0] != "ocm_1" || !slices.Contains(got, "ocm_3") {
				t.Error(step, got)
			}
		}
	}
}

func TestAProcessThatDiesAtAnyStepLeavesTheOldFileOrTheNew(t *testing.T) {
	for at := 1; ; at++ {
		s := Open(t.TempDir(), Options{})
		mustAdd(t, s, "ocm_1")
		d := &faulty{disk: osDisk{}, at: at, dies: true, half: true}
		s.disk = d
		err := s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_2"); return nil })
		if d.step < at {
			break
		}
		next := Open(s.project, Options{})
		got := ids(t, next)
		if old, new := slices.Equal(got, []string{"ocm_1"}), slices.Equal(got, []string{"ocm_1", "ocm_2"}); !old && !new || old && err == nil {
			t.Error("died at", d.log[at-1], "and left", got, err)
		}
		if path := filepath.Join(s.dir, lockName); slices.Contains(names(t, s.dir), lockName) {
			age(t, path, time.Minute)
		}
		mustAdd(t, next, "ocm_3")
		if got := ids(t, next); !slices.Contains(got, "ocm_1") || !slices.Contains(got, "ocm_3") {
			t.Error("died at", d.log[at-1], "and then", got)
		}
	}
}

func TestARenameIsTriedThreeTimes(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	d := &stubborn{disk: osDisk{}, times: 2}
	s.disk = d
	mustAdd(t, s, "ocm_1")
	d.times = 3
	if err := s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_2"); return nil }); !errors.Is(err, syscall.EBUSY) {
		t.Fatal(err)
	}
	want(t, names(t, s.dir), []string{stateName})
	want(t, ids(t, s), []string{"ocm_1"})
}

// stubborn is a disk on which a rename fails some times.
type stubborn struct {
	disk
	times int
}

func (d *stubborn) Rename(from, to string) error {
	if d.times > 0 {
		d.times--
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EBUSY}
	}
	return d.disk.Rename(from, to)
}

func TestTemporaryFilesThatWereLeftBehindAreRemovedOnceTheyAreOld(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	for _, name := range []string{".state.1.0123abcd.tmp", ".state.2.0123abcd.tmp", ".state.mine.tmp"} {
		write(t, filepath.Join(s.dir, name), "{")
	}
	age(t, filepath.Join(s.dir, ".state.1.0123abcd.tmp"), 2*time.Hour)
	age(t, filepath.Join(s.dir, ".state.mine.tmp"), 2*time.Hour)
	mustAdd(t, s, "ocm_1")
	want(t, names(t, s.dir), []string{".state.2.0123abcd.tmp", ".state.mine.tmp", stateName})
}
