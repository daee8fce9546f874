package boltdb_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/store/boltdb"
)

func TestOpenCreatesPrivateFileAndKeepsRecords(t *testing.T) {
	cfg := config(t)
	db, err := boltdb.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	put(t, db, "a", "1")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, open(t, cfg), "a", "1")
	if runtime.GOOS == "windows" {
		return // has no such modes
	}
	for path, mode := range map[string]os.FileMode{cfg.Path: 0o600, cfg.Path + ".lock": 0o600, filepath.Dir(cfg.Path): 0o700 | os.ModeDir} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != mode {
			t.Errorf("%s: mode %v, %v", path, fi.Mode(), err)
		}
	}
}

func TestOpenRefusesAMeaninglessConfig(t *testing.T) {
	for name, change := range map[string]func(*boltdb.Config){
		"no path":             func(c *boltdb.Config) { c.Path = "" },
		"no schema":           func(c *boltdb.Config) { c.Schema = 0 },
		"no kind":             func(c *boltdb.Config) { c.Kind = "" },
		"negative queue":      func(c *boltdb.Config) { c.QueueSize = -1 },
		"negative ballast":    func(c *boltdb.Config) { c.BallastBytes = -2 },
		"reserved bucket":     func(c *boltdb.Config) { c.Buckets = []string{"_boltdb"} },
		"nameless bucket":     func(c *boltdb.Config) { c.Buckets = []string{""} },
		"unlisted log bucket": func(c *boltdb.Config) { c.LogBuckets = []string{"other"} },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			change(&cfg)
			if db, err := boltdb.Open(cfg); err == nil {
				db.Close()
				t.Fatal("accepted")
			}
		})
	}
}

