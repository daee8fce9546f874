package mail

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
)

// The box's buckets. Numbers in keys and values are big-endian.
const (
	bucketMeta    = "mail.meta"
	bucketOut     = "mail.out"     // number → api.Mail, JSON; until its receipt
	bucketOutIDs  = "mail.out_ids" // id → number
	bucketOffered = "mail.offered" // number → the hub's time of the first offer
	bucketTargets = "mail.targets" // target → how many wait for it and their bytes; "": all
	bucketIn      = "mail.in"      // sender NUL id → stamp of the hub
	bucketStamps  = "mail.stamps"  // stamp, sender NUL id → nothing
)

var (
	buckets    = []string{bucketMeta, bucketOut, bucketOutIDs, bucketOffered, bucketTargets, bucketIn, bucketStamps}
	logBuckets = []string{bucketOut, bucketOffered, bucketStamps}

	keyHubID    = []byte("hub_id")
	keyLowWater = []byte("low_water")

	// nothing is the value of an index entry; bbolt takes nil for a missing one.
	nothing = []byte{}
)

// letter is what is in memory of a mail that has no receipt yet.
type letter struct {
	number uint64
	id     string
	laneKey
	// tried is set once the hub may have it: of a mail that an earlier process left
	// nobody knows.
	tried bool
	// told is set once the operator has been told that it waits.
	told bool
}

// line is what waits for one target and the hub has not taken, in order.
type line struct {
	to     string
	unsent []*letter
	busy   bool // a worker is at it
}

// load reads what has no receipt yet; called before the box is shared.
func (b *Box) load() error {
	fresh := false
	err := b.db.View(func(tx *bolt.Tx) error {
		switch hub := string(tx.Bucket([]byte(bucketMeta)).Get(keyHubID)); hub {
		case b.cfg.HubID:
		case "":
			fresh = true
		default:
			return fmt.Errorf("it belongs to hub %s, not to %s", hub, b.cfg.HubID)
		}
		return tx.Bucket([]byte(bucketOut)).ForEach(func(k, v []byte) error {
			m, err := decodeMail(v)
			if err != nil {
				return err
			}
			if len(k) != 8 {
				return fmt.Errorf("mail with a key of %d bytes", len(k))
			}
			b.enter(&letter{number: binary.BigEndian.Uint64(k), id: m.ID, laneKey: laneKey{m.To, m.Lane}, tried: true})
			return nil
		})
	})
	if err != nil || !fresh {
		return err
	}
	return b.db.Update(context.Background(), func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketMeta)).Put(keyHubID, []byte(b.cfg.HubID))
	})
}

func decodeMail(v []byte) (m api.Mail, err error) {
	if err := json.Unmarshal(v, &m); err != nil {
		return m, fmt.Errorf("mail record: %w", err)
	}
	return m, nil
}

// enter adds a letter. Called with mu held.
func (b *Box) enter(l *letter) {
	b.out[l.id] = l
	b.lanes[l.laneKey]++
	ln := b.lines[l.to]
	if ln == nil {
		ln = &line{to: l.to}
		b.lines[l.to] = ln
	}
	ln.unsent = append(ln.unsent, l)
	if n := len(ln.unsent); n > 1 && ln.unsent[n-2].number > l.number {
		slices.SortFunc(ln.unsent, func(x, y *letter) int { return cmp.Compare(x.number, y.number) })
	}
}

// leave takes a letter out that has its receipt.
func (b *Box) leave(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.out[id]
	if l == nil {
		return
	}
	delete(b.out, id)
	if b.lanes[l.laneKey]--; b.lanes[l.laneKey] == 0 {
		delete(b.lanes, l.laneKey)
	}
	b.taken(l)
}

// taken takes a letter out of its line. Called with mu held.
func (b *Box) taken(l *letter) {
	ln := b.lines[l.to]
	if ln == nil {
		return
	}
	if i := slices.Index(ln.unsent, l); i >= 0 {
		ln.unsent = slices.Delete(ln.unsent, i, i+1)
	}
	if len(ln.unsent) == 0 && !ln.busy {
		delete(b.lines, l.to)
	}
}

// Send puts a mail into the outbox within Update or a Handler's transaction. It is on
// its way once that is committed. ID (see NewID), Kind, To and Body are needed; an id
// that is in the outbox already is an error. ErrFull means that the sender has to
// wait.
func (b *Box) Send(tx *Tx, m api.Mail) error {
	m.From, m.FromID, m.SentMS = "", "", 0
	// As it will travel, so that no bound is met on the way only.
	body, err := json.Marshal(m.Body)
	if err != nil {
		return fmt.Errorf("mail: body: %w", err)
	}
	m.Body = body
	if err := m.Check(); err != nil {
		return err
	}
	ids := tx.Bucket([]byte(bucketOutIDs))
	if ids.Get([]byte(m.ID)) != nil {
		return fmt.Errorf("mail %s is in the outbox already", m.ID)
	}
	if err := b.count(tx, &m, 1); err != nil {
		return err
	}
	out := tx.Bucket([]byte(bucketOut))
	number, err := out.NextSequence()
	if err != nil {
		return err
	}
	record, err := json.Marshal(m)
	if err != nil {
		return err
	}
	key := uint64Key(number)
	if err := errors.Join(out.Put(key, record), ids.Put([]byte(m.ID), key)); err != nil {
		return err
	}
	if now, ok := b.hubNow(); ok {
		if err := tx.Bucket([]byte(bucketOffered)).Put(key, uint64Key(uint64(now))); err != nil {
			return err
		}
	}
	tx.OnCommit(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.enter(&letter{number: number, id: m.ID, laneKey: laneKey{m.To, m.Lane}})
		b.wake(b.lines[m.To])
	})
	return nil
}

// count adds a mail to what waits, or takes it away, and refuses what is too much.
func (b *Box) count(tx *bolt.Tx, m *api.Mail, d int64) error {
	sums := tx.Bucket([]byte(bucketTargets))
	for _, key := range []string{m.To, ""} {
		// Bolt has no empty keys.
		k := append([]byte(key), 0)
		var n, bytes int64
		if v := sums.Get(k); len(v) == 16 {
			n, bytes = int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))
		}
		n, bytes = max(0, n+d), max(0, bytes+d*int64(len(m.Body)+api.MailOverhead))
		switch {
		case d > 0 && key != "" && n > int64(b.cfg.MaxPerTarget):
			return fmt.Errorf("%w: %d mails wait for %s", ErrFull, n-1, key)
		case d > 0 && bytes > b.cfg.MaxBytes:
			return fmt.Errorf("%w: %d bytes wait", ErrFull, bytes)
		}
		var err error
		if n == 0 {
			err = sums.Delete(k)
		} else {
			err = sums.Put(k, append(uint64Key(uint64(n)), uint64Key(uint64(bytes))...))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func uint64Key(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
