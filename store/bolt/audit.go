package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// The audit log is in two buckets that share the numbers of the first, so that each
// is pruned by itself.

// AppendAudit implements store.Store.
func (s *Store) AppendAudit(ctx context.Context, e api.AuditEntry) error {
	records, err := auditRecords(e)
	if err != nil {
		return err
	}
	return s.write(ctx, func(tx *bbolt.Tx) error { return appendLog(tx, bucketAudit, records) })
}

// AppendActsLater implements store.Store.
func (s *Store) AppendActsLater(acts ...api.AuditEntry) error {
	records, err := auditRecords(acts...)
	if err != nil {
		return err
	}
	return fault(s.db.Enqueue(func(tx *bbolt.Tx) error { return appendLog(tx, bucketActs, records) }))
}

func auditRecords(entries ...api.AuditEntry) ([][]byte, error) {
	records := make([][]byte, len(entries))
	for i, e := range entries {
		e.Seq = 0 // the key tells
		var err error
		if records[i], err = encode(0, e); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// appendLog puts entries into a bucket of the log under the next numbers.
func appendLog(tx *bbolt.Tx, name string, records [][]byte) error {
	for _, record := range records {
		seq, err := bucket(tx, bucketAudit).NextSequence()
		if err != nil {
			return err
		}
		if err := bucket(tx, name).Put(uint64Key(seq), record); err != nil {
			return err
		}
	}
	return nil
}

// Audit implements store.Store. A limit below 1 means api.DefaultPage, one above
// api.MaxPage that.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) (page store.AuditPage, err error) {
	limit := pageSize(q.Limit)
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		page = store.AuditPage{}
		log := newLogCursor(tx, &q)
		last := uint64(0)
		for looked := 0; ; looked++ {
			key, raw := log.next()
			if key == nil {
				return nil
			}
			if len(page.Entries) == limit || looked == store.MaxAuditLook {
				page.Next = last
				return nil
			}
			e, err := decodeAudit(key, raw)
			if err != nil {
				return err
			}
			last = e.Seq
			if q.Matches(e) {
				page.Entries = append(page.Entries, e)
			}
		}
	})
	if err != nil {
		return store.AuditPage{}, err
	}
	return page, nil
}

// logCursor goes over both buckets of the log in the order of the numbers.
type logCursor struct {
	newest bool
	parts  [2]logPart
}

type logPart struct {
	c        *bbolt.Cursor
	key, raw []byte // where the cursor is
}

func newLogCursor(tx *bbolt.Tx, q *store.AuditQuery) *logCursor {
	l := &logCursor{newest: q.Newest}
	for i, name := range []string{bucketAudit, bucketActs} {
		p := &l.parts[i]
		p.c = bucket(tx, name).Cursor()
		switch {
		case !q.Newest:
			p.key, p.raw = p.c.Seek(uint64Key(q.After))
			if bytes.Equal(p.key, uint64Key(q.After)) {
				p.key, p.raw = p.c.Next()
			}
		case q.Before == 0:
			p.key, p.raw = p.c.Last()
		default:
			if key, _ := p.c.Seek(uint64Key(q.Before)); key == nil {
				p.key, p.raw = p.c.Last() // all are below
			} else {
				p.key, p.raw = p.c.Prev()
			}
		}
	}
	return l
}

// next returns the entry that comes next, a nil key at the end.
func (l *logCursor) next() (key, raw []byte) {
	p := &l.parts[0]
	other := &l.parts[1]
	if p.key == nil || other.key != nil && (bytes.Compare(other.key, p.key) < 0) != l.newest {
		p = other
	}
	key, raw = p.key, p.raw
	switch {
	case key == nil:
	case l.newest:
		p.key, p.raw = p.c.Prev()
	default:
		p.key, p.raw = p.c.Next()
	}
	return key, raw
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
	for _, name := range []string{bucketAudit, bucketActs} {
		if err := s.pruneLog(ctx, name, max(keep, 0)); err != nil {
			return err
		}
	}
	return nil
}

// pruneLog keeps the newest entries of one bucket of the log.
func (s *Store) pruneLog(ctx context.Context, name string, keep int) error {
	var newest []byte // of those that go
	err := s.read(ctx, func(tx *bbolt.Tx) error {
		newest = bytes.Clone(beyond(bucket(tx, name), keep))
		return nil
	})
	for more := newest != nil; more && err == nil; {
		err = s.writeRetention(ctx, func(tx *bbolt.Tx) error {
			log := bucket(tx, name)
			var keys [][]byte
			c := log.Cursor()
			for key, _ := c.First(); key != nil && len(keys) < pruneChunk && bytes.Compare(key, newest) <= 0; key, _ = c.Next() {
				keys = append(keys, key)
			}
			more = len(keys) == pruneChunk
			return deleteAll(log, keys)
		})
	}
	return err
}

// beyond is the key of the newest entry that is not one of the newest keep, nil if
// there is none. The numbers of a bucket have gaps, so entries are counted, unless the
// numbers show already that there are not so many.
func beyond(log *bbolt.Bucket, keep int) []byte {
	c := log.Cursor()
	first, _ := c.First()
	key, _ := c.Last()
	if len(first) != seqBytes || len(key) != seqBytes || binary.BigEndian.Uint64(key)-binary.BigEndian.Uint64(first) < uint64(keep) {
		return nil
	}
	for n := 0; key != nil && n < keep; n++ {
		key, _ = c.Prev()
	}
	return key
}
