package boltdb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// maxReruns bounds how often a batch is run again without a function that failed.
// After that the functions before the failing one are committed by themselves, so
// that many failures in one batch cost commits instead of ever more re-runs.
const maxReruns = 3

// run is the writer goroutine: it commits whatever queued while the last commit was
// syncing. It ends once the queue is closed and empty.
func (db *DB) run() {
	defer close(db.done)
	tick := time.NewTicker(db.cfg.ProbeInterval)
	defer tick.Stop()
	if err := db.ballast.ensureBeside(); err != nil {
		db.cfg.Log.Warn("no ballast file", "path", db.ballast.path, "err", err)
	}
	var batch []*request
	crowded := false // several callers are at work
	for {
		if crowded {
			// The callers that the last commit released are about to queue again: let
			// them, or two half batches alternate for ever.
			runtime.Gosched()
		}
		var end bool
		batch, end = db.queue.take(batch[:0], db.cfg.MaxBatch)
		if end {
			return
		}
		if len(batch) > 0 {
			db.serve(batch)
			crowded = len(batch) > 1 || db.queue.len() > 0
			clear(batch)
			if db.disk.Load().err != nil {
				continue // refuse what waits before trying the disk again
			}
			db.runway.extend(db.bolt.Load())
			select {
			case <-tick.C:
				db.tick()
			default:
			}
			continue
		}
		select {
		case <-db.queue.wake:
		case <-tick.C:
			db.tick()
		}
	}
}

// serve answers all requests of a batch.
func (db *DB) serve(batch []*request) {
	for len(batch) > 0 {
		st := db.disk.Load()
		if st.err == nil {
			batch = db.commitBatch(batch)
			continue
		}
		r := batch[0]
		if r.retention && st.state == DiskFull {
			db.retain(r)
		} else {
			db.finish(r, st.err)
		}
		batch = batch[1:]
	}
}

// outcome is a request whose function failed, with its error.
type outcome struct {
	req *request
	err error
}

// commitBatch runs a batch in one transaction and answers it. A function that fails
// is taken out and the others are run again from the start, for bbolt cannot undo a
// part. What does not fit under maxReruns is returned for the next commit.
func (db *DB) commitBatch(batch []*request) (rest []*request) {
	var losers []outcome
	for reruns := 0; len(batch) > 0; reruns++ {
		bad, err := db.transact(CommitBatch, batch)
		if bad < 0 {
			// A function may have failed because of what one before it wrote, so its
			// error stands only if that was committed.
			for _, l := range losers {
				if err != nil {
					l.err = err
				}
				db.finish(l.req, l.err)
			}
			for _, r := range batch {
				db.finish(r, err)
			}
			return rest
		}
		losers = append(losers, outcome{req: batch[bad], err: err})
		if reruns < maxReruns {
			batch = slices.Delete(batch, bad, bad+1)
			continue
		}
		rest = slices.Concat(batch[bad+1:], rest)
		batch = batch[:bad]
	}
	for _, l := range losers {
		db.finish(l.req, l.err)
	}
	return rest
}

// transact runs the functions of reqs in one transaction. bad is the index of the
// function that failed with err, and -1 if err is the outcome of the commit.
func (db *DB) transact(op CommitOp, reqs []*request) (bad int, err error) {
	bad = -1
	var fnErr error
	err = db.commit(op, func(tx *bolt.Tx) error {
		for i, r := range reqs {
			if fnErr = call(r.fn, tx); fnErr != nil {
				bad = i
				return errRollback
			}
		}
		return nil
	})
	if bad >= 0 {
		return bad, fnErr
	}
	if err == nil {
		db.stats.batch(len(reqs))
	}
	return bad, err
}

// errRollback makes commit roll back without judging the disk.
var errRollback = errors.New("rolled back")

// commit runs fn in a write transaction and commits it. Unless fn returned
// errRollback, an error is about the disk: the DB is then in the state that the
// returned error tells.
func (db *DB) commit(op CommitOp, fn func(tx *bolt.Tx) error) error {
	b := db.bolt.Load()
	txid := int64(-1)
	start, written := time.Now(), b.Stats().TxStats.WriteTime
	err := db.guard(func() error {
		return b.Update(func(tx *bolt.Tx) error {
			txid = int64(tx.ID())
			for _, name := range db.cfg.LogBuckets {
				if bucket := tx.Bucket([]byte(name)); bucket != nil {
					bucket.FillPercent = LogFillPercent
				}
			}
			if err := fn(tx); err != nil {
				return err
			}
			if db.cfg.Faults != nil {
				return db.cfg.Faults.BeforeCommit(op)
			}
			return nil
		})
	})
	switch {
	case err == nil:
		db.durable.publish(txid)
		db.stats.commit(time.Since(start), b.Stats().TxStats.WriteTime-written)
		return nil
	case errors.Is(err, errRollback):
		return err
	}
	state := commitState(err)
	if state != DiskFailed && db.visible(txid) {
		// The meta page went out although its write reported an error, so the
		// transaction may come back after a restart: it is neither done nor undone.
		state = DiskFailed
	}
	return db.enter(state, err)
}