func TestASecondOpenNamesTheHolder(t *testing.T) {
	if boltdb.DefaultLockTimeout > 2500*time.Millisecond {
		t.Error("the default leaves no time to report within 3 s")
	}
	t.Run("of this process", func(t *testing.T) {
		cfg := config(t)
		open(t, cfg)
		_, err := boltdb.Open(cfg)
		wantHolder(t, err, cfg.Path, os.Getpid())
	})
	t.Run("of another process, until that ends", func(t *testing.T) {
		cfg := config(t)
		cmd, stdin, _ := startChild(t, roleHold, cfg.Path)
		_, err := boltdb.Open(cfg)
		wantHolder(t, err, cfg.Path, cmd.Process.Pid)
		_, err = boltdb.Check(t.Context(), cfg, nil)
		wantHolder(t, err, cfg.Path, cmd.Process.Pid)
		cfg.LockTimeout = time.Minute
		stdin.Close()
		open(t, cfg) // waits for the child
	})
	t.Run("of a killed process no more", func(t *testing.T) {
		cfg := config(t)
		cmd, _, _ := startChild(t, roleHold, cfg.Path)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		open(t, cfg)
	})
	t.Run("of a program that does not tell", func(t *testing.T) {
		cfg := config(t)
		db := open(t, cfg)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		other, err := bolt.Open(cfg.Path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		unknown := func(err error) {
			t.Helper()
			if locked := (*boltdb.LockedError)(nil); !errors.As(err, &locked) || !strings.Contains(err.Error(), "unknown process") {
				t.Fatalf("error: %v", err)
			}
		}
		_, err = boltdb.Open(cfg)
		unknown(err)
		stale := `{"pid":1,"started":"2026-01-01T00:00:00Z","program":"killed long ago"}`
		if err := os.WriteFile(cfg.Path+".lock", []byte(stale), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = boltdb.Check(t.Context(), cfg, nil)
		unknown(err)
	})
}

func wantHolder(t *testing.T, err error, path string, pid int) {
	t.Helper()
	locked := (*boltdb.LockedError)(nil)
	if !errors.As(err, &locked) || locked.Path != path {
		t.Fatalf("error: %v", err)
	}
	program := filepath.Base(os.Args[0])
	if text := err.Error(); !strings.Contains(text, path) || !strings.Contains(text, fmt.Sprintf("pid %d (%s, since ", pid, program)) {
		t.Fatalf("error does not name file and holder: %s", text)
	}
}

func TestOpenChecksKindAndSchema(t *testing.T) {
	cfg := config(t)
	cfg.Schema = 3
	db := open(t, cfg)
	put(t, db, "a", "1")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before := read(t, cfg.Path)

	newer := (*boltdb.NewerSchemaError)(nil)
	c := cfg
	c.Schema = 2
	if _, err := boltdb.Open(c); !errors.As(err, &newer) || newer.File != 3 || newer.Program != 2 || !strings.Contains(err.Error(), "use a newer program") {
		t.Errorf("older program: %v", err)
	}
	c.ReadOnly = true
	if _, err := boltdb.Open(c); !errors.As(err, &newer) {
		t.Errorf("older program, read-only: %v", err)
	}
	kind := (*boltdb.KindError)(nil)
	c = cfg
	c.Kind = "second store"
	if _, err := boltdb.Open(c); !errors.As(err, &kind) || !strings.Contains(err.Error(), "is a test store, not a second store") {
		t.Errorf("another kind: %v", err)
	}
	older := (*boltdb.OlderSchemaError)(nil)
	c = cfg
	c.Schema = 4
	if _, err := boltdb.Open(c); !errors.As(err, &older) || older.File != 3 || !strings.Contains(err.Error(), "cannot migrate") {
		t.Errorf("newer program without migration: %v", err)
	}
	if !bytes.Equal(before, read(t, cfg.Path)) {
		t.Error("a refused file was changed")
	}
}

func TestOpenRefusesTheDatabaseOfAnotherProgram(t *testing.T) {
	cfg := config(t)
	if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := bolt.Open(cfg.Path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = boltdb.Open(cfg)
	if kind := (*boltdb.KindError)(nil); !errors.As(err, &kind) || !strings.Contains(err.Error(), "another program") {
		t.Fatalf("error: %v", err)
	}
}

func TestMigrationHappensWhollyOrNotAtAll(t *testing.T) {
	cfg := config(t)
	db := open(t, cfg)
	put(t, db, "a", "1")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Schema, cfg.Buckets = 3, []string{"records", "more"}
	broken := errors.New("cannot migrate")
	for name, end := range map[string]func() error{
		"error": func() error { return broken },
		"panic": func() error { panic(broken) },
	} {
		cfg.Migrate = func(tx *bolt.Tx, from int) error {
			if err := set("a", "half")(tx); err != nil {
				return err
			}
			return end()
		}
		if _, err := boltdb.Open(cfg); err == nil || !strings.Contains(err.Error(), "from schema 1 to 3") || !strings.Contains(err.Error(), "cannot migrate") {
			t.Fatalf("%s: %v", name, err)
		}
	}
	calls := 0
	cfg.Migrate = func(tx *bolt.Tx, from int) error {
		calls++
		if from != 1 || string(tx.Bucket(bucket).Get([]byte("a"))) != "1" {
			return fmt.Errorf("from %d", from)
		}
		return set("a", "2")(tx)
	}
	for range 2 {
		db = open(t, cfg)
		want(t, db, "a", "2")
		err := db.View(func(tx *bolt.Tx) error {
			if tx.Bucket([]byte("more")) == nil {
				return errors.New("bucket is missing")
			}
			return nil
		})
		if err != nil || db.Close() != nil || calls != 1 {
			t.Fatalf("%v, %d migrations", err, calls)
		}
	}
}

func TestAnUnreadableFileIsReportedAndLeftAlone(t *testing.T) {
	whole := config(t)
	closed(t, whole, 1000)
	sound := read(t, whole.Path)
	cut := bytes.Clone(sound[:64<<10])
	headless := bytes.Clone(sound)
	clear(headless[:32<<10])
	for name, content := range map[string][]byte{
		"empty":    {},
		"garbage":  bytes.Repeat([]byte("no database. "), 10000),
		"short":    []byte("x"),
		"cut":      cut,
		"headless": headless,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(cfg.Path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, readOnly := range []bool{false, true} {
				cfg.ReadOnly = readOnly
				_, err := boltdb.Open(cfg)
				if corrupt := (*boltdb.CorruptError)(nil); !errors.As(err, &corrupt) || corrupt.Path != cfg.Path {
					t.Fatalf("error: %v", err)
				}
			}
			if problems, err := boltdb.Check(t.Context(), cfg, nil); err != nil || len(problems) != 1 {
				t.Errorf("check: %v %v", problems, err)
			}
			if !bytes.Equal(content, read(t, cfg.Path)) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestLeftoversOfACrashAreRemoved(t *testing.T) {
	cfg := config(t)
	if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a new and an existing database
		for _, suffix := range []string{".new", ".restore", ".compact", ".probe"} {
			if err := os.WriteFile(cfg.Path+suffix, []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		db := open(t, cfg)
		put(t, db, "a", "1")
		wantFiles(t, cfg)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadOnlyReadsBesideOtherReadersAndRefusesToWrite(t *testing.T) {
	cfg := config(t)
	db := open(t, cfg)
	put(t, db, "a", "1")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.ReadOnly = true
	one, two := open(t, cfg), open(t, cfg)
	want(t, one, "a", "1")
	want(t, two, "a", "1")
	wantErr(t, one.Update(t.Context(), set("a", "2")), boltdb.ErrReadOnly)
	wantErr(t, one.UpdateRetention(t.Context(), set("a", "2")), boltdb.ErrReadOnly)
	wantErr(t, one.Enqueue(set("a", "2")), boltdb.ErrReadOnly)
	if st := one.Status(); st.Disk != boltdb.DiskReadOnly || st.Path != cfg.Path {
		t.Errorf("status: %v", st)
	}

	missing := config(t)
	missing.ReadOnly = true
	_, err := boltdb.Open(missing)
	wantErr(t, err, os.ErrNotExist)
	if _, err := os.Stat(filepath.Dir(missing.Path)); !errors.Is(err, os.ErrNotExist) {
		t.Error("a read-only open created something")
	}
}

func TestASchemaVersionThatIsNoNumberIsDamage(t *testing.T) {
	cfg := config(t)
	db := open(t, cfg)
	for _, value := range [][]byte{{1}, binary.BigEndian.AppendUint64(nil, 1<<63)} {
		err := db.Update(t.Context(), func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("_boltdb")).Put([]byte("schema"), value)
		})
		if err != nil || db.Close() != nil {
			t.Fatal(err)
		}
		if _, err = boltdb.Open(cfg); err == nil {
			t.Fatalf("schema %x was accepted", value)
		}
		raw, err := bolt.Open(cfg.Path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Update(func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("_boltdb")).Put([]byte("schema"), binary.BigEndian.AppendUint64(nil, 1))
		})
		if err != nil || raw.Close() != nil {
			t.Fatal(err)
		}
		db = open(t, cfg)
	}
}
