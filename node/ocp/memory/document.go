package memory

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/blevesearch/bleve/v2/analysis"
	"github.com/blevesearch/bleve/v2/document"
	index "github.com/blevesearch/bleve_index_api"

	"opencode-mesh/protocol/ocp"
)

// The fields of a document of the engine.
const (
	fieldTitle   = "t" // words of title and paths
	fieldContent = "c" // words of the content, and "" once, by which items are counted
	fieldNames   = "n" // names of files and symbols
	fieldTimes   = "m" // kind and times, see times
	fieldItem    = "i" // the item itself, stored
)

// terms are the tokens of a field, found beforehand.
type terms []string

// Analyze implements analysis.Analyzer; the text was read already.
func (t terms) Analyze([]byte) analysis.TokenStream {
	tokens := make([]analysis.Token, len(t))
	stream := make(analysis.TokenStream, len(t))
	for i, term := range t {
		tokens[i] = analysis.Token{Term: []byte(term), Position: i + 1}
		stream[i] = &tokens[i]
	}
	return stream
}

// makeDocument makes what the engine keeps of an item.
func makeDocument(it *Item, raw []byte) *document.Document {
	prefixes := []string{all}
	if own := (Scope{Controller: it.Controller}).prefix(); own != "" {
		prefixes = append(prefixes, own)
	}
	var title, content, named terms
	put := func(to *terms) func(string) {
		return func(word string) {
			for _, p := range prefixes {
				*to = append(*to, p+word)
			}
		}
	}
	words(it.Title, put(&title))
	for _, p := range it.Paths {
		words(p, put(&title))
	}
	put(&content)("")
	words(it.Content, put(&content))
	for _, n := range names(it) {
		put(&named)(n)
	}
	doc := document.NewDocument(it.ID)
	text := func(name string, t terms, opt index.FieldIndexingOptions) {
		doc.AddField(document.NewTextFieldCustom(name, nil, nil, opt, t))
	}
	text(fieldTitle, title, index.IndexField)
	text(fieldContent, content, index.IndexField)
	text(fieldNames, named, index.IndexField|index.SkipFreqNorm)
	// Those of some items are wanted at a time, from all over the index: each is kept by
	// itself, and not packed together with those of a thousand others.
	text(fieldTimes, terms{timesOf(it).encode()}, index.IndexField|index.DocValues|index.SkipFreqNorm|index.SkipDVChunking|index.SkipDVCompression)
	doc.AddField(document.NewTextFieldCustom(fieldItem, nil, raw, index.StoreField, nil))
	return doc
}

// times is what of an item is looked at for many items at once. Times are Unix
// milliseconds.
type times struct {
	at, from, to int64
	kind         ocp.FrameKind
}

func timesOf(it *Item) times {
	t := times{at: it.At.UnixMilli(), from: it.ValidFrom.UnixMilli(), to: math.MaxInt64, kind: it.Kind}
	if !it.ValidTo.IsZero() {
		t.to = it.ValidTo.UnixMilli()
	}
	return t
}

const timesBytes = 3 * 16

// encode writes them in hexadecimal: the engine puts a byte of its own between values.
func (t times) encode() string {
	var b [24]byte
	binary.BigEndian.PutUint64(b[0:], uint64(t.at))
	binary.BigEndian.PutUint64(b[8:], uint64(t.from))
	binary.BigEndian.PutUint64(b[16:], uint64(t.to))
	return fmt.Sprintf("%x%s", b[:], t.kind)
}

func decodeTimes(b []byte) (t times, err error) {
	if len(b) < timesBytes {
		return t, fmt.Errorf("memory: %w: the times of an item have %d bytes", errDamaged, len(b))
	}
	for i, v := range []*int64{&t.at, &t.from, &t.to} {
		var n uint64
		for _, c := range b[i*16 : i*16+16] {
			switch {
			case c >= '0' && c <= '9':
				n = n<<4 | uint64(c-'0')
			case c >= 'a' && c <= 'f':
				n = n<<4 | uint64(c-'a'+10)
			default:
				return t, fmt.Errorf("memory: %w: the times of an item", errDamaged)
			}
		}
		*v = int64(n)
	}
	t.kind = ocp.FrameKind(b[timesBytes:])
	return t, nil
}

// holds reports whether an item was known and valid at a time.
func (t times) holds(at time.Time) bool {
	ms := at.UnixMilli()
	return t.at <= ms && t.from <= ms && ms < t.to
}

// newTimesReader reads the times of documents, best in the order of their numbers.
func newTimesReader(r index.IndexReader) (func(index.IndexInternalID) (times, error), error) {
	values, err := r.DocValueReader([]string{fieldTimes})
	if err != nil {
		return nil, err
	}
	return func(doc index.IndexInternalID) (t times, err error) {
		var bad error
		found := false
		err = values.VisitDocValues(doc, func(_ string, term []byte) {
			found = true
			t, bad = decodeTimes(term)
		})
		if err == nil {
			err = bad
		}
		if err == nil && !found {
			err = fmt.Errorf("memory: %w: an item has no times", errDamaged)
		}
		return t, err
	}, nil
}

// stored is an item as it is kept, nil when there is none.
func stored(r index.IndexReader, id string) (raw []byte, err error) {
	doc, err := r.Document(id)
	if err != nil || doc == nil {
		return nil, err
	}
	doc.VisitFields(func(f index.Field) {
		if f.Name() == fieldItem {
			raw = append([]byte(nil), f.Value()...)
		}
	})
	return raw, nil
}