// visible reports whether readers see the transaction.
func (db *DB) visible(txid int64) bool {
	tx, err := db.bolt.Load().Begin(false)
	if err != nil {
		return false // the mapping was lost while growing, before anything was written
	}
	id := int64(tx.ID())
	_ = tx.Rollback() // a read-only one has nothing to undo
	return id >= txid
}

// guard turns a panic inside bbolt into an error. bbolt's locks may be left locked
// then, so Close leaves the handle alone.
func (db *DB) guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			db.broken = true
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// call runs a caller's function; a panic becomes its error.
func call(fn func(tx *bolt.Tx) error, tx *bolt.Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return fn(tx)
}

// finish gives a request its outcome. An Enqueue has nobody to tell, so that its
// loss is logged and counted.
func (db *DB) finish(r *request, err error) {
	if r.done != nil {
		r.done <- err
		return
	}
	if err != nil {
		db.stats.drop()
		db.cfg.Log.Warn("enqueued write was lost", "path", db.cfg.Path, "err", err)
	}
}

// enter moves to a disk state and returns the error that requests get in it.
func (db *DB) enter(state DiskState, cause error) error {
	old := db.disk.Load()
	if old.state == state {
		return old.err
	}
	next := &diskStatus{state: state, err: stateError(state, cause), since: time.Now()}
	db.disk.Store(next)
	switch state {
	case DiskOK:
		db.cfg.Log.Info("store writes again", "path", db.cfg.Path, "after", old.state, "for", next.since.Sub(old.since))
	case DiskFailed:
		db.cfg.Log.Error("store failed, restart from disk", "path", db.cfg.Path, "err", cause)
		close(db.failed)
	default:
		db.cfg.Log.Error("store cannot write", "path", db.cfg.Path, "state", state, "err", cause)
	}
	return next.err
}

// retain runs a retention request on a full disk, on the room of the ballast.
func (db *DB) retain(r *request) {
	if err := db.reopen(); err != nil {
		db.finish(r, fmt.Errorf("%w: %w", ErrFull, err))
		return
	}
	if err := db.ballast.release(); err != nil {
		db.cfg.Log.Warn("ballast not released", "path", db.ballast.path, "err", err)
	}
	_, err := db.transact(CommitRetention, []*request{r})
	if err == nil {
		db.probe()
	}
	db.finish(r, err)
}

// tick is what the writer does every ProbeInterval.
func (db *DB) tick() {
	if db.disk.Load().state != DiskFailed && db.gone() {
		_ = db.enter(DiskFailed, errGone)
	}
	if db.disk.Load().err != nil {
		db.probe()
		return
	}
	if db.ballast.size <= 0 || db.ballast.present {
		return
	}
	if err := db.ballast.ensureBeside(); err == nil {
		db.cfg.Log.Info("ballast is back", "path", db.ballast.path)
	}
}

// errGone means that what is acknowledged would be lost with the next restart.
var errGone = errors.New("the database file was deleted or replaced under the running process")

// gone reports whether the path no longer leads to the file that is open.
func (db *DB) gone() bool {
	now, err := os.Stat(db.cfg.Path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(db.file, now)
}

// probe tries to leave a disk trouble: the file must take a test write, and after
// DiskFull there must be room for more than that.
func (db *DB) probe() {
	state := db.disk.Load().state
	if state != DiskFull && state != DiskReadOnly {
		return
	}
	if err := db.reopen(); err != nil {
		return
	}
	err := db.commit(CommitProbe, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(metaBucket)).Put(keyProbe, []byte(time.Now().UTC().Format(time.RFC3339)))
	})
	if err != nil || state == DiskFull && !db.hasRoom() {
		return
	}
	_ = db.enter(DiskOK, nil)
}

// hasRoom reports whether writing can go on for a while: by room on the disk, or by
// free pages inside the file, which is what retention makes.
func (db *DB) hasRoom() bool {
	if db.ballast.ensure() == nil && testRoom(db.cfg.Path) == nil {
		return true
	}
	b := db.bolt.Load()
	return int64(b.Stats().FreePageN)*int64(b.Info().PageSize) >= max(db.ballast.size, probeBytes)
}

// reopen opens the data file anew if bbolt lost its mapping, which happens when
// growing it fails on some systems. The process's own lock is kept meanwhile.
func (db *DB) reopen() error {
	old := db.bolt.Load()
	tx, err := old.Begin(false)
	if err == nil {
		return tx.Rollback()
	}
	if err := old.Close(); err != nil {
		return fmt.Errorf("close lost mapping: %w", err)
	}
	b, err := openBolt(db.cfg, time.Now().Add(minBoltWait))
	if err != nil {
		return err
	}
	db.bolt.Store(b)
	return nil
}
