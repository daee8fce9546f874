package boltdb_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/store/boltdb"
)

// fault is a FaultInjector that fails as told.
type fault struct {
	err   atomic.Pointer[error] // what commits get
	calls atomic.Int64
}

func (f *fault) BeforeCommit(boltdb.CommitOp) error {
	f.calls.Add(1)
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *fault) set(err error) { f.err.Store(&err) }
func (f *fault) clear()        { f.err.Store(nil) }

func state(db *boltdb.DB, state boltdb.DiskState) func() bool {
	return func() bool { return db.Status().Disk == state }
}

func TestATroubledDiskRefusesWritesAndHealsWithoutARestart(t *testing.T) {
	for _, tc := range []struct {
		errno error
		state boltdb.DiskState
		err   error
	}{
		{syscall.ENOSPC, boltdb.DiskFull, boltdb.ErrFull},
		{syscall.EDQUOT, boltdb.DiskFull, boltdb.ErrFull},
		{syscall.EROFS, boltdb.DiskReadOnly, boltdb.ErrReadOnly},
		{syscall.EACCES, boltdb.DiskReadOnly, boltdb.ErrReadOnly},
	} {
		t.Run(tc.errno.Error(), func(t *testing.T) {
			var log logBuffer
			g, cfg := newGate(), config(t)
			cfg.Faults, cfg.Log = g, log.logger()
			db := open(t, cfg)
			go g.pass(1)
			put(t, db, "before", "1")
			healthy := db.Status().Since

			taken := update(t.Context(), db, set("taken", "1"))
			<-g.entered
			waiting := update(t.Context(), db, set("waiting", "1"))
			queued(t, db, 1)
			g.verdict <- boltdb.WriteFault(tc.errno)
			wantErr(t, <-taken, tc.err)
			wantErr(t, <-waiting, tc.err)
			wantErr(t, db.Update(t.Context(), set("refused", "1")), tc.err)
			wantErr(t, db.Enqueue(set("refused", "1")), tc.err)
			wantErr(t, db.Err(), tc.err)
			st := db.Status()
			if st.Disk != tc.state || !errors.Is(st.Err, tc.errno) || !st.Since.After(healthy) {
				t.Errorf("status: %+v", st)
			}
			want(t, db, "before", "1")

			if op := <-g.entered; op != boltdb.CommitProbe {
				t.Fatalf("commit %v while refusing", op)
			}
			g.verdict <- boltdb.WriteFault(tc.errno)
			if !state(db, tc.state)() {
				t.Error("left the trouble by a failed test write")
			}
			g.pass(1) // the next test write
			eventually(t, "it writes again", state(db, boltdb.DiskOK))
			go g.pass(1)
			put(t, db, "after", "1")
			for _, key := range []string{"taken", "waiting", "refused"} {
				want(t, db, key, "")
			}
			if db.Err() != nil || strings.Count(log.String(), "store cannot write") != 1 || !strings.Contains(log.String(), "store writes again") {
				t.Errorf("error %v, log: %s", db.Err(), log.String())
			}
			select {
			case <-db.Failed():
				t.Error("counted as failed")
			default:
			}
		})
	}
}

func TestAFailedSyncIsFinal(t *testing.T) {
	for name, err := range map[string]error{
		"bare errno of fdatasync":     syscall.EIO,
		"sync of a full disk":         syscall.ENOSPC,
		"fsync":                       &fs.PathError{Op: "sync", Err: syscall.ENOSPC},
		"sync while growing the file": errors.New("file sync error: sync x: no space left on device"),
		"write with an I/O error":     boltdb.WriteFault(syscall.EIO),
		"anything unknown":            errors.New("disk is on fire"),
	} {
		t.Run(name, func(t *testing.T) {
			var log logBuffer
			g, cfg := newGate(), config(t)
			cfg.Faults, cfg.Log = g, log.logger()
			db := open(t, cfg)
			go g.pass(1)
			put(t, db, "before", "1")
			taken := update(t.Context(), db, set("taken", "1"))
			<-g.entered
			waiting := update(t.Context(), db, set("waiting", "1"))
			queued(t, db, 1)
			retention := make(chan error, 1)
			go func() { retention <- db.UpdateRetention(t.Context(), set("retention", "1")) }()
			queued(t, db, 2)
			g.verdict <- err
			wantErr(t, <-taken, boltdb.ErrFailed)
			wantErr(t, <-waiting, boltdb.ErrFailed)
			wantErr(t, <-retention, boltdb.ErrFailed)
			<-db.Failed()
			wantErr(t, db.Err(), boltdb.ErrFailed)
			wantErr(t, db.Update(t.Context(), set("a", "1")), boltdb.ErrFailed)
			wantErr(t, db.UpdateRetention(t.Context(), set("a", "1")), boltdb.ErrFailed)
			wantErr(t, db.Enqueue(set("a", "1")), boltdb.ErrFailed)
			wantErr(t, db.View(func(*bolt.Tx) error { return nil }), boltdb.ErrFailed)
			if _, err := db.Backup(t.Context(), os.Stdout); !errors.Is(err, boltdb.ErrFailed) {
				t.Errorf("backup: %v", err)
			}
			if strings.Count(log.String(), "store failed") != 1 {
				t.Errorf("log: %s", log.String())
			}
			select {
			case op := <-g.entered:
				g.verdict <- nil
				t.Errorf("commit %v after a failed sync", op)
			case <-time.After(20 * cfg.ProbeInterval):
			}
		})
	}
}

