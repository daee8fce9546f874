package statefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"opencode-mesh/protocol/opencomms"
)

func TestWithoutAFileTheStateIsEmptyAndNothingIsMade(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	want(t, ids(t, s), []string{})
	want(t, names(t, s.project), []string{})
}

func TestAFileThatIsNotValidIsCopiedOnceAndNeverWrittenOver(t *testing.T) {
	for name, text := range map[string]string{
		"empty":    "",
		"cut off":  `{"schema_version": 2, "channels": {`,
		"null":     "null",
		"schema 3": `{"schema_version":3,"channels":{},"messages":{},"queues":{},"delivered_to":{},"errors":[]}`,
		"no list":  `{"schema_version":2,"channels":{},"messages":{},"queues":{"sess_a":null},"delivered_to":{},"errors":[]}`,
	} {
		s := Open(t.TempDir(), Options{})
		write(t, s.path, text)
		var copied string
		for _, call := range []func() error{
			func() error { _, err := s.Read(t.Context()); return err },
			func() error {
				return s.Update(t.Context(), func(st *opencomms.State) error { add(st, "ocm_1"); return nil })
			},
			func() error { return s.Touch(t.Context()) },
		} {
			err := call()
			var corrupt *CorruptError
			var invalid *opencomms.InvalidError
			if !errors.As(err, &corrupt) || !errors.As(err, &invalid) || corrupt.Path != s.path || !strings.Contains(err.Error(), "repair it or move it away") {
				t.Fatal(name, err)
			}
			if copied == "" {
				copied = corrupt.Copy
			}
			if corrupt.Copy != copied || read(t, corrupt.Copy) != text || read(t, s.path) != text {
				t.Error(name, "copied to", corrupt.Copy, "before", copied)
			}
		}
		if got := names(t, s.dir); len(got) != 2 {
			t.Error(name, got)
		}
	}
}

func TestCopiesOfFilesThatAreNotValidAreBounded(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	var corrupt *CorruptError
	for i := range MaxInvalidCopies + 2 {
		write(t, s.path, fmt.Sprint("broken ", i))
		if _, err := s.Read(t.Context()); !errors.As(err, &corrupt) {
			t.Fatal(err)
		}
		if kept := i < MaxInvalidCopies; kept != (corrupt.Copy != "") || kept == strings.Contains(corrupt.Error(), "move them away") {
			t.Error(i, corrupt)
		}
	}
	if n := len(names(t, s.dir)); n != MaxInvalidCopies+1 {
		t.Error(n, "files")
	}
}

func TestAFileThatIsValidAgainIsUsedAgain(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	good := read(t, s.path)
	write(t, s.path, good[:len(good)/2])
	if _, err := s.Read(t.Context()); err == nil {
		t.Fatal("half a file was read")
	}
	write(t, s.path, good)
	mustAdd(t, s, "ocm_2")
	want(t, ids(t, s), []string{"ocm_1", "ocm_2"})
}

func TestACopyThatCannotBeMadeIsTold(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	write(t, s.path, "broken")
	s.disk = &faulty{disk: osDisk{}, at: corruptLooks + 1, err: os.ErrPermission}
	_, err := s.Read(t.Context())
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || corrupt.Copy != "" || !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "no copy") {
		t.Fatal(err)
	}
	want(t, names(t, s.dir), []string{stateName})
}

// writing is a disk on which another program is writing over the file in place
// while it is read the first times.
type writing struct {
	disk
	torn atomic.Int32
}

func (d *writing) Open(path string) (file, error) {
	f, err := d.disk.Open(path)
	if err == nil && filepath.Base(path) == stateName && d.torn.Add(-1) >= 0 {
		return &tornFile{file: f, left: 200}, nil
	}
	return f, err
}

type tornFile struct {
	file
	left int
}

func (f *tornFile) Read(b []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n, err := f.file.Read(b[:min(f.left, len(b))])
	f.left -= n
	return n, err
}

func TestAFileThatIsBeingWrittenInPlaceIsReadAgainBeforeItIsCalledCorrupt(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	mustAdd(t, s, "ocm_1")
	d := &writing{disk: osDisk{}}
	s.disk = d
	d.torn.Store(corruptLooks - 1)
	want(t, ids(t, s), []string{"ocm_1"})
	d.torn.Store(corruptLooks - 1)
	mustAdd(t, s, "ocm_2")
	want(t, ids(t, s), []string{"ocm_1", "ocm_2"})
	want(t, names(t, s.dir), []string{stateName})

	d.torn.Store(corruptLooks)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Error("the end of the context does not end the looking:", err)
	}
}

func TestAFileThatIsTooLargeIsNotRead(t *testing.T) {
	s := Open(t.TempDir(), Options{})
	write(t, s.path, "")
	if err := os.Truncate(s.path, MaxFile+1); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{s.Update(t.Context(), nothing), func() error { _, err := s.Read(t.Context()); return err }()} {
		if err == nil || !strings.Contains(err.Error(), "move it away") {
			t.Error(err)
		}
	}
	want(t, names(t, s.dir), []string{stateName})
}
