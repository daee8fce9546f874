package bolt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
)

// CreateIdentity implements store.Store. ErrExists when the identity's id, or the
// credential's id or hash, is in use.
func (s *Store) CreateIdentity(ctx context.Context, id store.Identity, cred store.Credential) error {
	if err := checkNew(&id, &cred); err != nil {
		return err
	}
	return s.write(ctx, func(tx *bbolt.Tx) error {
		if bucket(tx, bucketNames).Get([]byte(id.Name)) != nil {
			return refuse(fmt.Errorf("name %s: %w", id.Name, store.ErrNameTaken))
		}
		if err := checkFree(tx, &id, &cred); err != nil {
			return err
		}
		return makeIdentity(tx, &id, &cred)
	})
}

// ReplaceIdentity implements store.Store. The old identity is retired at the new
// one's CreatedAt.
func (s *Store) ReplaceIdentity(ctx context.Context, old, id store.Identity, cred store.Credential) error {
	if err := errors.Join(checkNew(&id, &cred), checkTime("replacement", id.CreatedAt)); err != nil {
		return err
	}
	if id.Name != old.Name || id.ID == old.ID {
		return fmt.Errorf("bolt: identity %s cannot take over from %s: same name and another id needed", id.ID, old.ID)
	}
	return s.write(ctx, func(tx *bbolt.Tx) error {
		now, err := liveIdentity(tx, &old)
		if err != nil {
			return err
		}
		if now.Name != id.Name {
			return refuse(fmt.Errorf("identity %s is not called %s: %w", old.ID, id.Name, store.ErrConflict))
		}
		if err := checkFree(tx, &id, &cred); err != nil {
			return err
		}
		now.RetiredAt, now.ReplacedBy = id.CreatedAt, id.ID
		if err := retire(tx, &now); err != nil {
			return err
		}
		return makeIdentity(tx, &id, &cred)
	})
}

// RetireIdentity implements store.Store. ErrConflict when the revision moved or the
// identity is retired already.
func (s *Store) RetireIdentity(ctx context.Context, id store.Identity, at time.Time) error {
	if err := checkTime("retirement", at); err != nil {
		return err
	}
	return s.write(ctx, func(tx *bbolt.Tx) error {
		now, err := liveIdentity(tx, &id)
		if err != nil {
			return err
		}
		now.RetiredAt = at
		return retire(tx, &now)
	})
}

// checkNew checks an identity to make and its first credential.
func checkNew(id *store.Identity, cred *store.Credential) error {
	err := errors.Join(checkID("identity id", id.ID), checkID("identity name", id.Name), checkID("credential id", cred.ID))
	switch {
	case err != nil:
		return err
	case !id.Live():
		return fmt.Errorf("bolt: identity %s: made retired", id.ID)
	case cred.IdentityID != id.ID:
		return fmt.Errorf("bolt: credential %s belongs to %q, not to identity %s", cred.ID, cred.IdentityID, id.ID)
	}
	return nil
}

// checkFree refuses an identity or credential that exists.
func checkFree(tx *bbolt.Tx, id *store.Identity, cred *store.Credential) error {
	if bucket(tx, bucketIdentities).Get([]byte(id.ID)) != nil {
		return refuse(fmt.Errorf("identity %s: %w", id.ID, store.ErrExists))
	}
	return checkFreeCredential(tx, cred)
}

// makeIdentity puts a checked identity with its credential.
func makeIdentity(tx *bbolt.Tx, id *store.Identity, cred *store.Credential) error {
	if err := putIdentity(tx, id); err != nil {
		return err
	}
	if err := bucket(tx, bucketNames).Put([]byte(id.Name), []byte(id.ID)); err != nil {
		return err
	}
	return makeCredential(tx, cred)
}

func putIdentity(tx *bbolt.Tx, id *store.Identity) error {
	record, err := encode(revBytes, id)
	if err != nil {
		return err
	}
	_, err = putRecord(bucket(tx, bucketIdentities), []byte(id.ID), record)
	return err
}

// liveIdentity returns the identity as stored if it is live and still at the
// revision that the caller knows.
func liveIdentity(tx *bbolt.Tx, known *store.Identity) (store.Identity, error) {
	now, err := identityAt(tx, known.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return now, refuse(err)
	case err != nil:
		return now, err
	case now.Rev != known.Rev, !now.Live():
		return now, refuse(fmt.Errorf("identity %s: %w", known.ID, store.ErrConflict))
	}
	return now, nil
}

// retire stores a live identity as the retired one that it was made to: its name is
// free and its credentials are revoked.
func retire(tx *bbolt.Tx, id *store.Identity) error {
	if err := putIdentity(tx, id); err != nil {
		return err
	}
	if err := bucket(tx, bucketNames).Delete([]byte(id.Name)); err != nil {
		return err
	}
	creds, err := issuedTo(tx, id.ID)
	if err != nil {
		return err
	}
	for _, cred := range creds {
		if err := revoke(tx, cred, id.RetiredAt); err != nil {
			return err
		}
	}
	return nil
}

// Identity implements store.Store.
func (s *Store) Identity(ctx context.Context, id string) (found store.Identity, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		found, err = identityAt(tx, id)
		return err
	})
	return found, err
}

// IdentityByName implements store.Store.
func (s *Store) IdentityByName(ctx context.Context, name string) (found store.Identity, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		id := bucket(tx, bucketNames).Get([]byte(name))
		if id == nil {
			return fmt.Errorf("identity called %s: %w", name, store.ErrNotFound)
		}
		found, err = identityAt(tx, string(id))
		return err
	})
	return found, err
}

// Identities implements store.Store, in the order of their ids.
func (s *Store) Identities(ctx context.Context) (all []store.Identity, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		return bucket(tx, bucketIdentities).ForEach(func(_, raw []byte) error {
			id, err := decodeIdentity(raw)
			all = append(all, id)
			return err
		})
	})
	return all, err
}

func identityAt(tx *bbolt.Tx, id string) (store.Identity, error) {
	raw := bucket(tx, bucketIdentities).Get([]byte(id))
	if raw == nil {
		return store.Identity{}, fmt.Errorf("identity %s: %w", id, store.ErrNotFound)
	}
	return decodeIdentity(raw)
}

func decodeIdentity(raw []byte) (id store.Identity, err error) {
	err = decode("identity", raw, revBytes, &id)
	id.Rev = revOf(raw)
	return id, err
}
