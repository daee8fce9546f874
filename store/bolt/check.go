package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/boltdb"
)

// checker collects what is wrong with the records of a store. That an index agrees
// is checked from its records: each has its entries, and there are not more
// entries than those.
type checker struct {
	tx    *bbolt.Tx
	found []string
}

// report keeps a finding unless there are enough.
func (c *checker) report(format string, args ...any) {
	if len(c.found) < boltdb.MaxProblems {
		c.found = append(c.found, fmt.Sprintf(format, args...))
	}
}

// check looks at everything.
func (c *checker) check() {
	for _, name := range buckets {
		if bucket(c.tx, name) == nil && !slices.Contains(addedBuckets, name) {
			c.report("%s: bucket is missing", name)
		}
	}
	if len(c.found) > 0 {
		return
	}
	if info, err := readInfo(c.tx); err != nil || info.HubID == "" || info.Generation == "" {
		c.report("info: no hub id or generation (%v)", err)
	}
	c.identities()
	c.credentials()
	c.tasks()
	c.parts()
	c.bindings()
	c.mails()
	c.others()
}

// each calls fn for every record of a bucket, reports its error, and returns the
// number of records. show makes a key readable.
func (c *checker) each(name string, show func([]byte) string, fn func(key, raw []byte) error) (n int) {
	b := bucket(c.tx, name)
	if b == nil {
		return 0
	}
	cursor := b.Cursor()
	for key, raw := cursor.First(); key != nil; key, raw = cursor.Next() {
		n++
		if err := fn(key, raw); err != nil {
			c.report("%s %s: %v", name, show(key), err)
		}
	}
	return n
}

// entry reports a missing or wrong index entry of a record. A nil value is not
// looked at.
func (c *checker) entry(name string, key, value []byte, of string) {
	got := bucket(c.tx, name).Get(key)
	switch {
	case got == nil:
		c.report("%s: no entry of %s", name, of)
	case value != nil && !bytes.Equal(got, value):
		c.report("%s: entry of %s leads elsewhere", name, of)
	}
}

// count reports an index that has more or fewer entries than there are records.
func (c *checker) count(want int, of string, name string) {
	if got := bucket(c.tx, name).Stats().KeyN; got != want {
		c.report("%s: %d entries of %d %s", name, got, want, of)
	}
}

func quoted(key []byte) string { return fmt.Sprintf("%q", key) }

// short shows the beginning of a hash.
func short(key []byte) string { return fmt.Sprintf("%.4x…", key) }

// number shows a sequence number.
func number(key []byte) string {
	if len(key) < seqBytes {
		return quoted(key)
	}
	return fmt.Sprint(binary.BigEndian.Uint64(key))
}

func (c *checker) identities() {
	live := 0
	c.each(bucketIdentities, quoted, func(key, raw []byte) error {
		id, err := decodeIdentity(raw)
		if err != nil {
			return err
		}
		if id.ID != string(key) {
			return fmt.Errorf("the record is of %q", id.ID)
		}
		if id.Live() {
			live++
			c.entry(bucketNames, []byte(id.Name), key, "identity "+id.ID)
		}
		return nil
	})
	c.count(live, "live identities", bucketNames)
}

func (c *checker) credentials() {
	n := c.each(bucketCredentials, short, func(hash, raw []byte) error {
		cred, err := decodeCredential(hash, raw)
		if err != nil {
			return err
		}
		c.entry(bucketCredentialIDs, []byte(cred.ID), hash, "credential "+cred.ID)
		c.entry(bucketIssued, joinKey(cred.IdentityID, cred.ID), nil, "credential "+cred.ID)
		owner, err := identityAt(c.tx, cred.IdentityID)
		if err != nil {
			return err
		}
		if !owner.Live() && cred.RevokedAt.IsZero() {
			return fmt.Errorf("credential %s is valid and its identity is retired", cred.ID)
		}
		return nil
	})
	c.count(n, "credentials", bucketCredentialIDs)
	c.count(n, "credentials", bucketIssued)
}

func (c *checker) tasks() {
	last := bucket(c.tx, bucketTasks).Sequence()
	n := c.each(bucketTasks, number, func(key, raw []byte) error {
		t, err := taskAt(c.tx, key)
		if err != nil {
			return err
		}
		if h := taskHead(&t, t.Rev); !bytes.Equal(h[:], raw[:headBytes]) || t.Rev == 0 {
			return fmt.Errorf("the head does not belong to the record of %s", t.ID)
		}
		if t.Seq > last {
			return fmt.Errorf("the number is beyond the last, %d", last)
		}
		c.entry(bucketIDs, []byte(t.ID), key, "task "+t.ID)
		return nil
	})
	tombstones := c.tombstones()
	c.count(n+tombstones, "tasks and tombstones", bucketIDs)
	c.count(tombstones, "tombstones", bucketLapse)
}

