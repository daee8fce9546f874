package boltdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
)

// restoreSuffix is added to the path while a backup is copied and verified.
const restoreSuffix = ".restore"

// Backup writes a consistent copy of the database to w, as of now, while updates go
// on, and returns the bytes written. The copy is a database file that Restore and
// Open accept. A slow w keeps pages from being reused meanwhile, so that the file
// grows. When ctx ends or Close is called, Backup ends at its next write with an
// error, and what was written is useless.
func (db *DB) Backup(ctx context.Context, w io.Writer) (int64, error) {
	bw := &backupWriter{ctx: ctx, closing: db.queue.closing, w: w}
	var n int64
	err := db.View(func(tx *bolt.Tx) (err error) {
		n, err = tx.WriteTo(bw)
		return err
	})
	if bw.err != nil {
		err = bw.err // bbolt does not wrap it everywhere
	}
	if err != nil {
		return n, fmt.Errorf("backup: %w", err)
	}
	return n, nil
}

// backupWriter is an io.Writer that ends with ctx or the DB.
type backupWriter struct {
	ctx     context.Context
	closing <-chan struct{}
	w       io.Writer
	err     error // the first error
}

func (b *backupWriter) Write(p []byte) (n int, err error) {
	select {
	case <-b.closing:
		err = ErrClosed
	default:
		err = b.ctx.Err()
	}
	if err == nil {
		n, err = b.w.Write(p)
	}
	if err != nil && b.err == nil {
		b.err = err
	}
	return n, err
}

// Restore makes the database file cfg.Path out of a backup. It refuses to overwrite
// (ErrExists), and works on a copy that becomes the database by a rename only after
// its pages, kind and schema were verified and prepare, if not nil, ran on it in a
// committed transaction: a crash leaves either nothing or the whole. The backup is
// not changed. The file gets mode 0600. Errors are those of Open and of prepare.
func Restore(ctx context.Context, cfg Config, backup string, prepare func(tx *bolt.Tx) error) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), dirMode); err != nil {
		return fmt.Errorf("create data directory: %w", diskError(err))
	}
	lock, err := acquireLock(cfg.Path, time.Now().Add(cfg.LockTimeout))
	if err != nil {
		return err
	}
	cfg.owned = true
	err = replaceNothing(cfg.Path, restoreSuffix, func(tmp string) error {
		if err := copyFile(ctx, tmp, backup); err != nil {
			return err
		}
		return prepareCopy(cfg, tmp, backup, prepare)
	})
	if err != nil {
		err = fmt.Errorf("restore %s: %w", cfg.Path, err)
	}
	return errors.Join(err, lock.release())
}

// prepareCopy verifies the copy of a backup and runs prepare on it.
func prepareCopy(cfg Config, tmp, backup string, prepare func(tx *bolt.Tx) error) error {
	copied := cfg
	copied.Path = tmp
	b, err := openBolt(copied, time.Now().Add(minBoltWait))
	if err != nil {
		if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
			corrupt.Path = backup // that is the file that the operator knows
		}
		return err
	}
	named := cfg
	named.Path = backup
	err = b.View(func(tx *bolt.Tx) error { return identify(tx, named, nil) })
	if err == nil && prepare != nil {
		err = b.Update(func(tx *bolt.Tx) error { return call(prepare, tx) })
	}
	return errors.Join(err, b.Close())
}

// replaceNothing makes a file by filling path+suffix and renaming that to path,
// unless path exists.
func replaceNothing(path, suffix string, fill func(tmp string) error) error {
	if _, err := os.Lstat(path); err == nil {
		return ErrExists
	} else if !errors.Is(err, fs.ErrNotExist) {
		return diskError(err)
	}
	tmp := path + suffix
	if err := removeIfThere(tmp); err != nil {
		return err
	}
	err := fill(tmp)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return diskError(err)
	}
	return diskError(syncDir(path))
}

// copyFile copies src to a new file dst and syncs it.
func copyFile(ctx context.Context, dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	_, err = io.Copy(&backupWriter{ctx: ctx, w: out}, in)
	return errors.Join(err, out.Sync(), out.Close())
}
