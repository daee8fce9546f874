package adopt

import (
	"context"
	"fmt"

	"opencode-mesh/node/mail"
)

// bucket is where the ids of adopted sessions are in the node's mail box. The spool knows
// endpoints only, and no session can be told from its endpoint.
const bucket = "peers.adopted"

// rows keeps which sessions were adopted.
type rows struct{ box *mail.Box }

func (r rows) put(ctx context.Context, session string) error {
	known := false
	err := r.box.View(func(tx *mail.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			known = b.Get([]byte(session)) != nil
		}
		return nil
	})
	if err == nil && !known {
		err = r.box.Update(ctx, func(tx *mail.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucket))
			if err != nil {
				return err
			}
			return b.Put([]byte(session), []byte{1})
		})
	}
	if err != nil {
		return fmt.Errorf("note that a session is adopted: %w", err)
	}
	return nil
}

func (r rows) drop(ctx context.Context, session string) error {
	return r.box.Update(ctx, func(tx *mail.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			return b.Delete([]byte(session))
		}
		return nil
	})
}

func (r rows) all() (sessions []string, err error) {
	err = r.box.View(func(tx *mail.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, _ []byte) error {
			sessions = append(sessions, string(k))
			return nil
		})
	})
	return sessions, err
}
