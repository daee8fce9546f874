package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
)

// Setting implements store.Store.
func (s *Store) Setting(ctx context.Context, key string) (value []byte, rev store.Rev, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		raw := bucket(tx, bucketSettings).Get([]byte(key))
		if len(raw) < revBytes {
			return fmt.Errorf("setting %s: %w", key, store.ErrNotFound)
		}
		value, rev = append([]byte{}, raw[revBytes:]...), revOf(raw)
		return nil
	})
	return value, rev, err
}

// PutSetting implements store.Store. The key must not be empty.
func (s *Store) PutSetting(ctx context.Context, key string, value []byte, rev store.Rev) (store.Rev, error) {
	if err := checkID("setting's key", key); err != nil {
		return 0, err
	}
	record := append(make([]byte, revBytes, revBytes+len(value)), value...)
	return s.replace(ctx, bucketSettings, []byte(key), rev, record)
}

// replace stores a record if the one at key is still at rev; 0: if there is none.
func (s *Store) replace(ctx context.Context, name string, key []byte, rev store.Rev, record []byte) (next store.Rev, err error) {
	err = s.write(ctx, func(tx *bbolt.Tx) error {
		b := bucket(tx, name)
		if err := checkRev(b, key, rev); err != nil {
			return err
		}
		next, err = putRecord(b, key, record)
		return err
	})
	if err != nil {
		return 0, err
	}
	return next, nil
}

// checkRev refuses a change of a record that is not at rev.
func checkRev(b *bbolt.Bucket, key []byte, rev store.Rev) error {
	if revOf(b.Get(key)) != rev {
		return refuse(fmt.Errorf("%s: %w", bytes.ReplaceAll(key, []byte{0}, []byte{' '}), store.ErrConflict))
	}
	return nil
}

// bindingKey is a binding's key; the workspace may be empty.
func bindingKey(k store.BindingKey) ([]byte, error) {
	err := errors.Join(checkID("controller of binding", k.Controller), checkID("target of binding", k.Target),
		checkText("workspace of binding", k.Workspace))
	return joinKey(k.Controller, k.Target, k.Workspace), err
}

// Binding implements store.Store.
func (s *Store) Binding(ctx context.Context, k store.BindingKey) (b store.Binding, err error) {
	key, err := bindingKey(k)
	if err != nil {
		return b, err
	}
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		raw := bucket(tx, bucketBindings).Get(key)
		if raw == nil {
			return fmt.Errorf("binding of %s to %s %s: %w", k.Controller, k.Target, k.Workspace, store.ErrNotFound)
		}
		b, err = decodeBinding(raw)
		return err
	})
	return b, err
}

func decodeBinding(raw []byte) (b store.Binding, err error) {
	err = decode("binding", raw, revBytes, &b)
	b.Rev = revOf(raw)
	return b, err
}

// Bindings implements store.Store; an empty controller or target means any. In the
// order of controller, target, workspace.
func (s *Store) Bindings(ctx context.Context, controller, target string) (all []store.Binding, err error) {
	var prefix []byte
	if controller != "" {
		prefix = append([]byte(controller), 0)
	}
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		c := bucket(tx, bucketBindings).Cursor()
		for key, raw := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, raw = c.Next() {
			b, err := decodeBinding(raw)
			if err != nil {
				return err
			}
			if target == "" || b.Target == target {
				all = append(all, b)
			}
		}
		return nil
	})
	return all, err
}

// NodeRecord implements store.Store.
func (s *Store) NodeRecord(ctx context.Context, identity string) (n store.NodeRecord, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		raw := bucket(tx, bucketNodes).Get([]byte(identity))
		if raw == nil {
			return fmt.Errorf("record of node %s: %w", identity, store.ErrNotFound)
		}
		n, err = decodeNode(raw)
		return err
	})
	return n, err
}

func decodeNode(raw []byte) (n store.NodeRecord, err error) {
	err = decode("node record", raw, revBytes, &n)
	n.Rev = revOf(raw)
	return n, err
}

// PutNodeRecord implements store.Store.
func (s *Store) PutNodeRecord(ctx context.Context, n store.NodeRecord) (store.NodeRecord, error) {
	if err := checkID("identity of node record", n.IdentityID); err != nil {
		return store.NodeRecord{}, err
	}
	record, err := encode(revBytes, n)
	if err != nil {
		return store.NodeRecord{}, err
	}
	if n.Rev, err = s.replace(ctx, bucketNodes, []byte(n.IdentityID), n.Rev, record); err != nil {
		return store.NodeRecord{}, err
	}
	return n, nil
}

// NodeRecords implements store.Store, in the order of the identities.
func (s *Store) NodeRecords(ctx context.Context) (all []store.NodeRecord, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		return bucket(tx, bucketNodes).ForEach(func(_, raw []byte) error {
			n, err := decodeNode(raw)
			all = append(all, n)
			return err
		})
	})
	return all, err
}