func TestAPanicInsideBoltIsFinalAndCloseReturns(t *testing.T) {
	cfg := config(t)
	cfg.Faults = boltdb.FaultFunc(func(boltdb.CommitOp) error { panic("assertion failed") })
	db := open(t, cfg)
	err := db.Update(t.Context(), set("a", "1"))
	wantErr(t, err, boltdb.ErrFailed)
	if p := (*boltdb.PanicError)(nil); !errors.As(err, &p) || p.Value != "assertion failed" {
		t.Errorf("error: %v", err)
	}
	<-db.Failed()
	db.KeepWriterLock() // as a panic while rolling back would
}

func TestRetentionWritesOnTheRoomOfTheBallast(t *testing.T) {
	cfg := config(t)
	cfg.BallastBytes = 2 << 20
	var full atomic.Bool
	ballastAtRetention := errors.New("retention did not run")
	cfg.Faults = boltdb.FaultFunc(func(op boltdb.CommitOp) error {
		if op == boltdb.CommitRetention {
			_, ballastAtRetention = os.Stat(cfg.Path + ".ballast")
			full.Store(false)
		}
		if full.Load() {
			return boltdb.WriteFault(syscall.ENOSPC)
		}
		return nil
	})
	db := open(t, cfg)
	put(t, db, "old", "1")
	if !db.Status().Ballast {
		t.Fatal("no ballast on a healthy disk")
	}
	full.Store(true)
	wantErr(t, db.Update(t.Context(), set("new", "1")), boltdb.ErrFull)
	if !db.Status().Ballast {
		t.Error("the ballast was released although no retention asked for it")
	}
	remove := func(tx *bolt.Tx) error { return tx.Bucket(bucket).Delete([]byte("old")) }
	if err := db.UpdateRetention(t.Context(), remove); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(ballastAtRetention, os.ErrNotExist) {
		t.Errorf("ballast during retention: %v", ballastAtRetention)
	}
	put(t, db, "new", "1") // at once: retention looked itself whether there is room
	want(t, db, "old", "")
	eventually(t, "the ballast is back", func() bool { return db.Status().Ballast })

	if err := db.UpdateRetention(t.Context(), set("plain", "1")); err != nil {
		t.Fatalf("retention on a healthy disk: %v", err)
	}
	if !db.Status().Ballast {
		t.Error("retention on a healthy disk cost the ballast")
	}
}

func TestRetentionWithoutRoomGetsErrFull(t *testing.T) {
	f, cfg := &fault{}, config(t)
	cfg.Faults = f
	db := open(t, cfg)
	put(t, db, "old", "1")
	f.set(boltdb.WriteFault(syscall.ENOSPC))
	wantErr(t, db.Update(t.Context(), set("new", "1")), boltdb.ErrFull)
	wantErr(t, db.UpdateRetention(t.Context(), set("old", "2")), boltdb.ErrFull)
	want(t, db, "old", "1")
	failing := errors.New("nothing to retire")
	f.clear()
	eventually(t, "it writes again", state(db, boltdb.DiskOK))
	wantErr(t, db.UpdateRetention(t.Context(), func(*bolt.Tx) error { return failing }), failing)
}

