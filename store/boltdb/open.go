package boltdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// metaBucket holds what this package stores about a file.
const metaBucket = "_boltdb"

// Keys of metaBucket.
var (
	keyKind   = []byte("kind")
	keySchema = []byte("schema")
	keyProbe  = []byte("probe") // time of the last test write
)

const (
	// newSuffix is added to the path while a file is made; the rename is what makes
	// it exist, so an empty or half-written file is never one of ours.
	newSuffix = ".new"
	// mapBytes is mapped from the start where address space is plenty, so that a long
	// View or Backup does not hold up the writer each time the file outgrows its map.
	mapBytes = 1 << 30
)

// Open opens the database, creating it when no file is there. It returns
// *LockedError if another process has it after LockTimeout, *CorruptError for a
// file that cannot be read (which is left as it is, never recreated), *KindError,
// *NewerSchemaError, *OlderSchemaError, and errors that wrap ErrFull or ErrReadOnly.
func Open(cfg Config) (*DB, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(cfg.LockTimeout)
	if cfg.ReadOnly {
		return openReadOnly(cfg, deadline)
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), dirMode); err != nil {
		return nil, fmt.Errorf("create data directory: %w", diskError(err))
	}
	lock, err := acquireLock(cfg.Path, deadline)
	if err != nil {
		return nil, err
	}
	cfg.owned = true
	b, err := openLocked(cfg, deadline)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	db := newDB(cfg, b, DiskOK, nil)
	db.lock = lock
	go db.run()
	return db, nil
}

// openLocked opens or creates the file under the process's lock and prepares it.
func openLocked(cfg Config, deadline time.Time) (*bolt.DB, error) {
	// What a crash left behind of files in the making.
	for _, suffix := range []string{newSuffix, restoreSuffix, compactSuffix, probeSuffix} {
		if err := removeIfThere(cfg.Path + suffix); err != nil {
			return nil, err
		}
	}
	if _, err := os.Lstat(cfg.Path); errors.Is(err, fs.ErrNotExist) {
		if err := create(cfg); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, fmt.Errorf("open: %w", diskError(err))
	}
	b, err := openBolt(cfg, deadline)
	if err != nil {
		return nil, err
	}
	if err := prepare(b, cfg); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// removeIfThere removes a leftover.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove leftover: %w", diskError(err))
	}
	return nil
}

// openReadOnly opens an existing file beside other readers.
func openReadOnly(cfg Config, deadline time.Time) (*DB, error) {
	b, err := openBolt(cfg, deadline)
	if err != nil {
		return nil, err
	}
	if err := b.View(func(tx *bolt.Tx) error { return identify(tx, cfg, nil) }); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	db := newDB(cfg, b, DiskReadOnly, errors.New("opened for reading"))
	close(db.done)
	return db, nil
}

func newDB(cfg Config, b *bolt.DB, state DiskState, cause error) *DB {
	db := &DB{
		cfg:     cfg,
		queue:   newQueue(cfg.QueueSize),
		failed:  make(chan struct{}),
		done:    make(chan struct{}),
		runway:  runway{path: cfg.Path},
		ballast: ballast{path: cfg.Path + ballastSuffix, size: cfg.BallastBytes},
	}
	db.file, _ = os.Stat(cfg.Path) // it is open: its being there is no question
	db.bolt.Store(b)
	db.disk.Store(&diskStatus{state: state, err: stateError(state, cause), since: time.Now()})
	_ = b.View(func(tx *bolt.Tx) error {
		db.durable.publish(int64(tx.ID()))
		return nil
	})
	return db
}

// openBolt verifies the file's pages and opens it. bbolt itself may end the process
// on a damaged file, so it only gets to see sound ones.
func openBolt(cfg Config, deadline time.Time) (*bolt.DB, error) {
	if err := verifyLocked(cfg.Path, deadline); errors.Is(err, errLocked) {
		return nil, lockedError(cfg)
	} else if err != nil {
		return nil, err
	}
	opts := newFileOptions()
	opts.Timeout = max(time.Until(deadline), minBoltWait)
	opts.ReadOnly = cfg.ReadOnly
	opts.OpenFile = func(name string, flag int, perm fs.FileMode) (*os.File, error) {
		// Never recreate a file that vanished meanwhile.
		return cfg.openFile(name, flag&^os.O_CREATE, perm)
	}
	if strconv.IntSize == 64 && runtime.GOOS != "windows" {
		opts.InitialMmapSize = mapBytes
	}
	b, err := bolt.Open(cfg.Path, fileMode, opts)
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, lockedError(cfg)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", cfg.Path, diskError(err))
	}
	return b, nil
}

