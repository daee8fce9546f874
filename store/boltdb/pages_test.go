package boltdb_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/store/boltdb"
)

// sample is the content of a database file with everything that the format has:
// branches, leaves, overflow, nested and inline buckets, free pages. With freelist
// it is one that also stores the list of free pages, as other programs do.
func sample(t testing.TB, freelist bool) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sample")
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: 1024, NoSync: true, NoFreelistSync: !freelist})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("records"))
			if err != nil {
				return err
			}
			for i := range 60 {
				if err := b.Put(fmt.Appendf(nil, "key %d", i), make([]byte, 40+100*round)); err != nil {
					return err
				}
			}
			if err := b.Put([]byte("long"), bytes.Repeat([]byte("x"), 5000)); err != nil {
				return err
			}
			for _, name := range []string{"one", "two"} {
				in, err := b.CreateBucketIfNotExists([]byte(name))
				if err != nil {
					return err
				}
				if err := in.Put([]byte("k"), []byte("v")); err != nil {
					return err
				}
			}
			return b.Bucket([]byte("two")).Put([]byte("big"), make([]byte, 3000))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var content bytes.Buffer // without the unused end that the file has
	err = db.View(func(tx *bolt.Tx) error {
		_, err := tx.WriteTo(&content)
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return content.Bytes()
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func verify(content []byte) error {
	return boltdb.VerifyPages(bytes.NewReader(content), int64(len(content)))
}

// TestVerifiedFilesDoNotCrashBolt is what the verification is for: whatever passes
// it can be opened and read as a whole.
func TestVerifiedFilesDoNotCrashBolt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, freelist := range []bool{false, true} {
		sound := sample(t, freelist)
		if err := verify(sound); err != nil {
			t.Fatalf("sound file: %v", err)
		}
		passed, refused := 0, 0
		path := filepath.Join(t.TempDir(), "damaged")
		for range 4000 {
			content := bytes.Clone(sound)
			// Structure is at the beginning of pages: damage mostly that.
			at := random.IntN(len(content)/1024)*1024 + random.IntN(200)
			switch random.IntN(3) {
			case 0:
				content[at] ^= 1 << random.IntN(8)
			case 1:
				binary.NativeEndian.PutUint32(content[at&^3:], random.Uint32())
			case 2:
				from := random.IntN(len(content)/1024) * 1024
				copy(content[at&^1023:][:1024], sound[from:])
			}
			if verify(content) != nil {
				refused++
				continue
			}
			passed++
			if passed > 150 { // opening takes time
				continue
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			readAll(t, path)
		}
		if passed < 100 || refused < 500 {
			t.Errorf("%d damaged files passed, %d were refused: damage is too heavy or too light", passed, refused)
		}
	}
}

// readAll reads everything in a database with bbolt.
func readAll(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		t.Fatalf("a verified file does not open: %v", err)
	}
	defer db.Close()
	var all func(b *bolt.Bucket) error
	all = func(b *bolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil && b.Bucket(k) != nil {
				return all(b.Bucket(k))
			}
			_ = bytes.Clone(v)
			return nil
		})
	}
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return all(b) })
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheOlderHeadPageServesWhenTheNewerIsLost(t *testing.T) {
	for head := range 2 {
		content := sample(t, false)
		clear(content[head*1024 : (head+1)*1024])
		if err := verify(content); err != nil {
			t.Errorf("head page %d lost: %v", head, err)
		}
	}
	content := sample(t, false)
	clear(content[:2048])
	if verify(content) == nil {
		t.Error("passed without head pages")
	}
}

func TestVerificationFindsDamageThatBoltWouldFollow(t *testing.T) {
	const size = 1024
	const branch, leaf, freelist = 0x01, 0x02, 0x10
	order := binary.NativeEndian
	// element returns where entry i of a page begins, child where a branch entry keeps
	// the page below it, and key where a leaf entry has its key.
	element := func(page []byte, i int) []byte { return page[16+16*i:] }
	child := func(page []byte, i int) []byte { return element(page, i)[8:] }
	key := func(page []byte, i int) []byte { e := element(page, i); return e[order.Uint32(e[4:]):] }
	for name, tc := range map[string]struct {
		flags  uint16
		damage func(page []byte)
	}{
		"a page with two parents":         {branch, func(p []byte) { copy(child(p, 1)[:8], child(p, 0)) }},
		"a page below itself":             {branch, func(p []byte) { copy(child(p, 0)[:8], p) }},
		"a page beyond the end":           {branch, func(p []byte) { order.PutUint64(child(p, 0), 1<<40) }},
		"a head page in the tree":         {branch, func(p []byte) { order.PutUint64(child(p, 0), 0) }},
		"a branch without entries":        {branch, func(p []byte) { order.PutUint16(p[10:], 0) }},
		"more entries than fit":           {leaf, func(p []byte) { order.PutUint16(p[10:], 60000) }},
		"keys out of order":               {leaf, func(p []byte) { key(p, 1)[0] = 0 }},
		"a key that belongs elsewhere":    {leaf, func(p []byte) { key(p, int(order.Uint16(p[10:]))-1)[0] = 0xff }},
		"another page's number":           {leaf, func(p []byte) { order.PutUint64(p, 3) }},
		"a page longer than the file":     {leaf, func(p []byte) { order.PutUint32(p[12:], 1<<30) }},
		"a key longer than its page":      {leaf, func(p []byte) { order.PutUint32(element(p, 0)[8:], 1<<31) }},
		"a leaf of unknown type":          {leaf, func(p []byte) { order.PutUint16(p[8:], 0x33) }},
		"a free list of unknown type":     {freelist, func(p []byte) { order.PutUint16(p[8:], leaf) }},
		"a free list longer than it is":   {freelist, func(p []byte) { order.PutUint16(p[10:], 60000) }},
		"a free list with a page unknown": {freelist, func(p []byte) { order.PutUint64(p[16:], 1<<40) }},
		"a free list with a page in use":  {freelist, func(p []byte) { copy(p[16:24], p) }},
	} {
		t.Run(name, func(t *testing.T) {
			content := sample(t, true)
			hits := 0
			for at := 2 * size; at < len(content); at += size {
				page := content[at:]
				if order.Uint64(page) == uint64(at/size) && order.Uint16(page[8:]) == tc.flags && order.Uint16(page[10:]) > 1 {
					tc.damage(page)
					hits++
				}
			}
			if hits == 0 {
				t.Fatal("the sample has no such page")
			}
			if err := verify(content); err == nil {
				t.Error("not found")
			}
		})
	}
	t.Run("two buckets of one page", func(t *testing.T) {
		sound := sample(t, true)
		found := false
		for id := 2; id < len(sound)/size; id++ { // some are free, that is no damage
			content := bytes.Clone(sound)
			for at := range content {
				if bytes.HasPrefix(content[at:], []byte("two")) { // its entry: name, root page, sequence
					order.PutUint64(content[at+3:], uint64(id))
				}
			}
			err := verify(content)
			found = found || err != nil && strings.Contains(err.Error(), "used twice")
		}
		if !found {
			t.Error("not found")
		}
	})
	content := sample(t, true)
	if verify(content[:len(content)-size]) == nil {
		t.Error("a file without its last page passed")
	}
}

func FuzzVerifyPages(f *testing.F) {
	f.Add(sample(f, false))
	f.Add(sample(f, true))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, content []byte) {
		_ = verify(content) // must not panic, loop or take memory beyond the file's size
	})
}
