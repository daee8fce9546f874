package bolt

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
	"opencode-mesh/store/boltdb"
)

// Config says where the store is. Only Dir is required.
type Config struct {
	// Dir is the hub's data directory; the store is hub.db in it. Created (0700)
	// when missing.
	Dir string
	// LockTimeout is how long Open waits while another process has the store;
	// 0 = boltdb.DefaultLockTimeout.
	LockTimeout time.Duration
	// ProbeInterval is the time between attempts to leave a disk trouble;
	// 0 = boltdb.DefaultProbeInterval.
	ProbeInterval time.Duration
	// BallastBytes is the size of the file that is given up for retention when the
	// disk is full; 0 = boltdb.DefaultBallastBytes, -1 = none.
	BallastBytes int64
	// Log gets disk troubles and their end; nil = discarded.
	Log *slog.Logger
	// Faults makes commits fail in tests; nil = none.
	Faults boltdb.FaultInjector
}

// Path is the store's file.
func (c Config) Path() string { return filepath.Join(c.Dir, fileName) }

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error {
	if c.Dir == "" {
		return errors.New("bolt config: data directory is empty")
	}
	return nil
}

// engine is the engine's configuration.
func (c Config) engine() boltdb.Config {
	return boltdb.Config{
		Path:          c.Path(),
		Kind:          kind,
		Schema:        schema,
		Buckets:       buckets,
		LogBuckets:    logBuckets,
		LockTimeout:   c.LockTimeout,
		ProbeInterval: c.ProbeInterval,
		BallastBytes:  c.BallastBytes,
		Log:           c.Log,
		Faults:        c.Faults,
	}
}

// Store is an open store. Safe for concurrent use.
type Store struct {
	db    *boltdb.DB
	info  store.Info
	table *table
	later *laterQueue

	closed atomic.Bool
	once   sync.Once // closes
	err    error     // of Close
}

var _ store.Store = (*Store)(nil)

// Open opens the store in cfg.Dir, making a new one when there is none. What is
// wrong with a file that it does not take is told by boltdb's types:
// *LockedError, *NewerSchemaError, *KindError, *CorruptError.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	db, err := boltdb.Open(cfg.engine())
	if err != nil {
		return nil, fmt.Errorf("open hub store: %w", fault(err))
	}
	s := &Store{db: db}
	s.later = newLaterQueue(s.pass)
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open hub store: %w", err), s.Close())
	}
	return s, nil
}

// Info implements store.Store.
func (s *Store) Info() store.Info { return s.info }

// Backup implements store.Store. The copy is a whole store file.
func (s *Store) Backup(ctx context.Context, w io.Writer) (int64, error) {
	// The stamp tells a later restore how old its copy is. A disk that is full is a
	// good moment for a backup, so it goes on without.
	if err := s.stampBackup(ctx); err != nil && ctx.Err() != nil {
		return 0, ctx.Err()
	}
	n, err := s.db.Backup(ctx, w)
	return n, fault(err)
}

// Writable implements store.Store.
func (s *Store) Writable() error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	return fault(s.db.Err())
}

// Failed implements store.Store.
func (s *Store) Failed() <-chan struct{} { return s.db.Failed() }

// Close implements store.Store: it refuses further calls, commits what was taken
// and waits for the onFail functions that run. Idempotent.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.closed.Store(true)
		s.err = fault(s.db.Close())
		cause := fault(s.db.Err())
		if cause == nil {
			cause = errGivenUp
		}
		s.later.close(cause)
	})
	return s.err
}

// read runs fn on a consistent view.
func (s *Store) read(ctx context.Context, fn func(tx *bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return fault(s.db.View(fn))
}

// write runs fn in a commit and returns after it. fn may run more than once; it
// checks first, ends with refuse if the change cannot be made, and changes then.
// What fn leaves in variables may be read when write returned nil only.
func (s *Store) write(ctx context.Context, fn func(tx *bbolt.Tx) error) error {
	return await(ctx, s.db.Update, fn)
}

// writeRetention is write for what makes room: it works on a full disk too.
func (s *Store) writeRetention(ctx context.Context, fn func(tx *bbolt.Tx) error) error {
	return await(ctx, s.db.UpdateRetention, fn)
}

// await runs fn by update and tells a refusal from a fault.
func await(ctx context.Context, update func(context.Context, func(*bbolt.Tx) error) error, fn func(*bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var verdict *refusal
	err := update(ctx, func(tx *bbolt.Tx) error {
		verdict = nil
		err := fn(tx)
		if errors.As(err, &verdict) {
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return fault(err)
	case verdict != nil:
		return verdict.err
	}
	return nil
}

// infoRecord is the one record of its bucket.
type infoRecord struct {
	HubID      string    `json:"hub_id"`
	Generation string    `json:"generation"`
	CreatedAt  time.Time `json:"created_at"`
	RestoredAt time.Time `json:"restored_at,omitzero"`
	// BackupAt is when the last backup began. In a restored file: how old it is.
	BackupAt time.Time `json:"backup_at,omitzero"`
}

func (r infoRecord) info() store.Info {
	return store.Info{HubID: r.HubID, Generation: r.Generation, CreatedAt: r.CreatedAt, RestoredAt: r.RestoredAt}
}

var infoKey = []byte("info")

// readInfo returns the info record, a zero one when there is none yet.
func readInfo(tx *bbolt.Tx) (r infoRecord, err error) {
	raw := bucket(tx, bucketInfo).Get(infoKey)
	if raw == nil {
		return r, nil
	}
	return r, decode("info", raw, 0, &r)
}

func putInfo(tx *bbolt.Tx, r infoRecord) error {
	raw, err := encode(0, r)
	if err != nil {
		return err
	}
	return bucket(tx, bucketInfo).Put(infoKey, raw)
}

// load reads the info record and the heads of the tasks, and makes the info record
// of a new store.
func (s *Store) load() error {
	ctx := context.Background()
	var r infoRecord
	err := s.read(ctx, func(tx *bbolt.Tx) (err error) {
		if r, err = readInfo(tx); err != nil {
			return err
		}
		s.table, err = loadTable(tx)
		return err
	})
	if err != nil {
		return err
	}
	if r.HubID == "" {
		r = infoRecord{HubID: randomID(), Generation: randomID(), CreatedAt: time.Now().UTC()}
		if err := s.write(ctx, func(tx *bbolt.Tx) error { return putInfo(tx, r) }); err != nil {
			return err
		}
	}
	s.info = r.info()
	return nil
}

// stampBackup records that a backup begins.
func (s *Store) stampBackup(ctx context.Context) error {
	now := time.Now().UTC()
	return s.write(ctx, func(tx *bbolt.Tx) error {
		r, err := readInfo(tx)
		if err != nil {
			return err
		}
		r.BackupAt = now
		return putInfo(tx, r)
	})
}

// randomID returns 128 random bits as hex: no dash, since a generation is a part
// of event ids that dashes separate.
func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
