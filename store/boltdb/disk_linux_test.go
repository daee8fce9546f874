package boltdb_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"opencode-mesh/store/boltdb"
)

// swap opens a database whose data file can be replaced by a device under bbolt's
// feet, so that its own system calls fail: writes to /dev/full have no room, and
// /dev/null takes writes but cannot be synced.
func swap(t *testing.T, cfg boltdb.Config) (db *boltdb.DB, replace func(device string) (restore func())) {
	t.Helper()
	var data *os.File
	db = open(t, boltdb.WithOpenFile(cfg, func(name string, flag int, perm fs.FileMode) (*os.File, error) {
		if flag&os.O_CREATE != 0 {
			t.Error("bbolt may recreate a file that vanished")
		}
		f, err := os.OpenFile(name, flag, perm)
		data = f
		return f, err
	}))
	// Leave free pages, for growing looks at the size of the file.
	put(t, db, "room", strings.Repeat("x", 1<<20))
	put(t, db, "room", "")
	put(t, db, "before", "1")
	return db, func(device string) func() {
		fd := int(data.Fd())
		saved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		if err := unix.Dup3(int(dev.Fd()), fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := errors.Join(unix.Dup3(saved, fd, unix.O_CLOEXEC), unix.Close(saved)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestARealWriteErrorOfBoltIsTemporary(t *testing.T) {
	db, replace := swap(t, config(t))
	restore := replace("/dev/full")
	err := db.Update(t.Context(), set("lost", "1"))
	wantErr(t, err, boltdb.ErrFull)
	wantErr(t, err, unix.ENOSPC)
	wantErr(t, db.Update(t.Context(), set("lost", "1")), boltdb.ErrFull)
	want(t, db, "before", "1")
	restore()
	eventually(t, "it writes again", state(db, boltdb.DiskOK))
	put(t, db, "after", "1")
	want(t, db, "lost", "")
	want(t, db, "before", "1")
}

func TestARealSyncErrorOfBoltIsFinal(t *testing.T) {
	db, replace := swap(t, config(t))
	restore := replace("/dev/null")
	wantErr(t, db.Update(t.Context(), set("lost", "1")), boltdb.ErrFailed)
	<-db.Failed()
	restore()
	wantErr(t, db.Update(t.Context(), set("lost", "1")), boltdb.ErrFailed)
	wantErr(t, db.View(func(*bolt.Tx) error { return nil }), boltdb.ErrFailed)
}

// TestATransactionThatMayComeBackIsNotReportedAsRefused forges the worst write
// error: the meta page got out although the write of it reported a full disk.
func TestATransactionThatMayComeBackIsNotReportedAsRefused(t *testing.T) {
	cfg := config(t)
	forge := false
	cfg.Faults = boltdb.FaultFunc(func(boltdb.CommitOp) error {
		if !forge {
			return nil
		}
		if err := forgeMeta(cfg.Path); err != nil {
			return err
		}
		return boltdb.WriteFault(unix.ENOSPC)
	})
	db := open(t, cfg)
	put(t, db, "a", "1")
	forge = true
	err := db.Update(t.Context(), set("a", "2"))
	wantErr(t, err, boltdb.ErrFailed)
	wantErr(t, err, unix.ENOSPC)
}

// forgeMeta writes a copy of the newer meta page that is one transaction newer.
func forgeMeta(path string) error {
	const page, header, txid, sum = 16 << 10, 16, 16 + 48, 16 + 56 // sizes and offsets
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var newest []byte
	for i := range int64(2) {
		meta := make([]byte, page)
		if _, err := f.ReadAt(meta, i*page); err != nil {
			return err
		}
		if newest == nil || binary.NativeEndian.Uint64(meta[txid:]) > binary.NativeEndian.Uint64(newest[txid:]) {
			newest = meta
		}
	}
	next := binary.NativeEndian.Uint64(newest[txid:]) + 1
	binary.NativeEndian.PutUint64(newest, next%2)
	binary.NativeEndian.PutUint64(newest[txid:], next)
	h := fnv.New64a()
	h.Write(newest[header:sum])
	binary.NativeEndian.PutUint64(newest[sum:], h.Sum64())
	_, err = f.WriteAt(newest, int64(next%2)*page)
	return err
}

// tinyFS mounts a file system of size bytes, or reports that it may not.
func tinyFS(t *testing.T, size int) (dir string, ok bool) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		return "", false
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir, true
}

func TestARealFullDiskLosesNothingAndHeals(t *testing.T) {
	dir, ok := tinyFS(t, 8<<20)
	if !ok {
		t.Log("mounting is not permitted here: the tests with injected faults and with /dev/full stand for this one")
		return
	}
	cfg := config(t)
	cfg.Path = filepath.Join(dir, "test.db")
	cfg.BallastBytes = 1 << 20
	db := open(t, cfg)
	value := strings.Repeat("v", 50<<10)
	fill := func(prefix string) (n int) {
		t.Helper()
		for {
			err := db.Update(t.Context(), set(fmt.Sprint(prefix, n), value))
			if err != nil {
				wantErr(t, err, boltdb.ErrFull)
				return n
			}
			if n++; n > 1000 {
				t.Fatal("the disk does not get full")
			}
		}
	}
	check := func(prefix string, n int) {
		t.Helper()
		for i := range n {
			want(t, db, fmt.Sprint(prefix, i), value)
		}
		want(t, db, fmt.Sprint(prefix, n), "")
	}

	acked := fill("a")
	check("a", acked)
	if st := db.Status(); st.Disk != boltdb.DiskFull || !st.Ballast {
		t.Fatalf("status: %+v", st)
	}

	// Test writes may fit into free pages of the file, but that is no room.
	commits := db.Status().Commits
	eventually(t, "test writes work", func() bool { return db.Status().Commits > commits+3 })
	if st := db.Status(); st.Disk != boltdb.DiskFull {
		t.Errorf("without room it is %s", st.Disk)
	}

	// Retention frees pages inside the file, on the room of the ballast.
	const retired = 60
	err := db.UpdateRetention(t.Context(), func(tx *bolt.Tx) error {
		for i := range retired {
			if err := tx.Bucket(bucket).Delete(fmt.Append(nil, "a", i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it writes again", state(db, boltdb.DiskOK))
	again := fill("b")
	if again < retired/2 {
		t.Errorf("only %d records went into the room of %d", again, retired)
	}
	check("b", again)

	// Room from outside: a grown disk.
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", 32<<20)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it writes again", state(db, boltdb.DiskOK))
	put(t, db, "c", value)
	eventually(t, "the ballast is back", func() bool { return db.Status().Ballast })
	check("b", again)

	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if problems, err := boltdb.Check(t.Context(), cfg, nil); err != nil || len(problems) != 0 {
		t.Errorf("check: %v %v", problems, err)
	}
	db = open(t, cfg)
	check("b", again)
}

func TestOpenOnAFullOrReadOnlyDiskSaysSo(t *testing.T) {
	dir, ok := tinyFS(t, 32<<10)
	if !ok {
		t.Log("mounting is not permitted here: the judgement of error numbers is tested without")
		return
	}
	cfg := config(t)
	cfg.Path = filepath.Join(dir, "test.db")
	_, err := boltdb.Open(cfg)
	wantErr(t, err, boltdb.ErrFull)
	if _, err := os.Stat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
		t.Error("half a database was left")
	}
	wantFiles(t, cfg)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err = boltdb.Open(cfg)
	wantErr(t, err, boltdb.ErrReadOnly)
}
