package bolt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
	"opencode-mesh/store/boltdb"
)

// Restored tells what a restore brought back, and with that what it undid, as far
// as a backup can know.
type Restored struct {
	// Info of the restored store: HubID as it was, Generation new.
	Info store.Info
	// AsOf is when the backup was made. All that happened since is undone: tasks,
	// bindings, credentials that were issued, revocations, a new password. Zero if
	// the backup does not tell.
	AsOf time.Time
	// Credentials are valid from now on, also those that were revoked after AsOf. Those
	// of browsers are gone.
	Credentials []store.Credential
	// Revoked were revoked before AsOf and stay so.
	Revoked []store.Credential
	// Settings are the keys of the settings that have their old value again. The
	// password is one.
	Settings []string
	// Tasks and Open are how many tasks there are and how many of them go on.
	Tasks, Open int
}

// Restore makes the store of the data directory dir out of the backup file, which
// it does not change. It refuses to overwrite a store (boltdb.ErrExists) and takes
// nothing but a sound hub store (boltdb's *CorruptError, *KindError,
// *NewerSchemaError). A crash leaves either no store or the restored one.
func Restore(ctx context.Context, file, dir string) (Restored, error) {
	cfg := Config{Dir: dir}
	if err := cfg.Validate(); err != nil {
		return Restored{}, err
	}
	var done Restored
	err := boltdb.Restore(ctx, cfg.engine(), file, func(tx *bbolt.Tx) (err error) {
		done, err = renew(tx)
		return err
	})
	if err != nil {
		return Restored{}, fmt.Errorf("restore hub store: %w", fault(err))
	}
	return done, nil
}

// renew makes the store in tx one of a new generation and tells what is in it.
func renew(tx *bbolt.Tx) (done Restored, err error) {
	info, err := readInfo(tx)
	if err != nil {
		return done, err
	}
	if info.HubID == "" {
		return done, fmt.Errorf("bolt: info: %w: no hub id", errDamaged)
	}
	info.Generation, info.RestoredAt = randomID(), time.Now().UTC()
	done.Info, done.AsOf = info.info(), info.BackupAt
	if key, raw := newLogCursor(tx, &store.AuditQuery{Newest: true}).next(); key != nil {
		last, err := decodeAudit(key, raw)
		if err != nil {
			return done, err
		}
		if last.At.After(done.AsOf) {
			done.AsOf = last.At // the stamp may be an older backup's, when the disk was full
		}
	}
	var browsers []store.Credential
	err = errors.Join(
		bucket(tx, bucketCredentials).ForEach(func(hash, raw []byte) error {
			cred, err := decodeCredential(hash, raw)
			switch {
			case err != nil:
				return err
			case cred.Browser: // may have been logged out since
				browsers = append(browsers, cred)
			case cred.RevokedAt.IsZero():
				done.Credentials = append(done.Credentials, cred)
			default:
				done.Revoked = append(done.Revoked, cred)
			}
			return nil
		}),
		bucket(tx, bucketSettings).ForEach(func(key, _ []byte) error {
			done.Settings = append(done.Settings, string(key))
			return nil
		}),
	)
	if err != nil {
		return done, err
	}
	for _, cred := range browsers {
		if err := dropCredential(tx, cred); err != nil {
			return done, err
		}
	}
	heads, err := loadTable(tx)
	if err != nil {
		return done, err
	}
	done.Tasks, done.Open = len(heads.rows), len(heads.open(0, len(heads.rows)))
	return done, putInfo(tx, info)
}

// Compact rewrites the store of dir, whose hub must be stopped (*LockedError),
// without its free pages, and returns the bytes before and after. It needs room for
// both files; the old one stays until the new one is complete.
func Compact(dir string) (before, after int64, err error) {
	cfg := Config{Dir: dir}
	if err := cfg.Validate(); err != nil {
		return 0, 0, err
	}
	res, err := boltdb.Compact(context.Background(), cfg.engine(), "")
	if err != nil {
		return 0, 0, fmt.Errorf("compact hub store: %w", fault(err))
	}
	return res.Before, res.After, nil
}

// Check reads the store of dir, whose hub must be stopped (*LockedError), without
// changing it: first the pages; if they are sound, every record and whether the
// indexes agree with the records. It returns what is wrong in words, at most
// boltdb.MaxProblems findings. An error means that it could not look.
func Check(dir string) ([]string, error) {
	cfg := Config{Dir: dir}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	engine := cfg.engine()
	problems, err := boltdb.Check(context.Background(), engine, nil)
	if err != nil {
		return nil, fmt.Errorf("check hub store: %w", fault(err))
	}
	if len(problems) > 0 {
		var found []string
		for _, p := range problems {
			found = append(found, p.String())
		}
		return found, nil
	}
	engine.ReadOnly = true
	db, err := boltdb.Open(engine)
	if err != nil {
		return nil, fmt.Errorf("check hub store: %w", fault(err))
	}
	var c checker
	err = db.View(func(tx *bbolt.Tx) error {
		c.tx = tx
		c.check()
		return nil
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("check hub store: %w", fault(err))
	}
	return c.found, nil
}
