package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
)

// credentialRecord is a credential as its JSON has it: the hash is the key.
type credentialRecord struct {
	store.Credential
	Hash *struct{} `json:"hash,omitempty"` // hides the other; always nil
}

// AddCredential implements store.Store. ErrNotFound when there is no such identity,
// ErrConflict when it is retired, ErrExists when the id or the hash is in use.
func (s *Store) AddCredential(ctx context.Context, cred store.Credential) error {
	if err := checkID("credential id", cred.ID); err != nil {
		return err
	}
	return s.write(ctx, func(tx *bbolt.Tx) error {
		owner, err := identityAt(tx, cred.IdentityID)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return refuse(err)
		case err != nil:
			return err
		case !owner.Live():
			return refuse(fmt.Errorf("identity %s is retired: %w", owner.ID, store.ErrConflict))
		}
		if err := checkFreeCredential(tx, &cred); err != nil {
			return err
		}
		return makeCredential(tx, &cred)
	})
}

// checkFreeCredential refuses an id or a hash that is in use. The hash is not told.
func checkFreeCredential(tx *bbolt.Tx, cred *store.Credential) error {
	if bucket(tx, bucketCredentialIDs).Get([]byte(cred.ID)) != nil || bucket(tx, bucketCredentials).Get(cred.Hash[:]) != nil {
		return refuse(fmt.Errorf("credential %s: %w", cred.ID, store.ErrExists))
	}
	return nil
}

// makeCredential puts a checked credential.
func makeCredential(tx *bbolt.Tx, cred *store.Credential) error {
	if err := putCredential(tx, cred); err != nil {
		return err
	}
	if err := bucket(tx, bucketCredentialIDs).Put([]byte(cred.ID), cred.Hash[:]); err != nil {
		return err
	}
	return bucket(tx, bucketIssued).Put(joinKey(cred.IdentityID, cred.ID), nothing)
}

func putCredential(tx *bbolt.Tx, cred *store.Credential) error {
	record, err := encode(revBytes, credentialRecord{Credential: *cred})
	if err != nil {
		return err
	}
	_, err = putRecord(bucket(tx, bucketCredentials), cred.Hash[:], record)
	return err
}

// issuedTo returns the credentials of an identity.
func issuedTo(tx *bbolt.Tx, identity string) (creds []store.Credential, err error) {
	prefix := append([]byte(identity), 0)
	c := bucket(tx, bucketIssued).Cursor()
	for key, _ := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		cred, err := credentialByID(tx, string(key[len(prefix):]))
		if err != nil {
			return nil, err
		}
		creds = append(creds, cred)
	}
	return creds, nil
}

// CredentialByHash implements store.Store.
func (s *Store) CredentialByHash(ctx context.Context, hash [32]byte) (cred store.Credential, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		cred, err = credentialAt(tx, hash[:])
		return err
	})
	return cred, err
}

// Credentials implements store.Store, in the order of their ids.
func (s *Store) Credentials(ctx context.Context) (all []store.Credential, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		return bucket(tx, bucketCredentialIDs).ForEach(func(_, hash []byte) error {
			cred, err := credentialAt(tx, hash)
			all = append(all, cred)
			return err
		})
	})
	return all, err
}

func credentialByID(tx *bbolt.Tx, id string) (store.Credential, error) {
	hash := bucket(tx, bucketCredentialIDs).Get([]byte(id))
	if hash == nil {
		return store.Credential{}, fmt.Errorf("credential %s: %w", id, store.ErrNotFound)
	}
	return credentialAt(tx, hash)
}

func credentialAt(tx *bbolt.Tx, hash []byte) (store.Credential, error) {
	raw := bucket(tx, bucketCredentials).Get(hash)
	if raw == nil {
		return store.Credential{}, fmt.Errorf("credential: %w", store.ErrNotFound)
	}
	return decodeCredential(hash, raw)
}

func decodeCredential(hash, raw []byte) (store.Credential, error) {
	var r credentialRecord
	if err := decode("credential", raw, revBytes, &r); err != nil {
		return store.Credential{}, err
	}
	cred := r.Credential
	if copy(cred.Hash[:], hash) != len(hash) || len(hash) != len(cred.Hash) {
		return store.Credential{}, fmt.Errorf("bolt: credential: %w: hash of %d bytes", errDamaged, len(hash))
	}
	cred.Rev = revOf(raw)
	return cred, nil
}

// RevokeCredential implements store.Store. The first revocation's time stays.
func (s *Store) RevokeCredential(ctx context.Context, id string, at time.Time) error {
	if err := checkTime("revocation", at); err != nil {
		return err
	}
	return s.write(ctx, func(tx *bbolt.Tx) error {
		cred, err := credentialByID(tx, id)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return refuse(err)
		case err != nil:
			return err
		}
		return revoke(tx, cred, at)
	})
}

// revoke marks a credential revoked unless it is.
func revoke(tx *bbolt.Tx, cred store.Credential, at time.Time) error {
	if !cred.RevokedAt.IsZero() {
		return nil
	}
	cred.RevokedAt = at
	return putCredential(tx, &cred)
}

// PruneBrowsers implements store.Store.
func (s *Store) PruneBrowsers(ctx context.Context, now, unused time.Time) (int, error) {
	all, err := s.Credentials(ctx)
	if err != nil {
		return 0, err
	}
	over := slices.DeleteFunc(all, func(c store.Credential) bool { return !browserOver(c, now, unused) })
	if len(over) == 0 {
		return 0, nil // no write for nothing
	}
	removed := 0
	err = s.write(ctx, func(tx *bbolt.Tx) error {
		removed = 0
		for _, c := range over {
			c, err := credentialByID(tx, c.ID)
			switch {
			case errors.Is(err, store.ErrNotFound):
				continue
			case err != nil:
				return err
			case !browserOver(c, now, unused): // it was used meanwhile
				continue
			}
			if err := dropCredential(tx, c); err != nil {
				return err
			}
			removed++
		}
		return nil
	})
	return removed, err
}

// browserOver reports whether a credential is a browser's and of no more use.
func browserOver(c store.Credential, now, unused time.Time) bool {
	used := c.CreatedAt
	if c.LastUsed.After(used) {
		used = c.LastUsed
	}
	return c.Browser && (!c.RevokedAt.IsZero() || !now.Before(c.ExpiresAt) || used.Before(unused))
}

func dropCredential(tx *bbolt.Tx, c store.Credential) error {
	return errors.Join(
		bucket(tx, bucketCredentials).Delete(c.Hash[:]),
		bucket(tx, bucketCredentialIDs).Delete([]byte(c.ID)),
		bucket(tx, bucketIssued).Delete(joinKey(c.IdentityID, c.ID)),
	)
}

// touch records a use of a credential if it is the newest.
func touch(tx *bbolt.Tx, id string, at time.Time) error {
	cred, err := credentialByID(tx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case !at.After(cred.LastUsed):
		return nil
	}
	cred.LastUsed = at
	return putCredential(tx, &cred)
}
