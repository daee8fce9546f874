package boltdb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// DB is an open database. All methods may be called concurrently; none of them may
// be called from inside a transaction function.
type DB struct {
	cfg     Config
	lock    *fileLock               // nil when read-only
	bolt    atomic.Pointer[bolt.DB] // replaced by the writer only
	queue   *queue
	durable durable
	disk    atomic.Pointer[diskStatus] // replaced by the writer only
	stats   counters

	failed chan struct{} // closed on entering DiskFailed
	done   chan struct{} // closed when the writer has ended

	file    fs.FileInfo // of the file as it was opened
	ballast ballast     // the writer's
	runway  runway      // the writer's
	broken  bool        // the writer's; bbolt panicked, its locks are in doubt

	closeOnce sync.Once
	closeErr  error
}

// Update runs fn in a read-write transaction and returns after the commit that
// holds it was synced. It shares the commit with other waiting requests, in the
// order of the calls.
//
// An error of fn rolls back what fn did, and nothing else; a panic of fn is
// returned as *PanicError. fn runs on the writer goroutine and possibly several
// times: it must be free of side effects, must not call the DB, and must not keep
// anything of tx.
//
// If ctx ends before the writer takes fn, fn does not run and ctx's error is
// returned. Once taken, Update waits for the outcome whatever ctx does, so that nil
// always means durable and an error always means not done; only ErrFailed leaves
// the outcome open until a restart. Other errors: ErrFull, ErrReadOnly, ErrClosed.
func (db *DB) Update(ctx context.Context, fn func(tx *bolt.Tx) error) error {
	return db.submit(ctx, &request{fn: fn, done: make(chan error, 1)})
}

// UpdateRetention is Update for work that frees room. On a full disk, when Update is
// refused, it gives the ballast up first and commits fn by itself, and the DB tries
// at once whether it can write again. Deleting needs room for copied pages, so keep
// each step small against Config.BallastBytes.
func (db *DB) UpdateRetention(ctx context.Context, fn func(tx *bolt.Tx) error) error {
	return db.submit(ctx, &request{fn: fn, retention: true, done: make(chan error, 1)})
}

func (db *DB) submit(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := db.refusal(r.retention); err != nil {
		return err
	}
	if err := db.queue.push(ctx, r); err != nil {
		return err
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		if r.state.CompareAndSwap(stateWaiting, stateWithdrawn) {
			return ctx.Err()
		}
		return <-r.done
	}
}

// Enqueue hands fn to the writer and returns without waiting: fn runs after
// everything that this goroutine queued before, under the rules of Update. An error
// means that fn was refused and will not run: ErrBusy when Config.QueueSize requests
// wait, ErrClosed, ErrFull, ErrReadOnly, ErrFailed. What goes wrong later is logged
// and counted in Status.Dropped.
func (db *DB) Enqueue(fn func(tx *bolt.Tx) error) error {
	if err := db.refusal(false); err != nil {
		return err
	}
	return db.queue.offer(&request{fn: fn})
}

// refusal returns the error that a new request gets at once.
func (db *DB) refusal(retention bool) error {
	st := db.disk.Load()
	if retention && st.state == DiskFull {
		return nil
	}
	return st.err
}

// View runs fn in a read-only transaction, which sees only what is on disk; it may
// wait for a sync that is under way. A View that stays open keeps pages from being
// reused, and Close waits for it. Errors: fn's, ErrClosed, ErrFailed; ErrFull or
// ErrReadOnly if the file could not be mapped again after such a trouble.
func (db *DB) View(fn func(tx *bolt.Tx) error) error {
	if st := db.disk.Load(); st.state == DiskFailed {
		return st.err
	}
	err := db.bolt.Load().View(func(tx *bolt.Tx) error {
		if err := db.durable.wait(int64(tx.ID()), db.failed); err != nil {
			return err
		}
		return fn(tx)
	})
	if errors.Is(err, berrors.ErrDatabaseNotOpen) || errors.Is(err, berrors.ErrInvalidMapping) {
		return db.unmapped(err)
	}
	return err
}

// unmapped explains why bbolt could not begin a transaction.
func (db *DB) unmapped(err error) error {
	select {
	case <-db.queue.closing:
		return ErrClosed
	default:
	}
	if st := db.disk.Load(); st.err != nil {
		return st.err
	}
	return fmt.Errorf("begin: %w", err)
}

// Failed is closed when a sync failed. The owner must stop and exit with an error:
// only a restart from disk tells what was kept.
func (db *DB) Failed() <-chan struct{} { return db.failed }

// Err returns nil while updates are accepted, and otherwise the error that they get
// because of the disk: ErrFull, ErrReadOnly or ErrFailed.
func (db *DB) Err() error { return db.disk.Load().err }

// Close refuses new requests, finishes those in the queue, waits for running Views
// and Backups (a Backup ends at its next write) and unlocks the file. Further calls
// wait for the first and return the same.
func (db *DB) Close() error {
	db.closeOnce.Do(func() {
		db.queue.close()
		<-db.done
		var errs []error
		if !db.broken {
			errs = append(errs, db.bolt.Load().Close())
		}
		if db.lock != nil {
			errs = append(errs, db.lock.release())
		}
		db.closeErr = errors.Join(errs...)
	})
	return db.closeErr
}
