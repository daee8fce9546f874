package relay

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"opencode-mesh/node/mail"
	"opencode-mesh/protocol/api"
)

// The buckets in the mail box.
const (
	bucketCarried = "peers.carried" // key → carried: from an agent here to one elsewhere
	bucketBrought = "peers.brought" // key → brought: from an agent elsewhere to one here
	bucketNodes   = "peers.nodes"   // node → shown: what other nodes showed last
	bucketWaiting = "peers.waiting" // proxy → waiting: rows that are kept for what waits at them
)

// carried is a message that was taken out of a proxy's spool and sent.
type carried struct {
	Proxy    string `json:"proxy"`
	From     string `json:"from"`
	ID       string `json:"id"`
	FromName string `json:"from_name,omitempty"`
	Node     string `json:"node"`
	NodeID   string `json:"node_id,omitempty"`
	To       string `json:"to"` // on that node
	ToName   string `json:"to_name,omitempty"`
	Mail     string `json:"mail"`
	Text     string `json:"text"` // its beginning
	Cut      bool   `json:"cut,omitempty"`
	AtMS     int64  `json:"at_ms"`
	// Status is final once it is not "".
	Status  string `json:"status,omitempty"`
	Why     string `json:"why,omitempty"`
	Settled bool   `json:"settled,omitempty"` // in the spool, too
	EndMS   int64  `json:"end_ms,omitempty"`
}

// brought is a message that another node sent.
type brought struct {
	Seq    uint64  `json:"seq"`
	Node   string  `json:"node"`
	NodeID string  `json:"node_id"`
	Proxy  string  `json:"proxy"` // of the sender
	Text   message `json:"message"`
	CameMS int64   `json:"came_ms"`
	// Tried is set before it is posted for the first time.
	Tried     bool   `json:"tried,omitempty"`
	Receipt   string `json:"receipt,omitempty"`
	ReceiptMS int64  `json:"receipt_ms,omitempty"`
	Status    string `json:"status,omitempty"`
	Why       string `json:"why,omitempty"`
	Cut       bool   `json:"cut,omitempty"` // of the text, at the end
	EndMS     int64  `json:"end_ms,omitempty"`
}

// shown is what another node showed last.
type shown struct {
	NodeID string          `json:"node_id"`
	Agents []api.PeerAgent `json:"agents"`
	AtMS   int64           `json:"at_ms"` // when the hub said so last
}

// key makes the key of a record out of words that may have anything in them.
func key(words ...string) []byte {
	sum := sha256.Sum256(encode(words))
	return []byte(hex.EncodeToString(sum[:]))
}

func (c *carried) key() []byte { return key(c.Proxy, c.From, c.ID) }

// key is that of the receiver's: it knows a message by its sender and id.
func (b *brought) key() []byte { return key(b.Text.To, b.Proxy, b.Text.ID) }

func put(tx *mail.Tx, bucket string, k []byte, v any) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	return b.Put(k, encode(v))
}

// get reads a record into v; false if there is none.
func get(tx *mail.Tx, bucket string, k []byte, v any) (bool, error) {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return false, nil
	}
	data := b.Get(k)
	if data == nil {
		return false, nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("%s: %w", bucket, err)
	}
	return true, nil
}

// all reads the records that pick chooses.
func all[V any](tx *mail.Tx, bucket string, pick func(*V) bool) (out []*V, err error) {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return nil, nil
	}
	err = b.ForEach(func(_, data []byte) error {
		v := new(V)
		if err := json.Unmarshal(data, v); err != nil {
			return fmt.Errorf("%s: %w", bucket, err)
		}
		if pick(v) {
			out = append(out, v)
		}
		return nil
	})
	return out, err
}

// nextSeq numbers what came in.
func nextSeq(tx *mail.Tx) (uint64, error) {
	b, err := tx.CreateBucketIfNotExists([]byte(bucketBrought))
	if err != nil {
		return 0, err
	}
	return b.NextSequence()
}

// view runs fn on what is on disk.
func (r *Relay) view(fn func(tx *mail.Tx) error) error { return r.cfg.Box.View(fn) }

// open are the messages of both ways that have not ended, those that came in order, and
// of those that went also the ones that ended a moment ago.
func (r *Relay) open() (out []*carried, in []*brought, err error) {
	now := r.nowMS()
	err = r.view(func(tx *mail.Tx) error {
		var a, b error
		out, a = all(tx, bucketCarried, func(c *carried) bool { return !c.Settled || now-c.EndMS < lingering.Milliseconds() })
		in, b = all(tx, bucketBrought, func(b *brought) bool { return b.Status == "" })
		return errors.Join(a, b)
	})
	slices.SortFunc(in, func(a, b *brought) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, in, err
}

// prune forgets what ended long ago, pruneStep messages of either way at the most, and says
// whether there is more.
func prune(tx *mail.Tx, before int64) (more bool, err error) {
	for _, bucket := range []string{bucketCarried, bucketBrought} {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			continue
		}
		var old [][]byte
		err := b.ForEach(func(k, data []byte) error {
			var end struct {
				EndMS   int64 `json:"end_ms"`
				Settled bool  `json:"settled"`
			}
			if err := json.Unmarshal(data, &end); err != nil {
				return fmt.Errorf("%s: %w", bucket, err)
			}
			if end.EndMS > 0 && end.EndMS < before && (end.Settled || bucket == bucketBrought) {
				if len(old) == pruneStep {
					more = true
					return nil
				}
				old = append(old, bytes.Clone(k))
			}
			return nil
		})
		for _, k := range old {
			err = errors.Join(err, b.Delete(k))
		}
		if err != nil {
			return false, err
		}
	}
	return more, nil
}
