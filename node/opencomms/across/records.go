package across

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	ocm "opencode-mesh/protocol/opencomms"
)

// The buckets. Keys of what belongs to a link begin with its id and NUL; numbers in
// keys are big-endian.
const (
	bucketLinks  = "opencomms.links"      // link → Link
	bucketOffers = "opencomms.offers"     // node NUL their channel NUL our channel → offer
	bucketOut    = "opencomms.out"        // link, number → outgoing: noted, not sent yet
	bucketTraces = "opencomms.traces"     // link, message id → trace: what was noted and has not ended
	bucketEnded  = "opencomms.ended"      // link, number → trace: what has ended, the newest MaxEnded
	bucketTell   = "opencomms.tell"       // link, message id → telling: who is to be told of an end
	bucketIn     = "opencomms.in"         // link, number → incoming: not in the file yet
	bucketOpen   = "opencomms.open"       // link, origin → arrival: in the file, has not ended
	bucketKnown  = "opencomms.known"      // origin → nothing: what came in for the last window
	bucketCopies = "opencomms.broadcasts" // link, broadcast → broadcast: what was put into the file of it
	bucketChains = "opencomms.chains"     // message id → chain
	bucketAges   = "opencomms.ages"       // clock, ms, bucket NUL key → nothing
)

// outgoing is a message that was seen in the queue of a proxy.
type outgoing struct {
	Proxy   string  `json:"proxy"`  // session
	Sender  string  `json:"sender"` // session
	Message message `json:"message"`
}

// trace is what became of a message that was sent from here.
type trace struct {
	ID     string `json:"message_id"`
	Sender string `json:"sender"` // session
	Role   string `json:"role"`   // of the proxy
	State  string `json:"state"`
	Code   string `json:"code,omitempty"`
	AtMS   int64  `json:"at_ms"` // of the state
}

// telling is a notice that a sender is to get.
type telling struct {
	Sender string `json:"sender"` // session
	Text   string `json:"text"`
}

// incoming is a message that is to be put into the file.
type incoming struct {
	SentMS  int64   `json:"sent_ms"` // stamp of the hub
	CameMS  int64   `json:"came_ms"` // clock of this node
	Message message `json:"message"`
}

// arrival is a message that was put into the file.
type arrival struct {
	Link string `json:"link"` // the other side's
	ID   string `json:"message_id"`
}

// broadcast are the copies of a message that were put into the file.
type broadcast struct {
	First string   `json:"first"` // message id
	To    []string `json:"to"`    // sessions; each gets one copy
}

// closed reports whether a session gets no copy: it has one, or there are as many as a
// channel has others.
func (b *broadcast) closed(session string) bool {
	return slices.Contains(b.To, session) || len(b.To) >= ocm.MaxMembers-1
}

// chain is what a file may have forgotten of a message that crossed.
type chain struct {
	Hops        int    `json:"hops"`
	Root        string `json:"root,omitempty"`
	Correlation string `json:"correlation"`
}

// offer is the roster of a channel that is not linked here.
type offer struct {
	Peer   string `json:"peer"`
	PeerID string `json:"peer_id"`
	Roster roster `json:"roster"`
	AtMS   int64  `json:"at_ms"`
}

// key joins the parts of a key.
func key(parts ...string) []byte {
	var b bytes.Buffer
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(0)
		}
		b.WriteString(p)
	}
	return b.Bytes()
}

// origin names a message for ever: who sent it, over which link of theirs.
func origin(peer, link, id string) string { return peer + "\x00" + link + "\x00" + id }

// put writes a record.
func put(tx *bolt.Tx, bucket string, k []byte, v any) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	return b.Put(k, encode(v))
}

// add writes a record of a link behind all that are there.
func add(tx *bolt.Tx, bucket, link string, v any) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(binary.BigEndian.AppendUint64(append([]byte(link), 0), n), encode(v))
}

// get reads a record into v; false if there is none.
func get(tx *bolt.Tx, bucket string, k []byte, v any) (bool, error) {
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

func remove(tx *bolt.Tx, bucket string, k []byte) error {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	return b.Delete(k)
}

// errStop ends a walk without an error.
var errStop = errors.New("stop")

// walk calls fn with the records whose key begins with prefix, in order. fn must not
// change the bucket; errStop ends the walk.
func walk[V any](tx *bolt.Tx, bucket string, prefix []byte, fn func(k []byte, v *V) error) error {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for k, data := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, data = c.Next() {
		v := new(V)
		if err := json.Unmarshal(data, v); err != nil {
			return fmt.Errorf("%s: %w", bucket, err)
		}
		if err := fn(bytes.Clone(k), v); errors.Is(err, errStop) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// count is the number of records of a link, up to limit.
func count(tx *bolt.Tx, bucket, link string, limit int) int {
	return countAt(tx, bucket, key(link, ""), limit)
}

func countAt(tx *bolt.Tx, bucket string, prefix []byte, limit int) (n int) {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return 0
	}
	c := b.Cursor()
	for k, _ := c.Seek(prefix); n < limit && k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		n++
	}
	return n
}

// removeAll removes the records of a link.
func removeAll(tx *bolt.Tx, bucket, link string) error {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	prefix := key(link, "")
	var doomed [][]byte
	c := b.Cursor()
	for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		doomed = append(doomed, bytes.Clone(k))
	}
	for _, k := range doomed {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// The clocks by which records are forgotten: the hub's decides about what came in,
// so that a node whose clock is wrong forgets nothing too early (semantics 16).
const (
	clockHub   = "h"
	clockLocal = "l"
)

// remember writes a record that is forgotten when window is over, and removes a few
// of those for which it is.
func remember(tx *bolt.Tx, clock string, nowMS int64, bucket string, k []byte, v any) error {
	if err := put(tx, bucket, k, v); err != nil {
		return err
	}
	ages, err := tx.CreateBucketIfNotExists([]byte(bucketAges))
	if err != nil {
		return err
	}
	age := binary.BigEndian.AppendUint64([]byte(clock), uint64(max(0, nowMS)))
	if err := ages.Put(append(append(age, bucket+"\x00"...), k...), []byte{}); err != nil {
		return err
	}
	limit := binary.BigEndian.AppendUint64([]byte(clock), uint64(max(0, nowMS-window.Milliseconds())))
	var old [][]byte
	c := ages.Cursor()
	for a, _ := c.Seek([]byte(clock)); len(old) < pruneStep && a != nil && bytes.HasPrefix(a, []byte(clock)) && bytes.Compare(a, limit) < 0; a, _ = c.Next() {
		old = append(old, bytes.Clone(a))
	}
	for _, a := range old {
		name, rest, _ := bytes.Cut(a[len(clock)+8:], []byte{0})
		if err := errors.Join(remove(tx, string(name), rest), ages.Delete(a)); err != nil {
			return err
		}
	}
	return nil
}
