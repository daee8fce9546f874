package bolt

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
)

// pruneChunk is how many records one commit removes: small against the ballast,
// which is the only room that there is on a full disk, and short for the writer.
const pruneChunk = 128

// Prune implements store.Store. It works on a full disk too: that is when it is
// needed. A limit below 1 removes no tasks. The tombstones that have had their
// time all go, whatever the limit.
func (s *Store) Prune(ctx context.Context, r store.Retention, limit int) (removed int, err error) {
	if err := s.dropTombstones(ctx, r); err != nil {
		return 0, err
	}
	before := uint64(0)
	if !r.Before.IsZero() {
		before = timeKey(r.Before)
	}
	for rows := range slices.Chunk(s.table.oldest(before, r.Keep, limit), pruneChunk) {
		victims, err := s.victims(ctx, r, rows)
		if err != nil {
			return removed, err
		}
		n := 0
		err = s.writeRetention(ctx, func(tx *bbolt.Tx) error {
			n = 0
			for i := range victims {
				done, err := s.remove(tx, &victims[i])
				if err != nil {
					return err
				}
				if done {
					n++
				}
			}
			return nil
		})
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}

// victim is a settled task to remove, with its tombstone.
type victim struct {
	seq    uint64
	rev    store.Rev
	id     []byte
	until  uint64
	record []byte // the tombstone's
}

// victims reads the tasks that retention is to remove.
func (s *Store) victims(ctx context.Context, r store.Retention, rows []row) (victims []victim, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		for _, row := range rows {
			raw := bucket(tx, bucketTasks).Get(uint64Key(row.seq))
			if raw == nil {
				continue
			}
			t, err := decodeTask(row.seq, raw)
			if err != nil {
				return err
			}
			if settledKey(&t) != row.settled {
				continue // tried again since, or ended again
			}
			v := victim{seq: t.Seq, rev: t.Rev, id: []byte(t.ID), until: timeKey(r.TombstonesUntil)}
			v.record, err = encode(0, store.Tombstone{
				ID: t.ID, Hash: t.Hash, Controller: t.Controller.ID, Target: t.Target.ID, State: t.State, Until: r.TombstonesUntil,
			})
			if err != nil {
				return err
			}
			victims = append(victims, v)
		}
		return nil
	})
	return victims, err
}

// remove replaces the task by its tombstone, unless it changed meanwhile.
func (s *Store) remove(tx *bbolt.Tx, v *victim) (done bool, err error) {
	key := uint64Key(v.seq)
	tasks := bucket(tx, bucketTasks)
	if revOf(tasks.Get(key)) != v.rev {
		return false, nil
	}
	if err := tasks.Delete(key); err != nil {
		return false, err
	}
	if err := deletePrefix(bucket(tx, bucketParts), key); err != nil {
		return false, err
	}
	if err := bucket(tx, bucketIDs).Put(v.id, v.record); err != nil {
		return false, err
	}
	if err := bucket(tx, bucketLapse).Put(append(uint64Key(v.until), v.id...), nothing); err != nil {
		return false, err
	}
	tx.OnCommit(func() { s.table.remove(v.seq) })
	return true, nil
}

// deletePrefix deletes all keys that begin with prefix. They are collected first:
// a cursor skips keys when the one that it stands on is deleted.
func deletePrefix(b *bbolt.Bucket, prefix []byte) error {
	var keys [][]byte
	c := b.Cursor()
	for key, _ := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		keys = append(keys, key)
	}
	return deleteAll(b, keys)
}

func deleteAll(b *bbolt.Bucket, keys [][]byte) error {
	for _, key := range keys {
		if err := b.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// dropTombstones removes the tombstones whose time is before r.Now.
func (s *Store) dropTombstones(ctx context.Context, r store.Retention) error {
	if r.Now.IsZero() {
		return nil
	}
	now := uint64Key(timeKey(r.Now))
	for {
		var entries [][]byte
		err := s.read(ctx, func(tx *bbolt.Tx) error {
			c := bucket(tx, bucketLapse).Cursor()
			for key, _ := c.First(); key != nil && len(entries) < pruneChunk; key, _ = c.Next() {
				if len(key) <= 8 {
					return fmt.Errorf("bolt: lapse: %w: key of %d bytes", errDamaged, len(key))
				}
				if bytes.Compare(key[:8], now) >= 0 {
					break
				}
				entries = append(entries, bytes.Clone(key))
			}
			return nil
		})
		if err != nil || len(entries) == 0 {
			return err
		}
		err = s.writeRetention(ctx, func(tx *bbolt.Tx) error {
			lapse := bucket(tx, bucketLapse)
			for _, entry := range entries {
				if lapse.Get(entry) == nil {
					continue // gone already, and a new tombstone of that id may be there
				}
				if err := bucket(tx, bucketIDs).Delete(entry[8:]); err != nil {
					return err
				}
				if err := lapse.Delete(entry); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// Tombstone implements store.Store.
func (s *Store) Tombstone(ctx context.Context, id string) (ts store.Tombstone, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		raw := bucket(tx, bucketIDs).Get([]byte(id))
		if len(raw) <= seqBytes {
			return fmt.Errorf("tombstone of task %s: %w", id, store.ErrNotFound)
		}
		ts, err = decodeTombstone(raw)
		return err
	})
	return ts, err
}

func decodeTombstone(raw []byte) (ts store.Tombstone, err error) {
	err = decode("tombstone", raw, 0, &ts)
	return ts, err
}
