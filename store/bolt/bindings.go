package bolt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// PutBinding implements store.Store.
func (s *Store) PutBinding(ctx context.Context, b store.Binding, fills ...api.Fill) (store.Binding, error) {
	key, err := bindingKey(b.BindingKey)
	if err != nil {
		return store.Binding{}, err
	}
	first := b.Fills
	b.Fills += uint64(len(fills))
	record, err := encode(revBytes, b)
	if err != nil {
		return store.Binding{}, err
	}
	points, err := fillRecords(first, fills)
	if err != nil {
		return store.Binding{}, err
	}
	err = s.write(ctx, func(tx *bbolt.Tx) error {
		bindings := bucket(tx, bucketBindings)
		if err := checkRev(bindings, key, b.Rev); err != nil {
			return err
		}
		for i, point := range points {
			if err := bucket(tx, bucketFills).Put(fillKey(key, first+uint64(i)), point); err != nil {
				return err
			}
		}
		b.Rev, err = putRecord(bindings, key, record)
		return err
	})
	if err != nil {
		return store.Binding{}, err
	}
	return b, nil
}

// fillRecords encodes points of a series, numbered from first.
func fillRecords(first uint64, fills []api.Fill) ([][]byte, error) {
	points := make([][]byte, len(fills))
	for i, f := range fills {
		record, err := encode(seqBytes, f)
		if err != nil {
			return nil, err
		}
		binary.BigEndian.PutUint64(record, first+uint64(i))
		points[i] = record
	}
	return points, nil
}

// fillKey is where the n-th point of a series stands: a ring, so that the oldest
// makes room.
func fillKey(binding []byte, n uint64) []byte {
	return binary.BigEndian.AppendUint16(append(slices.Clone(binding), 0), uint16(n%store.MaxFills))
}

// Fills implements store.Store.
func (s *Store) Fills(ctx context.Context, k store.BindingKey) ([]api.Fill, error) {
	key, err := bindingKey(k)
	if err != nil {
		return nil, err
	}
	type point struct {
		n uint64
		api.Fill
	}
	var points []point
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		return under(bucket(tx, bucketFills), key, 2, func(_, raw []byte) error {
			var p point
			if err := decode("fill", raw, seqBytes, &p.Fill); err != nil {
				return err
			}
			p.n = binary.BigEndian.Uint64(raw)
			points = append(points, p)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.n, b.n) })
	fills := make([]api.Fill, len(points))
	for i, p := range points {
		fills[i] = p.Fill
	}
	return fills, nil
}

// under calls fn for the entries of a binding: those whose key is the binding's, NUL
// and tail bytes. A workspace may begin like another one.
func under(b *bbolt.Bucket, binding []byte, tail int, fn func(key, raw []byte) error) error {
	prefix := append(slices.Clone(binding), 0)
	c := b.Cursor()
	for key, raw := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, raw = c.Next() {
		if len(key) != len(prefix)+tail {
			continue
		}
		if err := fn(key, raw); err != nil {
			return err
		}
	}
	return nil
}

// digestTail is how many bytes of a digest's key follow its binding's.
const digestTail = 8

// PutDigest implements store.Store.
func (s *Store) PutDigest(ctx context.Context, k store.BindingKey, d store.Digest) error {
	key, err := bindingKey(k)
	if err != nil {
		return err
	}
	if d.Generation < 1 {
		return fmt.Errorf("bolt: generation %d of a digest", d.Generation)
	}
	record, err := encode(0, d)
	if err != nil {
		return err
	}
	key = binary.BigEndian.AppendUint64(append(key, 0), uint64(d.Generation))
	return s.write(ctx, func(tx *bbolt.Tx) error {
		digests := bucket(tx, bucketDigests)
		if raw := digests.Get(key); raw != nil {
			var old store.Digest
			if err := decode("digest", raw, 0, &old); err != nil {
				return err
			}
			if old.Task != d.Task {
				return refuse(fmt.Errorf("digest %d: %w", d.Generation, store.ErrExists))
			}
			return nil
		}
		return digests.Put(key, record)
	})
}

// Digests implements store.Store.
func (s *Store) Digests(ctx context.Context, k store.BindingKey) (all []store.Digest, err error) {
	key, err := bindingKey(k)
	if err != nil {
		return nil, err
	}
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		return under(bucket(tx, bucketDigests), key, digestTail, func(_, raw []byte) error {
			var d store.Digest
			if err := decode("digest", raw, 0, &d); err != nil {
				return err
			}
			all = append(all, d)
			return nil
		})
	})
	return all, err
}
