package bolt

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
)

// What the file says that it is.
const (
	fileName = "hub.db"
	kind     = "hub store"
	schema   = 1
)

// The buckets. Numbers in keys are big-endian, so that they sort; strings that are
// followed by something end with NUL. "rev" is the 8 bytes of a record's revision.
const (
	bucketInfo     = "info"     // "info" → JSON
	bucketSettings = "settings" // key → rev, value

	bucketIdentities = "identities" // id → rev, JSON
	bucketNames      = "names"      // name → id, live identities only

	bucketCredentials   = "credentials"    // hash → rev, JSON without the hash
	bucketCredentialIDs = "credential_ids" // id → hash
	bucketIssued        = "issued"         // identity NUL credential id → nothing

	bucketTasks = "tasks" // seq → task head, JSON
	bucketIDs   = "ids"   // task id → seq, or the tombstone's JSON when the task is forgotten
	bucketParts = "parts" // seq, kind, attempt, turn → text
	bucketLapse = "lapse" // time that a tombstone may go, id → nothing

	bucketBindings = "bindings" // controller NUL target NUL workspace → rev, JSON
	bucketFills    = "fills"    // binding's key, NUL, slot of MaxFills → number, JSON
	bucketDigests  = "digests"  // binding's key, NUL, generation → JSON
	bucketNodes    = "nodes"    // identity → rev, JSON
	bucketAudit    = "audit"    // seq → JSON
	bucketActs     = "acts"     // seq of the audit bucket → JSON

	bucketMails      = "mails"       // seq → JSON
	bucketMailIDs    = "mail_ids"    // sender's name NUL id → seq
	bucketMailBodies = "mail_bodies" // seq → body, of queued mails
)

// buckets are all of the above; logBuckets those with keys that only grow;
// addedBuckets came after the first release, so that a file which no hub of today
// has opened may be without them.
var (
	buckets = []string{
		bucketInfo, bucketSettings, bucketIdentities, bucketNames, bucketCredentials, bucketCredentialIDs, bucketIssued,
		bucketTasks, bucketIDs, bucketParts, bucketLapse, bucketBindings, bucketFills, bucketDigests, bucketNodes, bucketAudit, bucketActs,
		bucketMails, bucketMailIDs, bucketMailBodies,
	}
	logBuckets   = []string{bucketTasks, bucketParts, bucketLapse, bucketAudit, bucketActs, bucketMails, bucketMailBodies}
	addedBuckets = []string{bucketFills, bucketDigests, bucketActs, bucketMails, bucketMailIDs, bucketMailBodies}
)

const (
	revBytes = 8
	seqBytes = 8
	// recordHint is what most records take: buffers start with it and rarely grow.
	recordHint = 1 << 10
)

// nothing is the value of an index entry. Not nil: bbolt's Get returns nil for
// what is missing and, within a transaction, for a nil that was just put.
var nothing = []byte{}

// bucket returns a top-level bucket; the engine created all of them.
func bucket(tx *bbolt.Tx, name string) *bbolt.Bucket { return tx.Bucket([]byte(name)) }

// uint64Key is n as a key.
func uint64Key(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// timeKey maps a time to a number that sorts like it. It is never zero; times out of
// the range of nanoseconds are the first or the last of it.
func timeKey(t time.Time) uint64 {
	switch s := t.Unix(); {
	case s <= 0:
		return 1
	case s >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return uint64(t.UnixNano())
}

// joinKey makes a key of parts, all but the last followed by NUL.
func joinKey(parts ...string) []byte { return []byte(strings.Join(parts, "\x00")) }

// checkID refuses what cannot be part of a key.
func checkID(what, id string) error {
	if id == "" {
		return fmt.Errorf("bolt: %s is empty", what)
	}
	return checkText(what, id)
}

// checkText refuses what would end a part of a key early, or would not be the same
// in a record's JSON.
func checkText(what, s string) error {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("bolt: %s holds a NUL", what)
	case !utf8.ValidString(s):
		return fmt.Errorf("bolt: %s is not valid UTF-8", what)
	}
	return nil
}

// checkTime refuses the zero time where it would read as "never".
func checkTime(what string, t time.Time) error {
	if t.IsZero() {
		return fmt.Errorf("bolt: time of %s is zero", what)
	}
	return nil
}

// errDamaged is a record that does not read as what it should be.
var errDamaged = errors.New("damaged record")

// encode returns head zero bytes, for the caller to fill in, and v in JSON.
func encode(head int, v any) ([]byte, error) {
	buf := bytes.NewBuffer(make([]byte, head, recordHint))
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}

// decode reads a record's JSON behind head bytes.
func decode(name string, raw []byte, head int, v any) error {
	if len(raw) < head {
		return fmt.Errorf("bolt: %s: %w: %d bytes", name, errDamaged, len(raw))
	}
	if err := json.Unmarshal(raw[head:], v); err != nil {
		return fmt.Errorf("bolt: %s: %w: %w", name, errDamaged, err)
	}
	return nil
}

// revOf is the revision of a record as stored; 0 for one that does not exist.
func revOf(raw []byte) store.Rev {
	if len(raw) < revBytes {
		return 0
	}
	return store.Rev(binary.BigEndian.Uint64(raw))
}

// putRecord stores a record that encode made with revBytes of head under the next
// revision of its bucket. Those only grow, so that a record which was deleted and
// made again never has a revision that somebody still holds.
func putRecord(b *bbolt.Bucket, key, record []byte) (store.Rev, error) {
	rev, err := b.NextSequence()
	if err != nil {
		return 0, err
	}
	binary.BigEndian.PutUint64(record, rev)
	return store.Rev(rev), b.Put(key, record)
}