func (c *checker) parts() {
	codes := make(map[byte]bool)
	for _, code := range partKinds {
		codes[code] = true
	}
	c.each(bucketParts, number, func(key, _ []byte) error {
		switch {
		case len(key) != partKeyBytes || !codes[key[seqBytes]]:
			return fmt.Errorf("part with a bad key of %d bytes", len(key))
		case bucket(c.tx, bucketTasks).Get(key[:seqBytes]) == nil:
			return fmt.Errorf("part of no task")
		}
		return nil
	})
}

// tombstones checks those among the ids and returns their number.
func (c *checker) tombstones() (n int) {
	c.each(bucketIDs, quoted, func(key, raw []byte) error {
		if len(raw) == seqBytes {
			return nil
		}
		n++
		ts, err := decodeTombstone(raw)
		if err != nil {
			return err
		}
		if ts.ID != string(key) {
			return fmt.Errorf("the tombstone is of %q", ts.ID)
		}
		c.entry(bucketLapse, append(uint64Key(timeKey(ts.Until)), key...), nil, "tombstone of "+ts.ID)
		return nil
	})
	return n
}

// bindings checks the bindings with what is kept beside them.
func (c *checker) bindings() {
	stored := make(map[string]uint64) // fills that were ever stored, by binding
	c.each(bucketBindings, quoted, func(key, raw []byte) error {
		b, err := decodeBinding(raw)
		if err != nil {
			return err
		}
		if want, err := bindingKey(b.BindingKey); err != nil || !bytes.Equal(want, key) {
			return fmt.Errorf("the binding is of %q", want)
		}
		stored[string(key)] = b.Fills
		return nil
	})
	kept := make(map[string]uint64) // fills that are there
	c.each(bucketFills, quoted, func(key, raw []byte) error {
		n, _, err := decodeFill(raw)
		if err != nil {
			return err
		}
		binding := key[:max(0, len(key)-len(fillKey(nil, 0)))]
		count, found := stored[string(binding)]
		switch {
		case !bytes.Equal(key, fillKey(binding, n)):
			return fmt.Errorf("fill %d is in the wrong slot", n)
		case !found:
			return fmt.Errorf("fill of no binding")
		case n >= count:
			return fmt.Errorf("fill %d of a binding that counts %d", n, count)
		}
		kept[string(binding)]++
		return nil
	})
	for binding, n := range stored {
		if want := min(n, store.MaxFills); kept[binding] != want {
			c.report("%s: %d fills of binding %q, which counts %d", bucketFills, kept[binding], binding, n)
		}
	}
	c.each(bucketDigests, quoted, func(key, raw []byte) error {
		d, err := decodeDigest(raw)
		if err != nil {
			return err
		}
		binding := key[:max(0, len(key)-len(digestKey(nil, 0)))]
		if !bytes.Equal(key, digestKey(binding, d.Generation)) {
			return fmt.Errorf("the digest is of generation %d", d.Generation)
		}
		if _, found := stored[string(binding)]; !found {
			return fmt.Errorf("digest of no binding")
		}
		return nil
	})
}

// mails checks the mails with their bodies.
func (c *checker) mails() {
	if bucket(c.tx, bucketMails) == nil {
		return
	}
	last, queued := bucket(c.tx, bucketMails).Sequence(), 0
	n := c.each(bucketMails, number, func(key, raw []byte) error {
		m, err := decodeMail(key, raw)
		if err != nil {
			return err
		}
		if m.Seq > last {
			return fmt.Errorf("the number is beyond the last, %d", last)
		}
		c.entry(bucketMailIDs, mailID(&m), key, "mail "+m.ID)
		if m.State != api.MailQueued {
			return nil
		}
		queued++
		body := bucket(c.tx, bucketMailBodies).Get(key)
		if body == nil || len(body) != m.Size {
			return fmt.Errorf("mail %s of %d bytes has a body of %d", m.ID, m.Size, len(body))
		}
		return nil
	})
	c.count(n, "mails", bucketMailIDs)
	c.count(queued, "queued mails", bucketMailBodies)
}

// others checks the records without an index.
func (c *checker) others() {
	c.each(bucketSettings, quoted, func(_, raw []byte) error {
		if revOf(raw) == 0 {
			return fmt.Errorf("no revision")
		}
		return nil
	})
	c.each(bucketNodes, quoted, func(key, raw []byte) error {
		n, err := decodeNode(raw)
		if err == nil && n.IdentityID != string(key) {
			return fmt.Errorf("the node record is of %q", n.IdentityID)
		}
		return err
	})
	for _, name := range []string{bucketAudit, bucketActs} {
		c.each(name, number, func(key, raw []byte) error {
			_, err := decodeAudit(key, raw)
			return err
		})
	}
}
