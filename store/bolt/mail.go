package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// mailID is a mail's key among the ids.
func mailID(m *store.Mail) []byte { return joinKey(m.From.Name, m.ID) }

// AddMail implements store.Store.
func (s *Store) AddMail(ctx context.Context, m store.Mail, body []byte) (store.Mail, error) {
	err := errors.Join(checkID("mail id", m.ID), checkID("sender of mail", m.From.Name), checkID("target of mail", m.To), checkTime("mail", m.SentAt))
	switch {
	case err != nil:
		return store.Mail{}, err
	case m.State != api.MailQueued || m.Size != len(body):
		return store.Mail{}, fmt.Errorf("bolt: mail %s: a new one is queued and as large as its body", m.ID)
	}
	record, err := encode(0, m)
	if err != nil {
		return store.Mail{}, err
	}
	id := mailID(&m)
	err = s.write(ctx, func(tx *bbolt.Tx) error {
		ids, mails := bucket(tx, bucketMailIDs), bucket(tx, bucketMails)
		if ids.Get(id) != nil {
			return refuse(fmt.Errorf("mail %s of %s: %w", m.ID, m.From.Name, store.ErrExists))
		}
		seq, err := mails.NextSequence()
		if err != nil {
			return err
		}
		key := uint64Key(seq)
		m.Seq = seq
		return errors.Join(mails.Put(key, record), ids.Put(id, key), bucket(tx, bucketMailBodies).Put(key, text(body)))
	})
	if err != nil {
		return store.Mail{}, err
	}
	return m, nil
}

// MailBody implements store.Store.
func (s *Store) MailBody(ctx context.Context, seq uint64) (body []byte, err error) {
	err = s.read(ctx, func(tx *bbolt.Tx) error {
		raw := bucket(tx, bucketMailBodies).Get(uint64Key(seq))
		if raw == nil {
			return fmt.Errorf("body of mail %d: %w", seq, store.ErrNotFound)
		}
		body = bytes.Clone(raw)
		return nil
	})
	return body, err
}

// Mails implements store.Store. fn must not call the store.
func (s *Store) Mails(ctx context.Context, fn func(store.Mail) error) error {
	return s.read(ctx, func(tx *bbolt.Tx) error {
		return bucket(tx, bucketMails).ForEach(func(key, raw []byte) error {
			m, err := decodeMail(key, raw)
			if err != nil {
				return err
			}
			return fn(m)
		})
	})
}

func decodeMail(key, raw []byte) (m store.Mail, err error) {
	if len(key) != seqBytes {
		return m, fmt.Errorf("bolt: mail: %w: key of %d bytes", errDamaged, len(key))
	}
	err = decode("mail", raw, 0, &m)
	m.Seq = binary.BigEndian.Uint64(key)
	return m, err
}

// ChangeMails implements store.Store.
func (s *Store) ChangeMails(ctx context.Context, changes []store.MailChange) error {
	for i := range changes {
		c := &changes[i]
		if !c.Gone && c.Receipt.State != api.MailDelivered && c.Receipt.State != api.MailReturned {
			return fmt.Errorf("bolt: mail %d: %q is no end", c.Seq, c.Receipt.State)
		}
	}
	return s.writeRetention(ctx, func(tx *bbolt.Tx) error {
		for i := range changes {
			if err := changeMail(tx, &changes[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// changeMail moves one mail forward.
func changeMail(tx *bbolt.Tx, c *store.MailChange) error {
	mails, key := bucket(tx, bucketMails), uint64Key(c.Seq)
	raw := mails.Get(key)
	if raw == nil {
		return nil
	}
	m, err := decodeMail(key, raw)
	if err != nil {
		return err
	}
	switch {
	case c.Gone:
		err = errors.Join(mails.Delete(key), bucket(tx, bucketMailIDs).Delete(mailID(&m)))
	case m.State != api.MailQueued:
		return nil
	default:
		r := c.Receipt
		m.State, m.Code, m.Message, m.MayHaveArrived = r.State, r.Code, r.Message, r.MayHaveArrived
		record, encErr := encode(0, m)
		if encErr != nil {
			return encErr
		}
		err = mails.Put(key, record)
	}
	return errors.Join(err, bucket(tx, bucketMailBodies).Delete(key))
}
