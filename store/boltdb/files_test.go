package boltdb_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/store/boltdb"
)

// closed makes a closed database of n records.
func closed(t *testing.T, cfg boltdb.Config, n int) {
	t.Helper()
	db := open(t, cfg)
	err := db.Update(t.Context(), func(tx *bolt.Tx) error {
		for i := range n {
			if err := set(fmt.Sprintf("k%04d", i), strings.Repeat("v", 500))(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// keys lists the keys of the records.
func keys(t *testing.T, db *boltdb.DB) (keys []string) {
	t.Helper()
	err := db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, _ []byte) error {
			keys = append(keys, string(k))
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func backup(t *testing.T, db *boltdb.DB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := db.Backup(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := f.Stat(); err != nil || fi.Size() != n {
		t.Fatalf("backup says %d bytes, wrote %d", n, fi.Size())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestABackupWhileWritingIsOneMomentOfTheDatabase(t *testing.T) {
	cfg := config(t)
	db := open(t, cfg)
	// Two records change together; a backup must never see one of them alone.
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			value := binary.BigEndian.AppendUint64(make([]byte, 3000), uint64(i))
			err := db.Update(context.Background(), func(tx *bolt.Tx) error {
				b := tx.Bucket(bucket)
				return errors.Join(b.Put([]byte("left"), value), b.Put(fmt.Append(nil, "pad", i%50), value), b.Put([]byte("right"), value))
			})
			if err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 5 {
		copied := cfg
		copied.Path = filepath.Join(t.TempDir(), "restored.db")
		if err := boltdb.Restore(t.Context(), copied, backup(t, db), nil); err != nil {
			t.Fatal(err)
		}
		if problems, err := boltdb.Check(t.Context(), copied, nil); err != nil || len(problems) != 0 {
			t.Fatalf("check: %v %v", problems, err)
		}
		restored := open(t, copied)
		if left, right := get(t, restored, "left"), get(t, restored, "right"); left != right {
			t.Fatalf("halves of one update differ: %x %x", left[3000:], right[3000:])
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

func TestABackupEndsWithItsContextItsTargetOrTheDatabase(t *testing.T) {
	cfg := config(t)
	closed(t, cfg, 200)
	db := open(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := db.Backup(ctx, io.Discard)
	wantErr(t, err, context.Canceled)

	_, err = db.Backup(t.Context(), writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe }))
	wantErr(t, err, io.ErrClosedPipe)

	started, closing := make(chan struct{}), make(chan error, 1)
	writes := 0
	_, err = db.Backup(t.Context(), writerFunc(func(p []byte) (int, error) {
		if writes++; writes == 1 {
			go func() {
				close(started)
				closing <- db.Close()
			}()
			<-started
			eventually(t, "close has begun", func() bool { return errors.Is(db.Enqueue(set("a", "1")), boltdb.ErrClosed) })
		}
		return len(p), nil
	}))
	wantErr(t, err, boltdb.ErrClosed)
	if err := <-closing; err != nil {
		t.Fatal(err)
	}
	if writes > 2 {
		t.Errorf("%d writes after close", writes)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRestoreMakesTheDatabaseOfABackup(t *testing.T) {
	cfg := config(t)
	closed(t, cfg, 50)
	source := open(t, cfg)
	file := backup(t, source)
	before := read(t, file)
	put(t, source, "later", "1")

	target := config(t)
	err := boltdb.Restore(t.Context(), target, file, set("generation", "2"))
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(target.Path); err != nil || runtime.GOOS != "windows" && fi.Mode() != 0o600 {
		t.Errorf("restored file: %v %v", fi.Mode(), err)
	}
	restored := open(t, target)
	if got := keys(t, restored); len(got) != 51 || !slices.Contains(got, "generation") {
		t.Errorf("restored keys: %v", got)
	}
	if !bytes.Equal(before, read(t, file)) {
		t.Error("the backup was changed")
	}
	wantFiles(t, target)
}

// wantFiles checks that nothing but the database and its lock is left.
func wantFiles(t *testing.T, cfg boltdb.Config) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(cfg.Path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); name != filepath.Base(cfg.Path) && name != filepath.Base(cfg.Path)+".lock" {
			t.Errorf("leftover %s", name)
		}
	}
}

func TestRestoreRefusesWhatItMustNotDo(t *testing.T) {
	cfg := config(t)
	closed(t, cfg, 50)
	db := open(t, cfg)
	good := backup(t, db)
	damaged := filepath.Join(t.TempDir(), "damaged")
	content := read(t, good)
	clear(content[len(content)/2:])
	if err := os.WriteFile(damaged, content, 0o600); err != nil {
		t.Fatal(err)
	}

	t.Run("overwrite a file", func(t *testing.T) {
		target := config(t)
		closed(t, target, 1)
		before := read(t, target.Path)
		wantErr(t, boltdb.Restore(t.Context(), target, good, nil), boltdb.ErrExists)
		if !bytes.Equal(before, read(t, target.Path)) {
			t.Error("the file was changed")
		}
	})
	t.Run("replace a database in use", func(t *testing.T) {
		err := boltdb.Restore(t.Context(), cfg, good, nil)
		wantHolder(t, err, cfg.Path, os.Getpid())
	})
	cannot := errors.New("cannot")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx     context.Context
		backup  string
		change  func(*boltdb.Config)
		prepare func(*bolt.Tx) error
		ok      func(error) bool
	}{
		"a damaged backup": {backup: damaged, ok: func(err error) bool {
			corrupt := (*boltdb.CorruptError)(nil)
			return errors.As(err, &corrupt) && corrupt.Path == damaged
		}},
		"no backup": {backup: good + "x", ok: func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
		"another kind": {backup: good, change: func(c *boltdb.Config) { c.Kind = "journal" }, ok: func(err error) bool {
			kind := (*boltdb.KindError)(nil)
			return errors.As(err, &kind) && kind.Path == good
		}},
		"failing preparation": {backup: good, prepare: func(*bolt.Tx) error { return cannot }, ok: func(err error) bool { return errors.Is(err, cannot) }},
		"panicking preparation": {backup: good, prepare: func(*bolt.Tx) error { panic(cannot) }, ok: func(err error) bool {
			return strings.Contains(err.Error(), "cannot")
		}},
		"a canceled context": {ctx: canceled, backup: good, ok: func(err error) bool { return errors.Is(err, context.Canceled) }},
	} {
		t.Run("install "+name, func(t *testing.T) {
			target := config(t)
			if tc.change != nil {
				tc.change(&target)
			}
			ctx := tc.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			if err := boltdb.Restore(ctx, target, tc.backup, tc.prepare); err == nil || !tc.ok(err) {
				t.Errorf("error: %v", err)
			}
			if _, err := os.Stat(target.Path); !errors.Is(err, os.ErrNotExist) {
				t.Error("a database was made")
			}
			wantFiles(t, target)
		})
	}
}

func TestCompactShrinksTheFileAndKeepsTheRecords(t *testing.T) {
	cfg := config(t)
	closed(t, cfg, 400)
	db := open(t, cfg)
	err := db.Update(t.Context(), func(tx *bolt.Tx) error {
		for i := range 390 {
			if err := tx.Bucket(bucket).Delete(fmt.Appendf(nil, "k%04d", i)); err != nil {
				return err
			}
		}
		return tx.Bucket(bucket).SetSequence(77)
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = boltdb.Compact(t.Context(), cfg, "")
	wantHolder(t, err, cfg.Path, os.Getpid())
	remaining := keys(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	aside := config(t)
	if err := os.MkdirAll(filepath.Dir(aside.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	before := read(t, cfg.Path)
	res, err := boltdb.Compact(t.Context(), cfg, aside.Path)
	if err != nil || res.After >= res.Before/2 || res.After == 0 {
		t.Fatalf("compact aside: %+v %v", res, err)
	}
	if !bytes.Equal(before, read(t, cfg.Path)) {
		t.Error("compaction to another file changed the source")
	}
	_, err = boltdb.Compact(t.Context(), cfg, aside.Path)
	wantErr(t, err, boltdb.ErrExists)

	if err := os.WriteFile(cfg.Path+".compact", []byte("leftover"), 0o600); err != nil {
		t.Fatal(err)
	}
	inPlace, err := boltdb.Compact(t.Context(), cfg, "")
	if err != nil || inPlace != res {
		t.Fatalf("compact in place: %+v %v, aside it was %+v", inPlace, err, res)
	}
	wantFiles(t, cfg)
	for _, c := range []boltdb.Config{cfg, aside} {
		if problems, err := boltdb.Check(t.Context(), c, nil); err != nil || len(problems) != 0 {
			t.Errorf("check: %v %v", problems, err)
		}
		db := open(t, c)
		if got := keys(t, db); !slices.Equal(got, remaining) {
			t.Errorf("keys: %v", got)
		}
		err := db.View(func(tx *bolt.Tx) error {
			if seq := tx.Bucket(bucket).Sequence(); seq != 77 {
				return fmt.Errorf("sequence %d", seq)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestCompactLeavesTheFileWhenItCannotFinish(t *testing.T) {
	cfg := config(t)
	closed(t, cfg, 10)
	before := read(t, cfg.Path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := boltdb.Compact(ctx, cfg, "")
	wantErr(t, err, context.Canceled)
	other := cfg
	other.Kind = "journal"
	_, err = boltdb.Compact(t.Context(), other, "")
	if kind := (*boltdb.KindError)(nil); !errors.As(err, &kind) {
		t.Errorf("another kind: %v", err)
	}
	if !bytes.Equal(before, read(t, cfg.Path)) {
		t.Error("the file was changed")
	}
	wantFiles(t, cfg)
	_, err = boltdb.Compact(t.Context(), config(t), "")
	wantErr(t, err, os.ErrNotExist)
}

func TestCheckValidatesEachRecord(t *testing.T) {
	cfg := config(t)
	db := open(t, cfg)
	for i := range 5 {
		put(t, db, fmt.Sprint("k", i), "good")
	}
	put(t, db, "k2", "bad")
	err := db.Update(t.Context(), func(tx *bolt.Tx) error {
		b, err := tx.Bucket(bucket).CreateBucket([]byte("inner"))
		if err != nil {
			return err
		}
		return b.Put([]byte("deep"), []byte("worse"))
	})
	if err != nil || db.Close() != nil {
		t.Fatal(err)
	}
	seen := 0
	problems, err := boltdb.Check(t.Context(), cfg, func(_ []string, _, value []byte) error {
		seen++
		switch string(value) {
		case "bad":
			return errors.New("is bad")
		case "worse":
			panic("is worse")
		}
		return nil
	})
	if err != nil || seen != 6 || len(problems) != 2 {
		t.Fatalf("%d records seen, problems %v, error %v", seen, problems, err)
	}
	text := []string{problems[0].String(), problems[1].String()}
	if want := []string{`records/inner "deep": validation panicked: is worse`, `records "k2": is bad`}; !slices.Equal(text, want) {
		t.Errorf("problems %q, want %q", text, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = boltdb.Check(ctx, cfg, func([]string, []byte, []byte) error { return nil })
	wantErr(t, err, context.Canceled)
}

func TestCheckStopsAtManyProblems(t *testing.T) {
	cfg := config(t)
	db := open(t, cfg)
	err := db.Update(t.Context(), func(tx *bolt.Tx) error {
		for i := range boltdb.MaxProblems + 100 {
			if err := set(fmt.Sprint("k", i), "bad")(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || db.Close() != nil {
		t.Fatal(err)
	}
	problems, err := boltdb.Check(t.Context(), cfg, func([]string, []byte, []byte) error { return errors.New("bad") })
	if err != nil || len(problems) != boltdb.MaxProblems {
		t.Fatalf("%d problems, %v", len(problems), err)
	}
}
