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
	var next store.Rev
	err = s.write(ctx, func(tx *bbolt.Tx) (err error) {
		bindings := bucket(tx, bucketBindings)
		if err := checkRev(bindings, key, b.Rev); err != nil {
			return err
		}
		for i, point := range points {
			if err := bucket(tx, bucketFills).Put(fillKey(key, first+uint64(i)), point); err != nil {
				return err
			}
		}
		next, err = putRecord(bindings, key, record)
		return err
	})
	if err != nil {
		return store.Binding{}, err
	}
	b.Rev = next
	return b, nil
}

// fillRecords encodes points of a series, numbered from first: the ring's slots do
// not tell which of them is the oldest.
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
		return under(bucket(tx, bucketFills), key, func(raw []byte) (err error) {
			var p point
			p.n, p.Fill, err = decodeFill(raw)
			points = append(points, p)
			return err
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

// NewestFills implements store.Store. The number of each binding says in which slots
// its newest fills are.
func (s *Store) NewestFills(ctx context.Context, of []store.Binding, n int) ([][]api.Fill, error) {
	n = min(max(n, 0), store.MaxFills)
	out := make([][]api.Fill, len(of))
	err := s.read(ctx, func(tx *bbolt.Tx) error {
		bucket := bucket(tx, bucketFills)
		for i, b := range of {
			key, err := bindingKey(b.BindingKey)
			if err != nil {
				return err
			}
			first := b.Fills - min(b.Fills, uint64(n))
			out[i] = make([]api.Fill, 0, b.Fills-first)
			for number := first; number < b.Fills; number++ {
				raw := bucket.Get(fillKey(key, number))
				if raw == nil {
					continue // the binding is of another commit than this view
				}
				at, f, err := decodeFill(raw)
				if err != nil {
					return err
				}
				if at == number { // else its slot has been taken since
					out[i] = append(out[i], f)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func decodeFill(raw []byte) (n uint64, f api.Fill, err error) {
	if err := decode("fill", raw, seqBytes, &f); err != nil {
		return 0, f, err
	}
	return binary.BigEndian.Uint64(raw), f, nil
}

// under calls fn for the entries of a binding in the order of their keys. No part of
// a key holds a NUL, so that a workspace which begins like this one is not met.
func under(b *bbolt.Bucket, binding []byte, fn func(raw []byte) error) error {
	prefix := append(slices.Clone(binding), 0)
	c := b.Cursor()
	for key, raw := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, raw = c.Next() {
		if err := fn(raw); err != nil {
			return err
		}
	}
	return nil
}

// digestKey is where a generation of a binding's digest stands.
func digestKey(binding []byte, generation int) []byte {
	return binary.BigEndian.AppendUint64(append(slices.Clone(binding), 0), uint64(generation))
}

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
	at := digestKey(key, d.Generation)
	return s.write(ctx, func(tx *bbolt.Tx) error {
		if bucket(tx, bucketBindings).Get(key) == nil {
			return refuse(fmt.Errorf("digest of %s to %s %s: binding: %w", k.Controller, k.Target, k.Workspace, store.ErrNotFound))
		}
		digests := bucket(tx, bucketDigests)
		raw := digests.Get(at)
		if raw == nil {
			return digests.Put(at, record)
		}
		old, err := decodeDigest(raw)
		switch {
		case err != nil:
			return err
		case old.Task != d.Task:
			return refuse(fmt.Errorf("digest %d of %s: %w", d.Generation, old.Task, store.ErrExists))
		}
		return nil
	})
}

func decodeDigest(raw []byte) (d store.Digest, err error) {
	return d, decode("digest", raw, 0, &d)
}

// Digests implements store.Store.
func (s *Store) Digests(ctx context.Context, k store.BindingKey) (all []store.Digest, err error) {
	key, err := bindingKey(k)
	if err != nil {
		return nil, err
	}
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		return under(bucket(tx, bucketDigests), key, func(raw []byte) error {
			d, err := decodeDigest(raw)
			all = append(all, d)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
