package bolt

import (
	"context"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// AppendAudit implements store.Store.
func (s *Store) AppendAudit(ctx context.Context, e api.AuditEntry) error {
	e.Seq = 0 // the key tells
	record, err := encode(0, e)
	if err != nil {
		return err
	}
	return s.write(ctx, func(tx *bbolt.Tx) error {
		audit := bucket(tx, bucketAudit)
		seq, err := audit.NextSequence()
		if err != nil {
			return err
		}
		return audit.Put(uint64Key(seq), record)
	})
}

// Audit implements store.Store. A limit below 1 means api.DefaultPage, one above
// api.MaxPage that.
func (s *Store) Audit(ctx context.Context, after uint64, limit int) (entries []api.AuditEntry, err error) {
	limit = pageSize(limit)
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		c := bucket(tx, bucketAudit).Cursor()
		key, raw := c.Seek(uint64Key(after))
		if len(key) == seqBytes && binary.BigEndian.Uint64(key) == after {
			key, raw = c.Next()
		}
		for ; key != nil && len(entries) < limit; key, raw = c.Next() {
			e, err := decodeAudit(key, raw)
			if err != nil {
				return err
			}
			entries = append(entries, e)
		}
		return nil
	})
	return entries, err
}

func decodeAudit(key, raw []byte) (e api.AuditEntry, err error) {
	if len(key) != seqBytes {
		return e, fmt.Errorf("bolt: audit: %w: key of %d bytes", errDamaged, len(key))
	}
	err = decode("audit entry", raw, 0, &e)
	e.Seq = binary.BigEndian.Uint64(key)
	return e, err
}

// PruneAudit implements store.Store. It works on a full disk too. A keep below 0
// means 0.
func (s *Store) PruneAudit(ctx context.Context, keep int) error {
	for {
		more := false
		err := s.writeRetention(ctx, func(tx *bbolt.Tx) error {
			audit := bucket(tx, bucketAudit)
			// Numbers have no gaps, so the newest ones can be told without counting.
			last, kept := audit.Sequence(), uint64(max(keep, 0))
			var keys [][]byte
			c := audit.Cursor()
			for key, _ := c.First(); key != nil && len(keys) < pruneChunk; key, _ = c.Next() {
				if last < kept || len(key) == seqBytes && binary.BigEndian.Uint64(key) > last-kept {
					break
				}
				keys = append(keys, key)
			}
			more = len(keys) == pruneChunk
			return deleteAll(audit, keys)
		})
		if err != nil || !more {
			return err
		}
	}
}
