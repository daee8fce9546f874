package boltdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	// compactSuffix is added to the path while the smaller file is made.
	compactSuffix = ".compact"
	// compactTxBytes bounds the data that compaction writes per transaction.
	compactTxBytes = 16 << 20
)

// CompactResult tells what a compaction did.
type CompactResult struct {
	Before, After int64 // bytes of data and free pages in the file
}

// Compact writes the records of the closed database cfg.Path to a new file without
// free pages: to dst, which must not exist (ErrExists), or in place of the old one if
// dst is empty. The old file stays until the new one is complete, verified and
// synced. It needs room for both. Errors are those of Open.
func Compact(ctx context.Context, cfg Config, dst string) (res CompactResult, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return res, err
	}
	// Without a file there is nothing to lock, and no lock file to leave behind.
	if _, err := os.Lstat(cfg.Path); err != nil {
		return res, fmt.Errorf("compact: %w", diskError(err))
	}
	lock, err := acquireLock(cfg.Path, time.Now().Add(cfg.LockTimeout))
	if err != nil {
		return res, err
	}
	cfg.owned = true
	if dst == "" {
		tmp := cfg.Path + compactSuffix
		if err = removeIfThere(tmp); err == nil {
			res, err = compactTo(ctx, cfg, tmp)
		}
		if err == nil {
			err = errors.Join(os.Rename(tmp, cfg.Path), syncDir(cfg.Path))
		}
		if err != nil {
			os.Remove(tmp)
		}
	} else {
		err = replaceNothing(dst, compactSuffix, func(tmp string) (err error) {
			res, err = compactTo(ctx, cfg, tmp)
			return err
		})
	}
	if err != nil {
		err = fmt.Errorf("compact %s: %w", cfg.Path, diskError(err))
	}
	return res, errors.Join(err, lock.release())
}

// compactTo writes the compacted database to a new file.
func compactTo(ctx context.Context, cfg Config, dst string) (res CompactResult, err error) {
	cfg.ReadOnly = true
	src, err := openBolt(cfg, time.Now().Add(cfg.LockTimeout))
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	err = src.View(func(tx *bolt.Tx) error {
		res.Before = tx.Size()
		return identify(tx, cfg, nil)
	})
	if err != nil {
		return res, err
	}
	out, err := bolt.Open(dst, fileMode, newFileOptions())
	if err != nil {
		return res, err
	}
	err = bolt.Compact(out, src, compactTxBytes)
	if err == nil {
		err = out.View(func(tx *bolt.Tx) error {
			res.After = tx.Size()
			return nil
		})
	}
	err = errors.Join(err, out.Close())
	if err == nil {
		err = verifyLocked(dst, time.Now())
	}
	if err == nil {
		err = ctx.Err()
	}
	return res, err
}
