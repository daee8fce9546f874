package bolt

import (
	"bytes"
	"strings"

	"go.etcd.io/bbolt"

	"opencode-mesh/store"
)

// searchChunk is how many tasks a search takes from the table at a time.
const searchChunk = 256

// search looks for a text in tasks, in any case, until it has looked at as much as
// one page may cost.
type search struct {
	text   string // in lower case
	looked int    // tasks
	read   int    // bytes of texts
}

func newSearch(text string) *search { return &search{text: strings.ToLower(text)} }

// over reports whether no further task is to be looked at.
func (s *search) over() bool { return s.looked >= store.MaxSearch || s.read >= store.MaxSearchBytes }

// in reports whether a task has the text.
func (s *search) in(tx *bbolt.Tx, t *store.Task) (bool, error) {
	s.looked++
	if s.has(t.ID) || s.has(t.Target.Name) || s.has(t.Controller.Name) || t.Outcome != nil && s.has(t.Outcome.Summary) {
		return true, nil
	}
	suffix, err := partSuffix(store.PartKey{Kind: store.PartText, Attempt: 1, Turn: 1})
	if err != nil {
		return false, err
	}
	raw := bucket(tx, bucketParts).Get(append(uint64Key(t.Seq), suffix[:]...))
	s.read += len(raw)
	return bytes.Contains(bytes.ToLower(raw), []byte(s.text)), nil
}

func (s *search) has(text string) bool { return strings.Contains(strings.ToLower(text), s.text) }