// verifyLocked verifies the pages under a shared lock, so that no other program
// writes meanwhile; errLocked if one keeps it until deadline.
func verifyLocked(path string, deadline time.Time) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open: %w", diskError(err))
	}
	defer f.Close()
	if err := waitLock(f, false, deadline); err != nil {
		return err
	}
	return errors.Join(verifyFile(f), unlock(f))
}

// create makes a new file under another name and renames it when it is complete.
func create(cfg Config) error {
	tmp := cfg.Path + newSuffix
	err := makeFile(cfg, tmp)
	if err == nil {
		err = os.Rename(tmp, cfg.Path)
	}
	if err == nil {
		err = syncDir(cfg.Path)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("create %s: %w", cfg.Path, diskError(err))
	}
	return nil
}

// makeFile makes a complete database at path.
func makeFile(cfg Config, path string) error {
	b, err := bolt.Open(path, fileMode, newFileOptions())
	if err != nil {
		return err
	}
	err = b.Update(func(tx *bolt.Tx) error { return stamp(tx, cfg) })
	return errors.Join(err, b.Close())
}

// newFileOptions are bbolt's options for a file that nobody else knows yet.
func newFileOptions() *bolt.Options {
	return &bolt.Options{
		Timeout:        minBoltWait,
		PageSize:       pageSize,
		FreelistType:   bolt.FreelistMapType,
		NoFreelistSync: true,
	}
}

// prepare checks whose file it is and brings schema and buckets up to date.
func prepare(b *bolt.DB, cfg Config) error {
	from, complete := 0, true
	err := b.View(func(tx *bolt.Tx) error {
		for _, name := range cfg.Buckets {
			complete = complete && tx.Bucket([]byte(name)) != nil
		}
		return identify(tx, cfg, &from)
	})
	if err != nil {
		return err
	}
	if from == cfg.Schema && complete {
		return nil
	}
	if from < cfg.Schema && cfg.Migrate == nil {
		return &OlderSchemaError{Path: cfg.Path, File: from, Program: cfg.Schema}
	}
	var fnErr error
	err = b.Update(func(tx *bolt.Tx) error {
		if from < cfg.Schema {
			if err := call(func(tx *bolt.Tx) error { return cfg.Migrate(tx, from) }, tx); err != nil {
				fnErr = fmt.Errorf("migrate %s from schema %d to %d: %w", cfg.Path, from, cfg.Schema, err)
				return fnErr
			}
		}
		fnErr = stamp(tx, cfg)
		return fnErr
	})
	if err != nil && fnErr == nil {
		return stateError(commitState(err), fmt.Errorf("prepare %s: %w", cfg.Path, err))
	}
	return err
}

// stamp writes kind, schema version and missing buckets.
func stamp(tx *bolt.Tx, cfg Config) error {
	for _, name := range cfg.Buckets {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("create bucket %q: %w", name, err)
		}
	}
	meta, err := tx.CreateBucketIfNotExists([]byte(metaBucket))
	if err != nil {
		return err
	}
	if err := meta.Put(keyKind, []byte(cfg.Kind)); err != nil {
		return err
	}
	return meta.Put(keySchema, binary.BigEndian.AppendUint64(nil, uint64(cfg.Schema)))
}

// identify checks the kind and that the schema is not newer than the program's; the
// file's version goes to *schema unless that is nil.
func identify(tx *bolt.Tx, cfg Config, schema *int) error {
	meta := tx.Bucket([]byte(metaBucket))
	if meta == nil {
		return &KindError{Path: cfg.Path, Want: cfg.Kind}
	}
	if kind := string(meta.Get(keyKind)); kind != cfg.Kind {
		return &KindError{Path: cfg.Path, Want: cfg.Kind, Got: kind}
	}
	v := meta.Get(keySchema)
	if len(v) != 8 {
		return &CorruptError{Path: cfg.Path, Err: fmt.Errorf("schema version of %d bytes", len(v))}
	}
	file := int(min(binary.BigEndian.Uint64(v), math.MaxInt32))
	if file > cfg.Schema {
		return &NewerSchemaError{Path: cfg.Path, File: file, Program: cfg.Schema}
	}
	if schema != nil {
		*schema = file
	}
	return nil
}

// InUse reports whether bbolt gave up waiting for a file that somebody holds.
func InUse(err error) bool { return errors.Is(err, berrors.ErrTimeout) }