func TestADamagedBallastIsMadeAnew(t *testing.T) {
	cfg := config(t)
	cfg.BallastBytes = 1 << 20
	if err := os.MkdirAll(cfg.Path[:strings.LastIndexByte(cfg.Path, os.PathSeparator)], 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Path+".ballast", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := open(t, cfg)
	put(t, db, "a", "1")
	if fi, err := os.Stat(cfg.Path + ".ballast"); err != nil || fi.Size() != 1<<20 || !db.Status().Ballast {
		t.Errorf("ballast: %v", err)
	}
}

func TestALostMappingIsOpenedAnewInTrouble(t *testing.T) {
	for name, heal := range map[string]func(t *testing.T, db *boltdb.DB){
		"by a test write": func(*testing.T, *boltdb.DB) {},
		"by retention": func(t *testing.T, db *boltdb.DB) {
			if err := db.UpdateRetention(t.Context(), set("a", "1")); err != nil {
				t.Errorf("retention: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, cfg := &fault{}, config(t)
			cfg.Faults = f
			if name == "by retention" {
				cfg.ProbeInterval = time.Hour
			}
			db := open(t, cfg)
			put(t, db, "a", "1")
			f.set(boltdb.WriteFault(syscall.ENOSPC))
			wantErr(t, db.Update(t.Context(), set("b", "1")), boltdb.ErrFull)
			if err := db.LoseMapping(); err != nil {
				t.Fatal(err)
			}
			// A test write may have mapped it again meanwhile.
			if err := db.View(func(*bolt.Tx) error { return nil }); err != nil && !errors.Is(err, boltdb.ErrFull) {
				t.Errorf("view without a mapping: %v", err)
			}
			f.clear()
			heal(t, db)
			eventually(t, "it writes again", state(db, boltdb.DiskOK))
			put(t, db, "c", "1")
			want(t, db, "a", "1")
			want(t, db, "b", "")
		})
	}
}

func TestCommitErrorsAreJudgedByOperationAndNumber(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want boltdb.DiskState
	}{
		{&fs.PathError{Op: "write", Err: syscall.ENOSPC}, boltdb.DiskFull},
		{fmt.Errorf("wrapped: %w", &fs.PathError{Op: "write", Err: syscall.EFBIG}), boltdb.DiskFull},
		{&fs.PathError{Op: "write", Err: syscall.EPERM}, boltdb.DiskReadOnly},
		{&fs.PathError{Op: "write", Err: syscall.EBADF}, boltdb.DiskFailed},
		{&fs.PathError{Op: "sync", Err: syscall.EROFS}, boltdb.DiskFailed},
		{syscall.EROFS, boltdb.DiskFailed},
		{errors.New("file resize error: truncate x: " + syscall.ENOSPC.Error()), boltdb.DiskFull},
		{errors.New("file resize error: truncate x: " + syscall.EROFS.Error()), boltdb.DiskReadOnly},
		{errors.New("file resize error: truncate x: " + syscall.EIO.Error()), boltdb.DiskFailed},
		{errors.New("file sync error: sync x: " + syscall.ENOSPC.Error()), boltdb.DiskFailed},
		{errors.New("mmap allocate error: truncate: truncate x: " + syscall.ENOSPC.Error()), boltdb.DiskFull},
		{errors.New("mmap allocate error: " + syscall.ENOMEM.Error()), boltdb.DiskFailed},
		{errors.New(syscall.ENOSPC.Error()), boltdb.DiskFailed},
	} {
		if got := boltdb.CommitState(tc.err); got != tc.want {
			t.Errorf("%v → %s, want %s", tc.err, got, tc.want)
		}
	}
}

func TestADeletedOrReplacedFileStopsAcknowledging(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"deleted": os.Remove,
		"replaced": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.WriteFile(path, []byte("another"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := boltdb.Config{Path: filepath.Join(t.TempDir(), "x.db"), Schema: 1, Kind: "test", Buckets: []string{"b"}, BallastBytes: -1, ProbeInterval: 5 * time.Millisecond}
			db, err := boltdb.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			if err := harm(cfg.Path); err != nil {
				t.Fatal(err)
			}
			select {
			case <-db.Failed():
			case <-time.After(2 * time.Minute):
				t.Fatal("it goes on")
			}
			if err := db.Update(context.Background(), func(*bolt.Tx) error { return nil }); !errors.Is(err, boltdb.ErrFailed) {
				t.Errorf("a change after that: %v", err)
			}
		})
	}
}
